#ifndef FASTDECODE_TESTS_FUZZ_TOKENIZER_SPEC_CHECKS_H_
#define FASTDECODE_TESTS_FUZZ_TOKENIZER_SPEC_CHECKS_H_

#include <set>
#include <string>
#include <unordered_map>

#include "engine/text/tokenizer_spec.h"
#include "engine/text/utf8.h"
#include "numa/check.h"

namespace fastdecode {

// Ends the process if a spec that a reader accepted is not what TokenizerSpec promises.
inline void CheckTokenizerSpec(const TokenizerSpec& spec) {
  std::unordered_map<int32_t, std::string> keys;
  for (const VocabEntry& entry : spec.vocab) {
    FD_CHECK(entry.id >= 0 && entry.id < TokenizerSpec::kTokenIdLimit, "ids are in range");
    FD_CHECK(!entry.key.empty() && IsValidUtf8(entry.key), "keys are texts");
    FD_CHECK(keys.emplace(entry.id, entry.key).second, "no two tokens share an id");
  }
  for (const BpeMerge& merge : spec.merges) {
    FD_CHECK(keys.contains(merge.left) && keys.contains(merge.right) && keys.contains(merge.merged),
             "merges are of tokens of the vocabulary");
    FD_CHECK(keys[merge.left] + keys[merge.right] == keys[merge.merged], "a merge joins two tokens into one");
  }
  std::set<std::string> contents;
  std::set<int32_t> ids;
  for (const AddedToken& token : spec.added_tokens) {
    FD_CHECK(token.id >= 0 && token.id < TokenizerSpec::kTokenIdLimit, "ids of added tokens are in range");
    FD_CHECK(!token.content.empty() && IsValidUtf8(token.content), "contents are texts");
    FD_CHECK(contents.insert(token.content).second && ids.insert(token.id).second, "no token is added twice");
    const auto found = keys.find(token.id);
    FD_CHECK(found == keys.end() || found->second == token.content, "an added token has no other token's id");
  }
  const auto is_token = [&](int32_t id) { return keys.contains(id) || ids.contains(id); };
  for (const auto& id : {spec.unknown_id, spec.bos_id, spec.eos_id}) {
    FD_CHECK(!id.has_value() || is_token(*id), "named tokens are tokens");
  }
  for (const auto* list : {&spec.prefix_ids, &spec.suffix_ids}) {
    for (const int32_t id : *list) FD_CHECK(is_token(id), "what goes around a text are tokens");
  }
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_FUZZ_TOKENIZER_SPEC_CHECKS_H_
