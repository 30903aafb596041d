#ifndef FASTDECODE_TESTS_KERNELS_CUDA_NORM_EXPECTATION_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_NORM_EXPECTATION_H_

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/step_kernels.h"
#include "tests/kernels/cuda/step_fixture.h"
#include "tests/kernels/cuda/typed_array.h"

namespace fastdecode {

// A row by its definition in double, and how far what a kernel computes in f32 may be off.
struct RowExpectation {
  explicit RowExpectation(int hidden) : value(hidden), error(hidden) {}
  std::vector<double> value, error;
};

// What of `row` the norm makes. Its errors go on: through the mean, through the root, and with each element. A thread
// sums up as many elements as there are rounds of its block, then lanes and warps are; the mean shows half an ulp of
// each such sum, the root half of that. Then mean, difference, quotient, root, reciprocal, two products and a sum
// round.
inline RowExpectation NormExpectation(const DeviceNorm& norm, const RowExpectation& row) {
  if (norm.kind == RowNorm::Kind::kNone) return row;
  const auto hidden = static_cast<int>(row.value.size());
  const bool layer = norm.kind == RowNorm::Kind::kLayer;
  double sum = 0, magnitudes = 0, squares = 0, errors = 0, square_errors = 0;
  for (int i = 0; i < hidden; ++i) {
    sum += row.value[i];
    magnitudes += std::abs(row.value[i]);
    errors += row.error[i];
    square_errors += row.error[i] * row.error[i];
  }
  const double mean = layer ? sum / hidden : 0, mean_magnitude = layer ? magnitudes / hidden : 0;
  for (const double value : row.value) squares += (value - mean) * (value - mean);
  const double scale = 1 / std::sqrt(squares / hidden + norm.epsilon);
  const double ulps = (hidden / 256 + 4 + 1 + 5 + 16) * 0.75 + 4;
  RowExpectation normed(hidden);
  for (int i = 0; i < hidden; ++i) {
    const double weight = norm.weight == nullptr ? 1 : norm.weight[i], bias = norm.bias == nullptr ? 0 : norm.bias[i];
    const double product = (row.value[i] - mean) * scale * weight, by = scale * std::abs(weight);
    normed.value[i] = product + bias;
    normed.error[i] = (row.error[i] + (layer ? errors / hidden : 0)) * by +
                      std::abs(product) * std::sqrt(square_errors / hidden) * scale +
                      ((std::abs(row.value[i]) + mean_magnitude) * by + std::abs(bias)) * ulps * 0x1p-23;
  }
  return normed;
}

// Of element i, when it is rounded to the type.
inline double BoundOf(ElementType type, const RowExpectation& row, int i) {
  return row.error[i] + ErrorBound(type, std::abs(row.value[i]) + row.error[i], 0);
}

// Any kind of norm, with weights and without.
class RandomNorm {
 public:
  RandomNorm(std::mt19937* random, int hidden) : weight_(ElementType::kF32, hidden), bias_(ElementType::kF32, hidden) {
    weight_.FillNormals(random, 0.5f, 1);
    bias_.FillNormals(random, 1);
    norm_.kind = static_cast<RowNorm::Kind>(Pick(random, 0, 2));
    if (Pick(random, 0, 3) > 0) norm_.weight = weight_.floats();
    if (Pick(random, 0, 1) > 0) norm_.bias = bias_.floats();
    norm_.epsilon = Pick(random, 0, 1) > 0 ? 1e-5f : 1e-6f;
  }
  const DeviceNorm& norm() const { return norm_; }

 private:
  TypedArray weight_, bias_;
  DeviceNorm norm_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_NORM_EXPECTATION_H_
