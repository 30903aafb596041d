#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
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

using Kind = RowNorm::Kind;

// norm(x) in double. magnitudes: of what each element is a sum or product of, whose roundings show in it.
std::vector<double> NormOf(const RowNorm& norm, const std::vector<float>& x, std::vector<double>* magnitudes) {
  const auto n = static_cast<double>(x.size());
  double sum = 0, magnitude_sum = 0, squares = 0;
  for (const float value : x) {
    sum += value;
    magnitude_sum += std::abs(value);
  }
  const bool layer = norm.kind == Kind::kLayer;
  const double mean = layer ? sum / n : 0, mean_magnitude = layer ? magnitude_sum / n : 0;
  for (const float value : x) squares += (value - mean) * (value - mean);
  const double scale = norm.kind == Kind::kNone ? 1 : 1 / std::sqrt(squares / n + norm.epsilon);
  std::vector<double> result(x.size());
  magnitudes->resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double weight = norm.weight == nullptr ? 1 : norm.weight[i], bias = norm.bias == nullptr ? 0 : norm.bias[i];
    result[i] = (x[i] - mean) * scale * weight + bias;
    (*magnitudes)[i] = (std::abs(x[i]) + mean_magnitude) * scale * std::abs(weight) + std::abs(bias);
  }
  return result;
}

// Each of 64 partial sums takes ceil(n/64) roundings: the mean shows half an ulp of each, the root of the squares half
// of that; then mean, difference, scale, two products and a sum round.
double NormUlps(const RowNorm& norm, int n) { return (n / 64 + 1) * (norm.kind == Kind::kLayer ? 0.75 : 0.25) + 3; }

TEST_P(ElementwiseTest, Norm) {
  for (const int n : kSizes) {
    for (int which = 0; which < 3 * 4 * 2; ++which) {
      const std::vector<float> weight = Normals(n, n + 1), bias = Normals(n, n + 2);
      std::vector<float> x = Normals(n, n, 3);
      const RowNorm norm = {static_cast<Kind>(which % 3), which / 3 % 2 == 0 ? weight.data() : nullptr,
                            which % 3 == 2 && which / 6 % 2 == 0 ? bias.data() : nullptr,
                            which / 12 == 0 ? 1e-5 : 1e-6};
      if (which >= 12) {
        for (float& value : x) value += 20;  // a mean that is far more than the deviation
      }
      const bool is_none = norm.kind == Kind::kNone;
      const int padded_n = (n + 31) / 32 * 32;
      Output out(type(), padded_n + 1);
      kernels_.norm(norm, x.data(), n, out.data(), padded_n);
      std::vector<float> wide(n + 1, 1.0f), in_place = x;
      kernels_.norm_f32(norm, x.data(), n, wide.data());
      kernels_.norm_f32(norm, in_place.data(), n, in_place.data());
      std::vector<double> magnitudes;
      const std::vector<double> expected = NormOf(is_none ? RowNorm{.kind = Kind::kNone} : norm, x, &magnitudes);
      for (int i = 0; i < n; ++i) {
        const double f32_bound = is_none ? 0 : magnitudes[i] * NormUlps(norm, n) * kUlp + 1e-37;
        ASSERT_NEAR(wide[i], expected[i], f32_bound) << "n " << n << " i " << i << " norm " << which;
        ASSERT_EQ(in_place[i], wide[i]);
        ASSERT_EQ(out[i], type() == ElementType::kF32 ? wide[i] : FromBf16(ToBf16(wide[i])));
      }
      for (int i = n; i < padded_n; ++i) ASSERT_EQ(out[i], 0);
      ASSERT_EQ(out[padded_n], 1);
      ASSERT_EQ(wide[n], 1);
    }
  }
}

TEST_P(ElementwiseTest, NormOfEqualNumbers) {
  const std::vector<float> zeros(100), threes(100, 3.0f), weight(100, 2.0f), bias = Normals(100, 5);
  Output out(type(), 100);
  kernels_.norm({Kind::kRms, weight.data(), nullptr, 1e-6}, zeros.data(), 100, out.data(), 100);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(out[i], 0);
  std::vector<float> wide(100, 1.0f);
  kernels_.norm_f32({Kind::kLayer, weight.data(), bias.data(), 1e-5}, threes.data(), 100, wide.data());
  EXPECT_EQ(wide, bias);
}

TEST_P(ElementwiseTest, NormOfNaNIsNaN) {
  std::vector<float> x = Normals(50, 1), out(50);
  x[49] = NAN;
  for (const Kind kind : {Kind::kRms, Kind::kLayer}) {
    kernels_.norm_f32({.kind = kind, .epsilon = 1e-5}, x.data(), 50, out.data());
    for (const float value : out) EXPECT_TRUE(std::isnan(value));
  }
}

TEST_P(ElementwiseTest, Add) {
  for (const int n : kSizes) {
    const std::vector<float> x = Normals(n, 1), y = Normals(n, 2), bias = Normals(n, 3);
    std::vector<float> plain = x, biased = x, scaled = x;
    plain.push_back(9);
    kernels_.add(plain.data(), y.data(), nullptr, 1, n);
    kernels_.add(biased.data(), y.data(), bias.data(), 1, n);
    kernels_.add(scaled.data(), y.data(), bias.data(), 0.22f, n);
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(plain[i], x[i] + y[i]);
      ASSERT_EQ(biased[i], x[i] + (y[i] + bias[i]));
      const double added = 0.22f * (double{y[i]} + bias[i]), expected = x[i] + added;
      ASSERT_NEAR(scaled[i], expected, (std::abs(added) + std::abs(expected)) * kUlp / 2);
    }
    ASSERT_EQ(plain[n], 9);
  }
}

TEST_P(ElementwiseTest, Clip) {
  for (const int n : kSizes) {
    const std::vector<float> x = Normals(n, 1, 4);
    std::vector<float> clipped = x;
    clipped.push_back(9);
    kernels_.clip(clipped.data(), 2.5f, n);
    for (int i = 0; i < n; ++i) ASSERT_EQ(clipped[i], std::min(2.5f, std::max(-2.5f, x[i])));
    ASSERT_EQ(clipped[n], 9);
  }
  float special[] = {NAN, INFINITY, -INFINITY};
  kernels_.clip(special, 2.5f, 3);
  EXPECT_TRUE(std::isnan(special[0]));
  EXPECT_EQ(special[1], 2.5f);
  EXPECT_EQ(special[2], -2.5f);
}

TEST_P(ElementwiseTest, SoftCap) {
  for (const float cap : {1.0f, 30.0f, 50.0f}) {
    std::vector<float> x;
    for (float value = 1e-30f; value < 1e30f; value *= 1.037f) {
      x.push_back(value);
      x.push_back(-value);
    }
    x.push_back(0);
    std::vector<float> capped = x;
    capped.push_back(9);
    const int n = static_cast<int>(x.size());
    kernels_.soft_cap(capped.data(), cap, n);
    for (int i = 0; i < n; ++i) {
      const double expected = cap * std::tanh(double{x[i]} / cap);
      // Of x / cap 1, e^2x - 1 with its constants 2, sum and quotient 1/2 each, the product 1/2.
      ASSERT_NEAR(capped[i], expected, std::abs(expected) * 5 * kUlp) << x[i];
      ASSERT_LE(std::abs(capped[i]), cap);
    }
    ASSERT_EQ(capped[n], 9);
  }
  float nan = NAN;
  kernels_.soft_cap(&nan, 30, 1);
  EXPECT_TRUE(std::isnan(nan));
}

double ActivationOf(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * std::erfc(-x / std::numbers::sqrt2) / 2;
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
  }
  return NAN;
}
constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu,
                                       Activation::kRelu2};

// How far activation(x) may be off, of x that is exact.
double ActivationError(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return std::abs(ActivationOf(activation, x)) * 3.5 * kUlp;  // exp 2, sum and quotient 1/2 each
    case Activation::kGelu:                                       // |x| times half of erf's 1.5e-7, and roundings
    case Activation::kGeluTanh:  // e^-2u is off by |2u| roundings of u, but where it is large, nothing is left of x
      return 2e-7 * std::max(1.0, std::abs(x));
    case Activation::kRelu:
      return 0;
    case Activation::kRelu2:
      return x * x * kUlp / 2;
  }
  return NAN;
}

TEST_P(ElementwiseTest, Activate) {
  for (const int n : kSizes) {
    const std::vector<float> gate = Normals(n, 1, 4), up = Normals(n, 2, 3);
    const std::vector<float> gate_bias = Normals(n, 3), up_bias = Normals(n, 4);
    for (const Activation activation : kActivations) {
      for (const bool gated : {false, true}) {
        for (const bool biased : {false, true}) {
          Output out(type(), n + 1);
          kernels_.activate(activation, gated ? gate.data() : nullptr, up.data(), biased ? gate_bias.data() : nullptr,
                            biased ? up_bias.data() : nullptr, n, out.data());
          for (int i = 0; i < n; ++i) {
            const double g = biased ? gate[i] + gate_bias[i] : gate[i], u = biased ? up[i] + up_bias[i] : up[i];
            const double expected = gated ? ActivationOf(activation, g) * u : ActivationOf(activation, u);
            const double error = gated ? ActivationError(activation, g) * std::abs(u) : ActivationError(activation, u);
            ASSERT_NEAR(out[i], expected, error + Bound(expected, 0.5))
                << "activation " << static_cast<int>(activation) << " gated " << gated << " gate " << g << " up " << u;
          }
          ASSERT_EQ(out[n], 1);
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, ActivationsOverTheWholeRange) {
  std::vector<float> up;
  for (float x = -120; x <= 120; x += 0.00390625f) up.push_back(x);
  for (float x = 1e-30f; x < 1e8f; x *= 1.5f) {
    up.push_back(x);
    up.push_back(-x);
  }
  up.push_back(NAN);
  const int n = static_cast<int>(up.size());
  for (const Activation activation : kActivations) {
    Output out(type(), n);
    kernels_.activate(activation, nullptr, up.data(), nullptr, nullptr, n, out.data());
    for (int i = 0; i < n - 1; ++i) {
      const double expected = ActivationOf(activation, up[i]);
      // Exponentials are capped at e^88: what remains of x is below 1e-38 of it.
      const double lost = 1e-38 * std::abs(up[i]);
      ASSERT_NEAR(out[i], expected, ActivationError(activation, up[i]) + Bound(expected, 0.5) + lost) << up[i];
    }
    EXPECT_TRUE(std::isnan(out[n - 1])) << static_cast<int>(activation);
  }
}

TEST_P(ElementwiseTest, SiluMul) {
  for (const int n : kSizes) {
    const std::vector<float> gate = Normals(n, 1, 8), up = Normals(n, 2);
    const std::vector<float> gate_bias = Normals(n, 3), up_bias = Normals(n, 4);
    for (const bool biased : {false, true}) {
      Output out(type(), n + 1);
      kernels_.activate(Activation::kSilu, gate.data(), up.data(), biased ? gate_bias.data() : nullptr,
                        biased ? up_bias.data() : nullptr, n, out.data());
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
  kernels_.activate(Activation::kSilu, gate.data(), up.data(), nullptr, nullptr, n, out.data());
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
    for (const Kind kind : {Kind::kNone, Kind::kRms, Kind::kLayer}) {
      const RowNorm norm = {kind, b.data(), kind == Kind::kLayer ? b.data() : nullptr, 1e-5};
      kernels_.norm(norm, a.data(), n, mine.data(), n);
      avx2.norm(norm, a.data(), n, theirs.data(), n);
      ASSERT_EQ(mine.bytes(), theirs.bytes());
    }
    for (const Activation activation : kActivations) {
      for (const float* const gate : {a.data(), static_cast<const float*>(nullptr)}) {
        kernels_.activate(activation, gate, b.data(), b.data(), nullptr, n, mine.data());
        avx2.activate(activation, gate, b.data(), b.data(), nullptr, n, theirs.data());
        ASSERT_EQ(mine.bytes(), theirs.bytes());
      }
    }
    std::vector<float> my_x = a, their_x = a;
    kernels_.add(my_x.data(), b.data(), b.data(), 0.7f, n);
    avx2.add(their_x.data(), b.data(), b.data(), 0.7f, n);
    ASSERT_EQ(my_x, their_x);
    kernels_.soft_cap(my_x.data(), 3, n);
    avx2.soft_cap(their_x.data(), 3, n);
    ASSERT_EQ(my_x, their_x);
    kernels_.clip(my_x.data(), 1, n);
    avx2.clip(their_x.data(), 1, n);
    ASSERT_EQ(my_x, their_x);
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
