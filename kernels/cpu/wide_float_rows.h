#ifndef FASTDECODE_KERNELS_CPU_WIDE_FLOAT_ROWS_H_
#define FASTDECODE_KERNELS_CPU_WIDE_FLOAT_ROWS_H_

#include "kernels/cpu/wide_pack.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// A whole page's rows of bf16 to bf16 or fp16 (attention_page.h), as avx2_append.cc has it, with wide_pack.h's AVX-512.

// The words of one vector and the next in the order that `first`, 16 indices, and then `second` give.
inline __m512i WordOrder(__m512i first, __m512i second) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(second, 16));
}
inline __m512i Count16(int from, int by) {
  return _mm512_add_epi32(_mm512_set1_epi32(from),
                          _mm512_mullo_epi32(_mm512_set1_epi32(by),
                                             _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
}

// 0, 4, ... 28 and one more than each, plus `from`.
inline __m512i EveryFourth(int from) {
  return _mm512_mask_add_epi32(Count16(from, 4), 0xff00, Count16(from, 4), _mm512_set1_epi32(1 - 32));
}

// As it is, and its lines: pairs of steps.
class Bf16Words {
 public:
  __m512i operator()(const Bf16* from) const { return Load64(from); }
  // A line of K from 16 tokens' pairs of dims.
  __m512i Steps(__m512i pairs) const { return pairs; }
  // A line of each of two panels of V, from 32 dims of two tokens.
  __m512i Low(__m512i even, __m512i odd) const { return _mm512_permutex2var_epi16(even, low_, odd); }
  __m512i High(__m512i even, __m512i odd) const { return _mm512_permutex2var_epi16(even, high_, odd); }
  bool AllFinite() const { return true; }

 private:
  const __m512i low_ = WordOrder(Count16(0, 1), Count16(32, 1)), high_ = WordOrder(Count16(16, 1), Count16(48, 1));
};

// To fp16, whose lines hold one step and then the next.
class Fp16Words {
 public:
  [[gnu::always_inline]] __m512i operator()(const Bf16* from) {
    constexpr int kToNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m512i x = Load64(from);
    const __m512i even = _mm512_castsi256_si512(_mm512_cvtps_ph(WideEven(x), kToNearest));
    const __m512i odd = _mm512_castsi256_si512(_mm512_cvtps_ph(WideOdd(x), kToNearest));
    const __m512i words = _mm512_permutex2var_epi16(even, in_order_, odd);
    largest_ = _mm512_max_epu16(largest_, _mm512_and_si512(words, _mm512_set1_epi16(INT16_MAX)));
    return words;
  }
  __m512i Steps(__m512i pairs) const { return _mm512_permutexvar_epi16(one_step_, pairs); }
  __m512i Low(__m512i even, __m512i odd) const { return _mm512_shuffle_i64x2(even, odd, 0x44); }
  __m512i High(__m512i even, __m512i odd) const { return _mm512_shuffle_i64x2(even, odd, 0xee); }
  // What was beyond fp16 is none of its numbers now.
  bool AllFinite() const { return _mm512_cmpge_epu16_mask(largest_, _mm512_set1_epi16(0x7c00)) == 0; }

 private:
  const __m512i in_order_ = WordOrder(Count16(0, 1), Count16(32, 1));
  const __m512i one_step_ = WordOrder(EveryFourth(0), EveryFourth(2));
  __m512i largest_ = _mm512_setzero_si512();
};

// 16 tokens of k to a panel.
template <class Words>
[[gnu::always_inline]] inline void PackWordsK(const Rows& rows, int head_dim, std::byte* panel, Words* words,
                                              UpcomingLines* next) {
  alignas(64) uint16_t copy[kPanelLanes * kRowElementsMax];
  for (int t = 0; t < kPanelLanes; ++t) {
    for (int d = 0; d < head_dim; d += kWideDims) {
      if (t % 2 == 0) next->Prefetch<1>();
      _mm512_store_si512(copy + t * head_dim + d, (*words)(rows.At<Bf16>(t) + d));
      _mm512_store_si512(copy + t * head_dim + d + kVectorWords, (*words)(rows.At<Bf16>(t) + d + kVectorWords));
    }
  }
  const std::byte* const from = reinterpret_cast<const std::byte*>(copy);
  const ptrdiff_t row_bytes = head_dim * 2;
  for (int byte = 0; byte < row_bytes; byte += 16, panel += 4 * 64) {
    next->Prefetch<1>();
    __m512i row[4], pairs[4];  // row: token i + 4 l in lane l
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) row[i] = LoadLanes(from + i * row_bytes + byte, 4 * row_bytes);
    TransposeLanes(row, pairs);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) Stream64(panel + i * 64, words->Steps(pairs[i]));
  }
}

// A KV head's page from its rows. False, with nothing of use written, if a number is beyond the type's.
template <class Words, int kHeadDim>
[[gnu::noinline]] bool PackWords(const Rows& k, const Rows& v, std::byte* head, UpcomingLines* next) {
  constexpr int kTokenBytes = kPanelLanes * 2;  // of a panel of V
  Words words;
  for (int t = 0; t < kPageTokens; t += kPanelLanes) {
    PackWordsK(k.From(t), kHeadDim, head + t * kHeadDim * 2, &words, next);
  }
  std::byte* const to = head + kPageTokens * kHeadDim * 2;
  for (int t = 0; t < kPageTokens; t += 2) {
    for (int d = 0; d < kHeadDim; d += kVectorWords) {
      next->Prefetch<1>();
      const __m512i even = words(v.At<Bf16>(t) + d), odd = words(v.At<Bf16>(t + 1) + d);
      std::byte* const line = to + d * kPageTokens * 2 + t * kTokenBytes;
      Stream64(line, words.Low(even, odd));
      Stream64(line + kPageTokens * kTokenBytes, words.High(even, odd));
    }
  }
  return words.AllFinite();
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_WIDE_FLOAT_ROWS_H_
