#ifndef FASTDECODE_TESTS_KERNELS_CUDA_TYPED_ARRAY_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_TYPED_ARRAY_H_

#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>

#include "kernels/float_types.h"
#include "tests/kernels/guarded_areas.h"

namespace fastdecode {

// `count` elements of a type, NaN at first, that end at a page that nobody may touch.
class TypedArray {
 public:
  TypedArray(ElementType type, size_t count)
      : type_(type), count_(count), memory_(count * ElementBytes(type), 1, Flush::kEnd) {}

  std::byte* data() const { return memory_.at(); }
  float* floats() const { return memory_.floats(); }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * ElementBytes(type_); }

  float operator[](size_t i) const {
    if (type_ == ElementType::kF32) return At<float>(i);
    return type_ == ElementType::kBf16 ? FromBf16(At<Bf16>(i)) : FromFp16(At<Fp16>(i));
  }
  // Rounded to the type.
  void Set(size_t i, float value) {
    if (type_ == ElementType::kF32) Put(i, value);
    if (type_ == ElementType::kBf16) Put(i, ToBf16(value));
    if (type_ == ElementType::kFp16) Put(i, ToFp16(value));
  }
  TypedArray& FillNormals(std::mt19937* random, float scale, float mean = 0) {
    std::normal_distribution<float> normal(mean, scale);
    for (size_t i = 0; i < count_; ++i) Set(i, normal(*random));
    return *this;
  }
  // Nobody has written there: all NaN as at first.
  bool untouched(size_t first, size_t count) const {
    const std::byte* const at = data() + first * ElementBytes(type_);
    for (size_t i = 0; i < count * ElementBytes(type_); ++i) {
      if (at[i] != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  template <class T>
  T At(size_t i) const {
    T value;
    std::memcpy(&value, data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void Put(size_t i, T value) {
    std::memcpy(data() + i * sizeof(T), &value, sizeof(T));
  }

  const ElementType type_;
  const size_t count_;
  const GuardedAreas memory_;
};

// How far a result of this type, computed in f32 with an error of so many ulps of `magnitude`, may be off: what the
// last rounding adds is half an ulp.
inline double ErrorBound(ElementType type, double magnitude, double f32_ulps) {
  const double half_ulp = type == ElementType::kF32 ? 0x1p-24 : type == ElementType::kBf16 ? 0x1p-8 : 0x1p-11;
  const double smallest = type == ElementType::kFp16 ? 0x1p-25 : 1e-36;
  return std::abs(magnitude) * (f32_ulps * 0x1p-23 + half_ulp * (1 + 0x1p-10)) + smallest;
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_TYPED_ARRAY_H_
