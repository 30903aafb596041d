#ifndef FASTDECODE_KERNELS_CPU_INT4_ROWS_H_
#define FASTDECODE_KERNELS_CPU_INT4_ROWS_H_

#include <bit>

#include "kernels/cpu/page_codes.h"
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

// What the elements of dims of K, or of tokens of V, are rounded with (CodeWords). In chunks of 16, whose even ones
// come first.
struct Steps {
  alignas(32) float inverse[kStepsMax], offset[kStepsMax];
};

inline __m256i NotFinite(__m256i x) {
  return _mm256_cmpgt_epi16(_mm256_and_si256(x, _mm256_set1_epi16(INT16_MAX)), _mm256_set1_epi16(0x7f7f));
}

// Scales and minima of 16 steps, whose elements these are, to the page. Returns whether all of them are finite.
template <class Lines>
inline bool FindScales(__m256i low, __m256i high, int first, Steps* steps, Bf16* scales, Bf16* minima) {
  const __m256 fifteen = _mm256_set1_ps(15);
  __m256i scale[2];
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    const __m256 from = odd ? OddSteps(low) : EvenSteps(low), to = odd ? OddSteps(high) : EvenSteps(high);
    // 15 steps lead to the largest or beyond.
    scale[odd] = RoundUp8(_mm256_sub_ps(_mm256_div_ps(to, fifteen), _mm256_div_ps(from, fifteen)));
    const __m256 divisor = EvenSteps(scale[odd]);
    const __m256 counts = _mm256_cmp_ps(divisor, _mm256_set1_ps(kInt4LeastScale), _CMP_GE_OQ);
    const __m256 inverse = _mm256_and_ps(_mm256_div_ps(_mm256_set1_ps(1), divisor), counts);
    _mm256_store_ps(steps->inverse + first + odd * 8, inverse);
    _mm256_store_ps(steps->offset + first + odd * 8, _mm256_fnmadd_ps(from, inverse, _mm256_set1_ps(kInt4CodeZero)));
  }
  Lines::StoreHalf(scales, Pairs(scale[0], scale[1]));
  Lines::StoreHalf(minima, low);
  const __m256i infinite = _mm256_or_si256(NotFinite(low), NotFinite(high));
  return _mm256_testz_si256(infinite, infinite) != 0;
}

// 16 elements' codes, and the other bits of kWordZero.
inline __m256i CodeWords(__m256i x, const __m256 (&inverse)[2], const __m256 (&offset)[2]) {
  const __m256 even = _mm256_fmadd_ps(EvenSteps(x), inverse[0], offset[0]);
  const __m256 odd = _mm256_fmadd_ps(OddSteps(x), inverse[1], offset[1]);
  return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(even), 16), _mm256_castps_si256(odd), 0xaa);
}
constexpr uint16_t kWordZero = std::bit_cast<uint32_t>(kInt4CodeZero) >> 16;
static_assert((kWordZero & 15) == 0);

// kChunks * 16 dims of K to half bytes, four bytes for eight dims. Always writes 16 bytes.
template <int kChunks>
inline void RoundDims(const Rows& rows, const Steps& steps, uint8_t* to, size_t to_stride) {
  __m256 inverse[kChunks][2], offset[kChunks][2];
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      inverse[c][odd] = _mm256_load_ps(steps.inverse + c * kChunk + odd * 8);
      offset[c][odd] = _mm256_load_ps(steps.offset + c * kChunk + odd * 8);
    }
  }
  for (int t = 0; t < kPageTokens; ++t, to += to_stride) {
    __m256i words[kChunks];
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; ++c) {
      const __m256i x = Load32(rows.At<Bf16>(t) + c * kChunk);
      words[c] = _mm256_and_si256(CodeWords(x, inverse[c], offset[c]), _mm256_set1_epi16(15));
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
        range[c] = Fold(range[c], {x, x, x});
      }
    }
  }
  Steps steps;
  bool finite = true;
  Bf16* const scales = reinterpret_cast<Bf16*>(head + Int4KScales(head_dim)) + dim;
#pragma GCC unroll 2
  for (int c = 0; c < kChunks; ++c) {
    finite &= FindScales<Lines>(range[c].low(), range[c].high(), c * kChunk, &steps, scales + c * kChunk,
                                scales + head_dim + c * kChunk);
  }
  RoundDims<kChunks>({k.At<std::byte>(0) + dim * 2, k.stride_bytes}, steps, codes + dim / 2, codes_stride);
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

template <class Lines>
bool CloseV(Rows v, int head_dim, uint8_t* head, Upcoming* next) {
  bool finite = true;
  for (int token = 0; token < kPageTokens; token += kChunk) {
    Steps steps;
    Bf16* scales = reinterpret_cast<Bf16*>(head + Int4VScales(head_dim)) + token;
    for (int dim = 0, at = 0; dim < head_dim; dim += kInt4GroupDims, at += kChunk, scales += 2 * kPageTokens) {
      next->After(token + dim / 16);
      const int dims = head_dim - dim < kInt4GroupDims ? head_dim - dim : kInt4GroupDims;
      const Range first = RangesOfTokens(v, token, dim, dims), second = RangesOfTokens(v, token + 8, dim, dims);
      finite &= FindScales<Lines>(_mm256_permute2x128_si256(first.low(), second.low(), 0x20),
                                  _mm256_permute2x128_si256(first.high(), second.high(), 0x20), at, &steps, scales,
                                  scales + kPageTokens);
    }
    for (int first = 0; first < kChunk; first += kLineSteps) {
      uint8_t* to = head + Int4V(head_dim) + (token + first) / kLineSteps * 64;
      for (int dim = 0; dim < head_dim; dim += kChunk, to += kPageTokens / kLineSteps * 64) {
        next->After(token + first + dim * kLineSteps / head_dim);
        RoundTokens<Lines>(v, token + first, dim, steps, dim / kInt4GroupDims * kChunk + first / 2, to);
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
