#ifndef FASTDECODE_KERNELS_CPU_PAGE_CODES_H_
#define FASTDECODE_KERNELS_CPU_PAGE_CODES_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/attention_page.h"

namespace fastdecode {

// What attention_page.h says of places and codes inside a page, for those who write pages.

// Where element (step, lane) lies in a panel.
template <typename Element>
inline int PanelOffset(int step, int lane) {
  if constexpr (std::is_same_v<Element, Bf16>) return (step / 2) * 2 * kPanelLanes + lane * 2 + step % 2;
  return step * kPanelLanes + lane;
}

// In one of quads.
inline int QuadOffset(int step, int lane) { return step / 4 * 4 * kPanelLanes + lane * 4 + step % 4; }

// In one of half bytes, which half is told by HighNibble.
inline int NibbleOffset(int step, int lane) { return step / 8 * 4 * kPanelLanes + lane * 4 + step % 4; }
inline bool HighNibble(int step) { return step / 4 % 2 == 1; }

inline constexpr float kBf16Max = 0x1.fep127f;
inline float ClampToBf16(float x) { return x > kBf16Max ? kBf16Max : x < -kBf16Max ? -kBf16Max : x; }

// The smallest bf16 that is not below a number >= 0.
inline Bf16 RoundUpToBf16(float x) { return static_cast<Bf16>((std::bit_cast<uint32_t>(x) + 0xffff) >> 16); }

// To the nearest (even) integer, for |x| < 2^22.
inline int32_t RoundToInt(float x) {
  constexpr float kShift = 0x1.8p23f;  // whose last bit is worth 1
  return std::bit_cast<int32_t>(x + kShift) - std::bit_cast<int32_t>(kShift);
}

// int4: added to a code's float, so that the code is the integer in its lower bits 16 to 19, rounded.
inline constexpr float kInt4CodeZero = 192.5f;
// Scales below the first stand for zero, and all of a page's dims or of a group's tokens if the largest is below the
// second: codes are then 0. And no scale is rounded up for so little of its unit. So what is denormal never tells.
inline constexpr float kInt4Least = 0x1p-100f, kInt4LeastScale = 0x1p-80f;
inline constexpr float kInt4NoUnit = 0x1p-20f;
// K: the range is not quite 15 scales, because minima are up to .51 of one below the least element, or .49 above.
inline constexpr float kInt4KSteps = 14.98f, kInt4KMinimumRounding = .49f;
// A scale of K is at least so much of the least element's magnitude: minima have no room for more.
inline constexpr float kInt4KLeastOfMinimum = 1.0f / (kInt4KMinimumMax - 1);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_PAGE_CODES_H_
