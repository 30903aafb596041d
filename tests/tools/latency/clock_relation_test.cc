#include "tools/latency/analysis/clock_relation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace fastdecode {
namespace {

constexpr double kTurn = 4294967296.0;

struct Simulated {
  double offset_ns = 0;  // home - engine at the engine's time 0
  double drift_ppm = 0;
  double span_ns = 2e9;
  int hops = 4000;
  double there_ns = 5000, back_ns = 5000;  // the link's least
  double jitter_ns = 20000;                // mean of what comes on top, each way
};

constexpr uint64_t kEngineStart = 987'654'321'000'000;

double TrueOffset(const Simulated& simulated, double at_ns) {
  return simulated.offset_ns + simulated.drift_ppm * 1e-6 * at_ns;
}

std::vector<ClockReading> Simulate(const Simulated& simulated, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> jitter(1 / simulated.jitter_ns);
  std::uniform_real_distribution<double> work(10e3, 200e3);
  std::vector<ClockReading> readings;
  for (int i = 0; i < simulated.hops; ++i) {
    const double posted = simulated.span_ns * i / simulated.hops;
    const double there = simulated.there_ns + jitter(random), back = simulated.back_ns + jitter(random);
    const double work_ns = std::round(work(random));
    const double ready = std::round(posted + there + work_ns);
    const double seen = std::round(ready + back);
    const int64_t home = std::llround(ready + TrueOffset(simulated, ready));
    ClockReading reading;
    reading.posted_ns = kEngineStart + static_cast<uint64_t>(posted);
    reading.seen_ns = kEngineStart + static_cast<uint64_t>(seen);
    reading.work_ns = static_cast<uint64_t>(work_ns);
    // As the home says it: modulo 2^32.
    reading.difference_ns = WrapClock(home - static_cast<int64_t>(seen));
    readings.push_back(reading);
  }
  return readings;
}

double Distance(double a, double b) { return std::abs(std::remainder(a - b, kTurn)); }

// The largest error of the relation from the first hop to the last.
double WorstError(const Simulated& simulated, const ClockRelation& relation) {
  double worst = 0;
  const double last = simulated.span_ns * (simulated.hops - 1) / simulated.hops;
  for (int i = 0; i <= 100; ++i) {
    const double at = last * i / 100;
    const double said = relation.At(kEngineStart + static_cast<uint64_t>(at));
    worst = std::max(worst, Distance(said, TrueOffset(simulated, at)));
  }
  return worst;
}

TEST(ClockRelation, HoldsTheTrueOffsetWithinItsBoundAtEveryMoment) {
  uint64_t seed = 1;
  for (const double offset : {0.0, 5e3, -7e8, 2147483000.0, -2147483000.0, 9.9e12}) {
    for (const double drift : {0.0, 3.0, -40.0, 400.0}) {
      for (const double there : {5e3, 1e3, 300e3}) {
        for (const int hops : {1, 5, 50, 4000}) {
          Simulated simulated;
          simulated.offset_ns = offset;
          simulated.drift_ppm = drift;
          simulated.there_ns = there;  // an asymmetry that no round trip shows
          simulated.hops = hops;
          const ClockRelation relation = RelateClocks(Simulate(simulated, seed++));
          ASSERT_TRUE(relation.known);
          EXPECT_LE(WorstError(simulated, relation), relation.bound_ns)
              << "offset " << offset << " drift " << drift << " there " << there << " hops " << hops;
          EXPECT_GE(relation.offset_ns, -kTurn / 2);
          EXPECT_LT(relation.offset_ns, kTurn / 2);
        }
      }
    }
  }
}

// A bound that is right because it is huge would be of no use: with thousands of hops it comes near to half of the
// link's least round trip.
TEST(ClockRelation, BoundIsNearHalfTheLeastRoundTrip) {
  for (const double drift : {0.0, 25.0}) {
    Simulated simulated;
    simulated.drift_ppm = drift;
    const ClockRelation relation = RelateClocks(Simulate(simulated, 7));
    EXPECT_LT(relation.bound_ns, 1.5 * (simulated.there_ns + simulated.back_ns) / 2) << drift;
    EXPECT_EQ(relation.bent_ns, 0);
  }
}

TEST(ClockRelation, SaysDriftOnlyWhereTheRecordingShowsIt) {
  Simulated simulated;
  simulated.drift_ppm = 20;  // 40 us over 2 s, of a link of 10 us
  EXPECT_NEAR(RelateClocks(Simulate(simulated, 3)).drift_ppm, 20, 3);
  simulated.span_ns = 1e8;  // 2 us
  simulated.hops = 200;
  const ClockRelation brief = RelateClocks(Simulate(simulated, 3));
  EXPECT_EQ(brief.drift_ppm, 0);
  EXPECT_LE(WorstError(simulated, brief), brief.bound_ns);
  simulated.drift_ppm = 0;
  simulated.span_ns = 2e9;
  EXPECT_EQ(RelateClocks(Simulate(simulated, 4)).drift_ppm, 0);
}

TEST(ClockRelation, AClockThatWasSetIsBent) {
  Simulated simulated;
  std::vector<ClockReading> readings = Simulate(simulated, 5);
  for (size_t i = readings.size() / 2; i < readings.size(); ++i) readings[i].difference_ns += 10'000'000;
  const ClockRelation relation = RelateClocks(readings);
  EXPECT_TRUE(relation.known);
  EXPECT_GT(relation.bent_ns, 1e6);
  // Each half lies within the bound all the same.
  for (const double at : {0.0, 0.4e9, 0.99e9}) {
    EXPECT_LE(Distance(relation.At(kEngineStart + static_cast<uint64_t>(at)), 0), relation.bound_ns);
    EXPECT_LE(Distance(relation.At(kEngineStart + static_cast<uint64_t>(at + 1e9)), 1e7), relation.bound_ns);
  }
}

TEST(ClockRelation, NothingIsKnownOfNothing) { EXPECT_FALSE(RelateClocks({}).known); }

}  // namespace
}  // namespace fastdecode
