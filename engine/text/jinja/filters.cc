// Filters for one value.
#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/format_spec.h"
#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/sequence_filters.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

// A string as it is, another value as it prints.
Value SoftString(const Value& value) { return value.Is(Kind::kString) ? value : Value::String(Printed(value)); }

// A method of str on what the input prints as.
template <const char* method>
Value ByMethod(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  return FindStringMethod(method)(interpreter, SoftString(input), arguments);
}
constexpr char kUpper[] = "upper", kLower[] = "lower", kCapitalize[] = "capitalize";

Value Trim(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("trim", arguments, {"chars"});
  return FindStringMethod("strip")(interpreter, SoftString(input), {{reader.Get(0)}, {}});
}

bool StartsWord(std::string_view one) {
  return one == "-" || one == "(" || one == "{" || one == "[" || one == "<" || IsSpace(Utf8Character(one, one.size()));
}

Value Title(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("title", arguments, {});
  const Value soft = SoftString(input);
  const Text& text = soft.text();
  Text out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const auto next = [&] {
      return std::string_view(text.bytes()).substr(at, NextUtf8(std::string_view(text.bytes()).substr(at)).bytes);
    };
    const bool separator = StartsWord(next());
    while (at < text.size() && StartsWord(next()) == separator) at += next().size();
    const size_t first = begin + NextUtf8(std::string_view(text.bytes()).substr(begin)).bytes;
    out.Append(WithCase(text.Slice(begin, first), Case::kUpper));
    out.Append(WithCase(text.Slice(first, at), Case::kLower));
  }
  return Value::String(std::move(out));
}

Value LengthOf(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("length", arguments, {});
  return Value::Int(static_cast<Integer>(Length(input)));
}

Value ReplaceFilter(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("replace", arguments, {"old", "new", "count"}, 2);
  return Value::String(Replaced(Printed(input), Printed(reader.Get(0)), Printed(reader.Get(1)), reader.Int(2, -1)));
}

Value Default(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("default", arguments, {"default_value", "boolean"});
  const bool absent = input.Is(Kind::kUndefined) || (reader.True(1, false) && !IsTrue(input));
  return absent ? reader.Get(0, Value::String("")) : input;
}

Value ToString(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("string", arguments, {});
  return SoftString(input);
}

Value Escape(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("escape", arguments, {});
  return input.markup() ? input : Value::String(Escaped(Printed(input)), true);
}

Value ForceEscape(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("forceescape", arguments, {});
  return Value::String(Escaped(Printed(input)), true);
}

Value Safe(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("safe", arguments, {});
  return input.markup() ? input : Value::String(Printed(input), true);
}

Value ToJson(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = reader.True(0, false);
  style.sort_keys = reader.True(3, false);
  const Value indent = reader.Get(1);
  style.indented = !indent.Is(Kind::kNone);
  if (style.indented) {
    style.item_separator = Text(",", /*foreign=*/true);
    RequireDefined(indent);
    if (indent.Is(Kind::kString)) {
      style.indent = indent.text();
    } else {
      const Integer width = std::clamp<Integer>(reader.Int(1, 0), 0, 1 << 16);
      style.indent = Text(std::string(static_cast<size_t>(width), ' '));
    }
  }
  const Value separators = reader.Get(2);
  if (!separators.Is(Kind::kNone)) {
    const std::vector<Value> pair = ItemsOf(separators);
    if (pair.size() != 2 || !pair[0].Is(Kind::kString) || !pair[1].Is(Kind::kString)) {
      throw Failure{.message = "tojson(): separators must be two strings"};
    }
    style.item_separator = pair[0].text();
    style.key_separator = pair[1].text();
  }
  return Value::String(DumpJson(input, style));
}

Value Indent(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("indent", arguments, {"width", "first", "blank"});
  RequireDefined(input);
  if (!input.Is(Kind::kString)) throw Failure{.message = "indent() takes a string, not " + TypeName(input)};
  Text indent;
  if (reader.Get(0).Is(Kind::kString)) {
    indent = reader.Get(0).text();
  } else {
    const Integer width = std::clamp<Integer>(reader.Int(0, 4), 0, 1 << 16);
    indent = Text(std::string(static_cast<size_t>(width), ' '));
  }
  Text text = input.text();
  text.Append("\n");
  const bool blank = reader.True(2, false);
  Text out;
  if (reader.True(1, false)) out.Append(indent);
  bool first = true;
  for (const Text::Span& line : Lines(text.bytes(), false)) {
    if (!first) out.Append("\n");
    if (!std::exchange(first, false) && (blank || line.end > line.begin)) out.Append(indent);
    out.Append(text, line.begin, line.end);
  }
  return Value::String(std::move(out), input.markup());
}

Value Truncate(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const Integer length = reader.Int(0, 255), leeway = reader.Int(3, 5);
  const Value end = reader.String(2, "...");
  const auto end_length = static_cast<Integer>(Length(end));
  if (length < end_length) throw Failure{.message = "expected length >= " + PrintInteger(end_length)};
  if (leeway < 0) throw Failure{.message = "expected leeway >= 0"};
  if (static_cast<Integer>(Length(input)) - length <= leeway) return input;
  if (!input.Is(Kind::kString)) throw Failure{.message = "truncate() takes a string, not " + TypeName(input)};
  size_t cut = OffsetOf(input.bytes(), static_cast<size_t>(length - end_length));
  if (!reader.True(1, false)) {
    const size_t space = std::string_view(input.bytes()).substr(0, cut).rfind(' ');
    if (space != std::string_view::npos) cut = space;
  }
  Text text = input.text().Slice(0, cut);
  text.Append(input.markup() && !end.markup() ? Escaped(end.text()) : end.text());
  return Value::String(std::move(text), input.markup());
}

Value WordCount(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("wordcount", arguments, {});
  const Value soft = SoftString(input);
  Integer words = 0;
  bool inside = false;
  for (std::string_view rest = soft.bytes(); !rest.empty();) {
    const std::string_view one = rest.substr(0, NextUtf8(rest).bytes);
    rest.remove_prefix(one.size());
    Spend(1);
    const bool word = one == "_" || IsWordText(one);
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value::Int(words);
}

Value Center(Interpreter& interpreter, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("center", arguments, {"width"});
  return FindStringMethod("center")(interpreter, SoftString(input), {{Value::Int(reader.Int(0, 80))}, {}});
}

Value FormatFilter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Value format = SoftString(input);
  if (!arguments.named.empty() && !arguments.positional.empty()) {
    throw Failure{.message = "can't handle positional and keyword arguments at the same time"};
  }
  if (arguments.named.empty()) return PercentFormat(format, Value::Tuple(arguments.positional));
  Dict dict;
  for (const auto& [name, value] : arguments.named) dict.Set(name, value);
  return PercentFormat(format, Value::OfDict(std::move(dict)));
}

// --- Numbers

// Without white space around it, and with ASCII's digits in place of others.
std::string Trimmed(const std::string& text) {
  const Text::Span span = Stripped(text, nullptr, true, true);
  std::string out;
  size_t size = 0;
  for (size_t at = span.begin; at < span.end; at += size) {
    const int32_t digit = u_charDigitValue(static_cast<UChar32>(CharacterAt(text, at, &size)));
    if (digit >= 0) {
      out += static_cast<char>('0' + digit);
    } else {
      out.append(text, at, size);
    }
  }
  return out;
}

// Python's int(text, base) without what the text may have beside digits; none: it is no such number.
std::optional<Integer> ParseInteger(std::string text, int base) {
  if (base < 0 || base == 1 || base > 36) return std::nullopt;
  text = Trimmed(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  const auto has_prefix = [&](char letter) { return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter; };
  for (const auto& [letter, radix] : {std::pair{'x', 16}, {'o', 8}, {'b', 2}}) {
    if (!has_prefix(letter) || (base != radix && base != 0)) continue;
    base = radix;
    text.erase(0, 2);
    if (text.starts_with('_')) text.erase(0, 1);
    break;
  }
  if (base == 0) base = 10;
  if (text.empty() || text.ends_with('_') || text.starts_with('_') || text.find("__") != std::string::npos) {
    return std::nullopt;
  }
  Integer value = 0;
  for (const char c : text) {
    if (c == '_') continue;
    const int digit = c >= '0' && c <= '9'                     ? c - '0'
                      : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                               : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, Integer{base}, &value) || __builtin_add_overflow(value, Integer{digit}, &value)) {
      throw Failure{.message = "an integer needs more than 128 bits"};
    }
  }
  return negative ? -value : value;
}

std::optional<double> ParseFloat(std::string text) {
  text = Trimmed(text);
  if (text.starts_with('+')) text.erase(0, 1);
  if (text.empty() || text.ends_with('_') || text.starts_with('_') || text.find("__") != std::string::npos) {
    return std::nullopt;
  }
  std::erase(text, '_');
  if (text.find_first_of("xXpP(") != std::string::npos) return std::nullopt;
  double value = 0;
  const std::from_chars_result end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ptr != text.data() + text.size()) return std::nullopt;
  if (end.ec == std::errc::result_out_of_range) value = std::strtod(text.c_str(), nullptr);
  return end.ec == std::errc::invalid_argument ? std::nullopt : std::optional<double>(value);
}

Value ToInt(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("int", arguments, {"default", "base"});
  const Value fallback = reader.Get(0, Value::Int(0));
  if (input.Is(Kind::kUndefined)) RequireDefined(input);
  if (input.is_integer()) return Value::Int(input.integer(), input.foreign());
  std::optional<Integer> value;
  if (input.Is(Kind::kFloat)) {
    value = Truncated(input.number());
  } else if (input.Is(Kind::kString)) {
    value = ParseInteger(input.bytes(), static_cast<int>(std::clamp<Integer>(reader.Int(1, 10), -1, 37)));
    if (!value) {
      const std::optional<double> number = ParseFloat(input.bytes());
      if (number) value = Truncated(*number);
    }
  }
  return value ? Value::Int(*value, input.foreign() || (input.Is(Kind::kString) && input.text().any_foreign()))
               : fallback;
}

Value ToFloat(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("float", arguments, {"default"});
  if (input.Is(Kind::kUndefined)) RequireDefined(input);
  if (input.is_number()) return Value::Float(input.number(), input.foreign());
  if (input.Is(Kind::kString)) {
    const std::optional<double> number = ParseFloat(input.bytes());
    if (number) return Value::Float(*number, input.text().any_foreign());
  }
  return reader.Get(0, Value::Float(0));
}

Value Abs(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("abs", arguments, {});
  RequireDefined(input);
  if (!input.is_number()) throw Failure{.message = "bad operand type for abs(): '" + TypeName(input) + "'"};
  const bool negative = input.is_integer() ? input.integer() < 0 : std::signbit(input.number());
  return negative ? Negate(input) : Plus(input);
}

// Python's round of a float: to the nearest decimal, halves by the number's exact value.
double Rounded(double number, int digits) {
  if (!std::isfinite(number) || digits > 300) return number;
  if (digits < 0) {
    const double scale = std::pow(10.0, -digits);
    return std::nearbyint(number / scale) * scale;
  }
  char text[700];
  std::snprintf(text, sizeof(text), "%.*f", digits, number);
  return std::strtod(text, nullptr);
}

Value Round(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("round", arguments, {"precision", "method"});
  const Value method_value = reader.String(1, "common");
  const std::string& method = method_value.bytes();
  if (method != "common" && method != "ceil" && method != "floor") {
    throw Failure{.message = "method must be common, ceil or floor"};
  }
  const int digits = static_cast<int>(std::clamp<Integer>(reader.Int(0, 0), -300, 300));
  RequireDefined(input);
  if (!input.is_number()) throw Failure{.message = "type " + TypeName(input) + " doesn't define __round__ method"};
  if (method == "common") {
    if (!input.is_integer()) return Value::Float(Rounded(input.number(), digits), input.foreign());
    if (digits >= 0) return Value::Int(input.integer(), input.foreign());
    return Value::Int(RoundedToZeros(input.integer(), -digits), input.foreign());
  }
  const double scale = std::pow(10.0, digits);
  const double scaled = input.number() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale, input.foreign());
}

void AppendQuotedForUrl(const Value& value, bool in_query, Text* out) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  const Value soft = SoftString(value);
  for (const char& c : soft.bytes()) {
    Spend(1);
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && !in_query);
    const auto byte = static_cast<uint8_t>(c);
    const char escape[] = {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    if (plain) {
      out->Append(std::string_view(&c, 1), true);
    } else if (c == ' ' && in_query) {
      out->Append("+", true);
    } else {
      out->Append(std::string_view(escape, sizeof(escape)), true);
    }
  }
}

Value UrlEncode(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("urlencode", arguments, {});
  const bool pairs = input.Is(Kind::kDict) || (!input.Is(Kind::kString) && ItemsIfAny(input));
  Text out;
  if (!pairs) {
    AppendQuotedForUrl(input, false, &out);
    return Value::String(std::move(out));
  }
  for (const Value& pair : ItemsOf(input.Is(Kind::kDict) ? DictItems(input.dict()) : input)) {
    const std::vector<Value> items = ItemsOf(pair);
    if (items.size() != 2) throw Failure{.message = "urlencode() takes pairs"};
    if (!out.empty()) out.Append("&");
    AppendQuotedForUrl(items[0], true, &out);
    out.Append("=", true);
    AppendQuotedForUrl(items[1], true, &out);
  }
  return Value::String(std::move(out));
}

}  // namespace

Filter FindFilter(std::string_view name) {
  static const std::map<std::string_view, Filter> kFilters = {
      {"abs", &Abs},
      {"capitalize", &ByMethod<kCapitalize>},
      {"center", &Center},
      {"count", &LengthOf},
      {"d", &Default},
      {"default", &Default},
      {"e", &Escape},
      {"escape", &Escape},
      {"float", &ToFloat},
      {"forceescape", &ForceEscape},
      {"format", &FormatFilter},
      {"indent", &Indent},
      {"int", &ToInt},
      {"length", &LengthOf},
      {"lower", &ByMethod<kLower>},
      {"replace", &ReplaceFilter},
      {"round", &Round},
      {"safe", &Safe},
      {"string", &ToString},
      {"title", &Title},
      {"tojson", &ToJson},
      {"trim", &Trim},
      {"truncate", &Truncate},
      {"upper", &ByMethod<kUpper>},
      {"urlencode", &UrlEncode},
      {"wordcount", &WordCount},
  };
  const auto found = kFilters.find(name);
  return found == kFilters.end() ? FindSequenceFilter(name) : found->second;
}

}  // namespace fastdecode::jinja
