#ifndef FASTDECODE_TOOLS_BENCH_LOGIT_COMPARISON_H_
#define FASTDECODE_TOOLS_BENCH_LOGIT_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace fastdecode {

// How far logits are from those of a reference, over the positions added so far.
struct LogitDifference {
  uint64_t positions = 0;
  // |other - reference|, over all logits.
  double error_mean = 0;
  double error_max = 0;
  // Standard deviation of the reference's logits around the mean of their position.
  double reference_deviation = 0;
  // Kullback-Leibler divergence KL(reference || other) of a position's next token, in nats.
  double kl_mean = 0;
  double kl_max = 0;
  // Share of positions where the same token is the most likely.
  double top1_share = 0;
  // exp of the mean of -log p(the text's next token).
  double reference_perplexity = 0;
  double perplexity = 0;
};

// Compares position by position, so that nobody has to hold the logits of more than one text. All sums in double.
// Owns: sums. Thread: one.
class LogitComparison {
 public:
  // The logits [vocab] of one position, and the token that the text has next.
  // REQUIRES: both have the same size, more than `next_token`, and are finite.
  void Add(std::span<const float> reference, std::span<const float> other, int32_t next_token);

  // REQUIRES: a position was added.
  LogitDifference Result() const;

 private:
  uint64_t positions_ = 0;
  uint64_t logits_ = 0;
  double error_sum_ = 0, error_max_ = 0;
  double square_sum_ = 0;  // of the reference's logits less their position's mean
  double kl_sum_ = 0, kl_max_ = 0;
  uint64_t same_top_ = 0;
  double reference_surprise_sum_ = 0, surprise_sum_ = 0;  // -log p of the next tokens
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_LOGIT_COMPARISON_H_
