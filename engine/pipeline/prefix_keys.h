// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_PREFIX_KEYS_H_
#define FASTDECODE_ENGINE_PIPELINE_PREFIX_KEYS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/attention.h"

namespace fastdecode {

// The keys under which full pages of a sequence's tokens are looked up (PrefixCache): a chain of hashes, so that a key
// depends on all tokens up to the end of its page, and on the sequence's salt. Keys of two sequences may be equal by
// chance: whoever finds one compares the tokens.
// Owns: the keys; their memory is taken by Prepare. Thread: made by the desk's callers, then the pipeline's.
class PrefixKeys {
 public:
  // Takes the keys of the prompt's full pages. enabled: false, and the sequence is not looked up and leaves nothing for
  // others. Sequences with another salt share nothing.
  void Prepare(std::span<const int32_t> prompt, uint32_t length_max, bool enabled, std::string_view salt);
  // Adds the key of the next page, which these tokens fill. prompt_rows: see PrefixCache::PromptRowsIn. Never
  // allocates.
  void Append(std::span<const int32_t, kPageTokens> tokens, uint32_t prompt_rows);

  bool enabled() const { return enabled_; }
  uint32_t size() const { return static_cast<uint32_t>(keys_.size()); }  // pages whose keys are known
  uint64_t operator[](uint32_t page) const { return keys_[page]; }
  // 128 bits of SHA-256, so that nobody finds two salts that are taken for one.
  const std::array<uint64_t, 2>& salt() const { return salt_; }

 private:
  bool enabled_ = false;
  std::array<uint64_t, 2> salt_{};
  std::vector<uint64_t> keys_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_PREFIX_KEYS_H_
