#include "engine/text/byte_alphabet.h"

#include <array>

#include "absl/strings/str_format.h"
#include "engine/text/utf8.h"

namespace fastdecode {
namespace {

// Bytes that are printable Latin-1 stand for themselves; the others get the characters from U+0100 on, in order.
constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct ByteAlphabet {
  std::array<char16_t, 256> character_of;
  std::array<int16_t, 0x144> byte_of;  // -1: stands for no byte

  constexpr ByteAlphabet() : character_of(), byte_of() {
    byte_of.fill(-1);
    char16_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      character_of[byte] = StandsForItself(byte) ? static_cast<char16_t>(byte) : next++;
      byte_of[character_of[byte]] = static_cast<int16_t>(byte);
    }
  }
};
constexpr ByteAlphabet kAlphabet;

}  // namespace

std::string ByteLevelCharacter(uint8_t byte) {
  std::string out;
  AppendUtf8(kAlphabet.character_of[byte], &out);
  return out;
}

void AppendByteLevel(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) AppendUtf8(kAlphabet.character_of[static_cast<uint8_t>(byte)], out);
}

std::optional<std::string> ByteLevelBytes(std::string_view key) {
  std::string bytes;
  while (!key.empty()) {
    const Utf8Step step = NextUtf8(key);
    if (step.kind != Utf8Step::Kind::kValid) return std::nullopt;
    const char32_t character = Utf8Character(key, step.bytes);
    if (character >= kAlphabet.byte_of.size() || kAlphabet.byte_of[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[character]));
    key.remove_prefix(step.bytes);
  }
  return bytes;
}

std::string ByteFallbackToken(uint8_t byte) { return absl::StrFormat("<0x%02X>", byte); }

std::optional<uint8_t> ByteOfFallbackToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool upper = c >= 'A' && c <= 'F';
    const bool lower = c >= 'a' && c <= 'f';
    // Rust's from_str_radix, by which Hugging Face's decoder goes, takes a plus sign before a number.
    if (c == '+' && value == 0 && token[4] != '+') continue;
    if (!upper && !lower && !(c >= '0' && c <= '9')) return std::nullopt;
    value = value * 16 + (upper ? c - 'A' + 10 : lower ? c - 'a' + 10 : c - '0');
  }
  return static_cast<uint8_t>(value);
}

}  // namespace fastdecode
