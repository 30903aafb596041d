#ifndef FASTDECODE_KERNELS_CPU_INT4_ROWS_H_
#define FASTDECODE_KERNELS_CPU_INT4_ROWS_H_

#include "kernels/cpu/page_pack.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Rounding a page's rows of bf16 to half bytes (attention_page.h), with AVX2.

constexpr int kChunk = 16;                                            // bf16 in a vector
constexpr int kLineSteps = 8;                                         // of half bytes
constexpr int kStepsMax = kRowElementsMax / kInt4GroupDims * kChunk;  // all groups' of 16 tokens

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

// What the elements of dims of K, or of tokens of V, are rounded with. In chunks of 16, whose even ones come first.
struct Steps {
  alignas(32) float minimum[kStepsMax], divisor[kStepsMax], inverse[kStepsMax];
  bool fast[kStepsMax / kChunk];  // the inverse will do
};

// Some tokens' dims.
struct Block {
  Rows rows;
  int first_token, tokens, first_dim, dims;
};

// Whether a number but 0 in it is less than this one, in bf16.
inline bool HasLess(const Block& block, Bf16 bits) {
  __m256i least = _mm256_set1_epi16(-1);  // of magnitudes less 1
  for (int t = block.first_token; t < block.first_token + block.tokens; ++t) {
    for (int d = block.first_dim; d < block.first_dim + block.dims; d += kChunk) {
      const __m256i magnitude = _mm256_and_si256(Load32(block.rows.At<Bf16>(t) + d), _mm256_set1_epi16(INT16_MAX));
      least = _mm256_min_epu16(least, _mm256_add_epi16(magnitude, _mm256_set1_epi16(-1)));
    }
  }
  const __m256i bound = _mm256_set1_epi16(static_cast<short>(bits));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_min_epu16(least, bound), bound)) != -1;
}

inline bool AnyLane(__m256 mask) { return _mm256_movemask_ps(mask) != 0; }
inline __m256 Magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline __m256i NotFinite(__m256i x) {
  return _mm256_cmpgt_epi16(_mm256_and_si256(x, _mm256_set1_epi16(INT16_MAX)), _mm256_set1_epi16(0x7f7f));
}

// Scales and minima of 16 steps, whose elements these are, to the page. Returns whether all of them are finite.
//
// An element's distance from the minimum can be multiplied by the inverse of the scale, be rounded to a multiple of
// 2^-18 and then to an integer: the first rounding does away with the inverse's error, if the exact quotient lies
// halfway between two integers or 2^-18 off at least. All three are in bf16: so it does, unless one of element and
// minimum is halfway and the other next to nothing. (Where the lesser one has no bit below 2^-9 of the scale's last,
// the quotient is a multiple of 2^-9 over twice the scale in units of its last bit, which is 255 at most. Otherwise it
// is less than 2^-9 of the scale, and the greater one, if not halfway, half a unit of the scale's last bit off, which
// the lesser one cannot bridge but for 2^-9 of that.) Numbers that overflow or may be denormal are divided, too.
template <class Lines>
inline bool FindScales(__m256i low, __m256i high, const Block& block, int first, Steps* steps, Bf16* scales,
                       Bf16* minima) {
  const __m256 fifteen = _mm256_set1_ps(15);
  __m256i scale[2];
  __m256 slow = _mm256_setzero_ps(), middle = slow;
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    const __m256 from = odd ? OddSteps(low) : EvenSteps(low), to = odd ? OddSteps(high) : EvenSteps(high);
    // 15 steps lead to the largest or beyond.
    scale[odd] = RoundUp8(_mm256_sub_ps(_mm256_div_ps(to, fifteen), _mm256_div_ps(from, fifteen)));
    const __m256 divisor = DivisorOf(EvenSteps(scale[odd])), inverse = _mm256_div_ps(_mm256_set1_ps(1), divisor);
    const int at = first + odd * 8;
    _mm256_store_ps(steps->minimum + at, from);
    _mm256_store_ps(steps->divisor + at, divisor);
    _mm256_store_ps(steps->inverse + at, inverse);
    const __m256 quotient = _mm256_mul_ps(from, inverse);
    const __m256 off =
        _mm256_sub_ps(quotient, _mm256_round_ps(quotient, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    middle = _mm256_or_ps(middle, _mm256_cmp_ps(Magnitude(off), _mm256_set1_ps(0.5f - 0x1p-14f), _CMP_GT_OQ));
    const __m256 next_to_nothing = _mm256_cmp_ps(Magnitude(quotient), _mm256_set1_ps(0x1p-16f), _CMP_LT_OQ);
    const __m256 something = _mm256_cmp_ps(from, _mm256_setzero_ps(), _CMP_NEQ_OQ);
    slow = _mm256_or_ps(slow, _mm256_and_ps(next_to_nothing, something));
    // Denormals and overflows.
    slow = _mm256_or_ps(slow, _mm256_cmp_ps(divisor, _mm256_set1_ps(0x1p-64f), _CMP_LT_OQ));
    slow = _mm256_or_ps(slow, _mm256_cmp_ps(divisor, _mm256_set1_ps(0x1p64f), _CMP_GT_OQ));
  }
  steps->fast[first / kChunk] = !AnyLane(slow);
  if (AnyLane(middle) && !AnyLane(slow)) {
    const int32_t largest = MaxLanes(_mm256_max_epi32(scale[0], scale[1]));
    steps->fast[first / kChunk] = !HasLess(block, static_cast<Bf16>(largest - (17 << 7)));  // 2^-17 of it
  }
  Lines::StoreHalf(scales, Pairs(scale[0], scale[1]));
  Lines::StoreHalf(minima, low);
  const __m256i infinite = _mm256_or_si256(NotFinite(low), NotFinite(high));
  return _mm256_testz_si256(infinite, infinite) != 0;
}

// A code in the low half byte, with the bits of kShift.
constexpr float kShift = 0x1.8p23f;  // whose last bit is worth 1: adding it rounds to integers
constexpr uint32_t kShiftBits = 0x4b400000;
template <bool kFast>
inline __m256i Codes(__m256 x, __m256 minimum, __m256 by) {
  const __m256 above = _mm256_sub_ps(x, minimum);
  if constexpr (kFast) {
    const __m256 fine = _mm256_set1_ps(48), rest = _mm256_set1_ps(kShift - 48);
    return _mm256_castps_si256(_mm256_add_ps(_mm256_fmadd_ps(above, by, fine), rest));
  }
  // Not below 0; above 15 only where the scale was rounded in the last place. NaN, of too large numbers, is 15.
  const __m256 quotient = _mm256_min_ps(_mm256_div_ps(above, by), _mm256_set1_ps(15));
  return _mm256_castps_si256(_mm256_add_ps(quotient, _mm256_set1_ps(kShift)));
}

// kChunks * 16 dims of K to half bytes, four bytes for eight dims. Always writes 16 bytes.
template <bool kFast, int kChunks>
inline void RoundDims(const Block& block, const Steps& steps, uint8_t* to, size_t to_stride) {
  __m256 minimum[kChunks][2], by[kChunks][2];
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      minimum[c][odd] = _mm256_load_ps(steps.minimum + c * kChunk + odd * 8);
      by[c][odd] = _mm256_load_ps((kFast ? steps.inverse : steps.divisor) + c * kChunk + odd * 8);
    }
  }
  for (int t = 0; t < kPageTokens; ++t, to += to_stride) {
    __m256i words[kChunks];
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; ++c) {
      const __m256i x = Load32(block.rows.At<Bf16>(t) + c * kChunk);
      words[c] = Pairs(Codes<kFast>(EvenSteps(x), minimum[c][0], by[c][0]),
                       Codes<kFast>(OddSteps(x), minimum[c][1], by[c][1]));
    }
    const __m256i bytes = _mm256_packus_epi16(words[0], words[kChunks - 1]);  // eight dims in eight
    const __m256i both = _mm256_or_si256(bytes, _mm256_srli_epi64(bytes, 28));
    const __m256i packed = _mm256_permutevar8x32_epi32(both, _mm256_setr_epi32(0, 4, 2, 6, 0, 4, 2, 6));
    Store16(to, _mm256_castsi256_si128(packed));
  }
}

// The same with their scales. False if an element is not finite.
template <class Lines, int kChunks>
bool CloseDims(Rows k, int head_dim, int dim, uint8_t* head, uint8_t* codes, size_t codes_stride, Upcoming* next) {
  alignas(32) Bf16 copy[kPageTokens][kChunks * kChunk];  // a first-level cache might not keep the rows
  Range range[kChunks];
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) range[c] = Load(k.At<Bf16>(0) + dim + c * kChunk);
  for (int t = 0; t < kPageTokens; t += 4) {
    next->After((dim + t * kChunks / 2) * kPageTokens / head_dim);
#pragma GCC unroll 4
    for (int i = t; i < t + 4; ++i) {
#pragma GCC unroll 2
      for (int c = 0; c < kChunks; ++c) {
        const __m256i x = Load32(k.At<Bf16>(i) + dim + c * kChunk);
        Store32(copy[i] + c * kChunk, x);
        range[c] = Fold(range[c], {x, x, x});
      }
    }
  }
  Steps steps;
  bool finite = true, fast = true;
  Bf16* const scales = reinterpret_cast<Bf16*>(head + Int4KScales(head_dim)) + dim;
  const Rows rows = {reinterpret_cast<const std::byte*>(copy), sizeof(copy[0])};
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
    finite &= FindScales<Lines>(range[c].low(), range[c].high(), {rows, 0, kPageTokens, c * kChunk, kChunk}, c * kChunk,
                                &steps, scales + c * kChunk, scales + head_dim + c * kChunk);
    fast &= steps.fast[c];
  }
  const Block block = {rows, 0, kPageTokens, 0, kChunks * kChunk};
  if (fast) {
    RoundDims<true, kChunks>(block, steps, codes + dim / 2, codes_stride);
  } else {
    RoundDims<false, kChunks>(block, steps, codes + dim / 2, codes_stride);
  }
  return finite;
}

template <class Lines>
bool CloseK(const Rows& k, int head_dim, uint8_t* head, Upcoming* next) {
  alignas(32) uint8_t codes[kPageTokens * kRowElementsMax / 2];
  const size_t stride = static_cast<size_t>((head_dim + 31) / 32) * 16;
  bool finite = true;
  int dim = 0;
  for (; dim + 2 * kChunk <= head_dim; dim += 2 * kChunk) {
    finite &= CloseDims<Lines, 2>(k, head_dim, dim, head, codes, stride, next);
  }
  if (dim < head_dim) finite &= CloseDims<Lines, 1>(k, head_dim, dim, head, codes, stride, next);
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
  return finite;
}

// A line of V: eight tokens' 16 dims. Codes are added up as they are, with the bits of kShift, which come to the same
// in every line.
template <class Lines, bool kFast>
void RoundTokens(Rows rows, int token, int dim, const Steps& steps, int first, uint8_t* to) {
  __m256i line[2];
#pragma GCC unroll 2
  for (__m256i& half : line) half = _mm256_set1_epi32(static_cast<int32_t>(-(kShiftBits * 0x11111111u)));
#pragma GCC unroll 8
  for (int i = 0; i < kLineSteps; ++i) {
    const int at = i % 2 * 8 + i / 2;
    const __m256 minimum = _mm256_set1_ps(steps.minimum[first + at]);
    const __m256 by = _mm256_set1_ps((kFast ? steps.inverse : steps.divisor)[first + at]);
    const __m256i x = Load32(rows.At<Bf16>(token + i) + dim);
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const __m256i code = Codes<kFast>(odd ? OddSteps(x) : EvenSteps(x), minimum, by);
      line[odd] = _mm256_add_epi32(line[odd], _mm256_slli_epi32(code, i % 4 * 8 + i / 4 * 4));
    }
  }
  const __m256i low = _mm256_unpacklo_epi32(line[0], line[1]), high = _mm256_unpackhi_epi32(line[0], line[1]);
  StoreLine<Lines>(to, _mm256_permute2x128_si256(low, high, 0x20), _mm256_permute2x128_si256(low, high, 0x31));
}

template <class Lines>
bool CloseV(Rows v, int head_dim, uint8_t* head, Upcoming* next) {
  bool finite = true;
  for (int token = 0; token < kPageTokens; token += kChunk) {
    Steps steps;
    Bf16* scales = reinterpret_cast<Bf16*>(head + Int4VScales(head_dim)) + token;
    for (int dim = 0, at = 0; dim < head_dim; dim += kInt4GroupDims, at += kChunk, scales += 2 * kPageTokens) {
      next->After(token + dim / 16);
      const int dims = head_dim - dim < kInt4GroupDims ? head_dim - dim : kInt4GroupDims;
      const Block block = {v, token, kChunk, dim, dims};
      const Range first = RangesOfTokens(v, token, dim, dims), second = RangesOfTokens(v, token + 8, dim, dims);
      finite &= FindScales<Lines>(_mm256_permute2x128_si256(first.low(), second.low(), 0x20),
                                  _mm256_permute2x128_si256(first.high(), second.high(), 0x20), block, at, &steps,
                                  scales, scales + kPageTokens);
    }
    for (int first = 0; first < kChunk; first += kLineSteps) {
      uint8_t* to = head + Int4V(head_dim) + (token + first) / kLineSteps * 64;
      for (int dim = 0; dim < head_dim; dim += kChunk, to += kPageTokens / kLineSteps * 64) {
        next->After(token + first + dim * kLineSteps / head_dim);
        const int group = dim / kInt4GroupDims;
        const auto round = steps.fast[group] ? RoundTokens<Lines, true> : RoundTokens<Lines, false>;
        round(v, token + first, dim, steps, group * kChunk + first / 2, to);
      }
    }
  }
  return finite;
}

// A closed KV head from its rows of bf16. False, with nothing of use written, if an element is not finite.
template <class Lines>
bool CloseHead(const Rows& k, const Rows& v, int head_dim, uint8_t* head, Upcoming* next) {
  next->Begin(0);
  const bool finite = CloseK<Lines>(k, head_dim, head, next);
  next->Begin(kPageTokens);
  return CloseV<Lines>(v, head_dim, head, next) && finite;
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_INT4_ROWS_H_
