#include "engine/text/jinja/format_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

constexpr size_t kWidthMax = 1 << 20;
constexpr size_t kPrecisionMax = 300;

size_t ReadCount(std::string_view* text, size_t max) {
  size_t count = 0;
  while (!text->empty() && text->front() >= '0' && text->front() <= '9') {
    count = count * 10 + static_cast<size_t>(text->front() - '0');
    if (count > max) throw Failure{.message = "a format's width or precision is more than " + std::to_string(max)};
    text->remove_prefix(1);
  }
  return count;
}

bool IsAlign(char c) { return c == '<' || c == '>' || c == '=' || c == '^'; }
// Whether a number's type writes it in tens.
bool IsDecimal(char type) { return std::string_view("xXob").find(type) == std::string_view::npos; }
bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

bool IsHexDigit(char c) { return IsAsciiDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// The digits of a number's whole part in groups, with zeros before them until there are `width` characters or one more:
// no group mark stands first.
std::string Grouped(const std::string& digits, const FormatSpec& spec, size_t width) {
  if (spec.grouping == 0) return digits;
  const bool by_four = !IsDecimal(spec.type);
  const size_t group = by_four ? 4 : 3;
  size_t whole = 0;
  while (whole < digits.size() && (by_four ? IsHexDigit(digits[whole]) : IsAsciiDigit(digits[whole]))) ++whole;
  std::string reversed;
  const size_t rest = digits.size() - whole;
  for (size_t count = 0; count < whole || reversed.size() + rest < width; ++count) {
    if (count > 0 && count % group == 0) reversed += spec.grouping;
    reversed += count < whole ? digits[whole - 1 - count] : '0';
  }
  return std::string(reversed.rbegin(), reversed.rend()) + digits.substr(whole);
}

using Magnitude = unsigned __int128;

std::string Digits(Magnitude value, unsigned base, bool upper) {
  const char* const digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string text;
  do {
    text += digits[static_cast<size_t>(value % base)];
    value /= base;
  } while (value != 0);
  std::reverse(text.begin(), text.end());
  return text;
}

std::string FloatDigits(double number, const FormatSpec& spec) {
  if (spec.type == 0 && !spec.precision) return PrintFloat(number);
  if (!std::isfinite(number)) return std::isnan(number) ? "nan" : "inf";
  const bool percent = spec.type == '%';
  const char type = percent ? 'f' : spec.type == 0 || spec.type == 'n' ? 'g' : spec.type;
  const std::string format = std::string("%") + (spec.alternate ? "#" : "") + ".*" + type;
  std::string text(512, 0);
  const int size = std::snprintf(text.data(), text.size(), format.c_str(), static_cast<int>(spec.precision.value_or(6)),
                                 percent ? number * 100 : number);
  if (size < 0 || static_cast<size_t>(size) >= text.size()) {
    throw Failure{.message = "a formatted number has more than 511 characters"};
  }
  text.resize(static_cast<size_t>(size));
  // Without a type, a number has a digit behind its point.
  if (spec.type == 0 && text.find_first_of(".e") == std::string::npos) text += ".0";
  return percent ? text + "%" : text;
}

[[noreturn]] void UnknownCode(const FormatSpec& spec, const Value& value) {
  throw Failure{.message = std::string("unknown format code '") + spec.type + "' for object of type '" +
                           TypeName(value) + "'"};
}

std::string IntegerDigits(Magnitude magnitude, const FormatSpec& spec, std::string* prefix) {
  switch (spec.type) {
    case 0:
    case 'd':
    case 'n':
      return Digits(magnitude, 10, false);
    case 'x':
    case 'X':
      if (spec.alternate) *prefix = std::string("0") + spec.type;
      return Digits(magnitude, 16, spec.type == 'X');
    case 'o':
      if (spec.alternate) *prefix = "0o";
      return Digits(magnitude, 8, false);
    default:
      if (spec.alternate) *prefix = "0b";
      return Digits(magnitude, 2, false);
  }
}

// What pads a value.
Text FillOf(const FormatSpec& spec) {
  return spec.zero && spec.align == 0 ? Text("0", spec.foreign) : Text(spec.fill.bytes(), spec.foreign);
}

void CheckGrouping(const FormatSpec& spec, bool integer) {
  const std::string_view types = !integer ? "eEfFgG%" : spec.grouping == '_' ? "dxXob" : "d";
  if (spec.grouping != 0 && spec.type != 0 && types.find(spec.type) == std::string_view::npos) {
    throw Failure{.message = std::string("Cannot specify '") + spec.grouping + "' with '" + spec.type + "'."};
  }
}

Text FormatNumber(const Value& value, const FormatSpec& spec) {
  const bool foreign = value.foreign() || spec.foreign;
  const bool integer = value.is_integer() && std::string_view("eEfFgG%").find(spec.type) == std::string_view::npos;
  CheckGrouping(spec, integer);
  std::string prefix, digits;
  bool negative = false;
  if (integer) {
    if (spec.type == 'c') {
      if (value.integer() < 0 || value.integer() > 0x10ffff) throw Failure{.message = "%c arg not in range(0x110000)"};
      std::string character;
      AppendUtf8(static_cast<char32_t>(value.integer()), &character);
      return Padded(Text(character, foreign), spec.width, spec.align == 0 ? '<' : spec.align, FillOf(spec));
    }
    if (spec.type != 0 && std::string_view("dnxXob").find(spec.type) == std::string_view::npos)
      UnknownCode(spec, value);
    negative = value.integer() < 0;
    const auto magnitude = static_cast<Magnitude>(value.integer());
    digits = IntegerDigits(negative ? -magnitude : magnitude, spec, &prefix);
  } else {
    if (spec.type != 0 && std::string_view("eEfFgGn%").find(spec.type) == std::string_view::npos)
      UnknownCode(spec, value);
    negative = std::signbit(value.number());
    digits = FloatDigits(std::abs(value.number()), spec);
  }
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  const char align = spec.align == 0 ? (spec.zero ? '=' : '>') : spec.align;
  const Text fill = FillOf(spec);
  Text body(sign + prefix, foreign);
  const bool zeros = align == '=' && fill.bytes() == "0";
  digits = Grouped(digits, spec, zeros && spec.width > body.size() ? spec.width - body.size() : 0);
  const size_t size = body.size() + digits.size();
  if (align == '=') {
    for (size_t i = size; i < spec.width; ++i) body.Append(fill);
  }
  body.Append(digits, foreign);
  return align == '=' ? body : Padded(body, spec.width, align, fill);
}

}  // namespace

FormatSpec ReadFormatSpec(const Text& whole) {
  std::string_view text = whole.bytes();
  FormatSpec spec;
  spec.foreign = whole.any_foreign();
  if (!text.empty()) {
    const size_t first = NextUtf8(text).bytes;
    if (text.size() > first && IsAlign(text[first])) {
      spec.fill = Text(std::string(text.substr(0, first)));
      spec.align = text[first];
      text.remove_prefix(first + 1);
    } else if (IsAlign(text[0])) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto take = [&](std::string_view any) -> char {
    if (text.empty() || any.find(text[0]) == std::string_view::npos) return 0;
    const char c = text[0];
    text.remove_prefix(1);
    return c;
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") != 0) {
    spec.zero = true;
    if (spec.align != 0 && spec.fill.bytes() == " ") spec.fill = Text("0");
  }
  spec.width = ReadCount(&text, kWidthMax);
  spec.grouping = take(",_");
  if (spec.grouping != 0 && !text.empty() && (text[0] == ',' || text[0] == '_')) {
    throw Failure{.message = text[0] == spec.grouping
                                 ? std::string("Cannot specify '") + text[0] + "' with '" + text[0] + "'."
                                 : "Cannot specify both ',' and '_'."};
  }
  if (take(".") != 0) {
    if (text.empty() || !IsAsciiDigit(text[0])) throw Failure{.message = "Format specifier missing precision"};
    spec.precision = ReadCount(&text, kWidthMax);
  }
  if (!text.empty()) {
    spec.type = text[0];
    text.remove_prefix(1);
  }
  if (!text.empty()) throw Failure{.message = "Invalid format specifier"};
  return spec;
}

Text Padded(const Text& text, size_t width, char align, const Text& fill) {
  const size_t count = CountCharacters(text.bytes());
  if (count >= width) return text;
  const size_t gap = width - count;
  RequireSize(fill.size(), gap);
  const size_t left = align == '>' ? gap : align == '^' ? gap / 2 : 0;
  Text padded;
  for (size_t i = 0; i < left; ++i) padded.Append(fill);
  padded.Append(text);
  for (size_t i = left; i < gap; ++i) padded.Append(fill);
  return padded;
}

Text FormatValue(const Value& value, const FormatSpec& spec) {
  if (spec.precision && value.is_number() && *spec.precision > kPrecisionMax) {
    throw Failure{.message = "a number's precision is more than " + std::to_string(kPrecisionMax)};
  }
  const bool plain = spec.type == 0 && spec.width == 0 && spec.align == 0 && spec.grouping == 0 && !spec.alternate &&
                     spec.sign == '-' && !spec.precision;
  if (value.is_number() && !(plain && value.Is(Kind::kBool))) return FormatNumber(value, spec);
  if (!value.Is(Kind::kString)) {
    if (!plain) throw Failure{.message = "unsupported format string passed to " + TypeName(value) + ".__format__"};
    return Printed(value);
  }
  if (spec.grouping != 0) throw Failure{.message = std::string("Cannot specify '") + spec.grouping + "' with 's'."};
  if (spec.type != 0 && spec.type != 's') UnknownCode(spec, value);
  if (spec.align == '=') throw Failure{.message = "'=' alignment not allowed in string format specifier"};
  Text text = Printed(value);
  if (spec.precision) text = text.Slice(0, OffsetOf(text.bytes(), *spec.precision));
  return Padded(text, spec.width, spec.align == 0 ? '<' : spec.align, FillOf(spec));
}

}  // namespace fastdecode::jinja
