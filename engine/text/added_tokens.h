#ifndef FASTDECODE_ENGINE_TEXT_ADDED_TOKENS_H_
#define FASTDECODE_ENGINE_TEXT_ADDED_TOKENS_H_

#include <bitset>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "engine/text/foreign_ranges.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// A stretch of text that is an added token, or plain text between two of them (id -1).
struct AddedTokenSpan {
  int32_t id;
  std::string_view text;
};

// Whether a valid text has no characters but white space.
bool IsOnlyWhiteSpace(std::string_view text);

// Finds added tokens in text: leftmost first, the longest of those that start there.
//
// Some are restricted: nobody can write them by their names in foreign text. Special tokens are restricted, and the
// owner may name others.
//
// Owns: a trie of their contents. Thread: immutable once Restrict has been called, shared by any number.
class AddedTokens {
 public:
  // Of two with equal contents the first counts. REQUIRES: no content is empty.
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  // Adds the ids of all tokens whose contents occur in `text`, also inside of each other.
  void AddIdsIn(std::string_view text, absl::flat_hash_set<int32_t>* ids) const;
  // Restricts the tokens that have these ids.
  void Restrict(const absl::flat_hash_set<int32_t>& ids);
  bool has_restricted() const;

  // Replaces *spans by those of `text`, in order. None is empty. REQUIRES: text is valid UTF-8.
  //
  // The restricted tokens are those that each own stretch has by itself, whatever foreign text stands around it: that
  // can neither make one nor hide one, and for `single_word` it is as if it were not there. Between them everything
  // else is found as in any text. A token that is refused there is passed over as a whole, as Hugging Face's
  // `encode_special_tokens` does; one that has own characters, too, hides neither a shorter one at its place nor those
  // that begin inside of it. `lstrip` and `rstrip` take along white space, own and foreign. Without `straddle`,
  // tokens that have both own and foreign characters are refused like restricted ones.
  void Scan(std::string_view text, const ForeignRanges& foreign, bool straddle,
            std::vector<AddedTokenSpan>* spans) const;

 private:
  struct Token : AddedToken {
    bool restricted;
  };
  struct Match;
  class Scanner;

  // The longest token at the start of `text` for which accepts(token) holds, and the longest of all; null if there is
  // none.
  std::pair<const Token*, const Token*> LongestAt(std::string_view text, auto accepts) const;
  // Calls found(token) for each token at the start of `text`, shorter ones first.
  void ForEachAt(std::string_view text, auto found) const;

  std::vector<Token> tokens_;
  std::bitset<256> first_bytes_;                      // a text position without one of these is skipped
  absl::flat_hash_map<uint64_t, uint32_t> child_;     // of (node << 8 | byte); the root is node 0
  absl::flat_hash_map<uint32_t, uint32_t> token_at_;  // index into tokens_ of the token that ends at a node
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_ADDED_TOKENS_H_
