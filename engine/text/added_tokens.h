#ifndef FASTDECODE_ENGINE_TEXT_ADDED_TOKENS_H_
#define FASTDECODE_ENGINE_TEXT_ADDED_TOKENS_H_

#include <bitset>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// A stretch of text that is an added token, or plain text between two of them (id -1).
struct AddedTokenSpan {
  int32_t id;
  std::string_view text;
};

// Finds added tokens in text: leftmost first, the longest of those that start there.
//
// Owns: a trie of their contents. Thread: immutable, shared by any number.
class AddedTokens {
 public:
  // Of two with equal contents the first counts. REQUIRES: no content is empty.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Replaces *spans by those of `text`, in order. None is empty. Without `special`, special tokens are plain text.
  // REQUIRES: text is valid UTF-8.
  void Scan(std::string_view text, bool special, std::vector<AddedTokenSpan>* spans) const;

 private:
  // The longest token at the start of `text`; null if there is none.
  const AddedToken* LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::bitset<256> first_bytes_;                      // a text position without one of these is skipped
  absl::flat_hash_map<uint64_t, uint32_t> child_;     // of (node << 8 | byte); the root is node 0
  absl::flat_hash_map<uint32_t, uint32_t> token_at_;  // index into tokens_ of the token that ends at a node
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_ADDED_TOKENS_H_
