// Percentiles of durations of which some have not ended, and by how much statistics would differ in another run.
#include "tools/latency/distribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace fastdecode {

namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

// ---- Unfinished ones

// Weeks in remission of 21 patients with leukaemia who were given 6-mercaptopurine (Freireich and others, Blood 21,
// 1963): the example of the textbooks, which give the shares that stay longer as 0.857, 0.807, 0.753, 0.690, 0.627,
// 0.538, 0.448 behind weeks 6, 7, 10, 13, 16, 22 and 23.
const std::vector<uint64_t> kWeeks = {6, 6, 6, 7, 10, 13, 16, 22, 23};
const std::vector<uint64_t> kWeeksSoFar = {6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35};

TEST(ReachedSharesTest, AreThoseOfTheTextbooks) {
  const auto reached = [](double longer) { return DoubleNear(1 - longer, 0.0006); };
  const std::vector<double> shares = ReachedShares(kWeeks, 1, kWeeksSoFar, 1);
  ASSERT_EQ(shares.size(), 9u);
  EXPECT_THAT(std::vector<double>(shares.begin() + 2, shares.end()),
              ElementsAre(reached(0.857), reached(0.807), reached(0.753), reached(0.690), reached(0.627),
                          reached(0.538), reached(0.448)));
}

TEST(ReachedSharesTest, ASampleMayStandForMany) {
  const std::vector<double> one = ReachedShares({10, 20, 30}, 1, {15}, 1);
  const std::vector<double> many = ReachedShares({10, 20, 30}, 7, {15, 15}, 3.5);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(many[i], one[i], 1e-12);
}

TEST(DistributionTest, PercentilesOfUnfinishedOnes) {
  std::vector<uint64_t> samples = kWeeks;
  std::reverse(samples.begin(), samples.end());
  const Distribution weeks(samples, kWeeksSoFar);
  EXPECT_EQ(weeks.count(), 9u);
  EXPECT_EQ(weeks.unfinished(), 12u);
  EXPECT_EQ(weeks.Percentile(0.5), 23u);  // 0.552 of all have ended by week 23, 0.462 by week 22
  EXPECT_EQ(weeks.AtLeast(0.5), std::nullopt);
  EXPECT_EQ(weeks.Quantile(0.25), 13u);  // 0.310; 0.247 by week 10
  EXPECT_FALSE(weeks.mean_known());
}

TEST(DistributionTest, APercentileAmongUnfinishedOnesIsAtLeastSoMuch) {
  std::vector<uint64_t> samples(50, 100), unfinished(50, 300);
  for (size_t i = 0; i < 50; ++i) {
    samples[i] += i;
    unfinished[i] += i;
  }
  const Distribution ns(samples, unfinished);
  EXPECT_EQ(ns.Percentile(0.5), 149u);
  EXPECT_EQ(ns.Percentile(0.9), std::nullopt);
  // The 90th of the hundred has taken 339 so far, whatever it will take.
  EXPECT_EQ(ns.AtLeast(0.9), 339u);
  EXPECT_EQ(ns.Quantile(0.9), 149u);
  EXPECT_EQ(ns.AtLeast(0.99), std::nullopt);  // one lies beyond it: too few
  // As if each were the longest of all: half of it is known, the rest takes 349 at least.
  EXPECT_FALSE(ns.mean_known());
  EXPECT_NEAR(ns.mean_ns(), 0.5 * 124.5 + 0.5 * 349, 1e-9);
}

TEST(DistributionTest, WhoHasJustBegunSaysNothing) {
  std::vector<uint64_t> samples;
  for (uint64_t i = 1; i <= 100; ++i) samples.push_back(i * 1000);
  const Distribution ns(samples, std::vector<uint64_t>(40, 500));
  for (const double share : {0.5, 0.9, 0.95}) EXPECT_EQ(ns.Percentile(share), Distribution(samples).Percentile(share));
  EXPECT_TRUE(ns.mean_known());
  EXPECT_NEAR(ns.mean_ns(), 50'500, 1e-6);
  // Nor does it make up for samples that are missing.
  EXPECT_EQ(ns.Percentile(0.96), std::nullopt);
}

TEST(DistributionTest, NoneHasEnded) {
  const Distribution ns({}, {5, 3, 4, 1, 2, 6, 7, 8, 9, 10});
  EXPECT_EQ(ns.Percentile(0.5), std::nullopt);
  EXPECT_EQ(ns.AtLeast(0.5), 5u);
  EXPECT_EQ(Distribution({}, {5}).AtLeast(0.5), std::nullopt);
  EXPECT_EQ(Distribution().AtLeast(0.5), std::nullopt);
}

// ---- Another run

std::vector<uint64_t> Lognormal(size_t count, double sigma, std::mt19937_64* random) {
  std::lognormal_distribution<double> distribution(std::log(100'000), sigma);
  std::vector<uint64_t> samples(count);
  for (uint64_t& ns : samples) ns = static_cast<uint64_t>(distribution(*random));
  return samples;
}

TEST(DistributionTest, TakingBlocksLosesNothing) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> samples = Lognormal(1003, 0.5, &random);
  const Distribution ns(samples);
  std::sort(samples.begin(), samples.end());
  EXPECT_EQ(ns.sorted_ns(), samples);
}

TEST(DistributionTest, OfFewNobodyKnowsAnotherRun) {
  std::mt19937_64 random(2);
  EXPECT_EQ(Distribution(Lognormal(31, 0.5, &random)).uncertainties().mean.freedom, 0);
  EXPECT_GT(Distribution(Lognormal(32, 0.5, &random)).uncertainties().mean.freedom, 0);
  EXPECT_EQ(Distribution().uncertainties().p50.freedom, 0);
  EXPECT_EQ(Distribution(std::vector<uint64_t>(100, 7)).uncertainties().p99.error_ns, 0);
}

// The root of the mean square over runs.
template <typename Make>
double ErrorOfMean(const Make& make) {
  double squares = 0;
  constexpr int kRuns = 200;
  for (int run = 0; run < kRuns; ++run) {
    const double error_ns = Distribution(make()).uncertainties().mean.error_ns;
    squares += error_ns * error_ns / kRuns;
  }
  return std::sqrt(squares);
}

TEST(DistributionTest, WhatHasNothingInCommonIsAsUncertainAsTheTextbookSays) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(1e6, 1e5);
  const double error_ns = ErrorOfMean([&] {
    std::vector<uint64_t> samples(1600);
    for (uint64_t& ns : samples) ns = static_cast<uint64_t>(normal(random));
    return samples;
  });
  // A standard deviation of 1e5 over the root of 1600. What follows itself by chance adds some.
  EXPECT_GT(error_ns, 1e5 / 40);
  EXPECT_LT(error_ns, 1.5 * 1e5 / 40);
}

TEST(DistributionTest, TokensOfOneStepAreWorthOne) {
  std::mt19937_64 random(4);
  std::normal_distribution<double> normal(1e6, 1e5);
  const double error_ns = ErrorOfMean([&] {
    std::vector<uint64_t> samples(1600);
    for (size_t i = 0; i < samples.size(); ++i) {
      samples[i] = i % 16 == 0 ? static_cast<uint64_t>(normal(random)) : samples[i - 1];
    }
    return samples;
  });
  // 100 steps of 16 tokens.
  EXPECT_GT(error_ns, 1e5 / 10);
  EXPECT_LT(error_ns, 1.5 * 1e5 / 10);
}

}  // namespace

}  // namespace fastdecode
