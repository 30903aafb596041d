#include "engine/text/jinja/formatting.h"

#include <algorithm>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/format_spec.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

// The arguments of one % operator, taken in order or by name.
class PercentArguments {
 public:
  explicit PercentArguments(const Value& given) : given_(given) {}

  Value Next() {
    if (given_.Is(Kind::kTuple)) {
      if (next_ >= given_.items().size()) throw Failure{.message = "not enough arguments for format string"};
      return given_.items()[next_++];
    }
    if (next_++ > 0) throw Failure{.message = "not enough arguments for format string"};
    return given_;
  }
  Value Named(std::string_view name) {
    if (!given_.Is(Kind::kDict)) throw Failure{.message = "format requires a mapping"};
    named_ = true;
    const Value* const item = given_.dict().Find(name);
    if (item == nullptr) throw Failure{.message = "KeyError: '" + std::string(name) + "'"};
    return *item;
  }
  void CheckAllTaken() const {
    const bool left = given_.Is(Kind::kTuple) ? next_ < given_.items().size() : next_ == 0 && !given_.Is(Kind::kDict);
    if (left && !named_) throw Failure{.message = "not all arguments converted during string formatting"};
  }

 private:
  const Value& given_;
  size_t next_ = 0;
  bool named_ = false;
};

Text EscapedUnlessMarkup(const Value& value) { return value.markup() ? value.text() : Escaped(Printed(value)); }

Text PercentItem(const Value& value, FormatSpec spec, bool markup) {
  switch (spec.type) {
    case 's':
    case 'r':
    case 'a': {
      Text text = spec.type == 's' ? Printed(value) : spec.type == 'r' ? Represented(value) : RepresentedInAscii(value);
      if (markup) text = spec.type == 's' ? EscapedUnlessMarkup(value) : Escaped(text);
      if (spec.precision) text = text.Slice(0, OffsetOf(text.bytes(), *spec.precision));
      return Padded(text, spec.width, spec.align == 0 ? '>' : spec.align, Text(" "));
    }
    case 'c':
      if (value.Is(Kind::kString)) {
        if (Length(value) != 1) throw Failure{.message = "%c requires int or char"};
        return Padded(value.text(), spec.width, spec.align == 0 ? '>' : spec.align, Text(" "));
      }
      break;
    case 'i':
    case 'u':
      spec.type = 'd';
      break;
    default:
      break;
  }
  if (std::string_view("doxXceEfFgG").find(spec.type) == std::string_view::npos || spec.type == 0) {
    throw Failure{.message = std::string("unsupported format character '") + spec.type + "'"};
  }
  RequireDefined(value);
  if (!value.is_number()) {
    throw Failure{.message =
                      std::string("%") + spec.type + " format: a real number is required, not " + TypeName(value)};
  }
  const bool to_integer = std::string_view("doxX").find(spec.type) != std::string_view::npos;
  if (to_integer && value.Is(Kind::kFloat) && spec.type != 'd') {
    throw Failure{.message = std::string("%") + spec.type + " format: an integer is required, not float"};
  }
  if (to_integer) spec.precision.reset();
  if (!to_integer || !value.Is(Kind::kFloat)) return FormatValue(value, spec);
  const std::optional<Integer> integer = Truncated(value.number());
  if (!integer) throw Failure{.message = "cannot convert float " + PrintFloat(value.number()) + " to integer"};
  return FormatValue(Value::Int(*integer, value.foreign()), spec);
}

// Reads what stands between % and the type.
FormatSpec ReadPercentSpec(std::string_view text, size_t* at, PercentArguments* arguments) {
  FormatSpec spec;
  for (; *at < text.size() && std::string_view("-+ #0").find(text[*at]) != std::string_view::npos; ++*at) {
    const char c = text[*at];
    if (c == '-') spec.align = '<';
    if (c == '+' || (c == ' ' && spec.sign != '+')) spec.sign = c;
    if (c == '#') spec.alternate = true;
    if (c == '0') spec.zero = true;
  }
  if (spec.align == '<') spec.zero = false;
  const auto count = [&]() -> size_t {
    if (*at < text.size() && text[*at] == '*') {
      ++*at;
      const Value value = arguments->Next();
      if (!value.is_integer()) throw Failure{.message = "* wants int"};
      if (value.integer() < 0 || value.integer() > (1 << 20)) throw Failure{.message = "width too big"};
      return static_cast<size_t>(value.integer());
    }
    size_t number = 0;
    for (; *at < text.size() && text[*at] >= '0' && text[*at] <= '9'; ++*at) {
      number = number * 10 + static_cast<size_t>(text[*at] - '0');
      if (number > (1 << 20)) throw Failure{.message = "width too big"};
    }
    return number;
  };
  spec.width = count();
  if (*at < text.size() && text[*at] == '.') {
    ++*at;
    spec.precision = count();
  }
  while (*at < text.size() && std::string_view("hlL").find(text[*at]) != std::string_view::npos) ++*at;
  if (*at >= text.size()) throw Failure{.message = "incomplete format"};
  spec.type = text[(*at)++];
  return spec;
}

// Python's str.format, whose fields are read as the sandbox reads attributes. What a field that came from the request
// picks and pads is the request's, whoever wrote the value.
class BraceFormatter {
 public:
  BraceFormatter(Interpreter* interpreter, const Arguments& arguments, bool markup)
      : interpreter_(interpreter), arguments_(arguments), markup_(markup) {
    for (const auto& [name, value] : arguments.named) named_.emplace(name.bytes(), &value);
  }

  Text Run(const Text& format, int depth) {
    if (depth > 2) throw Failure{.message = "Max string recursion exceeded"};
    const std::string& bytes = format.bytes();
    Text out;
    for (size_t at = 0; at < bytes.size();) {
      Spend(1);
      const size_t brace = bytes.find_first_of("{}", at);
      out.Append(format, at, std::min(brace, bytes.size()));
      if (brace == std::string::npos) break;
      if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
        out.Append(format, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (bytes[brace] == '}') throw Failure{.message = "Single '}' encountered in format string"};
      const size_t end = FieldEnd(bytes, brace + 1);
      const Text field = format.Slice(brace + 1, end);
      const Text formatted = Field(field, depth);
      out.Append(field.any_foreign() ? formatted.AsForeign() : formatted);
      at = end + 1;
    }
    return out;
  }

 private:
  static size_t FieldEnd(const std::string& bytes, size_t at) {
    int open = 1;
    for (; at < bytes.size(); ++at) {
      if (bytes[at] == '{') ++open;
      if (bytes[at] == '}' && --open == 0) return at;
    }
    throw Failure{.message = "expected '}' before end of string"};
  }

  Text Field(const Text& field, int depth) {
    const std::string& bytes = field.bytes();
    const size_t name_end = std::min(bytes.find_first_of("!:"), bytes.size());
    Value value = Named(bytes.substr(0, name_end));
    size_t at = name_end;
    char conversion = 0;
    if (at < bytes.size() && bytes[at] == '!') {
      if (at + 1 >= bytes.size()) throw Failure{.message = "end of string while looking for conversion specifier"};
      conversion = bytes[at + 1];
      at += 2;
      if (at < bytes.size() && bytes[at] != ':') throw Failure{.message = "expected ':' after conversion specifier"};
    }
    if (conversion == 's') {
      value = Value::String(Printed(value));
    } else if (conversion == 'r') {
      value = Value::String(Represented(value));
    } else if (conversion == 'a') {
      value = Value::String(RepresentedInAscii(value));
    } else if (conversion != 0) {
      throw Failure{.message = "unknown conversion specifier in format string"};
    }
    const Text spec = at < bytes.size() ? Run(field.Slice(at + 1, bytes.size()), depth + 1) : Text();
    return FormatValue(markup_ ? Value::String(EscapedUnlessMarkup(value)) : value, ReadFormatSpec(spec));
  }

  Value Named(const std::string& name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    Value value = First(name.substr(0, first_end));
    for (size_t at = first_end; at < name.size();) {
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        value = interpreter_->Attribute(value, name.substr(at + 1, end - at - 1));
        at = end;
      } else {
        const size_t end = name.find(']', at);
        if (end == std::string::npos) throw Failure{.message = "Missing ']' in format string"};
        const std::string key = name.substr(at + 1, end - at - 1);
        const bool number = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
        value = interpreter_->ItemOf(value, number ? Value::Int(std::stol(key)) : Value::String(key));
        at = end + 1;
      }
    }
    return value;
  }

  Value First(const std::string& name) {
    if (name.empty() || name.find_first_not_of("0123456789") == std::string::npos) {
      if (name.size() > 6) throw Failure{.message = "Too many decimal digits in format string"};
      const size_t index = name.empty() ? automatic_++ : static_cast<size_t>(std::stol(name));
      (name.empty() ? has_automatic_ : has_manual_) = true;
      if (has_automatic_ && has_manual_) {
        throw Failure{.message = "cannot switch between manual field specification and automatic field numbering"};
      }
      if (index >= arguments_.positional.size()) {
        throw Failure{.message =
                          "Replacement index " + std::to_string(index) + " out of range for positional args tuple"};
      }
      return arguments_.positional[index];
    }
    const auto found = named_.find(name);
    if (found != named_.end()) return *found->second;
    throw Failure{.message = "KeyError: '" + name + "'"};
  }

  Interpreter* const interpreter_;
  const Arguments& arguments_;
  const bool markup_;
  absl::flat_hash_map<std::string_view, const Value*> named_;  // of arguments_
  size_t automatic_ = 0;
  bool has_automatic_ = false, has_manual_ = false;
};

}  // namespace

Text Escaped(const Text& text) {
  const std::string& bytes = text.bytes();
  Text out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t mark = std::min(bytes.find_first_of("&<>\"'", at), bytes.size());
    out.Append(text, at, mark);
    if (mark == bytes.size()) break;
    const char c = bytes[mark];
    const char* const entity = c == '&'   ? "&amp;"
                               : c == '<' ? "&lt;"
                               : c == '>' ? "&gt;"
                               : c == '"' ? "&#34;"
                                          : "&#39;";
    out.Append(entity, text.IsForeign(mark));
    at = mark + 1;
  }
  return out;
}

Value PercentFormat(const Value& format, const Value& given) {
  const Text& text = format.text();
  const std::string& bytes = text.bytes();
  PercentArguments arguments(given);
  Text out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t mark = std::min(bytes.find('%', at), bytes.size());
    out.Append(text, at, mark);
    if (mark == bytes.size()) break;
    at = mark + 1;
    Spend(1);
    if (at < bytes.size() && bytes[at] == '%') {
      out.Append(text, mark, mark + 1);
      ++at;
      continue;
    }
    std::optional<Value> value;
    if (at < bytes.size() && bytes[at] == '(') {
      const size_t end = bytes.find(')', at);
      if (end == std::string::npos) throw Failure{.message = "incomplete format key"};
      value = arguments.Named(bytes.substr(at + 1, end - at - 1));
      at = end + 1;
    }
    const FormatSpec spec = ReadPercentSpec(bytes, &at, &arguments);
    if (!value) value = arguments.Next();
    // What a conversion that came from the request picks and pads is the request's.
    const Text item = PercentItem(*value, spec, format.markup());
    out.Append(text.Slice(mark, at).any_foreign() ? item.AsForeign() : item);
  }
  arguments.CheckAllTaken();
  return Value::String(std::move(out), format.markup());
}

Value BraceFormat(Interpreter& interpreter, const Value& format, const Arguments& arguments) {
  Text out = BraceFormatter(&interpreter, arguments, format.markup()).Run(format.text(), 1);
  return Value::String(std::move(out), format.markup());
}

}  // namespace fastdecode::jinja
