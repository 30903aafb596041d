// JSON to values, and values to JSON as Python's json module writes it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

constexpr size_t kJsonDepthMax = 100;

// Builds values from the events of nlohmann's parser.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit ValueBuilder(bool foreign) : foreign_(foreign) {}

  bool null() override { return Add(Value::None()); }
  bool boolean(bool value) override { return Add(Value::Bool(value, foreign_)); }
  bool number_integer(int64_t value) override { return Add(Value::Int(value, foreign_)); }
  bool number_unsigned(uint64_t value) override { return Add(Value::Int(static_cast<Integer>(value), foreign_)); }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") != std::string::npos) return Add(Value::Float(value, foreign_));
    // An integer that needs more than 64 bits.
    Integer integer = 0;
    const bool negative = text[0] == '-';
    for (size_t i = negative ? 1 : 0; i < text.size(); ++i) {
      if (__builtin_mul_overflow(integer, Integer{10}, &integer) ||
          __builtin_sub_overflow(integer, Integer{text[i] - '0'}, &integer)) {
        return Fail("the number " + text + " needs more than 128 bits");
      }
    }
    if (!negative && __builtin_sub_overflow(Integer{0}, integer, &integer)) {
      return Fail("the number " + text + " needs more than 128 bits");
    }
    return Add(Value::Int(integer, foreign_));
  }
  bool string(std::string& value) override { return Add(Value::String(Text(std::move(value), foreign_))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(true); }
  bool key(std::string& value) override {
    open_.back().key = Value::String(Text(std::move(value), foreign_));
    return true;
  }
  bool end_object() override {
    Dict dict = std::move(open_.back().dict);
    open_.pop_back();
    return Add(Value::OfDict(std::move(dict)));
  }
  bool start_array(size_t) override { return Open(false); }
  bool end_array() override {
    std::vector<Value> items = std::move(open_.back().items);
    open_.pop_back();
    return Add(Value::List(std::move(items)));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // What nlohmann puts before its message is its own number of the error.
    const std::string text = error.what();
    const size_t end = text.find("] ");
    return Fail(end == std::string::npos ? text : text.substr(end + 2));
  }

  std::string error;
  Value result;

 private:
  struct Container {
    bool is_dict;
    Dict dict;
    std::vector<Value> items;
    Value key;
  };

  bool Fail(std::string why) {
    error = std::move(why);
    return false;
  }
  bool Open(bool is_dict) {
    if (open_.size() >= kJsonDepthMax) return Fail("it nests more than " + std::to_string(kJsonDepthMax) + " deep");
    open_.push_back({is_dict, {}, {}, {}});
    return true;
  }
  bool Add(Value value) {
    SpendBytes(sizeof(Value));
    if (open_.empty()) {
      result = std::move(value);
    } else if (open_.back().is_dict) {
      open_.back().dict.Set(std::move(open_.back().key), std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  const bool foreign_;
  std::vector<Container> open_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Text* out) : style_(style), out_(out) {}

  void Write(const Value& value) {
    const Nesting nesting;
    Spend(1);
    switch (value.kind()) {
      case Kind::kNone:
        return Mark("null");
      case Kind::kBool:
        return out_->Append(value.boolean() ? "true" : "false", true);
      case Kind::kInteger:
        return out_->Append(PrintInteger(value.integer()), true);
      case Kind::kFloat:
        return WriteFloat(value.number());
      case Kind::kString:
        return WriteString(value.text());
      case Kind::kList:
      case Kind::kTuple:
        return WriteList(value.items());
      case Kind::kDict:
        return WriteDict(value.dict());
      default:
        throw Failure{.message = "Object of type " + TypeName(value) + " is not JSON serializable"};
    }
  }

 private:
  void Mark(std::string_view punctuation) { out_->Append(punctuation, true); }

  void WriteFloat(double number) {
    std::string text = PrintFloat(number);
    if (text == "nan") text = "NaN";
    if (text == "inf") text = "Infinity";
    if (text == "-inf") text = "-Infinity";
    Mark(text);
  }

  static std::string UnicodeEscape(char32_t unit) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text = "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) text += kDigits[(unit >> shift) & 15];
    return text;
  }

  void WriteString(const Text& text) {
    const std::string& bytes = text.bytes();
    SpendSearch(bytes.size());
    Mark("\"");
    size_t size = 0;
    for (size_t at = 0; at < bytes.size(); at += size) {
      const char32_t c = CharacterAt(bytes, at, &size);
      const bool foreign = text.IsForeign(at);
      static constexpr std::string_view kShort = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
      const size_t place = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
      if (place != std::string_view::npos) {
        out_->Append(std::string("\\") + kLetters[place], foreign);
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7f && c < 0x10000 && c != 0x7f)) {
        out_->Append(UnicodeEscape(c), foreign);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        out_->Append(UnicodeEscape(0xd800 + ((c - 0x10000) >> 10)) + UnicodeEscape(0xdc00 + ((c - 0x10000) & 0x3ff)),
                     foreign);
      } else {
        out_->Append(text, at, at + size);
      }
    }
    Mark("\"");
  }

  void NewLine() {
    if (!style_.indented) return;
    Mark("\n");
    for (size_t i = 0; i < level_; ++i) out_->Append(style_.indent);
  }

  void WriteList(const std::vector<Value>& items) {
    if (items.empty()) return Mark("[]");
    Mark("[");
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_->Append(style_.item_separator);
      NewLine();
      Write(items[i]);
    }
    --level_;
    NewLine();
    Mark("]");
  }

  void WriteKey(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return WriteString(key.text());
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInteger:
      case Kind::kFloat:
        Mark("\"");
        Write(key);
        return Mark("\"");
      default:
        throw Failure{.message = "keys must be str, int, float, bool or None, not " + TypeName(key)};
    }
  }

  void WriteDict(const Dict& dict) {
    if (dict.items.empty()) return Mark("{}");
    std::vector<const std::pair<Value, Value>*> pairs;
    for (const auto& pair : dict.items) pairs.push_back(&pair);
    if (style_.sort_keys) {
      std::stable_sort(pairs.begin(), pairs.end(),
                       [](const auto* a, const auto* b) { return Compare(a->first, b->first, "<").value_or(0) < 0; });
    }
    Mark("{");
    ++level_;
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) out_->Append(style_.item_separator);
      NewLine();
      WriteKey(pairs[i]->first);
      out_->Append(style_.key_separator);
      Write(pairs[i]->second);
    }
    --level_;
    NewLine();
    Mark("}");
  }

  const JsonStyle& style_;
  Text* const out_;
  size_t level_ = 0;
};

}  // namespace

Text DumpJson(const Value& value, const JsonStyle& style) {
  Text text;
  JsonWriter(style, &text).Write(value);
  return text;
}

Value LoadJson(std::string_view json, bool foreign) {
  ValueBuilder builder(foreign);
  if (!nlohmann::json::sax_parse(json, &builder))
    throw Failure{.message = builder.error, .kind = Failure::Kind::kSyntax};
  return std::move(builder.result);
}

}  // namespace fastdecode::jinja
