#ifndef FASTDECODE_ENGINE_TEXT_VOCAB_MERGES_H_
#define FASTDECODE_ENGINE_TEXT_VOCAB_MERGES_H_

#include "absl/status/statusor.h"
#include "engine/text/tokenizer_files.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// Reads vocab.json and merges.txt, which are a byte-level BPE without the steps around it (GPT-2, OPT, Qwen 2 before
// they had a tokenizer.json). Those are what the tokenizer's class in transformers 5 gives them: GPT2Tokenizer,
// CodeGenTokenizer, Qwen2Tokenizer and GPTNeoXTokenizer are known. Errors: Unimplemented for other classes, with what
// makes a tokenizer.json; else as of ParseTokenizerJson. REQUIRES: both files are there.
absl::StatusOr<TokenizerSpec> ParseVocabAndMerges(const TokenizerFiles& files);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_VOCAB_MERGES_H_
