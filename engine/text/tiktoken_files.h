#ifndef FASTDECODE_ENGINE_TEXT_TIKTOKEN_FILES_H_
#define FASTDECODE_ENGINE_TEXT_TIKTOKEN_FILES_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/tiktoken_kinds.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// Readers of vocabularies that are lists of byte strings with ranks, as tiktoken's BPE has them. tiktoken merges
// whatever two neighbours make a token, the lowest rank first, after it has taken a piece that is a token as it stands.
// So a token's merges are all its splits into two tokens, ordered by their ranks, and ignore_merges is true, as in
// transformers' TikTokenConverter and MistralConverter.
//
// Special tokens are found in texts, as with transformers' tokenizers. `file` is only named in errors and in the
// result. Errors: InvalidArgument names the file, and the field or line with its value. Bounded: time and memory grow
// with the file's size, and merges are at most 2^24.

// Reads tekken.json of Mistral's models. The first config.default_num_special_tokens ids are special tokens, then come
// the first tokens of `vocab` up to config.default_vocab_size ids. A file without special_tokens gets mistral-common's
// names for files up to version v7, and numbers without a name are <SPECIAL_n>. <s> goes before an encoded text.
absl::StatusOr<TokenizerSpec> ParseTekkenJson(const std::string& text, const std::string& file);

// Whether a file of unknown kind begins as a list of ranks: tokenizer.model is one with Llama 3, and a SentencePiece
// model with others.
bool IsTiktokenRanks(std::string_view text);

// Reads a list of ranks: lines of a token in base64 and its rank, which is its id, ended as on any system. Blank lines
// and a byte order mark are skipped; every byte has to be a token, and ranks are 0 to their number - 1. What else there
// is to know comes from FindTiktokenKind; Unimplemented if it knows no file with so many ranks.
absl::StatusOr<TokenizerSpec> ParseTiktokenRanks(std::string_view text, const std::string& file);
// The same with the rest given. REQUIRES: ids of special tokens are in [the number of ranks, kTokenIdLimit), or the
// result is InvalidArgument.
absl::StatusOr<TokenizerSpec> ParseTiktokenRanks(std::string_view text, const std::string& file,
                                                 const TiktokenKind& kind);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TIKTOKEN_FILES_H_
