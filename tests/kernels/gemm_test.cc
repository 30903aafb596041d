#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/isa.h"
#include "tests/kernels/amx_emulator.h"
#include "tests/kernels/guarded_areas.h"

namespace fastdecode {
namespace {

// Vectors that start on a cache line, as the engine's buffers do.
template <class T>
class Aligned {
 public:
  explicit Aligned(size_t n) : storage_(n + 64 / sizeof(T)), size_(n) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + (64 - address % 64) % 64 / sizeof(T);
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  size_t size() const { return size_; }

 private:
  std::vector<T> storage_;
  size_t size_;
  T* data_;
};

struct Problem {
  ElementType type;
  int64_t n, k;
  int rows;
  std::vector<float> weights;  // [n][k], as the packed panels hold them
  std::vector<float> x;        // [rows][k], as the kernel sees them
  Aligned<std::byte> panels;
  int64_t x_stride;
  Aligned<std::byte> packed_x;

  Problem(ElementType type, int64_t n, int64_t k, int rows, uint32_t seed)
      : type(type),
        n(n),
        k(k),
        rows(rows),
        weights(n * k),
        x(rows * k),
        panels(PanelCount(n) * PanelBytes(type, k)),
        x_stride((k + kPanelDepth - 1) / kPanelDepth * kPanelDepth + 32),
        packed_x(static_cast<size_t>(rows) * x_stride * ElementBytes(type)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : weights) value = normal(random);
    for (float& value : x) value = normal(random);
    for (int64_t p = 0; p < PanelCount(n); ++p) {
      const int columns = static_cast<int>(std::min<int64_t>(kPanelColumns, n - p * kPanelColumns));
      PackPanel(type, weights.data() + p * kPanelColumns * k, columns, k, panels.data() + p * PanelBytes(type, k));
    }
    if (type == ElementType::kBf16) {
      for (float& value : weights) value = FromBf16(ToBf16(value));
      for (float& value : x) value = FromBf16(ToBf16(value));
    }
    std::memset(packed_x.data(), 0, packed_x.size());
    for (int r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        std::byte* out = packed_x.data() + (r * x_stride + i) * ElementBytes(type);
        const Bf16 narrow = ToBf16(x[r * k + i]);
        if (type == ElementType::kF32) std::memcpy(out, &x[r * k + i], 4);
        if (type == ElementType::kBf16) std::memcpy(out, &narrow, 2);
      }
    }
  }

  // y [rows][y_stride], NaN where nothing was written. `row` and `panel` choose a part of the problem.
  void Run(GemmFn gemm, int row, int row_count, int64_t panel, int64_t columns, float* y, int64_t y_stride) const {
    gemm({.x = packed_x.data() + row * x_stride * ElementBytes(type),
          .x_stride = x_stride,
          .rows = row_count,
          .k = k,
          .panels = panels.data() + panel * PanelBytes(type, k),
          .columns = columns,
          .y = y + row * y_stride + panel * kPanelColumns,
          .y_stride = y_stride});
  }
  std::vector<float> RunAll(GemmFn gemm, int64_t y_stride) const {
    std::vector<float> y(rows * y_stride, NAN);
    Run(gemm, 0, rows, 0, n, y.data(), y_stride);
    return y;
  }
};

class GemmTest : public testing::TestWithParam<std::tuple<Isa, ElementType>> {
 protected:
  void SetUp() override {
    const bool emulated = isa() == Isa::kAmx && CanRunTiles();
    if (isa() > DetectIsa() && !emulated) GTEST_SKIP() << "this CPU has no " << IsaName(isa());
    gemm_ = GemmOf(isa(), type()).gemm;
  }
  Isa isa() const { return std::get<0>(GetParam()); }
  ElementType type() const { return std::get<1>(GetParam()); }
  GemmFn gemm_ = nullptr;
};

// Each of the k fused operations of a chain rounds once (vdpbf16ps twice a pair; products of bf16 are exact), by at
// most 2^-24 of a partial sum, and no partial sum exceeds the sum of |terms|. Twice that covers the second-order terms.
TEST_P(GemmTest, AgreesWithDouble) {
  const struct {
    int64_t n, k;
    int rows;
  } shapes[] = {{64, 32, 1},   {64, 1, 3},     {1, 70, 2},   {63, 31, 5},   {65, 33, 7},    {130, 511, 13},
                {200, 513, 6}, {192, 1100, 4}, {79, 96, 64}, {17, 300, 12}, {128, 2050, 25}};
  for (const auto& shape : shapes) {
    const Problem problem(type(), shape.n, shape.k, shape.rows, 1);
    const int64_t y_stride = shape.n + 3;
    const std::vector<float> y = problem.RunAll(gemm_, y_stride);
    for (int r = 0; r < shape.rows; ++r) {
      for (int64_t j = 0; j < y_stride; ++j) {
        if (j >= shape.n) {
          ASSERT_TRUE(std::isnan(y[r * y_stride + j])) << "wrote past the columns";
          continue;
        }
        double expected = 0, magnitude = 0;
        for (int64_t i = 0; i < shape.k; ++i) {
          const double term = double{problem.x[r * shape.k + i]} * problem.weights[j * shape.k + i];
          expected += term;
          magnitude += std::abs(term);
        }
        const double bound = 2 * 0x1p-24 * static_cast<double>(shape.k) * magnitude;
        ASSERT_NEAR(y[r * y_stride + j], expected, bound)
            << shape.n << "x" << shape.k << " row " << r << " column " << j;
      }
    }
  }
}

TEST_P(GemmTest, BitsDoNotDependOnRows) {
  for (const int64_t k : {40, 1100}) {
    const int64_t n = 150;
    const Problem problem(type(), n, k, 40, 2);
    std::vector<float> alone(40 * n, NAN);
    for (int r = 0; r < 40; ++r) problem.Run(gemm_, r, 1, 0, n, alone.data(), n);
    for (int rows = 1; rows <= 40; ++rows) {
      std::vector<float> together(40 * n, NAN);
      problem.Run(gemm_, 0, rows, 0, n, together.data(), n);
      ASSERT_EQ(0, std::memcmp(alone.data(), together.data(), sizeof(float) * rows * n)) << rows << " rows";
    }
  }
}

TEST_P(GemmTest, BitsDoNotDependOnTheSplitOfColumns) {
  const int64_t n = 5 * kPanelColumns - 7;
  const Problem problem(type(), n, 700, 9, 3);
  const std::vector<float> whole = problem.RunAll(gemm_, n);
  for (int64_t cut = 1; cut < PanelCount(n); ++cut) {
    std::vector<float> parts(9 * n, NAN);
    problem.Run(gemm_, 0, 9, 0, cut * kPanelColumns, parts.data(), n);
    problem.Run(gemm_, 0, 9, cut, n - cut * kPanelColumns, parts.data(), n);
    ASSERT_EQ(0, std::memcmp(whole.data(), parts.data(), sizeof(float) * 9 * n)) << "cut after panel " << cut;
  }
}

// One y element as the kernel of an ISA sums it up.
float SumOf(Isa isa, ElementType type, const float* weights, const float* x, int64_t k) {
  float sum = 0;
  if (type == ElementType::kBf16 && isa == Isa::kAmx) {  // the even and the odd k of 32 at a time
    for (int64_t step = 0; step < k; step += kPanelDepth) {
      float chains[2] = {0, 0};
      for (int64_t i = step; i < std::min(k, step + kPanelDepth); ++i) {
        chains[i % 2] = std::fma(x[i], weights[i], chains[i % 2]);
      }
      sum += chains[0] + chains[1];
    }
    return sum;
  }
  const bool pairs = type == ElementType::kBf16 && isa == Isa::kAvx512Bf16;  // the odd product of each first
  for (int64_t i = 0; i < k; ++i) {
    const int64_t at = pairs ? i ^ 1 : i;
    sum = std::fma(weights[at], x[at], sum);
  }
  return sum;
}

// The contract names one chain in ascending k; it can be written down.
TEST_P(GemmTest, SumsInAscendingOrder) {
  const int64_t k = 1000;
  const Problem problem(type(), 64, k, 7, 4);
  const std::vector<float> y = problem.RunAll(gemm_, 64);
  for (int r = 0; r < 7; ++r) {
    for (int j = 0; j < 64; ++j) {
      ASSERT_EQ(SumOf(isa(), type(), &problem.weights[j * k], &problem.x[r * k], k), y[r * 64 + j]);
    }
  }
}

// x, panels and y end, or begin, where memory does.
TEST_P(GemmTest, NothingBesideWhatWasGivenIsTouched) {
  const int64_t n = 150, k = 1090, k_padded = (k + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
  const size_t element = ElementBytes(type());
  for (const int rows : {1, 16, 17, 40}) {
    const Problem problem(type(), n, k, rows, 6);
    const std::vector<float> expected = problem.RunAll(gemm_, n);
    for (const Flush flush : {Flush::kStart, Flush::kEnd}) {
      const GuardedAreas x(rows * k_padded * element, 1, flush), panels(problem.panels.size(), 1, flush);
      const GuardedAreas y(rows * n * sizeof(float), 1, flush);
      for (int r = 0; r < rows; ++r) {
        std::memcpy(x.at() + r * k_padded * element, problem.packed_x.data() + r * problem.x_stride * element,
                    k_padded * element);
      }
      std::memcpy(panels.at(), problem.panels.data(), problem.panels.size());
      gemm_({x.at(), k_padded, rows, k, panels.at(), n, y.floats(), n});
      ASSERT_EQ(std::memcmp(y.floats(), expected.data(), rows * n * sizeof(float)), 0) << rows << " rows";
    }
  }
}

TEST_P(GemmTest, NoDepthAndNoRows) {
  const Problem problem(type(), 70, 32, 3, 5);
  std::vector<float> y(3 * 70, 5.0f);
  GemmArgs args = {problem.packed_x.data(), problem.x_stride, 0, 32, problem.panels.data(), 70, y.data(), 70};
  gemm_(args);
  EXPECT_EQ(y, std::vector<float>(3 * 70, 5.0f));
  args.rows = 3;
  args.k = 0;
  gemm_(args);
  EXPECT_EQ(y, std::vector<float>(3 * 70, 0.0f));
}

INSTANTIATE_TEST_SUITE_P(All, GemmTest,
                         testing::Combine(testing::Values(Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx),
                                          testing::Values(ElementType::kF32, ElementType::kBf16)),
                         [](const auto& info) {
                           return std::string(IsaName(std::get<0>(info.param))) + "_" +
                                  ElementName(std::get<1>(info.param));
                         });

TEST(GemmPackTest, UnpackInvertsPack) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    for (const int columns : {1, 63, 64}) {
      for (const int64_t k : {1, 31, 32, 77}) {
        std::vector<float> rows(columns * k);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 251) - 100;  // exact in bf16
        std::vector<std::byte> panel(PanelBytes(type, k));
        PackPanel(type, rows.data(), columns, k, panel.data());
        std::vector<float> row(k);
        for (int column = 0; column < kPanelColumns; ++column) {
          UnpackRow(type, panel.data(), column, k, row.data());
          const std::vector<float> expected =
              column < columns ? std::vector<float>(rows.begin() + column * k, rows.begin() + (column + 1) * k)
                               : std::vector<float>(k, 0.0f);
          EXPECT_EQ(row, expected);
        }
      }
    }
  }
}

TEST(GemmPackTest, Layout) {
  std::vector<float> rows(64 * 64);
  rows[3 * 64 + 37] = 1.0f;  // column 3, k 37
  std::vector<std::byte> f32(PanelBytes(ElementType::kF32, 64)), bf16(PanelBytes(ElementType::kBf16, 64));
  PackPanel(ElementType::kF32, rows.data(), 64, 64, f32.data());
  EXPECT_EQ(reinterpret_cast<float*>(f32.data())[37 * 64 + 3], 1.0f);
  PackPanel(ElementType::kBf16, rows.data(), 64, 64, bf16.data());
  // [k/32][16][64][2]: block 1, pair 2, column 3, odd k.
  EXPECT_EQ(reinterpret_cast<Bf16*>(bf16.data())[((1 * 16 + 2) * 64 + 3) * 2 + 1], ToBf16(1.0f));
  EXPECT_EQ(PanelBytes(ElementType::kF32, 33), 33u * 64 * 4);
  EXPECT_EQ(PanelBytes(ElementType::kBf16, 33), 64u * 64 * 2);
  EXPECT_EQ(PanelCount(0), 0);
  EXPECT_EQ(PanelCount(64), 1);
  EXPECT_EQ(PanelCount(65), 2);
}

}  // namespace
}  // namespace fastdecode
