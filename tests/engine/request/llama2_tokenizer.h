#ifndef FASTDECODE_TESTS_ENGINE_REQUEST_LLAMA2_TOKENIZER_H_
#define FASTDECODE_TESTS_ENGINE_REQUEST_LLAMA2_TOKENIZER_H_

#include <cstdint>

namespace fastdecode {

// A tokenizer.json built as Llama 2's is: a space before each text, which the decoder takes off, and bytes for what it
// does not know. Of characters it has "a", "b", "c", "f", the space and "\u00E9".
inline constexpr int32_t kLlama2Bos = 1, kLlama2Eos = 2, kLlama2User = 3;
inline constexpr char kLlama2TokenizerJson[] = R"({
  "added_tokens": [
    {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 2, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true},
    {"id": 3, "content": "<|user|>", "single_word": false, "lstrip": false, "rstrip": false,
     "normalized": false, "special": true}],
  "normalizer": {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
  "pre_tokenizer": null,
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
  "decoder": {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
  "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
    "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, "<|user|>": 3, "<0xC3>": 4, "<0xA9>": 5,
              "▁": 6, "a": 7, "b": 8, "c": 9, "f": 10, "▁a": 11, "ab": 12, "▁ab": 13},
    "merges": ["a b", "▁ ab", "▁ a"]}
})";

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_REQUEST_LLAMA2_TOKENIZER_H_
