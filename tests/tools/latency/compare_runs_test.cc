// Runs of the same thing against each other, and a run with something planted: whether `latency compare` can be
// believed.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tests/tools/latency/simulated_run.h"
#include "tools/latency/analysis/analysis.h"
#include "tools/latency/analysis/compare.h"
#include "tools/latency/analysis/requests.h"
#include "tools/latency/analysis/timeline.h"
#include "tools/latency/export/export_json.h"
#include "tools/latency/export/saved_result.h"

namespace fastdecode {
namespace {

// As it was saved, through all of its making.
SavedResult SaveRun(const SimulatedRun& run) {
  const Recording recording = Simulate(run);
  LatencyResult result = Analyze(recording, BuildTimeline(recording), 0);
  result.requests = MeasureRequests(recording);
  absl::StatusOr<SavedResult> saved = FromJson(ToJson(result), "run.json");
  EXPECT_TRUE(saved.ok()) << saved.status();
  return saved.ok() ? *saved : SavedResult();
}

// A load that changes over seconds: requests come and go, homes read more KV and less.
SimulatedRun ChangingRun(uint64_t seed) {
  SimulatedRun run;
  run.seed = seed;
  run.seconds = 30;
  return run;
}

// Little KV, and one micro-batch, for which every hop is waited for: steps are alike.
SimulatedRun EvenRun(uint64_t seed) {
  SimulatedRun run;
  run.seed = seed;
  run.seconds = 10;
  run.micro_batches = 1;
  run.kv_bytes_per_token = 64;
  return run;
}

struct Verdicts {
  int rows = 0, slower = 0, faster = 0, failed = 0;
};

// Of pairs of runs that differ in their seed alone.
template <typename MakeRun>
Verdicts CompareAlike(int pairs, const MakeRun& make_run) {
  Verdicts verdicts;
  for (int pair = 0; pair < pairs; ++pair) {
    const uint64_t seed = 2 * static_cast<uint64_t>(pair) + 1;
    CompareOptions options;
    options.seed = seed;
    const absl::StatusOr<Comparison> comparison =
        Compare(SaveRun(make_run(seed)), SaveRun(make_run(seed + 1)), options);
    EXPECT_TRUE(comparison.ok()) << comparison.status();
    if (!comparison.ok()) continue;
    for (const ComparedStatistic& row : comparison->rows) {
      verdicts.rows += row.verdict != ChangeVerdict::kUnknown ? 1 : 0;
      verdicts.slower += row.verdict == ChangeVerdict::kSlower ? 1 : 0;
      verdicts.faster += row.verdict == ChangeVerdict::kFaster ? 1 : 0;
    }
    verdicts.failed += comparison->failed() ? 1 : 0;
  }
  return verdicts;
}

// At 95 % confidence one row in twenty differs by chance, half of these for the worse; rows of a run have much in
// common, so that pairs differ a good deal.
void ExpectChanceAlone(const Verdicts& verdicts, int pairs) {
  EXPECT_GE(verdicts.rows, 100 * pairs);
  EXPECT_LE(verdicts.slower + verdicts.faster, verdicts.rows / 10)
      << verdicts.slower << " slower, " << verdicts.faster << " faster";
  EXPECT_LE(verdicts.slower, verdicts.rows * 5 / 100);
  EXPECT_EQ(verdicts.failed, 0);
}

TEST(CompareRunsTest, RunsOfTheSameThingDifferByChanceAlone) { ExpectChanceAlone(CompareAlike(8, ChangingRun), 8); }

TEST(CompareRunsTest, EvenRunsDifferByChanceAlone) { ExpectChanceAlone(CompareAlike(12, EvenRun), 12); }

TEST(CompareRunsTest, ASlowHomeIsSeenInTokens) {
  constexpr double kExtraNs = 50e3;
  int above = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SimulatedRun slow = EvenRun(100 + seed);
    slow.faults.slow_home = 1;
    slow.faults.attend_extra_ns = kExtraNs;
    const SavedResult before = SaveRun(EvenRun(seed));
    CompareOptions options;
    options.threshold = 0.02;
    const absl::StatusOr<Comparison> comparison = Compare(before, SaveRun(slow), options);
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    // All hops of a step are waited for, one after the other.
    const double expected = kExtraNs * slow.layers / *before.FindPhase("token", "engine")->ns.mean_ns;
    int tokens = 0, attends = 0;
    for (const ComparedStatistic& row : comparison->rows) {
      if (row.metric == "attend" && row.where == "home 1") {
        ++attends;
        EXPECT_NE(row.verdict, ChangeVerdict::kFaster) << row.statistic;
      }
      if (row.metric != "token" || row.statistic == "p99") continue;
      ++tokens;
      EXPECT_EQ(row.verdict, ChangeVerdict::kSlower) << seed << " " << row.statistic;
      EXPECT_NEAR(row.change.change, expected, 0.015) << seed << " " << row.statistic;
      above += row.change.low > expected ? 1 : 0;
    }
    EXPECT_EQ(tokens, 3);
    EXPECT_EQ(attends, 4);
    EXPECT_TRUE(comparison->failed());
  }
  EXPECT_LE(above, 3);  // of 24 intervals of 95 %, each with one chance in forty
}

}  // namespace
}  // namespace fastdecode
