#include "kernels/cuda/step_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/cuda/step_fixture.h"
#include "tests/kernels/cuda/typed_array.h"

namespace fastdecode {
namespace {

constexpr ElementType kF32 = ElementType::kF32;
constexpr int kHiddens[] = {64, 68, 132, 576, 1024, 1028, 4096, 9220};  // the last one: more than a block holds
constexpr int kTrials = 40;                                             // of random sizes, a type

// Each kernel against its definition in double, computed from the same inputs of the same type.
class StepKernelsTest : public testing::TestWithParam<ElementType> {
 protected:
  ElementType type() const { return GetParam(); }
  EmulatorOptions NextOrder() { return {.seed = ++seed_, .blocks_in_flight = 1 + static_cast<unsigned>(seed_ % 5)}; }
  int NextHidden() { return kHiddens[Pick(&random_, 0, std::size(kHiddens) - 1)]; }
  // Rows of a bucket, and of those that a step has.
  void NextRows() {
    bucket_ = static_cast<unsigned>(Pick(&random_, 1, 9));
    state_ = {.first = 100, .rows = static_cast<uint32_t>(Pick(&random_, 0, static_cast<int>(bucket_)))};
  }
  // Of x / sqrt(mean(x^2) + epsilon) * norm. Roundings of the sum are halved by the root, then a quotient, a root, a
  // reciprocal and two products. A thread sums up as many squares as there are rounds of its block.
  static double NormUlps(int hidden) {
    const double rounds = std::max(4, hidden / 256 + 4);
    return (rounds + 1 + 5 + 8) / 4 + 2.5;
  }
  void ExpectNormed(const TypedArray& normed, size_t row, const std::vector<double>& x, const TypedArray& norm,
                    double epsilon) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const auto hidden = static_cast<int>(x.size());
    const double scale = 1 / std::sqrt(squares / hidden + epsilon);
    for (int i = 0; i < hidden; ++i) {
      const double expected = x[i] * scale * norm[i];
      ASSERT_NEAR(normed[row * hidden + i], expected, ErrorBound(type(), expected, NormUlps(hidden)))
          << "row " << row << " element " << i << " of " << hidden;
    }
  }

  // exp 2, two sums, quotient and product 1/2 each. By exp2: the exponent's rounding and that of log2(e) besides.
  double SwiGluUlps(double gate) const { return 4 + (type() == ElementType::kF32 ? 0 : 1.5 * std::abs(gate)); }

  std::mt19937 random_{static_cast<unsigned>(GetParam()) + 7};
  uint64_t seed_ = 0;
  unsigned bucket_ = 0;
  StepState state_;
};

TEST_P(StepKernelsTest, EmbedNorm) {
  constexpr int kVocab = 50;
  for (int trial = 0; trial < kTrials; ++trial) {
    NextRows();
    const int hidden = NextHidden();
    const StepBoard board = {.step = {.first = 7000 + seed_,
                                      .rows = state_.rows,
                                      .logit_rows = 3,
                                      .all_here = 1,
                                      .timed = 0,
                                      .areas_version = 9}};
    std::vector<StepArea> areas(static_cast<size_t>(Pick(&random_, 0, 200))), areas_here(areas.size());
    for (StepArea& area : areas) {
      area.send = reinterpret_cast<std::byte*>(uintptr_t{random_()});
      area.receive = reinterpret_cast<std::byte*>(uintptr_t{random_()});
    }
    StepState state = {.first = 1, .rows = 999, .gave_up = 1, .blocks_over = 5};
    std::vector<StepRow> board_rows(bucket_), rows(bucket_, {.token = -1});
    for (StepRow& row : board_rows) {
      row = {Pick(&random_, 0, kVocab - 1), Pick(&random_, 0, 100), static_cast<uint32_t>(random_() % 5), 6};
    }
    TypedArray embedding(type(), size_t{kVocab} * hidden), norm(kF32, hidden);
    embedding.FillNormals(&random_, trial % 2 == 0 ? 0.02f : 3.0f);
    norm.FillNormals(&random_, 0.5f, 1);
    TypedArray x(kF32, size_t{bucket_} * hidden), normed(type(), size_t{bucket_} * hidden);
    EmulateKernel(EmbedNormArgs{.type = type(),
                                .bucket = bucket_,
                                .board = &board,
                                .board_rows = board_rows.data(),
                                .areas = {areas.data(), areas_here.data(), static_cast<unsigned>(areas.size())},
                                .state = &state,
                                .rows = rows.data(),
                                .embedding = embedding.data(),
                                .norm = {RowNorm::Kind::kRms, norm.floats(), nullptr, 1e-5f},
                                .hidden = hidden,
                                .x = x.floats(),
                                .normed = normed.data()},
                  NextOrder());
    EXPECT_EQ(state.first, board.step.first);
    EXPECT_EQ(state.rows, board.step.rows);
    EXPECT_EQ(state.logit_rows, 3u);
    EXPECT_EQ(state.all_here, 1u);
    EXPECT_EQ(state.gave_up, 0u);
    EXPECT_EQ(state.blocks_over, 0u);
    EXPECT_EQ(state.areas_version, 9u);
    for (size_t h = 0; h < areas.size(); ++h) {
      EXPECT_EQ(areas_here[h].send, areas[h].send);
      EXPECT_EQ(areas_here[h].receive, areas[h].receive);
    }
    for (size_t r = 0; r < board.step.rows; ++r) {
      EXPECT_EQ(rows[r].token, board_rows[r].token);
      EXPECT_EQ(rows[r].position, board_rows[r].position);
      EXPECT_EQ(rows[r].home, board_rows[r].home);
      EXPECT_EQ(rows[r].home_row, board_rows[r].home_row);
      std::vector<double> expected(hidden);
      for (int i = 0; i < hidden; ++i) {
        expected[i] = embedding[static_cast<size_t>(board_rows[r].token) * hidden + i];
        ASSERT_EQ(x[r * hidden + i], expected[i]);
      }
      ExpectNormed(normed, r, expected, norm, 1e-5f);
    }
    const size_t unused = (bucket_ - board.step.rows) * static_cast<size_t>(hidden);
    EXPECT_TRUE(x.untouched(x.size() - unused, unused) && normed.untouched(normed.size() - unused, unused));
    for (size_t r = board.step.rows; r < bucket_; ++r) EXPECT_EQ(rows[r].token, -1);
  }
}

TEST_P(StepKernelsTest, BiasNorm) {
  for (int trial = 0; trial < kTrials; ++trial) {
    NextRows();
    const int hidden = NextHidden();
    TypedArray x(kF32, size_t{bucket_} * hidden), before(kF32, x.size()), bias(kF32, hidden), norm(kF32, hidden);
    TypedArray normed(type(), x.size());
    x.FillNormals(&random_, 2);
    for (size_t i = 0; i < x.size(); ++i) before.Set(i, x[i]);
    bias.FillNormals(&random_, 1);
    norm.FillNormals(&random_, 0.5f, 1);
    const bool biased = trial % 2 == 0;
    EmulateKernel(BiasNormArgs{.type = type(),
                               .bucket = bucket_,
                               .state = &state_,
                               .bias = biased ? bias.floats() : nullptr,
                               .norm = norm.floats(),
                               .epsilon = 1e-6f,
                               .hidden = hidden,
                               .x = x.floats(),
                               .normed = normed.data()},
                  NextOrder());
    for (size_t r = 0; r < bucket_; ++r) {
      std::vector<double> expected(hidden);
      for (int i = 0; i < hidden; ++i) {
        const size_t at = r * hidden + i;
        const double add = r < state_.rows && biased ? double{bias[i]} : 0;
        ASSERT_NEAR(x[at], before[at] + add, (std::abs(before[at]) + std::abs(add)) * 0x1p-24) << r << " " << i;
        expected[i] = x[at];  // whose own rounding is no error of the norm
      }
      if (r < state_.rows) ExpectNormed(normed, r, expected, norm, 1e-6f);
    }
    const size_t unused = (bucket_ - state_.rows) * static_cast<size_t>(hidden);
    EXPECT_TRUE(normed.untouched(normed.size() - unused, unused));
  }
}

TEST_P(StepKernelsTest, SwiGlu) {
  for (int trial = 0; trial < kTrials; ++trial) {
    NextRows();
    const int n = Pick(&random_, 1, 700) * 4;
    TypedArray gate_up(type(), size_t{bucket_} * 2 * n), gate_bias(kF32, n), up_bias(kF32, n);
    TypedArray out(type(), size_t{bucket_} * n);
    gate_up.FillNormals(&random_, trial % 4 == 0 ? 40 : 3);
    gate_bias.FillNormals(&random_, 1);
    up_bias.FillNormals(&random_, 1);
    const bool gate_biased = trial % 3 != 0, up_biased = trial % 3 == 1;
    EmulateKernel(ActivateArgs{.type = type(),
                               .bucket = bucket_,
                               .state = &state_,
                               .gate_up = gate_up.data(),
                               .gate_bias = gate_biased ? gate_bias.floats() : nullptr,
                               .up_bias = up_biased ? up_bias.floats() : nullptr,
                               .intermediate = n,
                               .out = out.data()},
                  NextOrder());
    for (size_t r = 0; r < state_.rows; ++r) {
      for (int i = 0; i < n; ++i) {
        const float gate = gate_up[r * 2 * n + i] + (gate_biased ? gate_bias[i] : 0);  // rounded, as defined
        const double up = gate_up[(r * 2 + 1) * n + i] + (up_biased ? double{up_bias[i]} : 0);
        const double expected = gate / (1 + std::exp(-double{gate})) * up;
        // below -88 exp(-gate) is infinite, and what is lost below 1e-36
        const double lost = gate < -88 ? 1e-36 * std::abs(up) : 0;
        ASSERT_NEAR(out[r * n + i], expected, ErrorBound(type(), expected, SwiGluUlps(gate)) + lost)
            << "gate " << gate << " up " << up;
      }
    }
    const size_t unused = (bucket_ - state_.rows) * static_cast<size_t>(n);
    EXPECT_TRUE(out.untouched(out.size() - unused, unused));
  }
}

TEST_P(StepKernelsTest, SwiGluOverTheWholeRange) {
  constexpr int kGates = 2000;
  TypedArray gate_up(type(), 2 * kGates), out(type(), kGates);
  for (int i = 0; i < kGates; ++i) {
    gate_up.Set(i, 0.125f * static_cast<float>(i - kGates / 2));
    gate_up.Set(kGates + i, 1);
  }
  gate_up.Set(0, NAN);
  state_ = {.rows = 1};
  EmulateKernel(ActivateArgs{.type = type(),
                             .bucket = 1,
                             .state = &state_,
                             .gate_up = gate_up.data(),
                             .intermediate = kGates,
                             .out = out.data()});
  EXPECT_TRUE(std::isnan(out[0]));
  for (int i = 1; i < kGates; ++i) {
    const double gate = gate_up[i], expected = gate / (1 + std::exp(-gate));
    ASSERT_NEAR(out[i], expected, ErrorBound(type(), expected, SwiGluUlps(gate)))
        << gate;  // below -88: both below 1e-36
  }
}

// What fp16 cannot hold becomes its largest number.
TEST_P(StepKernelsTest, SwiGluOfWhatIsTooLarge) {
  TypedArray gate_up(type(), 8), out(type(), 4);
  for (int i = 0; i < 4; ++i) {
    gate_up.Set(i, 1000);
    gate_up.Set(4 + i, i % 2 == 0 ? 1000 : -1000);
  }
  state_ = {.rows = 1};
  EmulateKernel(ActivateArgs{
      .type = type(), .bucket = 1, .state = &state_, .gate_up = gate_up.data(), .intermediate = 4, .out = out.data()});
  for (int i = 0; i < 4; ++i) {
    const double exact = i % 2 == 0 ? 1e6 : -1e6;
    EXPECT_NEAR(out[i], type() == ElementType::kFp16 ? std::copysign(kFp16Max, exact) : exact, 1e6 * 0x1p-8);
  }
}

TEST_P(StepKernelsTest, GatherLogitRows) {
  for (int trial = 0; trial < kTrials; ++trial) {
    NextRows();
    const int hidden = NextHidden();
    const unsigned all = bucket_ + 4, first = static_cast<unsigned>(Pick(&random_, 0, 6));
    TypedArray normed(type(), size_t{all} * hidden), out(type(), size_t{bucket_} * hidden);
    normed.FillNormals(&random_, 1);
    std::vector<uint32_t> logit_rows(first + static_cast<unsigned>(Pick(&random_, 0, static_cast<int>(bucket_) + 2)));
    for (uint32_t& row : logit_rows) row = random_() % all;
    state_.logit_rows = static_cast<uint32_t>(logit_rows.size());
    EmulateKernel(GatherLogitRowsArgs{.type = type(),
                                      .bucket = bucket_,
                                      .state = &state_,
                                      .logit_rows = logit_rows.data(),
                                      .first = first,
                                      .normed = normed.data(),
                                      .hidden = hidden,
                                      .out = out.data()},
                  NextOrder());
    for (size_t i = 0; i < bucket_; ++i) {
      if (first + i >= logit_rows.size()) {
        EXPECT_TRUE(out.untouched(i * hidden, hidden));
        continue;
      }
      for (int j = 0; j < hidden; ++j)
        ASSERT_EQ(out[i * hidden + j], normed[size_t{logit_rows[first + i]} * hidden + j]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StepKernelsTest,
                         testing::Values(ElementType::kF32, ElementType::kBf16, ElementType::kFp16),
                         [](const auto& info) { return ElementName(info.param); });

}  // namespace
}  // namespace fastdecode
