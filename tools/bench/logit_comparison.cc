#include "tools/bench/logit_comparison.h"

#include <algorithm>
#include <cmath>

#include "numa/check.h"

namespace fastdecode {

namespace {

// log(sum of exp), which no large logit overflows.
double LogSumExp(std::span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

// The first of the largest.
ptrdiff_t Top(std::span<const float> logits) { return std::max_element(logits.begin(), logits.end()) - logits.begin(); }

}  // namespace

void LogitComparison::Add(std::span<const float> reference, std::span<const float> other, int32_t next_token) {
  FD_CHECK(reference.size() == other.size(), "both have the same vocabulary");
  FD_CHECK(next_token >= 0 && static_cast<size_t>(next_token) < reference.size(), "the next token has a logit");
  const double reference_log_sum = LogSumExp(reference), other_log_sum = LogSumExp(other);
  double mean = 0;
  for (const float logit : reference) mean += logit;
  mean /= static_cast<double>(reference.size());
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double error = std::abs(double{other[i]} - reference[i]);
    error_sum_ += error;
    error_max_ = std::max(error_max_, error);
    square_sum_ += (reference[i] - mean) * (reference[i] - mean);
    const double log_p = reference[i] - reference_log_sum, log_q = other[i] - other_log_sum;
    kl += std::exp(log_p) * (log_p - log_q);
  }
  kl = std::max(kl, 0.0);  // it is never negative, but its sum's rounding may be
  kl_sum_ += kl;
  kl_max_ = std::max(kl_max_, kl);
  same_top_ += Top(reference) == Top(other);
  const size_t next = static_cast<size_t>(next_token);
  reference_surprise_sum_ += reference_log_sum - reference[next];
  surprise_sum_ += other_log_sum - other[next];
  logits_ += reference.size();
  ++positions_;
}

LogitDifference LogitComparison::Result() const {
  FD_CHECK(positions_ > 0, "a position was added");
  const double positions = static_cast<double>(positions_), logits = static_cast<double>(logits_);
  LogitDifference result;
  result.positions = positions_;
  result.error_mean = error_sum_ / logits;
  result.error_max = error_max_;
  result.reference_deviation = std::sqrt(square_sum_ / logits);
  result.kl_mean = kl_sum_ / positions;
  result.kl_max = kl_max_;
  result.top1_share = static_cast<double>(same_top_) / positions;
  result.reference_perplexity = std::exp(reference_surprise_sum_ / positions);
  result.perplexity = std::exp(surprise_sum_ / positions);
  return result;
}

}  // namespace fastdecode
