#include "engine/spart/cpu/gemm_bench.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

std::vector<int> AllowedCores() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// Two threads, on one core where there is no other.
GemmBenchOptions SmallOptions(ElementType type) {
  GemmBenchOptions options;
  options.type = type;
  options.inputs = 80;                       // bf16: not whole pairs of lines
  options.outputs = 5 * kPanelColumns - 24;  // of 5 panels, unevenly shared
  options.weight_bytes = 1 << 20;
  options.rows_max = 9;
  const std::vector<int> cores = AllowedCores();
  options.cores = {cores.front(), cores.back()};
  options.isa = DetectIsa();
  return options;
}

void Clear(GemmBench& bench) { std::fill(bench.y().begin(), bench.y().end(), std::numeric_limits<float>::quiet_NaN()); }

// Every output of every row is written, nothing behind; all panels are alike, and no output is zero.
void ExpectWholeProduct(GemmBench& bench, int rows, int64_t outputs) {
  const std::vector<float>& y = bench.y();
  for (int64_t i = 0; i < rows * outputs; ++i) {
    ASSERT_NE(y[i], 0) << i;
    ASSERT_EQ(y[i], y[i / outputs * outputs + i % outputs % kPanelColumns]) << i;
  }
}

TEST(GemmBenchTest, AThreadHasEveryColumnOfItsPanels) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    const GemmBenchOptions options = SmallOptions(type);
    absl::StatusOr<std::unique_ptr<GemmBench>> bench = GemmBench::Create(options);
    ASSERT_TRUE(bench.ok()) << bench.status();
    const size_t matrix_bytes = 5 * PanelBytes(type, options.inputs);
    EXPECT_EQ((*bench)->matrices(), static_cast<int64_t>(options.weight_bytes / matrix_bytes));
    EXPECT_EQ((*bench)->weight_bytes(), options.weight_bytes / matrix_bytes * matrix_bytes);
    for (const int rows : {1, 9}) {
      Clear(**bench);
      EXPECT_GT((*bench)->RunOwn(rows), 0u);
      ExpectWholeProduct(**bench, rows, options.outputs);
      EXPECT_TRUE(std::isnan((*bench)->y()[rows * options.outputs]));
    }
  }
}

TEST(GemmBenchTest, OneDnnMultipliesTheSame) {
  const GemmBenchOptions options = SmallOptions(ElementType::kBf16);
  absl::StatusOr<std::unique_ptr<GemmBench>> bench = GemmBench::Create(options);
  ASSERT_TRUE(bench.ok()) << bench.status();
  if (!(*bench)->has_onednn()) GTEST_SKIP() << "oneDNN has nothing fast for " << IsaName(options.isa);
  (*bench)->RunOwn(9);
  const std::vector<float> ours = (*bench)->y();
  Clear(**bench);
  (*bench)->RunOneDnn(9);
  // 80 products of numbers below 1, summed in f32 in another order.
  for (int64_t i = 0; i < 9 * options.outputs; ++i) ASSERT_NEAR((*bench)->y()[i], ours[i], 80 * 80 * 0x1p-24) << i;
}

TEST(GemmBenchTest, SaysWhatDoesNotFit) {
  GemmBenchOptions options = SmallOptions(ElementType::kBf16);
  options.outputs = kPanelColumns;
  EXPECT_THAT(GemmBench::Create(options).status().message(), HasSubstr("--outputs: 64"));
  options = SmallOptions(ElementType::kBf16);
  options.weight_bytes = 1000;
  EXPECT_THAT(GemmBench::Create(options).status().message(), HasSubstr("--gib"));
}

}  // namespace
}  // namespace fastdecode
