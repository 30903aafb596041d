#include "tools/serve/openai/json_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

// Bytes that a JSON string has as they are, and that are characters by themselves.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain = {};
  for (size_t byte = 0x20; byte < 0x80; ++byte) plain[byte] = byte != '"' && byte != '\\';
  return plain;
}();

size_t SkipPlain(std::string_view text, size_t at) {
  while (at < text.size() && kPlain[static_cast<uint8_t>(text[at])]) ++at;
  return at;
}

void AppendEscapedControl(uint8_t byte, std::string* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  out->append("\\u00");
  out->push_back(kDigits[byte >> 4]);
  out->push_back(kDigits[byte & 15]);
}

void AppendEscapedAscii(char c, std::string* out) {
  switch (c) {
    case '"':
      return static_cast<void>(out->append("\\\""));
    case '\\':
      return static_cast<void>(out->append("\\\\"));
    case '\b':
      return static_cast<void>(out->append("\\b"));
    case '\f':
      return static_cast<void>(out->append("\\f"));
    case '\n':
      return static_cast<void>(out->append("\\n"));
    case '\r':
      return static_cast<void>(out->append("\\r"));
    case '\t':
      return static_cast<void>(out->append("\\t"));
    default:
      return AppendEscapedControl(static_cast<uint8_t>(c), out);
  }
}

// The escape of a character at which some clients cut lines; empty: it is none.
std::string_view LineBreakEscape(std::string_view character) {
  if (character == "\u0085") return "\\u0085";
  if (character == "\u2028") return "\\u2028";
  if (character == "\u2029") return "\\u2029";
  return {};
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  size_t begin = 0;  // of what is not appended yet
  size_t at = 0;
  while ((at = SkipPlain(text, at)) < text.size()) {
    const char c = text[at];
    Utf8Step step = {1, true};
    std::string_view instead;
    if (static_cast<uint8_t>(c) >= 0x80) {
      step = ReadUtf8(text, at);
      instead = step.valid ? LineBreakEscape(text.substr(at, step.bytes)) : "\ufffd";
      if (instead.empty()) {
        at += step.bytes;
        continue;
      }
    }
    out->append(text, begin, at - begin);
    if (instead.empty()) {
      AppendEscapedAscii(c, out);
    } else {
      out->append(instead);
    }
    at += step.bytes;
    begin = at;
  }
  out->append(text, begin);
  out->push_back('"');
}

void AppendJsonInteger(int64_t value, std::string* out) {
  char digits[24];
  const std::to_chars_result end = std::to_chars(digits, digits + sizeof(digits), value);
  out->append(digits, end.ptr);
}

void AppendJsonFloat(float value, std::string* out) {
  if (std::isnan(value)) return static_cast<void>(out->append("null"));
  if (std::isinf(value)) return static_cast<void>(out->append(value < 0 ? "-9999.0" : "9999.0"));
  char digits[32];
  const std::to_chars_result end = std::to_chars(digits, digits + sizeof(digits), value);
  const std::string_view text(digits, end.ptr);
  out->append(text);
  // Without these, a reader takes it for an integer.
  if (text.find_first_of(".e") == std::string_view::npos) out->append(".0");
}

}  // namespace fastdecode::serve
