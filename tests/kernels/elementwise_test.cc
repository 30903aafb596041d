#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/isa.h"

namespace fastdecode {
namespace {

constexpr double kUlp = 0x1p-23;  // of a number in [1, 2), f32

std::vector<float> Normals(int n, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// An output of the type under test, filled with ones so that what is not written shows.
class Output {
 public:
  Output(ElementType type, int n) : type_(type), bytes_(n * ElementBytes(type)) {
    for (int i = 0; i < n; ++i) {
      const float one = 1;
      const Bf16 narrow = ToBf16(one);
      if (type == ElementType::kF32) std::memcpy(&bytes_[i * 4], &one, 4);
      if (type == ElementType::kBf16) std::memcpy(&bytes_[i * 2], &narrow, 2);
    }
  }
  void* data() { return bytes_.data(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  float operator[](int i) const {
    float value;
    Bf16 narrow;
    std::memcpy(&value, &bytes_[i * ElementBytes(type_)], type_ == ElementType::kF32 ? 4 : 0);
    if (type_ == ElementType::kF32) return value;
    std::memcpy(&narrow, &bytes_[i * 2], 2);
    return FromBf16(narrow);
  }

 private:
  ElementType type_;
  std::vector<std::byte> bytes_;
};

class ElementwiseTest : public testing::TestWithParam<std::tuple<Isa, ElementType>> {
 protected:
  void SetUp() override {
    if (isa() > DetectIsa()) GTEST_SKIP() << "this CPU has no " << IsaName(isa());
    kernels_ = SelectElementwise(isa(), type());
  }
  Isa isa() const { return std::get<0>(GetParam()); }
  ElementType type() const { return std::get<1>(GetParam()); }
  // Half an ulp of the output type for its rounding, and `f32_ulps` for the computation, relative to `magnitude`.
  double Bound(double magnitude, double f32_ulps) const {
    return std::abs(magnitude) * (f32_ulps * kUlp + (type() == ElementType::kBf16 ? 0x1p-8 : 0)) + 1e-37;
  }
  ElementwiseKernels kernels_;
};

constexpr int kSizes[] = {1, 7, 8, 15, 16, 17, 31, 40, 63, 64, 65, 100, 576, 2048, 5000};

TEST_P(ElementwiseTest, RmsNorm) {
  for (const int n : kSizes) {
    for (const double epsilon : {1e-5, 1e-6}) {
      const std::vector<float> x = Normals(n, n, 3), weight = Normals(n, n + 1);
      const int padded_n = (n + 31) / 32 * 32;
      Output out(type(), padded_n + 1);
      kernels_.rms_norm(x.data(), weight.data(), epsilon, n, out.data(), padded_n);
      double sum = 0;
      for (const float value : x) sum += double{value} * value;
      const double scale = 1 / std::sqrt(sum / n + epsilon);
      // Each of 64 partial sums takes ceil(n/64) roundings, which the root halves; then scale and two products round.
      const double ulps = (n / 64 + 1) * 0.25 + 2;
      for (int i = 0; i < n; ++i) {
        const double expected = x[i] * scale * weight[i];
        ASSERT_NEAR(out[i], expected, Bound(expected, ulps)) << "n " << n << " i " << i;
      }
      for (int i = n; i < padded_n; ++i) ASSERT_EQ(out[i], 0);
      ASSERT_EQ(out[padded_n], 1);
    }
  }
}

TEST_P(ElementwiseTest, RmsNormOfZerosIsZero) {
  const std::vector<float> x(100), weight(100, 1.0f);
  Output out(type(), 100);
  kernels_.rms_norm(x.data(), weight.data(), 1e-6, 100, out.data(), 100);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(out[i], 0);
}

TEST_P(ElementwiseTest, Add) {
  for (const int n : kSizes) {
    const std::vector<float> x = Normals(n, 1), y = Normals(n, 2), bias = Normals(n, 3);
    std::vector<float> plain = x, biased = x;
    plain.push_back(9);
    kernels_.add(plain.data(), y.data(), nullptr, n);
    kernels_.add(biased.data(), y.data(), bias.data(), n);
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(plain[i], x[i] + y[i]);
      ASSERT_EQ(biased[i], x[i] + (y[i] + bias[i]));
    }
    ASSERT_EQ(plain[n], 9);
  }
}

TEST_P(ElementwiseTest, SiluMul) {
  for (const int n : kSizes) {
    const std::vector<float> gate = Normals(n, 1, 8), up = Normals(n, 2);
    const std::vector<float> gate_bias = Normals(n, 3), up_bias = Normals(n, 4);
    for (const bool biased : {false, true}) {
      Output out(type(), n + 1);
      kernels_.silu_mul(gate.data(), up.data(), biased ? gate_bias.data() : nullptr, biased ? up_bias.data() : nullptr,
                        n, out.data());
      for (int i = 0; i < n; ++i) {
        const double g = biased ? gate[i] + gate_bias[i] : gate[i], u = biased ? up[i] + up_bias[i] : up[i];
        const double expected = g / (1 + std::exp(-g)) * u;
        ASSERT_NEAR(out[i], expected, Bound(expected, 4)) << "gate " << g;  // exp 2, sum, quotient, product 1/2 each
      }
      ASSERT_EQ(out[n], 1);
    }
  }
}

TEST_P(ElementwiseTest, SiluOverTheWholeRange) {
  std::vector<float> gate;
  for (float g = -120; g <= 120; g += 0.0625f) gate.push_back(g);
  gate.push_back(1e30f);
  gate.push_back(-1e30f);
  gate.push_back(NAN);
  const int n = static_cast<int>(gate.size());
  const std::vector<float> up(n, 1.0f);
  Output out(type(), n);
  kernels_.silu_mul(gate.data(), up.data(), nullptr, nullptr, n, out.data());
  for (int i = 0; i < n - 2; ++i) {
    const double expected = gate[i] / (1 + std::exp(-double{gate[i]}));
    // Below -88 the exponential is capped at e^88: what remains is below 1e-36.
    ASSERT_NEAR(out[i], expected, Bound(expected, 4) + (gate[i] < -88 ? 1e-36 : 0)) << gate[i];
  }
  EXPECT_LE(std::abs(out[n - 2]), 1e-7);
  EXPECT_TRUE(std::isnan(out[n - 1]));
}

TEST_P(ElementwiseTest, RopeHead) {
  for (const int head_dim : {2, 6, 32, 48, 64, 80, 96, 128, 256}) {
    const int half = head_dim / 2, padded = (head_dim + 15) / 16 * 16;
    const std::vector<float> in = Normals(head_dim, 1), bias = Normals(head_dim, 2), angles = Normals(half, 3, 100);
    std::vector<float> cosines(half), sines(half);
    for (int i = 0; i < half; ++i) {
      cosines[i] = std::cos(angles[i]);
      sines[i] = std::sin(angles[i]);
    }
    for (const bool biased : {false, true}) {
      Output out(type(), padded + 1);
      kernels_.rope_head(in.data(), biased ? bias.data() : nullptr, cosines.data(), sines.data(), head_dim, out.data(),
                         padded);
      for (int i = 0; i < half; ++i) {
        const double a = biased ? in[i] + bias[i] : in[i], b = biased ? in[i + half] + bias[i + half] : in[i + half];
        const double bound = Bound(std::abs(a) + std::abs(b), 2);
        ASSERT_NEAR(out[i], a * cosines[i] - b * sines[i], bound);
        ASSERT_NEAR(out[i + half], b * cosines[i] + a * sines[i], bound);
      }
      for (int i = head_dim; i < padded; ++i) ASSERT_EQ(out[i], 0);
      ASSERT_EQ(out[padded], 1);
    }
  }
}

TEST_P(ElementwiseTest, CopyHead) {
  for (const int head_dim : {1, 30, 32, 80, 128}) {
    const int padded = (head_dim + 15) / 16 * 16;
    const std::vector<float> in = Normals(head_dim, 1), bias = Normals(head_dim, 2);
    for (const bool biased : {false, true}) {
      Output out(type(), padded + 1);
      kernels_.copy_head(in.data(), biased ? bias.data() : nullptr, head_dim, out.data(), padded);
      for (int i = 0; i < head_dim; ++i) {
        const float expected = biased ? in[i] + bias[i] : in[i];
        ASSERT_EQ(out[i], type() == ElementType::kF32 ? expected : FromBf16(ToBf16(expected)));
      }
      for (int i = head_dim; i < padded; ++i) ASSERT_EQ(out[i], 0);
      ASSERT_EQ(out[padded], 1);
    }
  }
}

// The vectors of all instruction sets compute the same bits.
TEST_P(ElementwiseTest, AgreesWithAvx2BitForBit) {
  const ElementwiseKernels avx2 = SelectElementwise(Isa::kAvx2, type());
  for (const int n : kSizes) {
    const std::vector<float> a = Normals(n, 1, 4), b = Normals(n, 2);
    Output mine(type(), n), theirs(type(), n);
    kernels_.rms_norm(a.data(), b.data(), 1e-5, n, mine.data(), n);
    avx2.rms_norm(a.data(), b.data(), 1e-5, n, theirs.data(), n);
    ASSERT_EQ(mine.bytes(), theirs.bytes());
    kernels_.silu_mul(a.data(), b.data(), b.data(), nullptr, n, mine.data());
    avx2.silu_mul(a.data(), b.data(), b.data(), nullptr, n, theirs.data());
    ASSERT_EQ(mine.bytes(), theirs.bytes());
    const int even = n / 2 * 2;
    kernels_.rope_head(a.data(), nullptr, b.data(), b.data() + n / 4, even, mine.data(), even);
    avx2.rope_head(a.data(), nullptr, b.data(), b.data() + n / 4, even, theirs.data(), even);
    ASSERT_EQ(mine.bytes(), theirs.bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(All, ElementwiseTest,
                         testing::Combine(testing::Values(Isa::kAvx2, Isa::kAvx512),
                                          testing::Values(ElementType::kF32, ElementType::kBf16)),
                         [](const auto& info) {
                           return std::string(IsaName(std::get<0>(info.param))) + "_" +
                                  ElementName(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace fastdecode
