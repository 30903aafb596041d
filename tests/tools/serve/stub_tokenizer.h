#ifndef FASTDECODE_TESTS_TOOLS_SERVE_STUB_TOKENIZER_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_STUB_TOKENIZER_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fastdecode::stub {

// The ids that stand for no byte and no word.
inline constexpr int32_t kBos = 256;  // <s>
inline constexpr int32_t kEos = 257;  // </s>
inline constexpr int32_t kVocab = 65536;

// Ids 0 to 255 are bytes, 256 is <s>, 257 is </s>. A word, which is a run of bytes without white space together with at
// most one space before it, gets the next free id when it is seen first. Long words, and all new ones once the
// vocabulary is full, are spelled in bytes, so that every text comes back as it was. Thread: any.
class StubTokenizer {
 public:
  // `special`: <s> and </s> in the text become their ids.
  void Append(std::string_view text, bool special, std::vector<int32_t>* ids);
  // The id of `bytes`, whatever they are and however many; -1: the vocabulary is full.
  int32_t IdOf(std::string_view bytes);
  // Empty: the id is no token, or not yet.
  std::string BytesOf(int32_t id) const;
  std::string Decode(std::span<const int32_t> ids, bool with_special) const;

  static bool IsSpecial(int32_t id) { return id == kBos || id == kEos; }

 private:
  void AppendPlain(std::string_view text, std::vector<int32_t>* ids);

  mutable std::mutex mutex_;
  std::vector<std::string> words_;  // of the ids behind kEos
  std::map<std::string, int32_t, std::less<>> ids_;
};

// The first word of a text that is not empty: at most one space, and what is no white space; or one white space alone.
std::string_view FirstWord(std::string_view text);

}  // namespace fastdecode::stub

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_STUB_TOKENIZER_H_
