#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_UTF8_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_UTF8_H_

#include <cstddef>
#include <string_view>

namespace fastdecode::serve {

// What begins at a byte of a text that should be UTF-8.
struct Utf8Step {
  size_t bytes = 0;  // of the character; else of the longest part of one, at least 1, that one U+FFFD stands for
  bool valid = false;
};

// REQUIRES: at < text.size().
Utf8Step ReadUtf8(std::string_view text, size_t at);
bool IsUtf8(std::string_view text);
// Characters that begin in `bytes`. Every character has one first byte, so parts of a text add up to the whole, even if
// they cut characters.
size_t CountCharacters(std::string_view bytes);
// The longest beginning of `text` that has at most `bytes_max` bytes and cuts no character.
std::string_view CutUtf8(std::string_view text, size_t bytes_max);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_UTF8_H_
