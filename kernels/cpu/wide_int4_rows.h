#ifndef FASTDECODE_KERNELS_CPU_WIDE_INT4_ROWS_H_
#define FASTDECODE_KERNELS_CPU_WIDE_INT4_ROWS_H_

#include <bit>

#include "kernels/cpu/int4_rows.h"
#include "kernels/cpu/wide_pack.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// A whole page's rows of bf16 to half bytes, as int4_rows.h rounds them, with wide_pack.h's AVX-512.

static_assert(kInt4GroupDims == kWideDims);

// The least and the largest of K's dims, or of a group's tokens of V, as they are.
struct WideRanges {
  alignas(64) Bf16 low[kRowElementsMax], high[kRowElementsMax];
};
// What their elements are rounded with. In vectors of 32, whose even ones come first.
struct WideSteps {
  alignas(64) float inverse[kRowElementsMax], offset[kRowElementsMax];
};

inline bool AreFinite(__m512i x) {
  const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(INT16_MAX));
  return _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(0x7f7f)) == 0;
}
inline __m512 WideInverses(__m512 integers, float unit) {
  const __mmask16 some = _mm512_cmp_ps_mask(integers, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_maskz_div_ps(some, _mm512_set1_ps(1), _mm512_mul_ps(integers, _mm512_set1_ps(unit)));
}
inline __m512 WideZeroWhereLeast(__m512 x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(kInt4Least), _CMP_GE_OQ), x);
}
inline __m512 WideStepsBetween(__m512 least, __m512 largest, float count) {
  const __m512 part = _mm512_set1_ps(1 / count);
  return _mm512_sub_ps(_mm512_mul_ps(largest, part), _mm512_mul_ps(least, part));
}
inline __m512 WideRoundUp(const RoundingUp& by, __m512 x) {
  const __m512 less = _mm512_fmsub_ps(x, _mm512_set1_ps(by.inverse), _mm512_set1_ps(kInt4NoUnit));
  return _mm512_min_ps(_mm512_roundscale_ps(less, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC), _mm512_set1_ps(by.most));
}
inline __m512i WideWords(__m512 even, __m512 odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_cvtps_epi32(even), _mm512_slli_epi32(_mm512_cvtps_epi32(odd), 16));
}

// A code in bits 16 to 19 of each dword, between others (kInt4CodeZero).
inline __m512i WideCodes(__m512 x, __m512 inverse, __m512 offset) {
  return _mm512_castps_si512(_mm512_fmadd_ps(x, inverse, offset));
}
// The low halves of one's bytes and the high halves of the other's.
inline __m512i HalfBytes(__m512i low, __m512i high) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), low, high, 0xca);
}
// A mask for each qword's bytes.
constexpr __mmask64 OfQwords(uint64_t bytes) { return bytes * 0x0101010101010101; }

// ---- K

// The ranges of k's dims; also copies k.
[[gnu::always_inline]] inline void ReadK(const Rows& k, int head_dim, Bf16* copy, WideRanges* ranges,
                                         UpcomingLines* next) {
  struct Range {  // as int4_rows.h's
    __m512i most = _mm512_setzero_si512(), least = _mm512_set1_epi16(-1), largest = _mm512_set1_epi16(INT16_MIN);
    void Fold(__m512i x) {
      most = _mm512_max_epu16(most, x);
      least = _mm512_min_epu16(least, x);
      largest = _mm512_max_epi16(largest, x);
    }
    __m512i low() const { return _mm512_mask_blend_epi16(_mm512_movepi16_mask(most), least, most); }
    __m512i high() const { return _mm512_mask_blend_epi16(_mm512_movepi16_mask(largest), largest, least); }
  };
  Range of_dims[kRowElementsMax / kVectorWords];
  for (int t = 0; t < kPageTokens; ++t) {
#pragma GCC unroll 4
    for (int d = 0; d < head_dim; d += kWideDims) {
      if (t % 4 == 0) next->Prefetch<1>();
      const RowPart x(k.At<Bf16>(t) + d, copy + t * head_dim + d);
      of_dims[d / kVectorWords].Fold(x.first);
      of_dims[d / kVectorWords + 1].Fold(x.second);
    }
  }
  for (int d = 0; d < head_dim; d += kVectorWords) {
    _mm512_store_si512(ranges->low + d, of_dims[d / kVectorWords].low());
    _mm512_store_si512(ranges->high + d, of_dims[d / kVectorWords].high());
  }
}

// As FindKSteps.
[[gnu::always_inline]] inline bool FindWideKSteps(const WideRanges& ranges, int head_dim, uint8_t* head,
                                                  WideSteps* steps, Int4Units* units, UpcomingLines* next) {
  alignas(64) float scale[kRowElementsMax];
  bool finite = true;
  __m512 top = _mm512_setzero_ps();
  for (int d = 0; d < head_dim; d += kVectorWords) {
    next->Prefetch<2>();
    const __m512i low = Load64(ranges.low + d), high = Load64(ranges.high + d);
    finite &= AreFinite(low) && AreFinite(high);
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const __m512 least = odd ? WideOdd(low) : WideEven(low), largest = odd ? WideOdd(high) : WideEven(high);
      const __m512 room = _mm512_mul_ps(_mm512_abs_ps(least), _mm512_set1_ps(kInt4KLeastOfMinimum));
      const __m512 step = WideZeroWhereLeast(_mm512_max_ps(WideStepsBetween(least, largest, kInt4KSteps), room));
      top = _mm512_max_ps(top, step);
      _mm512_store_ps(scale + d + odd * 16, step);
    }
  }
  if (!finite) return false;

  uint16_t* const scales = reinterpret_cast<uint16_t*>(head + Int4KScales(head_dim));
  const RoundingUp round_up(_mm512_reduce_max_ps(top), kInt4KScaleMax);
  units->k_scale = round_up.unit;
  for (int d = 0; d < head_dim; d += kVectorWords) {
    next->Prefetch<2>();
    const __m512i low = Load64(ranges.low + d);
    __m512 integers[2], minima[2];
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const int first = d + odd * 16;
      integers[odd] = WideRoundUp(round_up, _mm512_load_ps(scale + first));
      const __m512 inverse = WideInverses(integers[odd], round_up.unit);
      const __m512 least = odd ? WideOdd(low) : WideEven(low);
      minima[odd] = _mm512_roundscale_ps(_mm512_fmadd_ps(least, inverse, _mm512_set1_ps(kInt4KMinimumRounding)),
                                         _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      _mm512_store_ps(steps->inverse + first, inverse);
      _mm512_store_ps(steps->offset + first, _mm512_sub_ps(_mm512_set1_ps(kInt4CodeZero), minima[odd]));
    }
    Stream64(scales + d, WideWords(integers[0], integers[1]));
    Stream64(scales + head_dim + d, WideWords(minima[0], minima[1]));
  }
  return true;
}

// kWideDims dims of K, from a copy, to eight lines of each panel.
[[gnu::always_inline]] inline void RoundWideDims(const Bf16* copy, int head_dim, const float* inverse,
                                                 const float* offset, uint8_t* to, UpcomingLines* next) {
  const __m512 inverses[4] = {_mm512_load_ps(inverse), _mm512_load_ps(inverse + 16), _mm512_load_ps(inverse + 32),
                              _mm512_load_ps(inverse + 48)};
  const __m512 offsets[4] = {_mm512_load_ps(offset), _mm512_load_ps(offset + 16), _mm512_load_ps(offset + 32),
                             _mm512_load_ps(offset + 48)};
  // Where codes begin of the first and the second dword; and four bits before that, for the high halves, which the
  // second qword has of each 16 bytes.
  const __m512i bits =
      _mm512_set4_epi64(0x2c2c0c0c2c2c0c0c, 0x3030101030301010, 0x2c2c0c0c2c2c0c0c, 0x3030101030301010);
  alignas(64) std::byte rows[kPageTokens * kWideDims / 2];
  for (int t = 0; t < kPageTokens; t += 2) {
    next->Prefetch<1>();
    __m512i token[2];  // eight dims in a dword: of the first vector, and of the second
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i, copy += head_dim) {
      const __m512i x = Load64(copy), y = Load64(copy + kVectorWords);
      const auto put = [&](__mmask64 bytes, __m512 from, int at) {
        token[i] = _mm512_mask_multishift_epi64_epi8(token[i], bytes, bits, WideCodes(from, inverses[at], offsets[at]));
      };
      token[i] = _mm512_multishift_epi64_epi8(bits, WideCodes(WideEven(x), inverses[0], offsets[0]));
      put(OfQwords(0x0a), WideOdd(x), 1);
      put(OfQwords(0x50), WideEven(y), 2);
      put(OfQwords(0xa0), WideOdd(y), 3);
    }
    _mm512_store_si512(rows + t * kWideDims / 2,
                       HalfBytes(_mm512_unpacklo_epi64(token[0], token[1]), _mm512_unpackhi_epi64(token[0], token[1])));
  }
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  for (int panel = 0; panel < kPageKPanels; ++panel, to += kPanelLanes * head_dim / 2) {
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) {
      const std::byte* const from = rows + panel * kPanelLanes * kWideDims / 2 + lane * 16;
      const __m512i tokens_0_7 = LoadLanes(from, 64), tokens_8_15 = LoadLanes(from + 4 * 64, 64);
      Stream64(to + lane * 64, _mm512_permutex2var_epi32(tokens_0_7, even, tokens_8_15));
      Stream64(to + (4 + lane) * 64, _mm512_permutex2var_epi32(tokens_0_7, odd, tokens_8_15));
    }
  }
}

// ---- V

// To signed integers in the order that int4_rows.h takes bf16 in, or back.
inline __m512i Ordered(__m512i x) {
  return _mm512_ternarylogic_epi32(x, _mm512_srai_epi16(x, 15), _mm512_set1_epi16(INT16_MAX), 0x78);  // x ^ (b & c)
}

// The ranges of 16 tokens' group of dims, which begins at `dim`; also copies them, to rows of head_dim.
[[gnu::always_inline]] inline void ReadVTokens(const Rows& v, int head_dim, int dim, Bf16* copy, Bf16* low, Bf16* high,
                                               UpcomingLines* next) {
  const auto min = [](__m512i a, __m512i b) { return _mm512_min_epi16(a, b); };
  const auto max = [](__m512i a, __m512i b) { return _mm512_max_epi16(a, b); };
  __m512i least[4], largest[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    next->Prefetch<2>();
    __m512i least_of[4], largest_of[4];
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) {
      const int t = i + 4 * l;
      const RowPart x(v.At<Bf16>(t) + dim, copy + t * head_dim + dim);
      const __m512i first = Ordered(x.first), second = Ordered(x.second);
      least_of[l] = min(first, second);
      largest_of[l] = max(first, second);
    }
    least[i] = FoldToLanes(least_of, min);
    largest[i] = FoldToLanes(largest_of, max);
  }
  Store32(low, _mm512_cvtepi32_epi16(Ordered(FoldLanes(least, min))));
  Store32(high, _mm512_cvtepi32_epi16(Ordered(FoldLanes(largest, max))));
}

// Scales, units and minima of one group to the page, as FindVSteps.
[[gnu::always_inline]] inline bool FindWideVSteps(const Bf16* lows, const Bf16* highs, uint8_t* to, float* inverse,
                                                  float* offset, Int4Units units) {
  const __m512i low = Load64(lows), high = Load64(highs);
  if (!AreFinite(low) || !AreFinite(high)) return false;
  const __m512 least[2] = {WideEven(low), WideOdd(low)};
  const __m512 scale[2] = {WideZeroWhereLeast(WideStepsBetween(least[0], WideEven(high), 15)),
                           WideZeroWhereLeast(WideStepsBetween(least[1], WideOdd(high), 15))};
  const RoundingUp round_up(_mm512_reduce_max_ps(_mm512_max_ps(scale[0], scale[1])), kInt4VScaleMax);
  units.v_scale = round_up.unit;
  __m512 integers[2];
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    integers[odd] = WideRoundUp(round_up, scale[odd]);
    const __m512 inverses = WideInverses(integers[odd], round_up.unit);
    _mm512_store_ps(inverse + odd * 16, inverses);
    _mm512_store_ps(offset + odd * 16, _mm512_fnmadd_ps(least[odd], inverses, _mm512_set1_ps(kInt4CodeZero)));
  }
  const __m512i scales = _mm512_castsi256_si512(_mm512_cvtepi16_epi8(WideWords(integers[0], integers[1])));
  Stream64(to, _mm512_inserti64x4(scales, std::bit_cast<__m256i>(units), 1));
  Stream64(to + 2 * kPageTokens, low);
  return true;
}

// A group's dims of V, from a copy, to four panels. Eight tokens are a dword for each dim.
[[gnu::always_inline]] inline void RoundWideTokens(const Bf16* copy, int head_dim, const float* inverse,
                                                   const float* offset, uint8_t* to, UpcomingLines* next) {
  constexpr int kPanelBytes = kPageTokens * kPanelLanes / 2;
  const __m512i bits[2] = {_mm512_set1_epi64(0x3030303010101010), _mm512_set1_epi64(0x2c2c2c2c0c0c0c0c)};
  for (int t = 0; t < kPageTokens; t += kLineSteps, to += 64) {
    next->Prefetch<2>();
    next->Prefetch<2>();
    __m512i even[2][2] = {}, odd[2][2] = {};  // tokens 0 to 3 in low halves, and the others in high ones
#pragma GCC unroll 8
    for (int i = 0; i < kLineSteps; ++i, copy += head_dim) {
      const int at = t / 2 + i % 2 * 16 + i / 2, high = i / 4;
      const __m512 by = _mm512_set1_ps(inverse[at]), plus = _mm512_set1_ps(offset[at]);
      const __mmask64 byte = i % 4 == 0 ? ~__mmask64{0} : OfQwords(0x11u << i % 4);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const __m512i x = Load64(copy + half * kVectorWords);
        __m512i &e = even[half][high], &o = odd[half][high];
        e = _mm512_mask_multishift_epi64_epi8(e, byte, bits[high], WideCodes(WideEven(x), by, plus));
        o = _mm512_mask_multishift_epi64_epi8(o, byte, bits[high], WideCodes(WideOdd(x), by, plus));
      }
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const InOrder dims(HalfBytes(even[half][0], even[half][1]), HalfBytes(odd[half][0], odd[half][1]));
      Stream64(to + 2 * half * kPanelBytes, dims.low);
      Stream64(to + (2 * half + 1) * kPanelBytes, dims.high);
    }
  }
}

// A closed KV head from its rows. False, with nothing of use written, if an element is not finite.
template <int kHeadDim>
[[gnu::noinline]] bool PackInt4(const Rows& k, const Rows& v, uint8_t* head, UpcomingLines* next) {
  alignas(64) Bf16 copy[kPageTokens * kRowElementsMax];
  WideRanges ranges;
  WideSteps steps;
  Int4Units units = {};
  ReadK(k, kHeadDim, copy, &ranges, next);
  if (!FindWideKSteps(ranges, kHeadDim, head, &steps, &units, next)) return false;
  for (int d = 0; d < kHeadDim; d += kWideDims) {
    RoundWideDims(copy + d, kHeadDim, steps.inverse + d, steps.offset + d, head + d * 8, next);
  }

  for (int d = 0; d < kHeadDim; d += kInt4GroupDims) {
    for (int t = 0; t < kPageTokens; t += kPanelLanes) {
      const int at = d / kInt4GroupDims * kPageTokens + t;
      ReadVTokens(v.From(t), kHeadDim, d, copy + t * kHeadDim, ranges.low + at, ranges.high + at, next);
    }
  }
  for (int group = 0; group < Int4Groups(kHeadDim); ++group, units = {}) {
    const int at = group * kPageTokens;
    if (!FindWideVSteps(ranges.low + at, ranges.high + at, head + Int4VScales(kHeadDim) + group * kInt4GroupBytes,
                        steps.inverse + at, steps.offset + at, units)) {
      return false;
    }
  }
  for (int d = 0; d < kHeadDim; d += kInt4GroupDims) {
    const int at = d / kInt4GroupDims * kPageTokens;
    RoundWideTokens(copy + d, kHeadDim, steps.inverse + at, steps.offset + at,
                    head + Int4V(kHeadDim) + d * kPageTokens / 2, next);
  }
  return true;
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_WIDE_INT4_ROWS_H_
