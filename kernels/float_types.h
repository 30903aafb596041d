#ifndef FASTDECODE_KERNELS_FLOAT_TYPES_H_
#define FASTDECODE_KERNELS_FLOAT_TYPES_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace fastdecode {

// The element type of activations and weights (the compute type: kF32 is "exact"; with the others sums and the residual
// stream are f32) and of rows on the wire, which are kF32 or kBf16. kFp16 is for GPUs.
enum class ElementType : uint8_t { kF32 = 0, kBf16 = 1, kFp16 = 2 };

inline constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }
inline constexpr const char* ElementName(ElementType type) {
  constexpr const char* kNames[] = {"f32", "bf16", "fp16"};
  return kNames[static_cast<int>(type)];
}

// The type of K and V in the pages. What int8 and int4 mean is said in kernels/cpu/attention_page.h.
enum class KvType : uint8_t { kF32 = 0, kBf16 = 1, kFp16 = 2, kInt8 = 3, kInt4 = 4 };
inline constexpr KvType kKvTypes[] = {KvType::kF32, KvType::kBf16, KvType::kFp16, KvType::kInt8, KvType::kInt4};

inline constexpr const char* KvTypeName(KvType type) {
  constexpr const char* kNames[] = {"f32", "bf16", "fp16", "int8", "int4"};
  return kNames[static_cast<int>(type)];
}
// That keeps every bit of rows of this type.
inline constexpr KvType KvTypeOf(ElementType type) {
  return type == ElementType::kF32 ? KvType::kF32 : type == ElementType::kBf16 ? KvType::kBf16 : KvType::kFp16;
}

// bfloat16 as its 16 bits.
using Bf16 = uint16_t;

// IEEE binary16 as its 16 bits.
struct Fp16 {
  uint16_t bits;
};
inline constexpr float kFp16Max = 65504;

// Rounds to nearest even; NaN stays NaN.
inline Bf16 ToBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Bf16>((bits >> 16) | 0x40u);
  return static_cast<Bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float FromBf16(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

// Rounds to nearest even; what is larger than kFp16Max, infinity too, becomes that, with its sign. NaN stays NaN.
inline Fp16 ToFp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477fe000u) return {static_cast<uint16_t>(sign | 0x7bffu)};
  // Below the smallest normal half, adding 1/2 leaves the denormal's bits, rounded by the addition, at the sum's end.
  if (magnitude < 0x38800000u) {
    const uint32_t sum = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
    return {static_cast<uint16_t>(sign | (sum - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}
// Exact, subnormals too; needs no F16C and no denormal arithmetic, so it also holds where a thread flushes denormals to
// zero.
inline float FromFp16(Fp16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t rest = value.bits & 0x7fffu;  // exponent and mantissa
  // The exponent's bias grows by 112; infinity's and NaN's all-ones become 255.
  const uint32_t normal = (rest << 13) + (rest < 0x7c00u ? 112u << 23 : 224u << 23);
  // 0.5 + rest * 2^-24 has the bits of 0.5 plus `rest`.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(0x3f000000u + rest) - 0.5f);
  // A mask instead of a branch: only so do compilers vectorise the caller's loop (gcc 12: 2.5 x).
  const uint32_t is_subnormal = 0u - static_cast<uint32_t>(rest < 0x0400u);
  return std::bit_cast<float>(sign | (subnormal & is_subnormal) | (normal & ~is_subnormal));
}

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_FLOAT_TYPES_H_
