#ifndef FASTDECODE_TESTS_KERNELS_CUDA_KV_EXPECTATION_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_KV_EXPECTATION_H_

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/cuda/kv_rig.h"

namespace fastdecode {

// What o of a sequence's queries is to be.
class KvExpectation {
 public:
  KvExpectation(const KvRig& rig, int index)
      : rig_(rig), index_(index), expected_(ReferenceAttention(rig.sequence(index).held)) {
    ReferenceAttentionInput positive = rig.sequence(index).held;
    for (double& value : positive.v) value = std::abs(value);
    magnitudes_ = ReferenceAttention(positive);
  }

  // o of queries [first_row, ...).
  void ExpectNear(int first_row, const std::vector<float>& outputs) const {
    const KvCase& c = rig_.c();
    const auto heads = static_cast<size_t>(c.kv_heads * c.group);
    const auto dims = static_cast<size_t>(c.head_dim), padded = static_cast<size_t>(c.padded_head_dim);
    for (size_t r = 0; r < outputs.size() / (heads * dims); ++r) {
      const size_t row = static_cast<size_t>(first_row) + r;
      const auto at = magnitudes_.begin() + static_cast<ptrdiff_t>(row * heads * padded);
      const std::vector<double> bound =
          rig_.ErrorBound(index_, static_cast<int>(row), {at, at + static_cast<ptrdiff_t>(heads * padded)});
      for (size_t i = 0; i < heads * dims; ++i) {
        const size_t theirs = i / dims * padded + i % dims;
        const double o = expected_[row * heads * padded + theirs];
        ASSERT_NEAR(outputs[r * heads * dims + i], o, bound[theirs] + ErrorBound(c.out, std::abs(o) + bound[theirs], 0))
            << "sequence " << index_ << " row " << row << " head " << i / dims << " dim " << i % dims;
      }
    }
  }

 private:
  const KvRig& rig_;
  const int index_;
  const std::vector<double> expected_;  // [queries][heads][padded_head_dim]
  std::vector<double> magnitudes_;      // sums of p |v|
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_KV_EXPECTATION_H_
