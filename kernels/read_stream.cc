#include "kernels/read_stream.h"

#include <immintrin.h>

#include "kernels/isa.h"

namespace fastdecode {

namespace {

constexpr size_t kBlockBytes = 512;

// Wide loads keep more lines in flight; four chains, so that none waits for the one before. A stream is read in four
// parts at a time, each of which a hardware prefetcher follows.
constexpr size_t kParts = 4;

__attribute__((target("avx2"))) uint64_t ReadAvx2(const std::byte* data, size_t part_bytes) {
  __m256i sums[kParts] = {};
  for (size_t at = 0; at < part_bytes; at += 64) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kParts; ++p) {
      const auto* line = reinterpret_cast<const __m256i*>(data + p * part_bytes + at);
      sums[p] = _mm256_xor_si256(sums[p], _mm256_xor_si256(_mm256_load_si256(line), _mm256_load_si256(line + 1)));
    }
  }
  const __m256i sum =
      _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 1) ^
                               _mm256_extract_epi64(sum, 2) ^ _mm256_extract_epi64(sum, 3));
}

__attribute__((target("avx512f"))) uint64_t ReadAvx512(const std::byte* data, size_t part_bytes) {
  __m512i sums[kParts] = {};
  for (size_t at = 0; at < part_bytes; at += 64) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kParts; ++p) {
      sums[p] = _mm512_xor_si512(sums[p], _mm512_load_si512(data + p * part_bytes + at));
    }
  }
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words,
                     _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3])));
  uint64_t total = 0;
  for (const uint64_t word : words) total ^= word;
  return total;
}

}  // namespace

uint64_t ReadStream(const std::byte* data, size_t bytes) {
  static const bool wide = DetectIsa() >= Isa::kAvx512;
  const size_t part_bytes = bytes / kBlockBytes * kBlockBytes / kParts;
  return wide ? ReadAvx512(data, part_bytes) : ReadAvx2(data, part_bytes);
}

}  // namespace fastdecode
