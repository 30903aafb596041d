#ifndef FASTDECODE_KERNELS_CPU_UNPACKED_PAGES_H_
#define FASTDECODE_KERNELS_CPU_UNPACKED_PAGES_H_

#include <immintrin.h>

#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/avx512_vector.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// KV heads of closed pages of int8 and int4 to heads of bf16 pages that hold the same numbers, rounded to bf16
// (attention_page.h says where what lies). With AVX-512 BW, VBMI and BF16. What was packed from finite numbers is
// finite: since scales are rounded up, some numbers would be beyond the largest bf16, and such scales are cut down.

constexpr float kUnpackedMax = 0x1.fep127f;
constexpr ptrdiff_t kUnpackedLine = 64;

// 32 bf16, those of `low` first.
inline __m512i RoundToPairs(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}
inline const Bf16* Bf16At(const std::byte* at) { return reinterpret_cast<const Bf16*>(at); }

struct UnpackInt8 {
  static constexpr bool kOpens = false;  // whether rows see their own page as an open one
  static constexpr int HeadBytes(int head_dim) { return Int8HeadBytes(head_dim); }

  static void Head(int head_dim, const std::byte* from, std::byte* to) {
    static_assert(Int8VScales(kPanelLanes) == Int8KScales(kPanelLanes) + kPageTokens * sizeof(Bf16));
    const __m512 largest = _mm512_set1_ps(kUnpackedMax / kOffset);
    __mmask16 large = 0;
    for (int t = 0; t < 2 * kPageTokens; t += kPanelLanes) {  // of K and, behind them, of V
      large |= _mm512_cmp_ps_mask(ScalesAt(from + Int8KScales(head_dim), t), largest, _CMP_GT_OQ);
    }
    large == 0 ? Head<false>(head_dim, from, to) : Head<true>(head_dim, from, to);
  }

 private:
  static constexpr float kOffset = 0x1p15f + 128;

  // kLarge: a scale times kOffset may be beyond the largest float.
  template <bool kLarge>
  static void Head(int head_dim, const std::byte* from, std::byte* to) {
    for (int t = 0; t < kPageTokens; t += kPanelLanes) {
      const __m512 scales = ScalesAt(from + Int8KScales(head_dim), t);
      const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
      const __m512 of_half[2] = {
          _mm512_permutexvar_ps(twice, scales),
          _mm512_permutexvar_ps(_mm512_add_epi32(twice, _mm512_set1_epi32(kPanelLanes / 2)), scales)};
      const std::byte* line = from + t * head_dim;
      std::byte* pairs = to + t * head_dim * sizeof(Bf16);
      for (int i = 0; i < head_dim / 4; ++i, line += kUnpackedLine, pairs += 2 * kUnpackedLine) {
        Line<kLarge>(_mm512_loadu_si512(line), pairs, [&](int, int half) { return of_half[half]; });
      }
    }
    alignas(64) float scales[kPageTokens];
    for (int t = 0; t < kPageTokens; t += kPanelLanes) {
      _mm512_store_ps(scales + t, ScalesAt(from + Int8VScales(head_dim), t));
    }
    const std::byte* line = from + Int8V(head_dim);
    std::byte* pairs = to + PageKElements(head_dim) * sizeof(Bf16);
    for (int dim = 0; dim < head_dim; dim += kPanelLanes) {
#pragma GCC unroll 2
      for (int t = 0; t < kPageTokens; t += 4, line += kUnpackedLine, pairs += 2 * kUnpackedLine) {
        // Signed codes, to the unsigned ones that K has.
        const __m512i codes = _mm512_xor_si512(_mm512_loadu_si512(line), _mm512_set1_epi8(-128));
        Line<kLarge>(codes, pairs, [&](int pair, int) { return InTurn(scales + t + 2 * pair); });
      }
    }
  }

  static __m512 ScalesAt(const std::byte* scales, int token) {
    return _mm512_min_ps(_mm512_set1_ps(kUnpackedMax / 127), Avx512Vector::LoadRow(Bf16At(scales) + token));  // or NaN
  }
  static __m512 InTurn(const float* two) {
    using Two [[gnu::may_alias]] = double;
    return _mm512_castpd_ps(_mm512_set1_pd(*reinterpret_cast<const Two*>(two)));
  }

  // A line of four steps to two lines of two. scale(pair, half): of two steps side by side, for eight lanes.
  template <bool kLarge, class Scale>
  [[gnu::always_inline]] static void Line(__m512i codes, std::byte* to, const Scale& scale) {
    const auto numbers = [&](int pair, int half) __attribute__((always_inline)) {
      // A code u is the second byte of a float that is 2^15 + u then, and stands for scale * (u - 128): exactly.
      const __m512i first = _mm512_setr_epi32(0x0000, 0x0100, 0x0400, 0x0500, 0x0800, 0x0900, 0x0c00, 0x0d00, 0x1000,
                                              0x1100, 0x1400, 0x1500, 0x1800, 0x1900, 0x1c00, 0x1d00);
      const __m512i bytes = _mm512_add_epi8(first, _mm512_set1_epi32((2 * pair + 32 * half) << 8));
      const __m512i power = _mm512_set1_epi32(0x47000000);
      const __m512 x = _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(power, 0x2222222222222222, bytes, codes));
      const __m512 factor = scale(pair, half), offset = _mm512_set1_ps(kOffset);
      if constexpr (kLarge) return _mm512_mul_ps(_mm512_sub_ps(x, offset), factor);
      return _mm512_fmsub_ps(x, factor, _mm512_mul_ps(offset, factor));
    };
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      _mm512_store_si512(to + pair * kUnpackedLine, RoundToPairs(numbers(pair, 0), numbers(pair, 1)));
    }
  }
};

// A dim of K, or a token's group of V, has 16 numbers: a code is an index into these.
struct UnpackInt4 {
  static constexpr bool kOpens = true;
  static constexpr int HeadBytes(int head_dim) { return Int4HeadBytes(head_dim); }

  static void Head(int head_dim, const std::byte* from, std::byte* to) {
    UnpackK(head_dim, from, to);
    UnpackV(head_dim, from, to + PageKElements(head_dim) * sizeof(Bf16));
  }

 private:
  // What 8 steps' codes stand for: of two steps each, 32 numbers.
  struct Numbers {
    Numbers(const float* scales, const float* offsets) {
      const __m512 codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const auto numbers = [&](int step) __attribute__((always_inline)) {
        return _mm512_fmadd_ps(codes, _mm512_set1_ps(scales[step]), _mm512_set1_ps(offsets[step]));
      };
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) of_pair[i] = RoundToPairs(numbers(2 * i), numbers(2 * i + 1));
    }
    __m512i of_pair[4];
  };

  // K's two panels share their dims' scales.
  static void UnpackK(int head_dim, const std::byte* from, std::byte* to) {
    alignas(64) float scales[kMaxHeadDim], offsets[kMaxHeadDim];
    const std::byte* const integers = from + Int4KScales(head_dim);
    const auto words = [&](int i) __attribute__((always_inline)) {
      return _mm512_cvtepi32_ps(
          _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(integers) + i)));
    };
    const __m512 unit = _mm512_set1_ps(UnitsAt(from + Int4VUnits(head_dim)).k_scale);
    const int vectors = head_dim / kPanelLanes;
    for (int i = 0; i < vectors; ++i) {
      const __m512 scale = _mm512_mul_ps(words(i), unit);
      StoreFactors(scale, _mm512_mul_ps(words(vectors + i), scale), scales + i * kPanelLanes,
                   offsets + i * kPanelLanes);
    }
    const int lines = head_dim / 8;
    for (int i = 0; i < lines; ++i) {
      const Numbers numbers(scales + 8 * i, offsets + 8 * i);
#pragma GCC unroll 2
      for (int line = i; line < kPageKPanels * lines; line += lines) {
        Line(from + line * kUnpackedLine, numbers, to + line * 4 * kUnpackedLine);
      }
    }
  }

  // V's panels of a group share their tokens' scales.
  static void UnpackV(int head_dim, const std::byte* from, std::byte* to) {
    const std::byte* of_group = from + Int4VScales(head_dim);
    const std::byte* v = from + Int4V(head_dim);
    constexpr int kLines = kPageTokens / 8, kGroupPanels = kInt4GroupDims / kPanelLanes;
    for (int panels_left = head_dim / kPanelLanes; panels_left > 0; panels_left -= kGroupPanels) {
      alignas(64) float scales[kPageTokens], offsets[kPageTokens];
      const __m512 unit = _mm512_set1_ps(UnitsAt(of_group + kPageTokens).v_scale);
#pragma GCC unroll 2
      for (int t = 0; t < kPageTokens; t += kPanelLanes) {
        const __m128i integers = _mm_loadu_si128(reinterpret_cast<const __m128i*>(of_group + t));
        const __m512 minima = Avx512Vector::LoadRow(Bf16At(of_group + 2 * kPageTokens) + t);
        StoreFactors(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(integers)), unit), minima, scales + t,
                     offsets + t);
      }
      const int panels = panels_left < kGroupPanels ? panels_left : kGroupPanels;
      for (int i = 0; i < kLines; ++i) {
        const Numbers numbers(scales + 8 * i, offsets + 8 * i);
        for (int line = i; line < panels * kLines; line += kLines) {
          Line(v + line * kUnpackedLine, numbers, to + line * 4 * kUnpackedLine);
        }
      }
      of_group += kInt4GroupBytes;
      v += panels * kLines * kUnpackedLine;
      to += panels * kLines * 4 * kUnpackedLine;
    }
  }

  static void StoreFactors(__m512 scale, __m512 offset, float* scales, float* offsets) {
    const __m512 least = _mm512_set1_ps(-kUnpackedMax), most = _mm512_set1_ps(kUnpackedMax);
    offset = _mm512_max_ps(least, _mm512_min_ps(most, offset));  // NaN stays
    // So that offset + 15 scale is not beyond it, either.
    constexpr float kStep = 0x1.fcp-1f / 15;
    const __m512 room = _mm512_fmadd_ps(offset, _mm512_set1_ps(-kStep), _mm512_set1_ps(kUnpackedMax * kStep));
    _mm512_store_ps(scales, _mm512_min_ps(scale, room));
    _mm512_store_ps(offsets, offset);
  }

  // A line of eight steps to four lines of two: first the low halves of bytes, then the high ones.
  [[gnu::always_inline]] static void Line(const std::byte* line, const Numbers& numbers, std::byte* to) {
    const auto look_up = [&](int pair, __m512i words) __attribute__((always_inline)) {
      // Five bits of a word count: a code, and which of the two steps it is of.
      const __m512i code = _mm512_set1_epi32(0x000f000f), second = _mm512_set1_epi32(0x00100000);
      const __m512i index = _mm512_ternarylogic_epi32(words, code, second, 0xea);
      _mm512_store_si512(to + pair * kUnpackedLine, _mm512_permutexvar_epi16(index, numbers.of_pair[pair]));
    };
    const __m512i bytes = _mm512_loadu_si512(line);
    // Of each dword the first two bytes, or the other two, as words.
    const __m512i two = _mm512_set4_epi32(0x800d800c - (1ll << 32), 0x80098008 - (1ll << 32), 0x80058004 - (1ll << 32),
                                          0x80018000 - (1ll << 32));
    const __m512i first = _mm512_shuffle_epi8(bytes, two);
    const __m512i last = _mm512_shuffle_epi8(bytes, _mm512_add_epi8(two, _mm512_set1_epi16(2)));
    look_up(0, first);
    look_up(1, last);
    look_up(2, _mm512_srli_epi16(first, 4));
    look_up(3, _mm512_srli_epi16(last, 4));
  }

  static constexpr int kMaxHeadDim = 256;
  static const Int4Units& UnitsAt(const std::byte* at) { return *reinterpret_cast<const Int4Units*>(at); }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_UNPACKED_PAGES_H_
