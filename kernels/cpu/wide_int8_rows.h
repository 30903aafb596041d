#ifndef FASTDECODE_KERNELS_CPU_WIDE_INT8_ROWS_H_
#define FASTDECODE_KERNELS_CPU_WIDE_INT8_ROWS_H_

#include "kernels/cpu/wide_pack.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// A whole page's rows of bf16 to 8 bits (attention_page.h), as avx2_append.cc rounds them, with wide_pack.h's AVX-512.

// 16 tokens' rows, copied, and what they are rounded with.
struct Int8Tokens {
  alignas(64) Bf16 copy[kPanelLanes * kRowElementsMax];
  alignas(64) float inverse[kPanelLanes];
};

// False if an element is not finite, or a scale so small that its inverse does not do (Divisors).
[[gnu::always_inline]] inline bool ReadInt8Tokens(const Rows& rows, int head_dim, Int8Tokens* tokens, Bf16* scales,
                                                  UpcomingLines* next) {
  const __m512i magnitude = _mm512_set1_epi16(INT16_MAX);
  const auto max = [](__m512i a, __m512i b) { return _mm512_max_epu16(a, b); };
  __m512i largest[4];
#pragma GCC unroll 1  // a third of the code, 9 KB with 128 dims, and from memory as fast
  for (int i = 0; i < 4; ++i) {
    __m512i of[4];
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) {
      const int t = i + 4 * l;
      of[l] = _mm512_setzero_si512();
      for (int d = 0; d < head_dim; d += kWideDims) {
        if (l % 2 == 0) next->Prefetch<1>();
        const RowPart x(rows.At<Bf16>(t) + d, tokens->copy + t * head_dim + d);
        of[l] = max(of[l], max(_mm512_and_si512(x.first, magnitude), _mm512_and_si512(x.second, magnitude)));
      }
    }
    largest[i] = FoldToLanes(of, max);
  }
  const __m512i of_tokens = FoldLanes(largest, max);
  const __m512 quotient = _mm512_div_ps(WideOdd(of_tokens), _mm512_set1_ps(127));
  const __m512i up = _mm512_add_epi32(_mm512_castps_si512(quotient), _mm512_set1_epi32(0xffff));
  const __m512 scale = WideOdd(up), one = _mm512_set1_ps(1);
  const __m512 divisor = _mm512_mask_mov_ps(scale, _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_EQ_OQ), one);
  _mm512_store_ps(tokens->inverse, _mm512_div_ps(one, divisor));
  Store32(scales, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
  return (_mm512_cmpgt_epi32_mask(_mm512_castps_si512(WideOdd(of_tokens)), _mm512_set1_epi32(kBf16MaxBits)) |
          _mm512_cmp_ps_mask(divisor, _mm512_set1_ps(0x1p-64f), _CMP_LT_OQ)) == 0;
}

// The code in the low byte, plus kOffset: avx2_append.cc says why rounding twice is exact.
template <int kOffset>
inline __m512i Int8Codes(__m512 x, __m512 inverse) {
  const __m512 fine = _mm512_set1_ps(0x1.8p11f), rest = _mm512_set1_ps(0x1.8p23f - 0x1.8p11f + kOffset);
  return _mm512_castps_si512(_mm512_add_ps(_mm512_fmadd_ps(x, inverse, fine), rest));
}
// The low bytes of four.
inline __m512i LowBytes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_shrdi_epi32(_mm512_slli_epi32(a, 24), b, 8);
  return _mm512_shrdi_epi32(_mm512_shrdi_epi32(ab, c, 8), d, 8);
}

// 16 tokens of k to a panel.
[[gnu::always_inline]] inline void PackInt8K(const Int8Tokens& tokens, int head_dim, std::byte* panel,
                                             UpcomingLines* next) {
  // A dword of `codes` has dims 2 i, 2 i + 1, 32 + 2 i and 32 + 2 i + 1.
  const __m128i quad = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
  const __m256i half = _mm256_set_m128i(_mm_add_epi8(quad, _mm_set1_epi8(32)), quad);
  const __m512i order = _mm512_inserti64x4(_mm512_castsi256_si512(half), _mm256_add_epi8(half, _mm256_set1_epi8(2)), 1);
  alignas(64) std::byte rows[kPanelLanes * kRowElementsMax];
  for (int t = 0; t < kPanelLanes; ++t) {
    const __m512 inverse = _mm512_set1_ps(tokens.inverse[t]);
    for (int at = t * head_dim; at < (t + 1) * head_dim; at += kWideDims) {
      if (t % 2 == 0) next->Prefetch<1>();
      const __m512i x = Load64(tokens.copy + at), y = Load64(tokens.copy + at + kWideDims / 2);
      const __m512i codes = LowBytes(Int8Codes<128>(WideEven(x), inverse), Int8Codes<128>(WideOdd(x), inverse),
                                     Int8Codes<128>(WideEven(y), inverse), Int8Codes<128>(WideOdd(y), inverse));
      _mm512_store_si512(rows + at, _mm512_permutexvar_epi8(order, codes));
    }
  }
  for (int d = 0; d < head_dim; d += 16, panel += 4 * 64) {
    __m512i row[4];  // i + 4 l in lane l
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) row[i] = LoadLanes(rows + i * head_dim + d, 4 * head_dim);
    __m512i quad[4];
    TransposeLanes(row, quad);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) Stream64(panel + i * 64, quad[i]);
  }
}

// 16 tokens of v to four lines of each panel.
[[gnu::always_inline]] inline void PackInt8V(const Int8Tokens& tokens, int head_dim, std::byte* lines,
                                             UpcomingLines* next) {
  constexpr int kPanelBytes = kPageTokens * kPanelLanes;
  for (int d = 0; d < head_dim; d += 32, lines += 2 * kPanelBytes) {
    for (int t = 0; t < kPanelLanes; t += 4) {
      next->Prefetch<1>();
      __m512i even[4], odd[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i x = Load64(tokens.copy + (t + i) * head_dim + d);
        const __m512 inverse = _mm512_set1_ps(tokens.inverse[t + i]);
        even[i] = Int8Codes<0>(WideEven(x), inverse);
        odd[i] = Int8Codes<0>(WideOdd(x), inverse);
      }
      const InOrder dims(LowBytes(even[0], even[1], even[2], even[3]), LowBytes(odd[0], odd[1], odd[2], odd[3]));
      Stream64(lines + t * kPanelLanes, dims.low);
      Stream64(lines + kPanelBytes + t * kPanelLanes, dims.high);
    }
  }
}

// A KV head's page from its rows. False, with nothing of use written, where ReadInt8Tokens says so.
template <int kHeadDim>
[[gnu::noinline]] bool PackInt8(const Rows& k, const Rows& v, std::byte* head, UpcomingLines* next) {
  alignas(64) Bf16 k_scales[kPageTokens], v_scales[kPageTokens];
  // The next rows are read before these are packed, which waits for quotients.
  Int8Tokens k_tokens, v_tokens;
  if (!ReadInt8Tokens(k, kHeadDim, &k_tokens, k_scales, next)) return false;
  if (!ReadInt8Tokens(v, kHeadDim, &v_tokens, v_scales, next)) return false;
  for (int t = 0; t < kPageTokens; t += kPanelLanes) {
    const int then = t + kPanelLanes;
    const bool more = then < kPageTokens;
    PackInt8K(k_tokens, kHeadDim, head + t * kHeadDim, next);
    if (more && !ReadInt8Tokens(k.From(then), kHeadDim, &k_tokens, k_scales + then, next)) return false;
    PackInt8V(v_tokens, kHeadDim, head + Int8V(kHeadDim) + t * kPanelLanes, next);
    if (more && !ReadInt8Tokens(v.From(then), kHeadDim, &v_tokens, v_scales + then, next)) return false;
  }
  Stream64(head + Int8KScales(kHeadDim), Load64(k_scales));
  Stream64(head + Int8VScales(kHeadDim), Load64(v_scales));
  return true;
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_WIDE_INT8_ROWS_H_
