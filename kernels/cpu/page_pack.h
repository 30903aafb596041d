#ifndef FASTDECODE_KERNELS_CPU_PAGE_PACK_H_
#define FASTDECODE_KERNELS_CPU_PAGE_PACK_H_

#include <immintrin.h>

#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/upcoming_rows.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// What packing and closing pages have in common, with AVX2.

constexpr int kRowElementsMax = 256;                                     // of one head
constexpr int32_t kBf16MaxBits = 0x7f7f0000, kFp16MaxBits = 0x477fe000;  // of floats
constexpr int32_t kInfinityBits = 0x7f800000, kQuietNanBits = 0x7fc00000;
constexpr Bf16 kBf16Nan = 0x7fc0;

// Some tokens' elements, as the page holds them.
struct Rows {
  const std::byte* first;
  size_t stride_bytes;
  template <typename Element>
  const Element* At(int i) const {
    return reinterpret_cast<const Element*>(first + static_cast<size_t>(i) * stride_bytes);
  }
  Rows From(int i) const { return {At<std::byte>(i), stride_bytes}; }
};

template <typename To>
inline To* As(std::byte* at) {
  return reinterpret_cast<To*>(at);
}
inline __m128i Load16(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
inline __m256i Load32(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
inline void Store16(void* at, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(at), x); }
inline void Store32(void* at, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(at), x); }

// How lines of a page are stored, in halves. Whole pages go past the caches: otherwise each line would be read first.
struct Cached {
  static void StoreHalf(void* at, __m256i x) { Store32(at, x); }
};
struct Streamed {
  static void StoreHalf(void* at, __m256i x) { _mm256_stream_si256(static_cast<__m256i*>(at), x); }
};
template <class Lines, typename To>
inline void StoreLine(To* at, __m256i low, __m256i high) {
  Lines::StoreHalf(at, low);
  Lines::StoreHalf(at + 32 / sizeof(To), high);
}

// The largest of 8 numbers.
inline int32_t MaxLanes(__m256i x) {
  __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1));
  return _mm_cvtsi128_si32(y);
}

// Of each two bf16 the first one and the second one, as floats.
inline __m256 EvenSteps(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 OddSteps(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}
// Two 16-bit numbers in 32 from the low halves of two.
inline __m256i Pairs(__m256i even, __m256i odd) { return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa); }

// The smallest bf16 that are not below numbers >= 0: 16 bits in 32.
inline __m256i RoundUp8(__m256 x) {
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0xffff)), 16);
}

// Dwords [0, 4) of eight rows to four columns.
inline void Transpose8x4(const Rows& rows, int first, int byte, __m256i (&column)[4]) {
  __m256i row[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    row[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(Load16(rows.At<std::byte>(first + i) + byte)),
                                     Load16(rows.At<std::byte>(first + i + 4) + byte), 1);
  }
  const __m256i low01 = _mm256_unpacklo_epi32(row[0], row[1]), high01 = _mm256_unpackhi_epi32(row[0], row[1]);
  const __m256i low23 = _mm256_unpacklo_epi32(row[2], row[3]), high23 = _mm256_unpackhi_epi32(row[2], row[3]);
  column[0] = _mm256_unpacklo_epi64(low01, low23);
  column[1] = _mm256_unpackhi_epi64(low01, low23);
  column[2] = _mm256_unpacklo_epi64(high01, high23);
  column[3] = _mm256_unpackhi_epi64(high01, high23);
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_PAGE_PACK_H_
