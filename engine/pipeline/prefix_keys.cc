// FAST PATH (docs/FAST_PATH.md)
#include "engine/pipeline/prefix_keys.h"

#include <openssl/sha.h>

#include <cstring>

#include "absl/hash/hash.h"
#include "absl/types/span.h"

namespace fastdecode {

void PrefixKeys::Prepare(std::span<const int32_t> prompt, uint32_t length_max, bool enabled, std::string_view salt) {
  enabled_ = enabled;
  keys_.clear();
  if (!enabled) return;
  salt_ = {};
  if (!salt.empty()) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(salt.data()), salt.size(), digest);
    std::memcpy(salt_.data(), digest, sizeof(salt_));
  }
  keys_.reserve(length_max / kPageTokens);  // once a sequence
  for (size_t end = kPageTokens; end <= prompt.size(); end += kPageTokens) {
    Append(prompt.subspan(end - kPageTokens).first<kPageTokens>(), kPageTokens);
  }
}

void PrefixKeys::Append(std::span<const int32_t, kPageTokens> tokens, uint32_t prompt_rows) {
  const uint64_t before = keys_.empty() ? salt_[0] : keys_.back();
  keys_.push_back(absl::HashOf(before, prompt_rows, absl::MakeConstSpan(tokens.data(), tokens.size())));  // reserved
}

}  // namespace fastdecode
