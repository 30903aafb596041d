#include "kernels/memory_stream.h"

#include <immintrin.h>

#include "kernels/isa.h"

namespace fastdecode {

namespace {

constexpr size_t kBlockBytes = 512;

// Loads in flight that do not wait for each other, in either pattern: line i of an iteration goes to sum i.
constexpr size_t kLines = 4;

// Line i of an iteration lies `line_stride` bytes after line i - 1; the iterations go on by `step` bytes.
struct ReadPattern {
  size_t iterations;
  size_t line_stride;
  size_t step;
};

ReadPattern PatternOf(size_t bytes, ReadStreams streams) {
  const size_t part_bytes = bytes / kBlockBytes * kBlockBytes / kLines;
  const size_t iterations = part_bytes / 64;
  if (streams == ReadStreams::kFour) return {iterations, part_bytes, 64};
  return {iterations, 64, kLines * 64};
}

__attribute__((target("avx2"))) uint64_t ReadAvx2(const std::byte* data, const ReadPattern& pattern) {
  __m256i sums[kLines] = {};
  for (size_t i = 0; i < pattern.iterations; ++i, data += pattern.step) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kLines; ++p) {
      const auto* line = reinterpret_cast<const __m256i*>(data + p * pattern.line_stride);
      sums[p] = _mm256_xor_si256(sums[p], _mm256_xor_si256(_mm256_load_si256(line), _mm256_load_si256(line + 1)));
    }
  }
  const __m256i sum = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 1) ^
                               _mm256_extract_epi64(sum, 2) ^ _mm256_extract_epi64(sum, 3));
}

__attribute__((target("avx512f"))) uint64_t ReadAvx512(const std::byte* data, const ReadPattern& pattern) {
  __m512i sums[kLines] = {};
  for (size_t i = 0; i < pattern.iterations; ++i, data += pattern.step) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kLines; ++p) {
      sums[p] = _mm512_xor_si512(sums[p], _mm512_load_si512(data + p * pattern.line_stride));
    }
  }
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3])));
  uint64_t total = 0;
  for (const uint64_t word : words) total ^= word;
  return total;
}

// Stores of 32 bytes: the write buffers join them to whole lines, so that wider ones gain nothing.
__attribute__((target("avx2"))) void WriteAvx2(std::byte* data, size_t bytes, uint64_t word) {
  const __m256i words = _mm256_set1_epi64x(static_cast<int64_t>(word));
  for (size_t at = 0; at < bytes; at += 64) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(data + at), words);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(data + at + 32), words);
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void CopyAvx2(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) {
    const auto* line = reinterpret_cast<const __m256i*>(from + at);
    const __m256i low = _mm256_load_si256(line), high = _mm256_load_si256(line + 1);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at + 32), high);
  }
  _mm_sfence();
}

}  // namespace

uint64_t ReadStream(const std::byte* data, size_t bytes, ReadStreams streams) {
  static const bool wide = DetectIsa() >= Isa::kAvx512;
  const ReadPattern pattern = PatternOf(bytes, streams);
  return wide ? ReadAvx512(data, pattern) : ReadAvx2(data, pattern);
}

// The fence: non-temporal stores are not ordered by the release stores of who tells others.
void WriteStream(std::byte* data, size_t bytes, uint64_t word) {
  WriteAvx2(data, bytes / kBlockBytes * kBlockBytes, word);
}

void CopyStream(std::byte* to, const std::byte* from, size_t bytes) {
  CopyAvx2(to, from, bytes / kBlockBytes * kBlockBytes);
}

}  // namespace fastdecode
