#include "engine/model/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "numa/check.h"

namespace fastdecode {
namespace {

// `data` may be unaligned, hence the memcpy (a plain load to the compiler).
uint16_t Load16(const std::byte* data, int64_t index) {
  uint16_t value;
  std::memcpy(&value, data + index * 2, sizeof(value));
  return value;
}

bool IsOfType(DType dtype, ElementType type) {
  return (dtype == DType::kF32 && type == ElementType::kF32) || (dtype == DType::kBf16 && type == ElementType::kBf16) ||
         (dtype == DType::kF16 && type == ElementType::kFp16);
}

}  // namespace

uint16_t ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded to nearest even by the addition.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0x0fffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

void ConvertToF32(const TensorView& tensor, int64_t first, int64_t count, float* out) {
  FD_CHECK(first >= 0 && count >= 0 && first <= tensor.elements() - count, "the range lies inside the tensor");
  if (count == 0) return;
  const std::byte* data = tensor.data + first * DTypeBytes(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kF32:
      std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      break;
    case DType::kF16:
      for (int64_t i = 0; i < count; ++i) out[i] = FromFp16({Load16(data, i)});
      break;
    case DType::kBf16:
      for (int64_t i = 0; i < count; ++i) out[i] = FromBf16(Load16(data, i));
      break;
    case DType::kF64:
      for (int64_t i = 0; i < count; ++i) {
        double value;
        std::memcpy(&value, data + i * 8, sizeof(value));
        out[i] = static_cast<float>(value);
      }
      break;
    case DType::kOther:
      FD_CHECK(false, "a model's tensors are of types that are read");
  }
}

void ConvertTo(ElementType type, const TensorView& tensor, int64_t first, int64_t count, void* out) {
  FD_CHECK(first >= 0 && count >= 0 && first <= tensor.elements() - count, "the range lies inside the tensor");
  if (count == 0) return;
  if (IsOfType(tensor.dtype, type)) {
    std::memcpy(out, tensor.data + first * DTypeBytes(tensor.dtype), static_cast<size_t>(count) * ElementBytes(type));
    return;
  }
  if (type == ElementType::kF32) return ConvertToF32(tensor, first, count, static_cast<float*>(out));
  constexpr int64_t kAtOnce = 1024;
  float values[kAtOnce];
  for (int64_t done = 0; done < count; done += kAtOnce) {
    const int64_t some = std::min(kAtOnce, count - done);
    ConvertToF32(tensor, first + done, some, values);
    if (type == ElementType::kBf16) {
      std::transform(values, values + some, static_cast<Bf16*>(out) + done, ToBf16);
    } else {
      std::transform(values, values + some, static_cast<Fp16*>(out) + done, ToFp16);
    }
  }
}

}  // namespace fastdecode
