#ifndef FASTDECODE_ENGINE_TEXT_BYTE_ALPHABET_H_
#define FASTDECODE_ENGINE_TEXT_BYTE_ALPHABET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fastdecode {

// Byte-level vocabularies spell each byte as one printable character (GPT-2's table).
std::string ByteLevelCharacter(uint8_t byte);
// Appends the spelling of `bytes` to *out.
void AppendByteLevel(std::string_view bytes, std::string* out);
// The bytes that `key` spells; nothing if one of its characters stands for no byte.
std::optional<std::string> ByteLevelBytes(std::string_view key);

// SentencePiece's vocabularies have a token <0xHH> for each byte.
std::string ByteFallbackToken(uint8_t byte);
// The byte that such a token stands for, also in lower-case digits; nothing for any other token.
std::optional<uint8_t> ByteOfFallbackToken(std::string_view token);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_BYTE_ALPHABET_H_
