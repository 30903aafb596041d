#ifndef FASTDECODE_KERNELS_FLOAT_TYPES_H_
#define FASTDECODE_KERNELS_FLOAT_TYPES_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace fastdecode {

// The element type of activations, weights, KV and rows on the wire. One engine uses one compute type for all of them:
// kF32 ("exact") or kBf16 (weights, KV and rows in bf16; sums and the residual stream in f32).
enum class ElementType : uint8_t { kF32 = 0, kBf16 = 1 };

inline constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }
inline constexpr const char* ElementName(ElementType type) { return type == ElementType::kF32 ? "f32" : "bf16"; }

// bfloat16 as its 16 bits.
using Bf16 = uint16_t;

// Rounds to nearest even; NaN stays NaN.
inline Bf16 ToBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x40u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float FromBf16(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_FLOAT_TYPES_H_
