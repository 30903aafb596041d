#include "engine/bench/gemm_bench.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstring>
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

// x's element k of a row, whose rows are padded to whole kPanelDepth.
float Input(const GemmBench& bench, const GemmBenchOptions& options, int row, size_t k) {
  const size_t stride = (static_cast<size_t>(options.inputs) + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
  const size_t at = static_cast<size_t>(row) * stride + k;
  if (options.type == ElementType::kF32) {
    float value;
    std::memcpy(&value, bench.x().data() + at * sizeof(value), sizeof(value));
    return value;
  }
  Bf16 value;
  std::memcpy(&value, bench.x().data() + at * sizeof(value), sizeof(value));
  return FromBf16(value);
}

void Clear(GemmBench& bench) { std::fill(bench.y().begin(), bench.y().end(), std::numeric_limits<float>::quiet_NaN()); }

// Every output of every row is the product with its own row of the last matrix; nothing is written behind.
void ExpectProduct(GemmBench& bench, const GemmBenchOptions& options, int rows) {
  const size_t inputs = static_cast<size_t>(options.inputs);
  const size_t panel_bytes = PanelBytes(options.type, options.inputs);
  const size_t panels = static_cast<size_t>(PanelCount(options.outputs));
  const std::byte* const last = reinterpret_cast<const std::byte*>(bench.weights().data()) +
                                static_cast<size_t>(bench.matrices() - 1) * panels * panel_bytes;
  std::vector<float> weights(inputs);
  for (int64_t output = 0; output < options.outputs; ++output) {
    UnpackRow(options.type, last + static_cast<size_t>(output / kPanelColumns) * panel_bytes,
              static_cast<int>(output % kPanelColumns), options.inputs, weights.data());
    for (int row = 0; row < rows; ++row) {
      double expected = 0, magnitude = 0;
      for (size_t k = 0; k < inputs; ++k) {
        const double term = double{Input(bench, options, row, k)} * double{weights[k]};
        expected += term;
        magnitude += std::abs(term);
      }
      // Sums in f32, in whatever order.
      ASSERT_NEAR(bench.y()[row * options.outputs + output], expected,
                  2 * 0x1p-24 * static_cast<double>(inputs) * magnitude)
          << "row " << row << ", output " << output;
    }
  }
  EXPECT_TRUE(std::isnan(bench.y()[rows * options.outputs]));
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
      ExpectProduct(**bench, options, rows);
    }
  }
}

TEST(GemmBenchTest, OneDnnMultipliesTheSame) {
  GemmBenchOptions options = SmallOptions(ElementType::kBf16);
  options.rows_max = 260;  // more than it takes at once
  absl::StatusOr<std::unique_ptr<GemmBench>> bench = GemmBench::Create(options);
  ASSERT_TRUE(bench.ok()) << bench.status();
  if (!(*bench)->has_onednn()) GTEST_SKIP() << "oneDNN has nothing fast for " << IsaName(options.isa);
  for (const int rows : {1, 9, 260}) {
    Clear(**bench);
    (*bench)->RunOneDnn(rows);
    ExpectProduct(**bench, options, rows);
  }
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
