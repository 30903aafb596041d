// Durations as the engine's own statistics tell them, against those that were put in.
#include "engine/start/statistics_snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace fastdecode {
namespace {

// A bucket is no wider than this share of what lies in it.
constexpr double kBucketShare = 1.0 / 16;

void ExpectWithinABucket(double got, double expected, const std::string& what) {
  EXPECT_LE(std::abs(got - expected), expected * kBucketShare) << what << " is " << got << ", expected " << expected;
}

TEST(DurationHistogramTest, EveryDurationIsReadBackWithinItsBucket) {
  std::vector<uint64_t> durations;
  for (uint64_t ns = 0; ns < 5000; ++ns) durations.push_back(ns);
  for (int bit = 12; bit < 64; ++bit) {
    const uint64_t power = uint64_t{1} << bit;
    durations.insert(durations.end(), {power - 1, power, power + 1});
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) durations.push_back(random() >> random() % 64);
  durations.push_back(UINT64_MAX);
  std::sort(durations.begin(), durations.end());
  size_t last_bucket = 0;
  for (const uint64_t ns : durations) {
    const size_t bucket = DurationHistogram::BucketOf(ns);
    ASSERT_LT(bucket, DurationHistogram::kBuckets) << ns;
    ASSERT_GE(bucket, last_bucket) << ns << ": longer durations lie in later buckets";
    const double value = DurationHistogram::ValueOf(bucket);
    ASSERT_LE(std::abs(value - static_cast<double>(ns)), static_cast<double>(ns) * kBucketShare) << ns;
    last_bucket = bucket;
  }
}

// 1, 2, ... n microseconds in no order, between two snapshots. What came before the first must not count.
nlohmann::json StatisticsOf(int n, DurationHistogram PipelineStatistics::*histogram) {
  const auto statistics = std::make_unique<PipelineStatistics>();
  for (int i = 0; i < 1000; ++i) ((*statistics).*histogram).Add(7'000'000'000);
  const StatisticsSnapshot earlier = TakeSnapshot(*statistics);
  std::vector<uint64_t> durations;
  for (int us = 1; us <= n; ++us) durations.push_back(uint64_t{1000} * static_cast<uint64_t>(us));
  std::shuffle(durations.begin(), durations.end(), std::mt19937_64(1));
  for (const uint64_t ns : durations) ((*statistics).*histogram).Add(ns);
  return nlohmann::json::parse(ToJson(Difference(TakeSnapshot(*statistics), earlier), {}, {}));
}

TEST(StatisticsSnapshotTest, MeanLongestAndPercentilesAreThoseOfTheWindow) {
  const struct {
    const char* name;
    DurationHistogram PipelineStatistics::*histogram;
  } kinds[] = {{"stage", &PipelineStatistics::stage_ns},
               {"hop", &PipelineStatistics::hop_ns},
               {"step", &PipelineStatistics::step_ns}};
  for (const auto& kind : kinds) {
    const nlohmann::json statistics = StatisticsOf(20'000, kind.histogram);
    for (const auto& other : kinds) {
      SCOPED_TRACE(std::string(other.name) + " of " + kind.name);
      const nlohmann::json& durations = statistics.at(other.name);
      if (&other != &kind) {
        EXPECT_EQ(durations, nlohmann::json({{"count", 0}}));
        continue;
      }
      EXPECT_EQ(durations.at("count"), 20'000);
      ExpectWithinABucket(durations.at("mean_us"), 10'000.5, "mean");
      ExpectWithinABucket(durations.at("max_us"), 20'000, "max");
      ExpectWithinABucket(durations.at("p50_us"), 10'000, "p50");
      ExpectWithinABucket(durations.at("p90_us"), 18'000, "p90");
      ExpectWithinABucket(durations.at("p99_us"), 19'800, "p99");
      ExpectWithinABucket(durations.at("p999_us"), 19'980, "p999");
    }
  }
}

TEST(StatisticsSnapshotTest, TokensThatWereFoundAreThoseOfTheWindowAndOfTheirHome) {
  const auto statistics = std::make_unique<PipelineStatistics>();
  statistics->prefix_tokens.Add(1000);
  statistics->home_cached_tokens[1].Add(500);
  const StatisticsSnapshot earlier = TakeSnapshot(*statistics);
  statistics->prefix_tokens.Add(70);
  statistics->home_cached_tokens[0].Add(32);
  statistics->home_cached_tokens[1].Add(4);
  std::vector<Homes::Info> homes(2);
  homes[0].index = 0;
  homes[0].up = true;
  homes[1].index = 1;
  homes[1].up = false;
  StatisticsGauges gauges;
  gauges.home_pages_cached.assign(kMaxHomes, 9);
  const nlohmann::json json =
      nlohmann::json::parse(ToJson(Difference(TakeSnapshot(*statistics), earlier), homes, gauges));
  EXPECT_EQ(json.at("prefix_tokens"), 70);
  EXPECT_EQ(json.at("cached_tokens"), 36);
  EXPECT_EQ(json.at("homes").at(0).at("cached_tokens"), 32);
  EXPECT_EQ(json.at("homes").at(1).at("cached_tokens"), 4);
  EXPECT_EQ(json.at("homes").at(0).at("pages_cached"), 9);
  EXPECT_EQ(json.at("homes").at(1).at("pages_cached"), 0) << "it is not up";
}

// One that fewer than ten observations lie beyond would say little.
TEST(StatisticsSnapshotTest, PercentilesOfTooFewAreLeftOut) {
  const struct {
    int count;
    bool p90, p99, p999;
  } cases[] = {{1, false, false, false},  {90, false, false, false}, {100, true, false, false},
               {890, true, false, false}, {1000, true, true, false}, {8900, true, true, false},
               {10'000, true, true, true}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.count);
    const nlohmann::json durations = StatisticsOf(c.count, &PipelineStatistics::hop_ns).at("hop");
    EXPECT_TRUE(durations.contains("mean_us") && durations.contains("max_us") && durations.contains("p50_us"));
    EXPECT_EQ(durations.contains("p90_us"), c.p90);
    EXPECT_EQ(durations.contains("p99_us"), c.p99);
    EXPECT_EQ(durations.contains("p999_us"), c.p999);
  }
}

}  // namespace
}  // namespace fastdecode
