// str() and repr().
#include <unicode/uchar.h>

#include <charconv>
#include <cmath>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

// What printing adds to values: never a part of a special token.
void AppendMark(std::string_view punctuation, Text* out) { out->Append(punctuation, /*foreign=*/true); }

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  constexpr uint32_t kHidden = U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CS_MASK | U_GC_CO_MASK | U_GC_CN_MASK | U_GC_ZL_MASK |
                               U_GC_ZP_MASK | U_GC_ZS_MASK;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

void AppendQuoted(const Text& text, Text* out) {
  const std::string& bytes = text.bytes();
  SpendSearch(bytes.size());
  const bool has_single = bytes.find('\'') != std::string::npos;
  const char quote = has_single && bytes.find('"') == std::string::npos ? '"' : '\'';
  AppendMark(std::string(1, quote), out);
  size_t size = 0;
  for (size_t at = 0; at < bytes.size(); at += size) {
    const char32_t c = CharacterAt(bytes, at, &size);
    const bool foreign = text.IsForeign(at);
    if (c == '\n') {
      out->Append("\\n", foreign);
    } else if (c == '\r') {
      out->Append("\\r", foreign);
    } else if (c == '\t') {
      out->Append("\\t", foreign);
    } else if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out->Append(std::string("\\") + static_cast<char>(c), foreign);
    } else if (IsPrintable(c)) {
      out->Append(text, at, at + size);
    } else {
      out->Append(HexEscape(c), foreign);
    }
  }
  AppendMark(std::string(1, quote), out);
}

void AppendRepresented(const Value& value, Text* out);

void AppendItems(const std::vector<Value>& items, Text* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) AppendMark(", ", out);
    AppendRepresented(items[i], out);
  }
}

void AppendRepresented(const Value& value, Text* out) {
  const Nesting nesting;
  Spend(1);
  switch (value.kind()) {
    case Kind::kString:
      if (value.markup()) AppendMark("Markup(", out);
      AppendQuoted(value.text(), out);
      if (value.markup()) AppendMark(")", out);
      return;
    case Kind::kList:
      AppendMark("[", out);
      AppendItems(value.items(), out);
      return AppendMark("]", out);
    case Kind::kTuple:
      AppendMark("(", out);
      AppendItems(value.items(), out);
      return AppendMark(value.items().size() == 1 ? ",)" : ")", out);
    case Kind::kDict: {
      AppendMark("{", out);
      bool first = true;
      for (const auto& [key, item] : value.dict().items) {
        if (!std::exchange(first, false)) AppendMark(", ", out);
        AppendRepresented(key, out);
        AppendMark(": ", out);
        AppendRepresented(item, out);
      }
      return AppendMark("}", out);
    }
    case Kind::kUndefined:
      return AppendMark("Undefined", out);
    default:
      return AppendPrinted(value, out);
  }
}

}  // namespace

std::string HexEscape(char32_t c) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
  std::string text = digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) text += kDigits[(c >> shift) & 15];
  return text;
}

std::string PrintInteger(Integer integer) {
  if (integer == 0) return "0";
  const bool negative = integer < 0;
  std::string digits;
  for (; integer != 0; integer /= 10) {
    const auto digit = static_cast<int>(integer % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  return negative ? "-" + digits : digits;
}

std::string PrintFloat(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[40];
  const std::to_chars_result end =
      std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific);
  const std::string text(buffer, end.ptr);
  const size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return text;  // it has two digits of exponent at least, as Python's
  std::string digits;
  for (const char c : text.substr(0, mark)) {
    if (c != '.' && c != '-') digits += c;
  }
  const auto size = static_cast<int>(digits.size());
  std::string fixed = number < 0 || std::signbit(number) ? "-" : "";
  if (exponent < 0) return fixed + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (size <= exponent + 1) return fixed + digits + std::string(static_cast<size_t>(exponent + 1 - size), '0') + ".0";
  return fixed + digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<size_t>(exponent + 1));
}

void AppendPrinted(const Value& value, Text* out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return;
    case Kind::kNone:
      return out->Append("None");
    case Kind::kBool:
      return out->Append(value.boolean() ? "True" : "False", value.foreign());
    case Kind::kInteger:
      return out->Append(PrintInteger(value.integer()), value.foreign());
    case Kind::kFloat:
      return out->Append(PrintFloat(value.number()), value.foreign());
    case Kind::kString:
      return out->Append(value.text());
    case Kind::kObject:
      return out->Append(value.object().Printed());
    default:
      return AppendRepresented(value, out);
  }
}

Text Printed(const Value& value) {
  if (value.Is(Kind::kString)) return value.text();
  Text text;
  AppendPrinted(value, &text);
  return text;
}

Text RepresentedInAscii(const Value& value) {
  const Text text = Represented(value);
  Text out;
  size_t size = 0;
  for (size_t at = 0; at < text.size(); at += size) {
    const char32_t c = CharacterAt(text.bytes(), at, &size);
    if (c < 0x80) {
      out.Append(text, at, at + size);
    } else {
      out.Append(HexEscape(c), text.IsForeign(at));
    }
  }
  return out;
}

Text Represented(const Value& value) {
  Text text;
  AppendRepresented(value, &text);
  return text;
}

}  // namespace fastdecode::jinja
