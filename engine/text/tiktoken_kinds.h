#ifndef FASTDECODE_ENGINE_TEXT_TIKTOKEN_KINDS_H_
#define FASTDECODE_ENGINE_TEXT_TIKTOKEN_KINDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fastdecode {

// What a file of tiktoken ranks does not say of its tokenizer, and what is found in the code of the model instead.
struct TiktokenKind {
  std::string pattern;                                          // what cuts text, in Oniguruma's syntax
  std::vector<std::pair<int32_t, std::string>> special_tokens;  // ids and contents, none of them twice
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  bool add_bos = false;  // before an encoded text
};

// The kind of a published file with so many ranks: cl100k (100256), Llama 3 (128000), Qwen (151643), Kimi K2 (163584),
// o200k with the special tokens of gpt-oss (199998) or Llama 4 (200000); nothing for other counts. Kimi's special
// tokens but the first two are named in its tokenizer_config.json alone, and here by their ids, as its code does
// without one.
std::optional<TiktokenKind> FindTiktokenKind(size_t ranks);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TIKTOKEN_KINDS_H_
