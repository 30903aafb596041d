#include <immintrin.h>

#include "kernels/cpu/avx2_vector.h"
#include "kernels/cpu/page_pack.h"

// Rounding a KV head of bf16 panels to half bytes (attention_page.h), for every ISA.
namespace fastdecode {
namespace {

using V = Avx2Vector;
constexpr int kHalves = kPanelLanes / V::kLanes;          // vectors of a step in a panel
constexpr int kPanelsMax = kInt4GroupDims / kPanelLanes;  // with scales in common
constexpr int kLineSteps = 8;                             // of half bytes

// Lanes of the steps of a line in some panels: [step][panel * kHalves + half].
using LineOfSteps = __m256[kLineSteps][kPanelsMax * kHalves];

template <int kPanels>
inline void LoadSteps(const Bf16* from, int panel_elements, LineOfSteps& x) {
#pragma GCC unroll 8
  for (int v = 0; v < kPanels * kHalves; ++v) {
    const Bf16* const at = from + v / kHalves * panel_elements + v % kHalves * 2 * V::kLanes;
#pragma GCC unroll 4
    for (int pair = 0; pair < kLineSteps / 2; ++pair) {
      x[2 * pair][v] = V::LoadStep<0>(at + pair * 2 * kPanelLanes);
      x[2 * pair + 1][v] = V::LoadStep<1>(at + pair * 2 * kPanelLanes);
    }
  }
}

// The least or largest lane of each step: panel onto panel, then halves of the 16 lanes onto halves. Of two equal ones
// (-0 and +0) the one that is folded onto stays.
template <int kPanels, __m256 (*kPick)(__m256, __m256)>
inline __m256 OfEachStep(const LineOfSteps& x) {
  __m256 by_lane[kLineSteps];  // 8 lanes each
#pragma GCC unroll 8
  for (int i = 0; i < kLineSteps; ++i) {
    __m256 half[kHalves] = {x[i][0], x[i][1]};
#pragma GCC unroll 8
    for (int v = kHalves; v < kPanels * kHalves; ++v) half[v % kHalves] = kPick(x[i][v], half[v % kHalves]);
    by_lane[i] = kPick(half[1], half[0]);
  }
  __m256 fours[4];  // steps i and i + 4
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    fours[i] = kPick(_mm256_permute2f128_ps(by_lane[i], by_lane[i + 4], 0x31),
                     _mm256_permute2f128_ps(by_lane[i], by_lane[i + 4], 0x20));
  }
  __m256 twos[2];  // of four steps each
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    twos[i] = kPick(_mm256_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0xee),
                    _mm256_shuffle_ps(fours[2 * i], fours[2 * i + 1], 0x44));
  }
  return kPick(_mm256_shuffle_ps(twos[0], twos[1], 0xdd), _mm256_shuffle_ps(twos[0], twos[1], 0x88));
}

// Codes of eight lanes, [step], to half a line of half bytes. Low half bytes are of steps 0 to 3,
// high ones of 4 to 7. Added up as they are, with the bits of kShift, which come to the same in every line.
inline void StoreLine(const __m256i (&codes)[kLineSteps], __m256i all_shifts, uint8_t* to) {
  __m256i line = codes[7];
#pragma GCC unroll 8
  for (int i = kLineSteps - 2; i >= 0; --i) {
    line = _mm256_add_epi32(_mm256_slli_epi32(line, 4), codes[i % 2 * 4 + i / 2]);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_sub_epi32(line, all_shifts));
}

// The codes of eight steps whose least lanes are `low`.
template <int kPanels, bool kFast>
inline void StoreCodes(const LineOfSteps& x, __m256 low, const Divisors& divisors, uint8_t* to, int to_panel_bytes) {
  constexpr float kShift = 0x1.8p23f;  // whose last bit is worth 1: adding it rounds to integers
  constexpr uint32_t kShiftBits = 0x4b400000;
  const __m256i all_shifts = _mm256_set1_epi32(static_cast<int32_t>(kShiftBits * 0x11111111u));
  alignas(32) float offsets[kLineSteps];
  V::Store(offsets, low);
  for (int v = 0; v < kPanels * kHalves; ++v) {
    __m256i codes[kLineSteps];
#pragma GCC unroll 8
    for (int i = 0; i < kLineSteps; ++i) {
      // Not below 0; above 15 only where the scale was rounded in the last place. NaN, of too large numbers, is 15.
      const __m256 from_low = _mm256_sub_ps(x[i][v], _mm256_set1_ps(offsets[i]));
      const __m256 code = _mm256_min_ps(divisors.Quotient<kFast>(i, from_low), _mm256_set1_ps(15));
      codes[i] = _mm256_castps_si256(_mm256_add_ps(code, _mm256_set1_ps(kShift)));
    }
    StoreLine(codes, all_shifts, to + v / kHalves * to_panel_bytes + v % kHalves * 4 * V::kLanes);
  }
}

// Eight steps: their scales, minima and codes.
template <int kPanels>
inline void CloseLine(const Bf16* from, int panel_elements, Bf16* scales, Bf16* minima, uint8_t* to,
                      int to_panel_bytes) {
  LineOfSteps x;
  LoadSteps<kPanels>(from, panel_elements, x);
  const __m256 low = OfEachStep<kPanels, &V::Min>(x), high = OfEachStep<kPanels, &V::Max>(x);
  const __m256 fifteen = _mm256_set1_ps(15);
  // 15 steps lead to the largest or beyond.
  const __m256i scale = RoundUp8(_mm256_sub_ps(_mm256_div_ps(high, fifteen), _mm256_div_ps(low, fifteen)));
  StoreWords(scales, scale);
  StoreWords(minima, _mm256_srli_epi32(_mm256_castps_si256(low), 16));  // exactly: elements are in bf16
  const Divisors divisors(scale);
  if (divisors.fast) {
    StoreCodes<kPanels, true>(x, low, divisors, to, to_panel_bytes);
  } else {
    StoreCodes<kPanels, false>(x, low, divisors, to, to_panel_bytes);
  }
}

// Panels of bf16, [steps / 2][16][2] each, to panels of half bytes, [steps / 8][16][4] each, with a scale and a minimum
// for each step.
template <int kPanels>
void ClosePanels(const Bf16* from, int steps, Bf16* scales, Bf16* minima, uint8_t* to) {
  for (int step = 0; step < steps; step += kLineSteps) {
    CloseLine<kPanels>(from + step * kPanelLanes, steps * kPanelLanes, scales + step, minima + step,
                       to + step * kPanelLanes / 2, steps * kPanelLanes / 2);
  }
}

}  // namespace

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
