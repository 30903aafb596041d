#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_SPEC_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fastdecode {

// A token that is found in the text before the model's merges see it.
struct AddedToken {
  int32_t id = 0;
  std::string content;       // UTF-8, not empty
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // searched in the normalized text, else in the text as given
  bool special = false;      // left out by a decode that skips special tokens
};

enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitSpec {
  std::string pattern;
  bool is_literal = false;  // else a regular expression
  bool invert = false;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  std::string field;  // where it stands, for messages
};

struct PreTokenizerSpec {
  std::vector<SplitSpec> splits;  // in order, all before ByteLevel
  bool add_prefix_space = false;  // ByteLevel's: a space before every piece that has none
  bool byte_level_regex = true;   // ByteLevel's own pattern, last
};

// A pair of neighbours that becomes one token. A merge's rank is its index; the lowest rank is applied first.
struct BpeMerge {
  int32_t left;
  int32_t right;
  int32_t merged;
};

// A token of the model, spelt as in the file: each byte as the character that stands for it.
struct VocabEntry {
  std::string key;
  int32_t id;
};

// Everything that a byte-level BPE tokenizer.json says, checked: every id is in [0, kTokenIdLimit), no two tokens share
// one, and every merge joins tokens of the vocabulary into one of it. Published vocabularies may lack some of the 256
// bytes, such as those that UTF-8 never uses.
struct TokenizerSpec {
  static constexpr int32_t kTokenIdLimit = 1 << 22;

  std::vector<VocabEntry> vocab;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;         // a piece that is a token as it stands is not merged
  std::optional<int32_t> unknown_id;  // what a byte that is no token becomes; without it such a byte is left out
  bool fuse_unknown = false;          // a run of such bytes becomes one unknown_id
  std::vector<AddedToken> added_tokens;
  bool nfc = false;  // text is brought to Unicode's composed form
  PreTokenizerSpec pre_tokenizer;
  std::vector<int32_t> prefix_ids;  // around an encoded text, if asked for special tokens
  std::vector<int32_t> suffix_ids;
  std::optional<int32_t> bos_id;  // of tokenizer_config.json or special_tokens_map.json
  std::optional<int32_t> eos_id;
  std::string warning;  // what one file says against another; empty: nothing
};

// Reads the text of a tokenizer.json; `file` is only named in errors, with field and value. bos_id, eos_id and warning
// stay empty. Errors: Unimplemented for a well-formed tokenizer that is not byte-level BPE, or uses a step that is not
// built (its model can still run on token ids); InvalidArgument for a broken file.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& text, const std::string& file);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_SPEC_H_
