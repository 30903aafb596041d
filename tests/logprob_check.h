#ifndef FASTDECODE_TESTS_LOGPROB_CHECK_H_
#define FASTDECODE_TESTS_LOGPROB_CHECK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/sampler.h"

namespace fastdecode {

// In double precision, log-softmax of a row.
inline std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  std::vector<double> out;
  for (const float logit : logits) out.push_back(logit - most - std::log(sum));
  return out;
}

// That a row of logits says this of a token, and of the most likely ones: equal logits rank by lowest id.
inline void CheckLogprobs(std::span<const float> logits, int32_t token, float logprob,
                          std::span<const TokenLogprob> most_likely) {
  const std::vector<double> expected = LogSoftmax(logits);
  const auto near = [&](float got, int32_t id) {
    const double wanted = expected[static_cast<size_t>(id)];
    ASSERT_NEAR(got, wanted, 2e-5 * (1 + std::abs(wanted))) << "token " << id;
  };
  ASSERT_NO_FATAL_FAILURE(near(logprob, token));
  std::vector<int32_t> ranked(logits.size());
  std::iota(ranked.begin(), ranked.end(), 0);
  std::stable_sort(ranked.begin(), ranked.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < most_likely.size() && i < ranked.size(); ++i) {
    ASSERT_EQ(most_likely[i].token, ranked[i]) << "place " << i;
    ASSERT_NO_FATAL_FAILURE(near(most_likely[i].logprob, ranked[i]));
  }
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_LOGPROB_CHECK_H_
