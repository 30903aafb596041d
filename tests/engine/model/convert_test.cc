#include "engine/model/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace fastdecode {
namespace {

// binary16 by its definition.
double HalfByDefinition(uint32_t half) {
  const double sign = half & 0x8000u ? -1.0 : 1.0;
  const int exponent = static_cast<int>(half >> 10 & 31);
  const int mantissa = static_cast<int>(half & 1023);
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

TensorView ViewOf(const std::string& bytes, DType dtype) {
  TensorView view;
  view.dtype = dtype;
  view.data = reinterpret_cast<const std::byte*>(bytes.data());
  view.bytes = bytes.size();
  view.shape = {view.elements()};
  return view;
}

TEST(FromF16, EveryValueIsExact) {
  std::string bytes;
  for (uint32_t half = 0; half < 65536; ++half) bytes += {static_cast<char>(half & 255), static_cast<char>(half >> 8)};
  std::vector<float> values(65536);
  ConvertToF32(ViewOf(bytes, DType::kF16), 0, 65536, values.data());
  for (uint32_t half = 0; half < 65536; ++half) {
    const double expected = HalfByDefinition(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(values[half])) << half;
    } else {
      EXPECT_EQ(values[half], expected) << half;
      EXPECT_EQ(std::signbit(values[half]), std::signbit(expected)) << half;
    }
  }
}

TEST(ToF16, RoundsToNearestEven) {
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const double low = HalfByDefinition(half);
    // Past the largest half the next step would be 65536.
    const double high = half == 0x7bff ? 65536.0 : HalfByDefinition(half + 1);
    const float middle = static_cast<float>((low + high) / 2);  // exact: one more bit
    const uint32_t even = half % 2 == 0 ? half : half + 1;
    for (const uint32_t sign : {0u, 0x8000u}) {
      const float s = sign ? -1.0f : 1.0f;
      ASSERT_EQ(ToF16(s * static_cast<float>(low)), half | sign);
      ASSERT_EQ(ToF16(s * middle), even | sign) << half;
      ASSERT_EQ(ToF16(s * std::nextafter(middle, 0.0f)), half | sign) << half;
      ASSERT_EQ(ToF16(s * std::nextafter(middle, INFINITY)), (half + 1) | sign) << half;
    }
  }
  EXPECT_EQ(ToF16(INFINITY), 0x7c00);
  EXPECT_EQ(ToF16(-1e30f), 0xfc00);
  EXPECT_EQ(ToF16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_TRUE(std::isnan(FromFp16({ToF16(std::numeric_limits<float>::quiet_NaN())})));
}

TEST(ConvertToF32, TakesRangesOfUnalignedData) {
  // bf16 is the upper half of f32: 1, -2, 3.
  const std::string bf16("?\x80\x3f\x00\xc0\x40\x40", 7);
  TensorView view = ViewOf(bf16.substr(1), DType::kBf16);
  view.data = reinterpret_cast<const std::byte*>(bf16.data()) + 1;
  float out[3] = {};
  ConvertToF32(view, 0, 3, out);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
  EXPECT_EQ(out[2], 3.0f);
  ConvertToF32(view, 2, 1, out);
  EXPECT_EQ(out[0], 3.0f);

  const float values[] = {1.5f, -0.0f, 1e-42f};
  std::string f32(1 + sizeof(values), '?');
  std::memcpy(f32.data() + 1, values, sizeof(values));
  view.dtype = DType::kF32;
  view.data = reinterpret_cast<const std::byte*>(f32.data()) + 1;
  view.bytes = sizeof(values);
  ConvertToF32(view, 1, 2, out);
  EXPECT_EQ(std::bit_cast<uint32_t>(out[0]), 0x80000000u);
  EXPECT_EQ(out[1], 1e-42f);

  const double doubles[] = {1.5, -0.1, 1e300};
  std::string f64(1 + sizeof(doubles), '?');
  std::memcpy(f64.data() + 1, doubles, sizeof(doubles));
  view.dtype = DType::kF64;
  view.data = reinterpret_cast<const std::byte*>(f64.data()) + 1;
  view.bytes = sizeof(doubles);
  EXPECT_EQ(view.elements(), 3);
  ConvertToF32(view, 1, 2, out);
  EXPECT_EQ(out[0], -0.1f);
  EXPECT_EQ(out[1], std::numeric_limits<float>::infinity());
}

TEST(ConvertToF32DeathTest, RefusesRangesOutsideOfTheTensor) {
  const std::string bytes(8, '\0');
  const TensorView view = ViewOf(bytes, DType::kF32);
  float out[4];
  EXPECT_DEATH(ConvertToF32(view, 1, 2, out), "inside the tensor");
  EXPECT_DEATH(ConvertToF32(view, -1, 1, out), "inside the tensor");
  EXPECT_DEATH(ConvertToF32(view, INT64_MAX, 2, out), "inside the tensor");
}

}  // namespace
}  // namespace fastdecode
