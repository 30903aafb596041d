#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_CONFIG_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_CONFIG_H_

#include "absl/status/status.h"
#include "engine/text/tokenizer_files.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// Adds to *spec what stands beside the vocabulary, as transformers 5 (TokenizersBackend, from_pretrained) takes it:
//
// - tokens of tokenizer_config.json's added_tokens_decoder that the vocabulary has not, or with other flags; without
//   that list, those of added_tokens.json;
// - names in that list for special tokens that a file of ranks only numbers;
// - named tokens (bos_token, eos_token, image_token, ..., additional_special_tokens) that are no added tokens yet, as
//   special ones; special_tokens_map.json counts where tokenizer_config.json has no added_tokens_decoder;
// - bos_id and eos_id;
// - add_bos_token and add_eos_token, where the class is Llama's and the vocabulary's file puts nothing around a text.
//
// New tokens are numbered on from the last one, as Hugging Face's library does. Errors: InvalidArgument, with file,
// field and value.
absl::Status ApplyTokenizerConfig(const TokenizerFiles& files, TokenizerSpec* spec);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_CONFIG_H_
