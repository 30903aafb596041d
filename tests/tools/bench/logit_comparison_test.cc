#include "tools/bench/logit_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fastdecode {
namespace {

using Logits = std::vector<float>;

LogitDifference Compare(const Logits& reference, const Logits& other, int32_t next) {
  LogitComparison comparison;
  comparison.Add(reference, other, next);
  return comparison.Result();
}

// Logits of given probabilities, up to rounding to float.
Logits LogitsOf(const std::vector<double>& probabilities) {
  Logits logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

// What rounding a logit of magnitude 8 at most to float can change.
constexpr double kRounding = 8.0 / (1 << 24);

TEST(LogitComparison, EqualLogitsDifferInNothing) {
  const Logits logits = {0.1f, -7.3f, 12.5f, 1e-3f, 3.0f};
  const LogitDifference d = Compare(logits, logits, 3);
  EXPECT_EQ(d.positions, 1u);
  EXPECT_EQ(d.error_mean, 0);
  EXPECT_EQ(d.error_max, 0);
  EXPECT_EQ(d.kl_mean, 0);
  EXPECT_EQ(d.kl_max, 0);
  EXPECT_EQ(d.top1_share, 1);
  EXPECT_EQ(d.perplexity, d.reference_perplexity);
}

TEST(LogitComparison, KnownDistributions) {
  // KL((1/2, 1/2) || (3/4, 1/4)) = (ln 2/3 + ln 2) / 2 = ln(4/3) / 2.
  const LogitDifference two = Compare(LogitsOf({0.5, 0.5}), LogitsOf({0.75, 0.25}), 1);
  EXPECT_NEAR(two.kl_mean, std::log(4.0 / 3) / 2, 4 * kRounding);
  EXPECT_NEAR(two.reference_perplexity, 2, 4 * kRounding);
  EXPECT_NEAR(two.perplexity, 4, 16 * kRounding);
  EXPECT_NEAR(two.error_max, std::log(2.0), 2 * kRounding);
  EXPECT_NEAR(two.error_mean, (std::log(1.5) + std::log(2.0)) / 2, 2 * kRounding);
  EXPECT_EQ(two.reference_deviation, 0);

  // It is not symmetric: KL((3/4, 1/4) || (1/2, 1/2)) = 3/4 ln 3/2 + 1/4 ln 1/2.
  const LogitDifference turned = Compare(LogitsOf({0.75, 0.25}), LogitsOf({0.5, 0.5}), 0);
  EXPECT_NEAR(turned.kl_mean, 0.75 * std::log(1.5) - 0.25 * std::log(2.0), 4 * kRounding);
  EXPECT_NEAR(turned.reference_perplexity, 4.0 / 3, 4 * kRounding);
  // Of two logits that are ln 3 apart, each is half of that from their mean.
  EXPECT_NEAR(turned.reference_deviation, std::log(3.0) / 2, 2 * kRounding);

  // KL((1/2, 1/4, 1/8, 1/8) || uniform) = ln 4 - H, H = 7/4 ln 2.
  const LogitDifference four = Compare(LogitsOf({0.5, 0.25, 0.125, 0.125}), {5, 5, 5, 5}, 2);
  EXPECT_NEAR(four.kl_mean, std::log(2.0) / 4, 4 * kRounding);
  EXPECT_NEAR(four.reference_perplexity, 8, 32 * kRounding);
  EXPECT_NEAR(four.perplexity, 4, 1e-12);
}

TEST(LogitComparison, AShiftOfAllLogitsIsAnErrorAndNothingElse) {
  // Multiples of 1/8, so that the shift is exact; exp of logits as large as the shifted ones would overflow.
  const Logits reference = {0, 1.5f, -2.25f, 4.125f};
  Logits other = reference;
  for (float& logit : other) logit += 4096;
  const LogitDifference d = Compare(reference, other, 0);
  EXPECT_EQ(d.error_mean, 4096);
  EXPECT_EQ(d.error_max, 4096);
  EXPECT_NEAR(d.kl_mean, 0, 1e-11);
  EXPECT_GE(d.kl_mean, 0);
  EXPECT_EQ(d.top1_share, 1);
  EXPECT_NEAR(d.perplexity / d.reference_perplexity, 1, 1e-11);
}

TEST(LogitComparison, LargeLogitsNeitherOverflowNorVanish) {
  // p = (1, 0): KL = -ln q(first) = ln(1 + e^-1).
  const LogitDifference d = Compare({20000, -20000}, {-30000, -30001}, 0);
  EXPECT_NEAR(d.kl_mean, std::log1p(std::exp(-1.0)), 1e-11);
  EXPECT_EQ(d.reference_perplexity, 1);
  EXPECT_NEAR(d.perplexity, 1 + std::exp(-1.0), 1e-11);
}

TEST(LogitComparison, MeansAndLargestGoOverAllPositions) {
  LogitComparison comparison;
  const Logits halves = {0, 0}, reference = {1, 3};
  comparison.Add(halves, LogitsOf({0.75, 0.25}), 0);
  comparison.Add(halves, halves, 1);
  comparison.Add(reference, Logits{1, 2}, 1);
  comparison.Add(reference, Logits{3, 1}, 1);  // another top
  const LogitDifference d = comparison.Result();
  EXPECT_EQ(d.positions, 4u);
  // Errors: |ln 3/4|, |ln 1/4|, 0, 0, 0, 1, 2, 2.
  EXPECT_NEAR(d.error_mean, (std::log(4.0 / 3) + std::log(4.0) + 5) / 8, kRounding);
  EXPECT_EQ(d.error_max, 2);
  // Deviations: 0 four times, 1 four times.
  EXPECT_NEAR(d.reference_deviation, std::sqrt(0.5), 1e-12);
  EXPECT_EQ(d.top1_share, 0.75);
  // With t = 1 / (1 + e^-2), the reference's p of its second: KL of the third is ln(1 + e^-1) - ln(1 + e^-2) + (1 - t),
  // of the fourth, whose logits are the reference's the other way round, 2 t - 2 (1 - t).
  const double t = 1 / (1 + std::exp(-2.0));
  const double third = (1 - t) * (-2 + 1) + std::log1p(std::exp(-1.0)) - std::log1p(std::exp(-2.0));
  const double fourth = 2 * (2 * t - 1);
  EXPECT_NEAR(d.kl_mean, (std::log(4.0 / 3) / 2 + third + fourth) / 4, kRounding);
  EXPECT_NEAR(d.kl_max, fourth, 1e-12);
  EXPECT_NEAR(d.reference_perplexity, std::pow(0.5 * 0.5 * t * t, -0.25), 1e-12);
  EXPECT_NEAR(d.perplexity, std::pow(0.75 * 0.5 / (1 + std::exp(-1.0)) * (1 - t), -0.25), 4 * kRounding);
}

// The most likely token is the first of the largest, on both sides: a tie alone is no disagreement.
TEST(LogitComparison, TiesGoToTheFirst) {
  EXPECT_EQ(Compare({2, 5, 5}, {2, 5, 5}, 0).top1_share, 1);
  EXPECT_EQ(Compare({2, 5, 5}, {2, 6, 5}, 0).top1_share, 1);
  EXPECT_EQ(Compare({2, 5, 5}, {2, 5, 6}, 0).top1_share, 0);
}

TEST(LogitComparisonDeathTest, RefusesWhatCannotBeCompared) {
  LogitComparison comparison;
  const Logits two = {0, 0}, three = {0, 0, 0};
  EXPECT_DEATH(comparison.Add(two, three, 0), "same vocabulary");
  EXPECT_DEATH(comparison.Add(two, two, 2), "next token");
  EXPECT_DEATH(comparison.Add(two, two, -1), "next token");
  EXPECT_DEATH(comparison.Result(), "a position was added");
}

}  // namespace
}  // namespace fastdecode
