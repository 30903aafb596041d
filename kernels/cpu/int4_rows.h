#ifndef FASTDECODE_KERNELS_CPU_INT4_ROWS_H_
#define FASTDECODE_KERNELS_CPU_INT4_ROWS_H_

#include <bit>

#include "kernels/cpu/page_codes.h"
#include "kernels/cpu/page_pack.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Rounding a page's rows of bf16 to half bytes (attention_page.h), with AVX2.

constexpr int kChunk = 16;     // bf16 in a vector
constexpr int kLineSteps = 8;  // of half bytes
// Of k's rows, or v's, as many pass for done when their ranges are known, and when they are rounded: by the time it
// takes.
constexpr int kRangingRows = kPageTokens / 4, kRoundingRows = kPageTokens - kRangingRows;
static_assert(kRowElementsMax / kInt4GroupDims * kPageTokens <= kRowElementsMax);

// The least and the largest of bf16 numbers, lane by lane, -0 below +0. Taken for integers, numbers of one sign are
// ordered by magnitude, and negative ones are above the others, if integers have no sign, or below.
struct Range {
  __m256i most, least, largest;  // unsigned, unsigned, signed

  __m256i low() const { return _mm256_blendv_epi8(least, most, _mm256_srai_epi16(most, 15)); }
  __m256i high() const { return _mm256_blendv_epi8(largest, least, _mm256_srai_epi16(largest, 15)); }
};
inline Range Load(const Bf16* x) { return {Load32(x), Load32(x), Load32(x)}; }
inline Range Fold(const Range& a, const Range& b) {
  return {_mm256_max_epu16(a.most, b.most), _mm256_min_epu16(a.least, b.least), _mm256_max_epi16(a.largest, b.largest)};
}
// What two shuffles make of two ranges, folded.
template <class Shuffle>
inline Range Fold(const Range& a, const Range& b, Shuffle low, Shuffle high) {
  return Fold({low(a.most, b.most), low(a.least, b.least), low(a.largest, b.largest)},
              {high(a.most, b.most), high(a.least, b.least), high(a.largest, b.largest)});
}
using Shuffle = __m256i (*)(__m256i, __m256i);
// Each one's lanes, to words 0 to 7.
inline Range Fold8(const Range (&x)[kLineSteps]) {
  constexpr Shuffle kLowHalves = [](__m256i a, __m256i b) { return _mm256_permute2x128_si256(a, b, 0x20); };
  constexpr Shuffle kHighHalves = [](__m256i a, __m256i b) { return _mm256_permute2x128_si256(a, b, 0x31); };
  constexpr Shuffle kLowWords = [](__m256i a, __m256i b) { return _mm256_unpacklo_epi16(a, b); };
  constexpr Shuffle kHighWords = [](__m256i a, __m256i b) { return _mm256_unpackhi_epi16(a, b); };
  constexpr Shuffle kLowDwords = [](__m256i a, __m256i b) { return _mm256_unpacklo_epi32(a, b); };
  constexpr Shuffle kHighDwords = [](__m256i a, __m256i b) { return _mm256_unpackhi_epi32(a, b); };
  constexpr Shuffle kEvenQwords = [](__m256i a, __m256i) { return _mm256_permute4x64_epi64(a, 0x08); };
  constexpr Shuffle kOddQwords = [](__m256i a, __m256i) { return _mm256_permute4x64_epi64(a, 0x0d); };
  Range two[4];  // each one's and the fourth's from there
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) two[i] = Fold(x[i], x[i + 4], kLowHalves, kHighHalves);
  const Range low = Fold(two[0], two[1], kLowWords, kHighWords), high = Fold(two[2], two[3], kLowWords, kHighWords);
  const Range all = Fold(low, high, kLowDwords, kHighDwords);
  return Fold(all, all, kEvenQwords, kOddQwords);
}

// Of eight tokens each, in words 0 to 7.
inline Range RangesOfTokens(Rows rows, int token, int dim, int dims) {
  Range ranges[kLineSteps];
  for (int i = 0; i < kLineSteps; ++i) {
    const Bf16* const row = rows.At<Bf16>(token + i) + dim;
    ranges[i] = Load(row);
    for (int d = kChunk; d < dims; d += kChunk) ranges[i] = Fold(ranges[i], Load(row + d));
  }
  return Fold8(ranges);
}

// What the elements of dims of K, or of the groups' tokens of V, are rounded with (CodeWords). In chunks of 16, whose
// even ones come first.
struct Steps {
  alignas(32) float inverse[kRowElementsMax], offset[kRowElementsMax];
};
// Inverses of 8 integers times a unit; 0 of 0.
inline __m256 Inverses(__m256 integers, float unit) {
  const __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1), _mm256_mul_ps(integers, _mm256_set1_ps(unit)));
  return _mm256_and_ps(inverse, _mm256_cmp_ps(integers, _mm256_setzero_ps(), _CMP_GT_OQ));
}

inline __m256i NotFinite(__m256i x) {
  return _mm256_cmpgt_epi16(_mm256_and_si256(x, _mm256_set1_epi16(INT16_MAX)), _mm256_set1_epi16(0x7f7f));
}
inline bool NoneOf(__m256i x) { return _mm256_testz_si256(x, x) != 0; }
inline __m256 Abs8(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
// x where it is kInt4Least at least, 0 elsewhere.
inline __m256 ZeroWhereLeast(__m256 x) {
  return _mm256_and_ps(x, _mm256_cmp_ps(x, _mm256_set1_ps(kInt4Least), _CMP_GE_OQ));
}
inline float LargestOf(__m256 x) { return std::bit_cast<float>(MaxLanes(_mm256_castps_si256(x))); }  // none below 0

// Of so many that lead from the least to the largest element.
inline __m256 StepsBetween(__m256 least, __m256 largest, float count) {
  const __m256 part = _mm256_set1_ps(1 / count);
  return _mm256_sub_ps(_mm256_mul_ps(largest, part), _mm256_mul_ps(least, part));
}

// Integers of a unit that numbers >= 0 are rounded up to, the largest of which becomes `most`.
struct RoundingUp {
  RoundingUp(float largest, int most)
      : unit(largest < kInt4LeastScale ? 0 : largest / static_cast<float>(most)),
        inverse(largest < kInt4LeastScale ? 0 : static_cast<float>(most) / largest),
        most(static_cast<float>(most)) {}
  __m256 operator()(__m256 x) const {
    const __m256 less = _mm256_fmsub_ps(x, _mm256_set1_ps(inverse), _mm256_set1_ps(kInt4NoUnit));
    return _mm256_min_ps(_mm256_ceil_ps(less), _mm256_set1_ps(most));
  }
  float unit, inverse, most;
};
inline __m256i Words(__m256 even, __m256 odd) { return Pairs(_mm256_cvtps_epi32(even), _mm256_cvtps_epi32(odd)); }

// 16 elements' codes, and the other bits of kWordZero.
inline __m256i CodeWords(__m256i x, const __m256 (&inverse)[2], const __m256 (&offset)[2]) {
  const __m256 even = _mm256_fmadd_ps(EvenSteps(x), inverse[0], offset[0]);
  const __m256 odd = _mm256_fmadd_ps(OddSteps(x), inverse[1], offset[1]);
  return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd), 0xaa);
}
constexpr uint16_t kWordZero = std::bit_cast<uint32_t>(kInt4CodeZero) >> 16;
static_assert((kWordZero & 15) == 0);

// The least and the largest of K's dims, as they are.
struct DimRanges {
  alignas(32) Bf16 low[kRowElementsMax], high[kRowElementsMax];
};

// Of kChunks * 16 of them.
template <int kChunks>
inline void FindRanges(const Rows& k, int head_dim, int dim, DimRanges* ranges, Upcoming* next) {
  Range range[kChunks];
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) range[c] = Load(k.At<Bf16>(0) + dim + c * kChunk);
  for (int t = 0; t < kPageTokens; t += 4) {
    next->After((dim + t * kChunks / 2) * kRangingRows / head_dim);
#pragma GCC unroll 4
    for (int i = t; i < t + 4; ++i) {
#pragma GCC unroll 2
      for (int c = 0; c < kChunks; ++c) {
        const __m256i x = Load32(k.At<Bf16>(i) + dim + c * kChunk);
        range[c] = Fold(range[c], {x, x, x});
      }
    }
  }
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
    Store32(ranges->low + dim + c * kChunk, range[c].low());
    Store32(ranges->high + dim + c * kChunk, range[c].high());
  }
}

// Scales and minima of K to the page and to `units`. False, with nothing written, if an element is not finite.
template <class Lines>
inline bool FindKSteps(const DimRanges& ranges, int head_dim, uint8_t* head, Steps* steps, Int4Units* units) {
  alignas(32) float scale[kRowElementsMax];
  __m256i infinite = _mm256_setzero_si256();
  __m256 top = _mm256_setzero_ps();
  for (int d = 0; d < head_dim; d += kChunk) {
    const __m256i low = Load32(ranges.low + d), high = Load32(ranges.high + d);
    infinite = _mm256_or_si256(infinite, _mm256_or_si256(NotFinite(low), NotFinite(high)));
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const __m256 least = odd ? OddSteps(low) : EvenSteps(low), largest = odd ? OddSteps(high) : EvenSteps(high);
      const __m256 room = _mm256_mul_ps(Abs8(least), _mm256_set1_ps(kInt4KLeastOfMinimum));
      const __m256 step = ZeroWhereLeast(_mm256_max_ps(StepsBetween(least, largest, kInt4KSteps), room));
      top = _mm256_max_ps(top, step);
      _mm256_store_ps(scale + d + odd * 8, step);
    }
  }
  if (!NoneOf(infinite)) return false;

  uint16_t* const scales = reinterpret_cast<uint16_t*>(head + Int4KScales(head_dim));
  const RoundingUp round_up(LargestOf(top), kInt4KScaleMax);
  units->k_scale = round_up.unit;
  for (int d = 0; d < head_dim; d += kChunk) {
    const __m256i low = Load32(ranges.low + d);
    __m256 integers[2], minima[2];
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const int first = d + odd * 8;
      integers[odd] = round_up(_mm256_load_ps(scale + first));
      const __m256 inverse = Inverses(integers[odd], round_up.unit);
      const __m256 least = odd ? OddSteps(low) : EvenSteps(low);
      minima[odd] = _mm256_floor_ps(_mm256_fmadd_ps(least, inverse, _mm256_set1_ps(kInt4KMinimumRounding)));
      _mm256_store_ps(steps->inverse + first, inverse);
      _mm256_store_ps(steps->offset + first, _mm256_sub_ps(_mm256_set1_ps(kInt4CodeZero), minima[odd]));
    }
    Lines::StoreHalf(scales + d, Words(integers[0], integers[1]));
    Lines::StoreHalf(scales + head_dim + d, Words(minima[0], minima[1]));
  }
  return true;
}

// kChunks * 16 dims of K to half bytes, four bytes for eight dims. Always writes 16 bytes.
template <int kChunks>
inline void RoundDims(const Rows& k, int head_dim, int dim, const Steps& steps, uint8_t* to, size_t to_stride,
                      Upcoming* next) {
  __m256 inverse[kChunks][2], offset[kChunks][2];
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      inverse[c][odd] = _mm256_load_ps(steps.inverse + dim + c * kChunk + odd * 8);
      offset[c][odd] = _mm256_load_ps(steps.offset + dim + c * kChunk + odd * 8);
    }
  }
  for (int t = 0; t < kPageTokens; ++t, to += to_stride) {
    if (t % 4 == 0) next->After(kRangingRows + (dim + t * kChunks / 2) * kRoundingRows / head_dim);
    __m256i words[kChunks];
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; ++c) {
      const __m256i x = Load32(k.At<Bf16>(t) + dim + c * kChunk);
      words[c] = _mm256_and_si256(CodeWords(x, inverse[c], offset[c]), _mm256_set1_epi16(15));
    }
    const __m256i bytes = _mm256_packus_epi16(words[0], words[kChunks - 1]);  // eight dims in eight
    const __m256i both = _mm256_or_si256(bytes, _mm256_srli_epi64(bytes, 28));
    const __m256i packed = _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 2, 6, 0, 4, 2, 6));
    Store16(to, _mm256_castsi256_si128(packed));
  }
}

template <class Lines>
bool CloseK(const Rows& k, int head_dim, uint8_t* head, Int4Units* units, Upcoming* next) {
  DimRanges ranges;
  int dim = 0;
  for (; dim + 2 * kChunk <= head_dim; dim += 2 * kChunk) FindRanges<2>(k, head_dim, dim, &ranges, next);
  if (dim < head_dim) FindRanges<1>(k, head_dim, dim, &ranges, next);
  Steps steps;
  if (!FindKSteps<Lines>(ranges, head_dim, head, &steps, units)) return false;

  alignas(32) uint8_t codes[kPageTokens * kRowElementsMax / 2];
  const size_t stride = static_cast<size_t>((head_dim + 31) / 32) * 16;
  for (dim = 0; dim + 2 * kChunk <= head_dim; dim += 2 * kChunk) {
    RoundDims<2>(k, head_dim, dim, steps, codes + dim / 2, stride, next);
  }
  if (dim < head_dim) RoundDims<1>(k, head_dim, dim, steps, codes + dim / 2, stride, next);
  const Rows rows = {reinterpret_cast<const std::byte*>(codes), stride};
  for (int token = 0; token < kPageTokens; token += kPanelLanes) {
    for (int byte = 0; byte < head_dim / 2; byte += 16) {
      __m256i tokens_0_7[4], tokens_8_15[4];
      Transpose8x4(rows, token, byte, tokens_0_7);
      Transpose8x4(rows, token + 8, byte, tokens_8_15);
      for (int i = 0; i < 4 && byte + 4 * i < head_dim / 2; ++i, head += 64) {
        StoreLine<Lines>(head, tokens_0_7[i], tokens_8_15[i]);
      }
    }
  }
  return true;
}

// Words and next words to the low and the high bytes of words.
inline __m256i BytePairs(__m256i words, __m256i next) { return _mm256_add_epi16(words, _mm256_slli_epi16(next, 8)); }

// A line of V: eight tokens' 16 dims. Codes are added up as they are, with the bits of kWordZero, which come to the
// same in every line.
template <class Lines>
inline void RoundTokens(const Rows& rows, int token, int dim, const Steps& steps, int first, uint8_t* to) {
  __m256i words[kLineSteps];
#pragma GCC unroll 8
  for (int i = 0; i < kLineSteps; ++i) {
    const int at = first + i % 2 * 8 + i / 2;
    const __m256 inverse = _mm256_set1_ps(steps.inverse[at]), offset = _mm256_set1_ps(steps.offset[at]);
    words[i] = CodeWords(Load32(rows.At<Bf16>(token + i) + dim), {inverse, inverse}, {offset, offset});
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) words[i] = _mm256_add_epi16(words[i], _mm256_slli_epi16(words[i + 4], 4));
  const __m256i zeros = _mm256_set1_epi16(static_cast<short>(-(kWordZero * 0x1111)));
  const __m256i even = _mm256_add_epi16(BytePairs(words[0], words[1]), zeros);
  const __m256i odd = _mm256_add_epi16(BytePairs(words[2], words[3]), zeros);
  const __m256i low = _mm256_unpacklo_epi16(even, odd), high = _mm256_unpackhi_epi16(even, odd);
  StoreLine<Lines>(to, _mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

// Scales, units and minima of one group of V's dims to the page. False, with nothing of use written, if an element is
// not finite.
template <class Lines>
inline bool FindVSteps(const Rows& v, int head_dim, int group, uint8_t* head, Steps* steps, Int4Units units,
                       Upcoming* next) {
  const int dim = group * kInt4GroupDims;
  const int dims = head_dim - dim < kInt4GroupDims ? head_dim - dim : kInt4GroupDims;
  constexpr int kChunks = kPageTokens / kChunk;
  uint8_t* const to = head + Int4VScales(head_dim) + group * kInt4GroupBytes;
  __m256i low[kChunks], infinite = _mm256_setzero_si256();
  __m256 scale[kChunks][2], top = _mm256_setzero_ps();
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
    const Range first = RangesOfTokens(v, c * kChunk, dim, dims);
    next->After((dim + c * dims / 2 + dims / 4) * kRangingRows / head_dim);
    const Range second = RangesOfTokens(v, c * kChunk + 8, dim, dims);
    next->After((dim + (c + 1) * dims / 2) * kRangingRows / head_dim);
    low[c] = _mm256_permute2x128_si256(first.low(), second.low(), 0x20);
    const __m256i high = _mm256_permute2x128_si256(first.high(), second.high(), 0x20);
    infinite = _mm256_or_si256(infinite, _mm256_or_si256(NotFinite(low[c]), NotFinite(high)));
    scale[c][0] = ZeroWhereLeast(StepsBetween(EvenSteps(low[c]), EvenSteps(high), 15));
    scale[c][1] = ZeroWhereLeast(StepsBetween(OddSteps(low[c]), OddSteps(high), 15));
    top = _mm256_max_ps(top, _mm256_max_ps(scale[c][0], scale[c][1]));
    Lines::StoreHalf(to + 2 * kPageTokens + c * 32, low[c]);
  }
  if (!NoneOf(infinite)) return false;
  const RoundingUp round_up(LargestOf(top), kInt4VScaleMax);
  units.v_scale = round_up.unit;
  __m256i words[kChunks];
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
    __m256 integers[2];
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const int first = group * kPageTokens + c * kChunk + odd * 8;
      integers[odd] = round_up(scale[c][odd]);
      const __m256 inverse = Inverses(integers[odd], round_up.unit);
      const __m256 least = odd ? OddSteps(low[c]) : EvenSteps(low[c]);
      _mm256_store_ps(steps->inverse + first, inverse);
      _mm256_store_ps(steps->offset + first, _mm256_fnmadd_ps(least, inverse, _mm256_set1_ps(kInt4CodeZero)));
    }
    words[c] = Words(integers[0], integers[1]);
  }
  Lines::StoreHalf(to, _mm256_permute4x64_epi64(_mm256_packus_epi16(words[0], words[1]), 0xd8));
  Lines::StoreHalf(to + kPageTokens, std::bit_cast<__m256i>(units));
  return true;
}

template <class Lines>
bool CloseV(const Rows& v, int head_dim, uint8_t* head, const Int4Units& k_units, Upcoming* next) {
  Steps steps;
  for (int group = 0; group < Int4Groups(head_dim); ++group) {
    const Int4Units units = group == 0 ? k_units : Int4Units{};
    if (!FindVSteps<Lines>(v, head_dim, group, head, &steps, units, next)) return false;
  }
  for (int token = 0; token < kPageTokens; token += kLineSteps) {
    uint8_t* to = head + Int4V(head_dim) + token / kLineSteps * 64;
    for (int dim = 0; dim < head_dim; dim += kChunk, to += kPageTokens / kLineSteps * 64) {
      next->After(kRangingRows + (token + dim * kLineSteps / head_dim) * kRoundingRows / kPageTokens);
      const int first = dim / kInt4GroupDims * kPageTokens + token / kChunk * kChunk;
      RoundTokens<Lines>(v, token, dim, steps, first + token % kChunk / 2, to);
    }
  }
  return true;
}

// A closed KV head from its rows of bf16. False, with nothing of use written, if an element is not finite.
template <class Lines>
bool CloseHead(const Rows& k, const Rows& v, int head_dim, uint8_t* head, Upcoming* next) {
  Int4Units units = {};
  next->Begin(0);
  if (!CloseK<Lines>(k, head_dim, head, &units, next)) return false;
  next->Begin(kPageTokens);
  return CloseV<Lines>(v, head_dim, head, units, next);
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_INT4_ROWS_H_
