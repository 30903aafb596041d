#include "tools/serve/openai/utf8.h"

#include <algorithm>
#include <cstdint>

namespace fastdecode::serve {
namespace {

bool IsContinuation(uint8_t byte) { return (byte & 0xc0) == 0x80; }

// What a first byte says of its character: how long it is, and which second bytes are neither an overlong form, nor a
// surrogate, nor beyond U+10FFFF. Length 0: it begins none.
struct FirstByte {
  size_t bytes = 0;
  uint8_t second_min = 0x80, second_max = 0xbf;
};

FirstByte ReadFirstByte(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

}  // namespace

Utf8Step ReadUtf8(std::string_view text, size_t at) {
  const FirstByte first = ReadFirstByte(static_cast<uint8_t>(text[at]));
  if (first.bytes == 0) return {1, false};
  size_t have = 1;
  while (have < first.bytes && at + have < text.size()) {
    const auto byte = static_cast<uint8_t>(text[at + have]);
    if (have == 1 ? byte < first.second_min || byte > first.second_max : !IsContinuation(byte)) break;
    ++have;
  }
  return {have, have == first.bytes};
}

bool IsUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = ReadUtf8(text, at);
    if (!step.valid) return false;
    at += step.bytes;
  }
  return true;
}

size_t CountCharacters(std::string_view bytes) {
  return static_cast<size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return !IsContinuation(static_cast<uint8_t>(c)); }));
}

std::string_view CutUtf8(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && IsContinuation(static_cast<uint8_t>(text[end]))) --end;
  return text.substr(0, end);
}

}  // namespace fastdecode::serve
