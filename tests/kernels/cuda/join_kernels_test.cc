#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/step_kernels.h"
#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/cuda/norm_expectation.h"
#include "tests/kernels/cuda/step_fixture.h"
#include "tests/kernels/cuda/typed_array.h"

namespace fastdecode {
namespace {

constexpr ElementType kF32 = ElementType::kF32;
// More than the threads of a block hold at once: from 8196 on.
constexpr int kHiddens[] = {4, 64, 68, 132, 576, 1024, 1028, 4096, 8192, 8196, 12288, 16388};
constexpr int kTrials = 60;  // of random sizes and norms, a type

// The kernels that make x, with any norms, against their definitions in double.
class JoinKernelsTest : public testing::TestWithParam<ElementType> {
 protected:
  ElementType type() const { return GetParam(); }
  EmulatorOptions NextOrder() { return {.seed = ++seed_, .blocks_in_flight = 1 + static_cast<unsigned>(seed_ % 5)}; }
  int NextHidden() { return kHiddens[Pick(&random_, 0, std::size(kHiddens) - 1)]; }
  // Rows of a bucket, and of those that a step has.
  void NextRows() {
    bucket_ = static_cast<unsigned>(Pick(&random_, 1, 5));
    rows_ = static_cast<uint32_t>(Pick(&random_, 0, static_cast<int>(bucket_)));
  }
  // Row `row` of normed is the norm of that of x, whose own error is none of the norm's.
  void ExpectNormed(const TypedArray& normed, const TypedArray& x, size_t row, const DeviceNorm& norm, int hidden) {
    RowExpectation of_x(hidden);
    for (int i = 0; i < hidden; ++i) of_x.value[i] = x[row * hidden + i];
    const RowExpectation expected = NormExpectation(norm, of_x);
    for (int i = 0; i < hidden; ++i) {
      ASSERT_NEAR(normed[row * hidden + i], expected.value[i], BoundOf(type(), expected, i))
          << "row " << row << " element " << i << " of " << hidden << " norm " << static_cast<int>(norm.kind);
    }
  }

  void ExpectJoined(int hidden);

  std::mt19937 random_{static_cast<unsigned>(GetParam()) + 17};
  uint64_t seed_ = 0;
  unsigned bucket_ = 0;
  uint32_t rows_ = 0;
};

TEST_P(JoinKernelsTest, EmbedNorm) {
  constexpr int kVocab = 20, kPositions = 30, kOffset = 2;
  for (int trial = 0; trial < kTrials; ++trial) {
    NextRows();
    const int hidden = NextHidden();
    StepBoard board = {.step = {.first = 7000 + seed_, .rows = rows_, .logit_rows = 3, .areas_version = 9}};
    std::vector<StepArea> areas(static_cast<size_t>(Pick(&random_, 0, 200))), areas_here(areas.size());
    for (StepArea& area : areas) area.send = reinterpret_cast<std::byte*>(uintptr_t{random_()});
    std::vector<StepRow> board_rows(bucket_), rows(bucket_, {.token = -1});
    for (StepRow& row : board_rows) row = {Pick(&random_, 0, kVocab - 1), Pick(&random_, 0, kPositions - 1), 4, 6};
    StepState state = {.first = 1, .rows = 999, .gave_up = 1};
    TypedArray embedding(type(), size_t{kVocab} * hidden), positions(kF32, size_t{kPositions + kOffset} * hidden);
    embedding.FillNormals(&random_, 0.5f);
    positions.FillNormals(&random_, 0.5f);
    TypedArray x(kF32, size_t{bucket_} * hidden), normed(type(), x.size());
    const bool has_positions = trial % 2 == 0;
    const float scale = trial % 3 == 0 ? 1.0f : 33.9f;
    const RandomNorm norm(&random_, hidden);
    EmulateKernel(EmbedNormArgs{.type = type(),
                                .bucket = bucket_,
                                .board = &board,
                                .board_rows = board_rows.data(),
                                .areas = {areas.data(), areas_here.data(), static_cast<unsigned>(areas.size())},
                                .state = &state,
                                .rows = rows.data(),
                                .embedding = embedding.data(),
                                .scale = scale,
                                .positions = has_positions ? positions.floats() : nullptr,
                                .position_offset = has_positions ? kOffset : 0,
                                .norm = norm.norm(),
                                .hidden = hidden,
                                .x = x.floats(),
                                .normed = normed.data()},
                  NextOrder());
    EXPECT_EQ(state.first, board.step.first);
    EXPECT_EQ(state.rows, rows_);
    EXPECT_EQ(state.gave_up, 0u);
    EXPECT_EQ(state.areas_version, 9u);
    for (size_t h = 0; h < areas.size(); ++h) EXPECT_EQ(areas_here[h].send, areas[h].send);
    for (size_t r = 0; r < bucket_; ++r) EXPECT_EQ(rows[r].token, r < rows_ ? board_rows[r].token : -1);
    for (size_t r = 0; r < rows_; ++r) {
      for (int i = 0; i < hidden; ++i) {
        const double token = double{embedding[static_cast<size_t>(board_rows[r].token) * hidden + i]} * scale;
        const size_t position = static_cast<size_t>(board_rows[r].position) + kOffset;
        const double add = has_positions ? positions[position * hidden + i] : 0;
        ASSERT_NEAR(x[r * hidden + i], token + add, (std::abs(token) + std::abs(token + add)) * 0x1p-24);
      }
      ExpectNormed(normed, x, r, norm.norm(), hidden);
    }
    const size_t unused = (bucket_ - rows_) * static_cast<size_t>(hidden);
    EXPECT_TRUE(x.untouched(x.size() - unused, unused) && normed.untouched(normed.size() - unused, unused));
  }
}

// What a step's recorded times are made of: also by the kernel that is not EmbedNorm's own.
TEST_P(JoinKernelsTest, EmbedNormSaysWhenItBeganAndWasOver) {
  constexpr int kHidden = 64;
  for (const uint32_t timed : {0u, 1u}) {
    const StepBoard board = {.step = {.first = 1, .rows = 2, .timed = timed}};
    const StepRow board_rows[2] = {};
    StepRow rows[2];
    StepState state;
    uint64_t begin = 0, end = 0;
    TypedArray embedding(type(), kHidden), x(kF32, 2 * kHidden), normed(type(), 2 * kHidden);
    embedding.FillNormals(&random_, 1);
    EmulateKernel(EmbedNormArgs{.type = type(),
                                .bucket = 2,
                                .board = &board,
                                .board_rows = board_rows,
                                .areas = {},
                                .state = &state,
                                .rows = rows,
                                .embedding = embedding.data(),
                                .scale = 2,
                                .norm = {},
                                .hidden = kHidden,
                                .x = x.floats(),
                                .normed = normed.data(),
                                .stamps = {&begin, &end}});
    EXPECT_EQ(begin > 0, timed != 0);
    EXPECT_EQ(end > 0, timed != 0);
    EXPECT_GE(end, begin);
  }
}

void JoinKernelsTest::ExpectJoined(int hidden) {
  const bool has_projected = Pick(&random_, 0, 3) > 0, has_bias = Pick(&random_, 0, 1) > 0;
  const float scale = Pick(&random_, 0, 1) > 0 ? 1.0f : 0.22f;
  const RandomNorm branch(&random_, hidden), sum(&random_, hidden), before(&random_, hidden);
  TypedArray x(kF32, size_t{bucket_} * hidden), old_x(kF32, x.size()), projected(kF32, x.size()), bias(kF32, hidden);
  TypedArray normed(type(), x.size());
  x.FillNormals(&random_, 2);
  for (size_t i = 0; i < x.size(); ++i) old_x.Set(i, x[i]);
  projected.FillNormals(&random_, 3, 1);
  bias.FillNormals(&random_, 1);
  uint64_t begin = 0, end = 0;
  const StepState state = {.first = 100, .rows = rows_, .timed = seed_ % 2 == 0 ? 1u : 0u};
  EmulateKernel(JoinNormArgs{.type = type(),
                             .bucket = bucket_,
                             .state = &state,
                             .projected = has_projected ? projected.floats() : nullptr,
                             .bias = has_bias ? bias.floats() : nullptr,
                             .scale = scale,
                             .branch = branch.norm(),
                             .sum = sum.norm(),
                             .before = before.norm(),
                             .hidden = hidden,
                             .x = x.floats(),
                             .normed = normed.data(),
                             .stamps = {&begin, &end}},
                NextOrder());
  EXPECT_EQ(begin > 0, state.timed != 0);
  EXPECT_EQ(end > 0, state.timed != 0 && rows_ > 0);
  for (size_t r = 0; r < rows_; ++r) {
    RowExpectation h(hidden), expected(hidden);
    for (int i = 0; i < hidden; ++i) {
      h.value[i] = (has_projected ? double{projected[r * hidden + i]} : 0) + (has_bias ? double{bias[i]} : 0);
      h.error[i] = std::abs(h.value[i]) * 0x1p-24;
    }
    if (has_projected || has_bias) h = NormExpectation(branch.norm(), h);
    for (int i = 0; i < hidden; ++i) {
      const double old = old_x[r * hidden + i], added = scale * h.value[i];
      expected.value[i] = old + added;
      expected.error[i] = scale * h.error[i] + (std::abs(added) + std::abs(old + added)) * 0x1p-24 * (1 + 0x1p-10);
    }
    expected = NormExpectation(sum.norm(), expected);
    for (int i = 0; i < hidden; ++i) {
      ASSERT_NEAR(x[r * hidden + i], expected.value[i], expected.error[i])
          << "row " << r << " element " << i << " of " << hidden << " branch " << static_cast<int>(branch.norm().kind)
          << " sum " << static_cast<int>(sum.norm().kind);
    }
    ExpectNormed(normed, x, r, before.norm(), hidden);
  }
  for (size_t i = size_t{rows_} * hidden; i < x.size(); ++i) ASSERT_EQ(x[i], old_x[i]);
  const size_t unused = (bucket_ - rows_) * static_cast<size_t>(hidden);
  EXPECT_TRUE(normed.untouched(normed.size() - unused, unused));
}

TEST_P(JoinKernelsTest, JoinNorm) {
  for (int trial = 0; trial < 2 * kTrials; ++trial) {
    NextRows();
    ExpectJoined(NextHidden());
  }
}

TEST_P(JoinKernelsTest, JoinNormOfTheLongestRows) {
  bucket_ = 2;
  rows_ = 1;
  for (int trial = 0; trial < 3; ++trial) ExpectJoined(65536);
}

INSTANTIATE_TEST_SUITE_P(All, JoinKernelsTest,
                         testing::Values(ElementType::kF32, ElementType::kBf16, ElementType::kFp16),
                         [](const auto& info) { return ElementName(info.param); });

}  // namespace
}  // namespace fastdecode
