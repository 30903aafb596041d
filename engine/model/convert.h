#ifndef FASTDECODE_ENGINE_MODEL_CONVERT_H_
#define FASTDECODE_ENGINE_MODEL_CONVERT_H_

#include <bit>
#include <cstdint>

#include "engine/model/safetensors.h"

namespace fastdecode {

// IEEE binary16 as its 16 bits. Exact, subnormals too; needs no F16C and no denormal arithmetic, so it also holds
// where a thread flushes denormals to zero.
inline float FromF16(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7fffu;  // exponent and mantissa
  const uint32_t normal = (rest << 13) + (112u << 23);
  // Infinity and NaN: the exponent's all-ones are 255 in f32.
  const uint32_t special = (rest << 13) | (255u << 23);
  // 0.5 + rest * 2^-24 has the bits of 0.5 plus `rest`.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(0x3f000000u + rest) - 0.5f);
  const uint32_t magnitude = rest < 0x0400u ? subnormal : rest >= 0x7c00u ? special : normal;
  return std::bit_cast<float>(sign | magnitude);
}

// Rounds to nearest even; too large becomes infinity, NaN stays NaN.
uint16_t ToF16(float value);

// out[0..count) = elements [first, first + count) of the tensor's flat row-major data, exactly, as f32.
// REQUIRES: the range lies inside the tensor.
void ConvertToF32(const TensorView& tensor, int64_t first, int64_t count, float* out);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_CONVERT_H_
