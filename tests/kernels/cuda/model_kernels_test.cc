#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "kernels/cuda/step_kernels.h"
#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/cuda/step_fixture.h"
#include "tests/kernels/cuda/typed_array.h"

namespace fastdecode {
namespace {

constexpr ElementType kF32 = ElementType::kF32;
constexpr int kTrials = 60;  // of random sizes, a type
constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu,
                                       Activation::kRelu2};

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

// How far activation(x) may be off in f32, of x that is exact. Where exponents of e are rounded, the exponential is off
// by as much as these are large, but then nothing is left of x, or all of it.
double ActivationError(Activation activation, double x) {
  if (activation == Activation::kRelu) return 0;
  if (activation == Activation::kRelu2) return x * x * 0x1p-24;
  return 3e-7 * std::max(1.0, std::abs(x));
}

// The kernels that some models need, against their definitions in double from the same inputs of the same type.
class ModelKernelsTest : public testing::TestWithParam<ElementType> {
 protected:
  ElementType type() const { return GetParam(); }
  EmulatorOptions NextOrder() { return {.seed = ++seed_, .blocks_in_flight = 1 + static_cast<unsigned>(seed_ % 5)}; }
  // Rows of a bucket, and of those that a step has.
  void NextRows() {
    bucket_ = static_cast<unsigned>(Pick(&random_, 1, 9));
    state_ = {.first = 100, .rows = static_cast<uint32_t>(Pick(&random_, 0, static_cast<int>(bucket_)))};
  }
  // What fp16 cannot hold becomes its largest number.
  double Held(double value) const {
    return type() == ElementType::kFp16 ? std::clamp<double>(value, -kFp16Max, kFp16Max) : value;
  }
  void ExpectActivated(const ActivateArgs& args, const TypedArray& in, const TypedArray& out);
  void ExpectNormedQk(const QkNormArgs& args, const TypedArray& before, const TypedArray& after);

  std::mt19937 random_{static_cast<unsigned>(GetParam()) + 27};
  uint64_t seed_ = 0;
  unsigned bucket_ = 0;
  StepState state_;
};

void ModelKernelsTest::ExpectActivated(const ActivateArgs& args, const TypedArray& in, const TypedArray& out) {
  const auto n = static_cast<size_t>(args.intermediate), parts = size_t{args.gated ? 2u : 1u};
  for (size_t r = 0; r < state_.rows; ++r) {
    for (size_t i = 0; i < n; ++i) {
      // Rounded, as defined.
      const float up = in[(r * parts + parts - 1) * n + i] + (args.up_bias == nullptr ? 0 : args.up_bias[i]);
      const float gate = in[r * parts * n + i] + (args.gate_bias == nullptr ? 0 : args.gate_bias[i]);
      const double of = args.gated ? gate : up, by = args.gated ? up : 1;
      const double expected = Held(ActivationOf(args.activation, of) * by);
      const double error = ActivationError(args.activation, of) * std::abs(by);
      ASSERT_NEAR(out[r * n + i], expected, error + ErrorBound(type(), expected, 0.5))
          << "activation " << static_cast<int>(args.activation) << " gate " << gate << " up " << up;
    }
  }
  const size_t unused = (bucket_ - state_.rows) * n;
  EXPECT_TRUE(out.untouched(out.size() - unused, unused));
}

TEST_P(ModelKernelsTest, Activate) {
  for (int trial = 0; trial < kTrials; ++trial) {
    NextRows();
    const int n = Pick(&random_, 1, 700) * 4;
    ActivateArgs args = {.type = type(), .bucket = bucket_, .state = &state_};
    args.activation = kActivations[trial % 5];
    args.gated = trial / 5 % 2 == 0;
    TypedArray in(type(), size_t{bucket_} * n * (args.gated ? 2 : 1)), gate_bias(kF32, n), up_bias(kF32, n);
    TypedArray out(type(), size_t{bucket_} * n);
    in.FillNormals(&random_, trial % 4 == 0 ? 40 : 3);
    gate_bias.FillNormals(&random_, 1);
    up_bias.FillNormals(&random_, 1);
    args.gate_up = in.data();
    if (args.gated && trial % 3 != 0) args.gate_bias = gate_bias.floats();
    if (trial % 3 != 2) args.up_bias = up_bias.floats();
    args.intermediate = n;
    args.out = out.data();
    EmulateKernel(args, NextOrder());
    ExpectActivated(args, in, out);
  }
}

TEST_P(ModelKernelsTest, ActivateOverTheWholeRange) {
  constexpr int kCount = 4000;
  for (const Activation activation : kActivations) {
    TypedArray in(type(), kCount), out(type(), kCount);
    for (int i = 0; i < kCount; ++i) in.Set(i, 0.0625f * static_cast<float>(i - kCount / 2));
    state_ = {.rows = 1};
    bucket_ = 1;
    const ActivateArgs args = {.type = type(),
                               .bucket = 1,
                               .state = &state_,
                               .activation = activation,
                               .gated = false,
                               .gate_up = in.data(),
                               .intermediate = kCount,
                               .out = out.data()};
    EmulateKernel(args);
    ExpectActivated(args, in, out);
    in.Set(7, NAN);
    EmulateKernel(args);
    EXPECT_TRUE(std::isnan(out[7])) << static_cast<int>(activation);
  }
}

void ModelKernelsTest::ExpectNormedQk(const QkNormArgs& args, const TypedArray& before, const TypedArray& after) {
  const int q = args.heads * args.head_dim, k = args.kv_heads * args.head_dim, elements = q + 2 * k;
  for (size_t r = 0; r < bucket_; ++r) {
    const auto in = [&](int i) -> double {
      float value = before[r * elements + i];
      if (args.bias != nullptr) value += args.bias[i];  // rounded, as defined
      return args.clip > 0 ? std::clamp(value, -args.clip, args.clip) : value;
    };
    for (int i = 0; i < elements; ++i) {
      const float got = after[r * elements + i];
      if (r >= state_.rows) {
        ASSERT_EQ(got, before[r * elements + i]) << "row " << r << " is not the step's";
        continue;
      }
      const bool normed = args.norm != QkNormArgs::Norm::kNone && i < q + k;
      double expected = in(i);
      if (normed) {
        const bool by_head = args.norm == QkNormArgs::Norm::kHead;
        const int of_q = i < q ? 0 : q;
        const int first = by_head ? i / args.head_dim * args.head_dim : of_q;
        const int count = by_head ? args.head_dim : i < q ? q : k;
        double squares = 0;
        for (int j = first; j < first + count; ++j) squares += in(j)*in(j);
        expected *= (i < q ? args.q_norm : args.k_norm)[i - first] / std::sqrt(squares / count + args.epsilon);
      }
      // Of a sum, a thread adds up to 16 squares, then lanes and warps are added; the root halves that. A quotient, a
      // root, a reciprocal and two products besides.
      ASSERT_NEAR(got, expected, ErrorBound(type(), expected, normed ? (16 + 5 + 16) / 4.0 + 2.5 : 0))
          << "row " << r << " element " << i << " of " << q << " + 2 * " << k << " head_dim " << args.head_dim;
    }
  }
}

TEST_P(ModelKernelsTest, QkNorm) {
  constexpr int kHeadDims[] = {16, 18, 34, 64, 80, 96, 128, 130, 200, 256};
  for (int trial = 0; trial < kTrials; ++trial) {
    NextRows();
    QkNormArgs args = {.type = type(), .bucket = bucket_, .state = &state_};
    args.norm = static_cast<QkNormArgs::Norm>(trial % 3);
    args.head_dim = kHeadDims[Pick(&random_, 0, std::size(kHeadDims) - 1)];
    args.kv_heads = Pick(&random_, 1, 4);
    args.heads = args.kv_heads * Pick(&random_, 1, 6);
    const bool by_head = args.norm == QkNormArgs::Norm::kHead;
    const int elements = (args.heads + 2 * args.kv_heads) * args.head_dim;
    TypedArray qkv(type(), size_t{bucket_} * elements), before(type(), qkv.size()), bias(kF32, elements);
    TypedArray q_norm(kF32, size_t{by_head ? 1u : static_cast<unsigned>(args.heads)} * args.head_dim);
    TypedArray k_norm(kF32, size_t{by_head ? 1u : static_cast<unsigned>(args.kv_heads)} * args.head_dim);
    qkv.FillNormals(&random_, 2);
    bias.FillNormals(&random_, 1);
    q_norm.FillNormals(&random_, 0.5f, 1);
    k_norm.FillNormals(&random_, 0.5f, 1);
    for (size_t i = 0; i < qkv.size(); ++i) before.Set(i, qkv[i]);
    if (trial / 3 % 2 == 0) args.bias = bias.floats();
    if (trial / 6 % 2 == 0) args.clip = 1.5f;
    if (args.norm != QkNormArgs::Norm::kNone) {
      args.q_norm = q_norm.floats();
      args.k_norm = k_norm.floats();
    }
    args.epsilon = 1e-6f;
    args.qkv = qkv.data();
    EmulateKernel(args, NextOrder());
    ExpectNormedQk(args, before, qkv);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelKernelsTest,
                         testing::Values(ElementType::kF32, ElementType::kBf16, ElementType::kFp16),
                         [](const auto& info) { return ElementName(info.param); });

TEST(SoftCapKernelTest, SoftCap) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 40; ++trial) {
    const auto bucket = static_cast<unsigned>(Pick(&random, 1, 5)), first = static_cast<unsigned>(Pick(&random, 0, 6));
    const int vocab = trial % 2 == 0 ? Pick(&random, 1, 2500) * 4 : Pick(&random, 1, 10000);
    const StepState state = {.logit_rows = static_cast<uint32_t>(Pick(&random, 0, 12)),
                             .gave_up = trial % 8 == 7 ? 1u : 0u};
    TypedArray logits(kF32, size_t{bucket} * vocab), before(kF32, logits.size());
    logits.FillNormals(&random, trial % 4 < 2 ? 20 : 1e-3f);
    logits.Set(0, NAN);
    for (size_t i = 0; i < logits.size(); ++i) before.Set(i, logits[i]);
    EmulateKernel(
        SoftCapArgs{
            .bucket = bucket, .state = &state, .first = first, .logits = logits.floats(), .vocab = vocab, .cap = 30},
        {.seed = static_cast<uint64_t>(trial)});
    EXPECT_TRUE(std::isnan(logits[0]));
    for (size_t i = 1; i < logits.size(); ++i) {
      const bool is_row = state.gave_up == 0 && first + i / vocab < state.logit_rows;
      const double expected = is_row ? 30 * std::tanh(double{before[i]} / 30) : double{before[i]};
      // The share of the cap 1, tanh 2, the product 1/2.
      ASSERT_NEAR(logits[i], expected, is_row ? std::abs(expected) * 3.5 * 0x1p-23 : 0) << before[i];
    }
  }
}

}  // namespace
}  // namespace fastdecode
