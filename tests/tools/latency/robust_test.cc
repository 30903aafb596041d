#include "tools/latency/findings/robust.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/latency/findings/rhythm.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;

TEST(RobustTest, MedianAndQuantiles) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3}), 3);
  EXPECT_EQ(Median({5, 1, 3}), 3);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2);  // the lower
  EXPECT_EQ(QuantileOf({4, 1, 3, 2}, 0.75), 3);
  EXPECT_EQ(QuantileOf({4, 1, 3, 2}, 1), 4);
  EXPECT_EQ(QuantileOf({4, 1, 3, 2}, 0), 1);
}

TEST(RobustTest, SpreadIsTheStandardDeviationWhereNothingIsWild) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(100, 7);
  std::vector<double> values;
  for (int i = 0; i < 20000; ++i) values.push_back(normal(random));
  EXPECT_NEAR(Spread(values), 7, 0.2);
  for (int i = 0; i < 200; ++i) values.push_back(1e6);
  EXPECT_NEAR(Spread(values), 7, 0.3);
}

TEST(RobustTest, FewerBlocksMustStandOutMore) {
  // Student's quantiles for one in 300,000 on that side.
  EXPECT_NEAR(Significant(1'000'000), 4.5, 0.01);
  EXPECT_NEAR(Significant(25), 5.6, 0.15);
  EXPECT_NEAR(Significant(12), 7.2, 0.5);
  EXPECT_GT(Significant(4), 12);
}

TEST(RobustTest, ErrorsOfBlocksCoverTheTruth) {
  std::mt19937_64 random(2);
  std::normal_distribution<double> normal(10, 1);
  int within = 0;
  for (int run = 0; run < 500; ++run) {
    std::vector<double> blocks;
    for (int i = 0; i < 12; ++i) blocks.push_back(normal(random));
    const Estimate estimate = EstimateFromBlocks(blocks);
    within += std::abs(estimate.value - 10) < 2 * estimate.error;
  }
  EXPECT_GT(within, 400);  // 466 if the error were known; of 12 blocks it is itself known within a third
  EXPECT_LT(within, 500);
  EXPECT_FALSE(std::isfinite(EstimateFromBlocks({1, 2}).error));
  EXPECT_EQ(EstimateFromBlocks({}).blocks, 0);
}

// y = 50 + 3 x, with noise of 2 and now and then something wild.
std::vector<Sample> Samples(uint64_t seed, double x_spread, double wild_share) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> noise(0, 2), x(1000, x_spread);
  std::uniform_real_distribution<double> share(0, 1);
  std::vector<Sample> samples;
  for (int i = 0; i < 600; ++i) {
    const double at = x(random);
    const double wild = share(random) < wild_share ? 5000 * share(random) : 0;
    samples.push_back({at, 50 + 3 * at + noise(random) + wild, i / 50});
  }
  return samples;
}

TEST(RobustTest, FitsALineThroughWildSamples) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Line line = FitLine(Samples(seed, 100, 0.1), 12);
    EXPECT_EQ(line.blocks, 12);
    EXPECT_NEAR(line.mean_x, 1000, 25);
    EXPECT_NEAR(line.slope, 3, 0.01);
    EXPECT_NEAR(line.At(1000), 3050, 0.6);
    // 2 / sqrt(540) for the level, and that over 100 for the slope.
    EXPECT_NEAR(line.level_error, 0.086, 0.06);
    EXPECT_NEAR(line.slope_error, 0.00086, 0.0006);
  }
}

// Nine of ten samples lie together, and the rest far away on the same line: they are not wild.
TEST(RobustTest, BelievesWhatIsFarAwayOnTheLine) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(0, 2);
  std::vector<Sample> samples;
  for (int i = 0; i < 600; ++i) {
    const double x = i % 10 == 0 ? 500 + i % 7 : 1000 + i % 5;
    samples.push_back({x, 50 + 3 * x + noise(random), i / 50});
  }
  EXPECT_NEAR(FitLine(samples, 12).slope, 3, 0.01);
}

TEST(RobustTest, KnowsNoSlopeWhereXDoesNotVary) {
  const Line line = FitLine(Samples(1, 0, 0), 12);
  EXPECT_NEAR(line.level, 3050, 0.5);
  EXPECT_FALSE(std::isfinite(line.slope_error));
}

TEST(RobustTest, KnowsNothingOfTooFewBlocks) {
  EXPECT_EQ(FitLine({}, 12).samples, 0u);
  EXPECT_EQ(FitLine({{1, 1, 0}, {2, 2, 1}}, 12).samples, 0u);
  EXPECT_EQ(FitLine({{1, 5, 0}, {2, 5, 1}, {3, 5, 2}}, 3).level, 5);  // no noise at all
}

TEST(RhythmTest, FindsTheBeatOfMostMoments) {
  // Every 1000, but for one, with one beside.
  const std::optional<Rhythm> rhythm = FindRhythm({103, 1099, 2101, 2600, 3100, 5098, 6102, 7100}, 5, 100);
  ASSERT_TRUE(rhythm.has_value());
  EXPECT_NEAR(rhythm->period_ns, 1000, 3);
  EXPECT_THAT(rhythm->fits, ElementsAre(true, true, true, false, true, true, true, true));
}

TEST(RhythmTest, FindsNoneInFewMomentsOrInShortPeriods) {
  EXPECT_FALSE(FindRhythm({100, 1100, 2100, 3100}, 5, 100).has_value());
  EXPECT_FALSE(FindRhythm({100, 1100, 2100, 3100, 4100, 5100}, 5, 2000).has_value());
  EXPECT_FALSE(FindRhythm({}, 5, 2000).has_value());
}

TEST(RhythmTest, FindsNoneWhereThereIsNone) {
  std::mt19937_64 random(4);
  int found = 0;
  for (int run = 0; run < 2000; ++run) {
    std::uniform_real_distribution<double> at(0, 10e9);
    std::vector<double> moments;
    for (int i = 0; i < 5 + run % 40; ++i) moments.push_back(at(random));
    std::sort(moments.begin(), moments.end());
    found += FindRhythm(moments, 5e6, 25e6).has_value();
  }
  EXPECT_LE(found, 8);
}

}  // namespace
}  // namespace fastdecode
