#include <immintrin.h>

#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/page_pack.h"

// Rounding a KV head of bf16 panels to half bytes (attention_page.h), for every ISA.
namespace fastdecode {
namespace {

using V = Avx2Vector;
constexpr int kHalves = kPanelLanes / V::kLanes;  // vectors of a step in a panel
constexpr int kStepsMax = 256;                    // dims of K
constexpr int kLineSteps = 8;                     // of half bytes

// The least and the largest lane of each of eight steps. Panel is folded onto panel, then halves of the 16 lanes onto
// halves. Of two equal ones (-0 and +0) the one that is folded onto stays.
struct Range {
  __m256 low, high;
};
inline Range Fold(const Range& to, const Range& from) { return {V::Min(from.low, to.low), V::Max(from.high, to.high)}; }
inline Range Load(const Bf16* pair, bool odd) {
  const __m256 x = odd ? V::LoadStep<1>(pair) : V::LoadStep<0>(pair);
  return {x, x};
}
inline __m256 Fold8(const __m256 (&x)[kLineSteps], __m256 (*pick)(__m256, __m256)) {
  __m256 fours[4];  // steps i and i + 4
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    fours[i] = pick(_mm256_permute2f128_ps(x[i], x[i + 4], 0x31), _mm256_permute2f128_ps(x[i], x[i + 4], 0x20));
  }
  __m256 twos[2];  // of four steps each
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    twos[i] = pick(_mm256_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0xee),
                   _mm256_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0x44));
  }
  return pick(_mm256_shuffle_ps(twos[0], twos[1], 0xdd), _mm256_shuffle_ps(twos[0], twos[1], 0x88));
}
template <int kPanels>
inline Range RangeOfSteps(const Bf16* from, int panel_elements) {
  __m256 low[kLineSteps], high[kLineSteps];  // of eight lanes each
#pragma GCC unroll 8
  for (int i = 0; i < kLineSteps; ++i) {
    const Bf16* const pair = from + i / 2 * 2 * kPanelLanes;
    Range half[kHalves];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      half[h] = Load(pair + h * 2 * V::kLanes, i % 2 == 1);
#pragma GCC unroll 4
      for (int p = 1; p < kPanels; ++p) {
        half[h] = Fold(half[h], Load(pair + p * panel_elements + h * 2 * V::kLanes, i % 2 == 1));
      }
    }
    const Range both = Fold(half[0], half[1]);
    low[i] = both.low;
    high[i] = both.high;
  }
  return {Fold8(low, &V::Min), Fold8(high, &V::Max)};
}

// Scales and minima of a line's steps.
struct LineScales {
  Divisors divisors;
  alignas(32) float minima[kLineSteps];
};

template <int kPanels>
inline void FindScales(const Bf16* from, int panel_elements, Bf16* scales, Bf16* minima, LineScales* of_line) {
  const Range range = RangeOfSteps<kPanels>(from, panel_elements);
  const __m256 fifteen = _mm256_set1_ps(15);
  // 15 steps lead to the largest or beyond.
  const __m256i scale = RoundUp8(_mm256_sub_ps(_mm256_div_ps(range.high, fifteen), _mm256_div_ps(range.low, fifteen)));
  StoreWords(scales, scale);
  StoreWords(minima, _mm256_srli_epi32(_mm256_castps_si256(range.low), 16));  // exactly: elements are in bf16
  of_line->divisors.Set(scale);
  V::Store(of_line->minima, range.low);
}

// A line of one panel. Low half bytes are of steps 0 to 3, high ones of 4 to 7. Codes are added up as they are, with
// the bits of kShift, which come to the same in every line.
template <bool kFast>
inline void StoreCodes(const Bf16* from, const LineScales& scales, uint8_t* to) {
  constexpr float kShift = 0x1.8p23f;  // whose last bit is worth 1: adding it rounds to integers
  constexpr uint32_t kShiftBits = 0x4b400000;
  __m256i line[kHalves];
#pragma GCC unroll 2
  for (__m256i& half : line) half = _mm256_set1_epi32(static_cast<int32_t>(-(kShiftBits * 0x11111111u)));
#pragma GCC unroll 8
  for (int i = 0; i < kLineSteps; ++i) {
    const __m256 minimum = _mm256_set1_ps(scales.minima[i]);
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      const __m256 x = Load(from + i / 2 * 2 * kPanelLanes + half * 2 * V::kLanes, i % 2 == 1).low;
      // Not below 0; above 15 only where the scale was rounded in the last place. NaN, of too large numbers, is 15.
      const __m256 quotient = scales.divisors.Quotient<kFast>(i, _mm256_sub_ps(x, minimum));
      const __m256 code = _mm256_add_ps(_mm256_min_ps(quotient, _mm256_set1_ps(15)), _mm256_set1_ps(kShift));
      const __m256i placed = _mm256_slli_epi32(_mm256_castps_si256(code), i % 4 * 8 + i / 4 * 4);
      line[half] = _mm256_add_epi32(line[half], placed);
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < kHalves; ++half) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + half, line[half]);
  }
}

// Panels of bf16, [steps / 2][16][2] each, to panels of half bytes, [steps / 8][16][4] each, with a scale and a minimum
// for each step. First all scales: what waits for its own divisions then has others' beside it.
template <int kPanels>
void ClosePanels(const Bf16* from, int steps, Bf16* scales, Bf16* minima, uint8_t* to) {
  LineScales lines[kStepsMax / kLineSteps];
  const int panel_elements = steps * kPanelLanes;
  for (int line = 0; line < steps / kLineSteps; ++line) {
    const int step = line * kLineSteps;
    FindScales<kPanels>(from + step * kPanelLanes, panel_elements, scales + step, minima + step, &lines[line]);
  }
  for (int p = 0; p < kPanels; ++p) {
    for (int line = 0; line < steps / kLineSteps; ++line) {
      const Bf16* const at = from + p * panel_elements + line * kLineSteps * kPanelLanes;
      uint8_t* const codes = to + (p * panel_elements + line * kLineSteps * kPanelLanes) / 2;
      if (lines[line].divisors.fast) {
        StoreCodes<true>(at, lines[line], codes);
      } else {
        StoreCodes<false>(at, lines[line], codes);
      }
    }
  }
}

}  // namespace

bool Avx2AllFinite(const Bf16* x, int count) {
  const __m256i magnitude = _mm256_set1_epi16(INT16_MAX);
  __m256i largest[4] = {};
  for (int at = 0; at < count; at += 64) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i elements = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + at) + i);
      largest[i] = _mm256_max_epi16(largest[i], _mm256_and_si256(elements, magnitude));
    }
  }
  const __m256i all =
      _mm256_max_epi16(_mm256_max_epi16(largest[0], largest[1]), _mm256_max_epi16(largest[2], largest[3]));
  return _mm256_movemask_epi8(_mm256_cmpgt_epi16(all, _mm256_set1_epi16(0x7f7f))) == 0;
}

void Avx2CloseHead(int head_dim, const Bf16* from, uint8_t* head) {
  Bf16* const k_scales = reinterpret_cast<Bf16*>(head + Int4KScales(head_dim));
  ClosePanels<kPageKPanels>(from, head_dim, k_scales, k_scales + head_dim, head);
  for (int dim = 0; dim < head_dim; dim += kInt4GroupDims) {
    const Bf16* const v = from + PageKElements(head_dim) + dim * kPageTokens;
    Bf16* const scales = reinterpret_cast<Bf16*>(head + Int4VScales(head_dim)) + dim / kInt4GroupDims * 2 * kPageTokens;
    uint8_t* const to = head + Int4V(head_dim) + dim * kPageTokens / 2;
    switch (head_dim - dim) {
      case 16:
        ClosePanels<1>(v, kPageTokens, scales, scales + kPageTokens, to);
        break;
      case 32:
        ClosePanels<2>(v, kPageTokens, scales, scales + kPageTokens, to);
        break;
      case 48:
        ClosePanels<3>(v, kPageTokens, scales, scales + kPageTokens, to);
        break;
      default:
        ClosePanels<4>(v, kPageTokens, scales, scales + kPageTokens, to);
    }
  }
}

}  // namespace fastdecode
