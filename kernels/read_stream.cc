#include "kernels/read_stream.h"

namespace fastdecode {

uint64_t ReadStream(const std::byte* data, size_t bytes) {
  using Words = uint64_t __attribute__((vector_size(16), may_alias));
  constexpr size_t kBlockWords = 512 / sizeof(Words);
  constexpr size_t kSums = 8;  // independent, so that no addition waits for the one before
  const Words* words = reinterpret_cast<const Words*>(data);
  Words sums[kSums] = {};
  for (size_t block = 0; block < bytes / 512; ++block, words += kBlockWords) {
    for (size_t i = 0; i < kBlockWords; ++i) sums[i % kSums] ^= words[i];
  }
  uint64_t total = 0;
  for (const Words& sum : sums) total ^= sum[0] ^ sum[1];
  return total;
}

}  // namespace fastdecode
