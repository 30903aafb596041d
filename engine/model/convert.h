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
  // The exponent's bias grows by 112; infinity's and NaN's all-ones become 255.
  const uint32_t normal = (rest << 13) + (rest < 0x7c00u ? 112u << 23 : 224u << 23);
  // 0.5 + rest * 2^-24 has the bits of 0.5 plus `rest`.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(0x3f000000u + rest) - 0.5f);
  // A mask instead of a branch: only so do compilers vectorise the caller's loop (gcc 12: 2.5 x).
  const uint32_t is_subnormal = 0u - static_cast<uint32_t>(rest < 0x0400u);
  return std::bit_cast<float>(sign | (subnormal & is_subnormal) | (normal & ~is_subnormal));
}

// Rounds to nearest even; too large becomes infinity, NaN stays NaN.
uint16_t ToF16(float value);

// out[0..count) = elements [first, first + count) of the tensor's flat row-major data, exactly, as f32.
// REQUIRES: the range lies inside the tensor.
void ConvertToF32(const TensorView& tensor, int64_t first, int64_t count, float* out);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_CONVERT_H_
