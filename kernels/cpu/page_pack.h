#ifndef FASTDECODE_KERNELS_CPU_PAGE_PACK_H_
#define FASTDECODE_KERNELS_CPU_PAGE_PACK_H_

#include <immintrin.h>

#include "kernels/cpu/attention_page.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// What packing and closing pages have in common, with AVX2.

constexpr int32_t kBf16MaxBits = 0x7f7f0000, kFp16MaxBits = 0x477fe000;  // of floats
constexpr int32_t kInfinityBits = 0x7f800000, kQuietNanBits = 0x7fc00000;
constexpr Bf16 kBf16Nan = 0x7fc0;

// The second of each two bf16, as a float, is its dword with this mask; the first one is shifted up by 16.
inline __m256i OddSteps() { return _mm256_set1_epi32(-65536); }

// The largest of 8 numbers.
inline int32_t MaxLanes(__m256i x) {
  __m128i y = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0x4e));
  y = _mm_max_epi32(y, _mm_shuffle_epi32(y, 0xb1));
  return _mm_cvtsi128_si32(y);
}

// The smallest bf16 that are not below numbers >= 0: 16 bits in 32.
inline __m256i RoundUp8(__m256 x) {
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0xffff)), 16);
}

// The low 16 bits of 8 lanes, whose others are 0.
inline void StoreWords(Bf16* to, __m256i x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(words));
}

// Quotients that are rounded to integers afterwards, by eight numbers >= 0 in bf16; by 1 in place of 0.
struct Divisors {
  // `scales` are 16 bits in 32.
  void Set(__m256i scales) {
    const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(scales, 16)), one = _mm256_set1_ps(1);
    const __m256 divisors = _mm256_blendv_ps(x, one, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_EQ_OQ));
    _mm256_store_ps(divisor, divisors);
    _mm256_store_ps(inverse, _mm256_div_ps(one, divisors));
    fast = _mm256_movemask_ps(_mm256_cmp_ps(divisors, _mm256_set1_ps(0x1p-64f), _CMP_LT_OQ)) == 0;
  }

  // x / divisor[i]; or with kFast, if all divisors are `fast`, what rounds to the same integer. The product with the
  // inverse, and then the remainder's, come within a little more than half a unit in the last place of the exact
  // quotient, as long as the remainder is no denormal. And a float next to the exact quotient lies halfway between two
  // integers only if that does, too, or is more than 128/255 of such a unit away, because a divisor has 8 bits.
  template <bool kFast>
  __m256 Quotient(int i, __m256 x) const {
    const __m256 by = _mm256_set1_ps(divisor[i]);
    if constexpr (!kFast) return _mm256_div_ps(x, by);
    const __m256 by_inverse = _mm256_set1_ps(inverse[i]);
    const __m256 quotient = _mm256_mul_ps(x, by_inverse);
    return _mm256_fmadd_ps(_mm256_fnmadd_ps(quotient, by, x), by_inverse, quotient);
  }

  alignas(32) float divisor[8], inverse[8];
  bool fast;
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_PAGE_PACK_H_
