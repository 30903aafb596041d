#ifndef FASTDECODE_ENGINE_TEXT_UTF8_H_
#define FASTDECODE_ENGINE_TEXT_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace fastdecode {

// One step through a byte string that should be UTF-8.
struct Utf8Step {
  enum class Kind {
    kValid,       // `bytes` bytes are one character
    kInvalid,     // `bytes` bytes can never become one: they count as one U+FFFD (Unicode's "maximal subpart" practice)
    kIncomplete,  // the text ends after `bytes` bytes of what may still become a character
  };
  Kind kind;
  size_t bytes;
};

// REQUIRES: text is not empty.
Utf8Step NextUtf8(std::string_view text);

// The character that a kValid step found at the start of `text`.
char32_t Utf8Character(std::string_view text, size_t bytes);

// The bytes of a valid text's last character. REQUIRES: text is not empty.
std::string_view LastUtf8(std::string_view text);

void AppendUtf8(char32_t character, std::string* out);

// Decodes a byte stream that comes in pieces of any size; each maximal invalid subpart becomes one U+FFFD, as in
// Python's errors="replace" and Rust's from_utf8_lossy. What it has given out so far never depends on where the pieces
// were cut.
//
// Thread: one caller at a time. Bounded: holds back at most 3 bytes.
class LossyUtf8Decoder {
 public:
  void Append(std::string_view bytes, std::string* out);
  // The end of the stream: a held-back start of a character becomes one U+FFFD. The decoder is then as new.
  void Finish(std::string* out);
  // Whether the start of a character is held back.
  bool holds() const { return !held_.empty(); }

 private:
  std::string held_;
};

// The whole of `bytes` through a LossyUtf8Decoder.
std::string ReplaceInvalidUtf8(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_UTF8_H_
