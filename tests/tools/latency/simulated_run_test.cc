// The simulator's recordings hold together, and what is planted is there: what findings are judged by must be right
// itself.
#include "tests/tools/latency/simulated_run.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode {
namespace {

SimulatedRun Short(uint64_t seed) {
  SimulatedRun run;
  run.seed = seed;
  run.seconds = 2;
  return run;
}

uint64_t WorkNs(const fd_record_event& hop) {
  return uint64_t{hop.prepare_ns} + hop.append_ns + hop.attend_ns + hop.merge_ns + hop.wait_ns;
}

std::vector<fd_record_event> OfKind(const Recording& recording, fd_record_kind kind) {
  std::vector<fd_record_event> events;
  for (const fd_record_event& event : recording.events) {
    if (event.kind == kind) events.push_back(event);
  }
  return events;
}

TEST(SimulatedRunTest, EqualSeedsGiveEqualRecordings) {
  const Recording one = Simulate(Short(7)), again = Simulate(Short(7)), other = Simulate(Short(8));
  ASSERT_EQ(one.events.size(), again.events.size());
  EXPECT_EQ(std::memcmp(one.events.data(), again.events.data(), one.events.size() * sizeof(fd_record_event)), 0);
  EXPECT_NE(one.events.size(), other.events.size());
}

TEST(SimulatedRunTest, ThePipelineDoesOneThingAtATime) {
  for (int micro_batches = 1; micro_batches <= 3; ++micro_batches) {
    SimulatedRun run = Short(3);
    run.micro_batches = micro_batches;
    run.requests.prefill_chunk = 32;
    const Recording recording = Simulate(run);
    uint64_t busy_until = 0;
    for (const fd_record_event& event : recording.events) {
      ASSERT_LE(event.start_ns, event.end_ns);
      const bool work = event.kind == FD_RECORD_COMPOSE || event.kind == FD_RECORD_STAGE ||
                        event.kind == FD_RECORD_POST || event.kind == FD_RECORD_FINISH;
      if (work) {
        ASSERT_GE(event.start_ns, busy_until);
        busy_until = event.end_ns;
      }
    }
  }
}

TEST(SimulatedRunTest, StepsHaveAllTheirStagesAndHops) {
  SimulatedRun run = Short(4);
  run.homes = 3;
  const Recording recording = Simulate(run);
  std::map<std::tuple<int, uint32_t>, int> stages, hops, posted;
  for (const fd_record_event& event : recording.events) {
    const auto step = std::make_tuple(int{event.micro_batch}, event.step);
    if (event.kind == FD_RECORD_STAGE) ++stages[step];
    if (event.kind == FD_RECORD_HOP) ++hops[step];
    if (event.kind == FD_RECORD_POST) posted[step] += static_cast<int>(event.count);
  }
  ASSERT_GT(stages.size(), 40u);
  int whole = 0;
  for (const auto& [step, count] : stages) {
    if (count != run.layers + 1) continue;
    ++whole;
    EXPECT_EQ(hops[step], posted[step]);
  }
  EXPECT_GE(whole + 2 * run.micro_batches, static_cast<int>(stages.size()));
}

TEST(SimulatedRunTest, HopsTakeTheirWorkAndTheWire) {
  const SimulatedRun run = Short(5);
  const Recording recording = Simulate(run);
  for (const fd_record_event& hop : OfKind(recording, FD_RECORD_HOP)) {
    // The fastest wire of all is a good deal less than the usual one.
    ASSERT_GE(hop.end_ns - hop.start_ns, WorkNs(hop) + static_cast<uint64_t>(run.link.one_way_ns));
    ASSERT_TRUE(hop.polled_ns == 0 || (hop.polled_ns >= hop.start_ns && hop.polled_ns < hop.end_ns));
  }
}

TEST(SimulatedRunTest, KvVariesBetweenHomesAndOverTime) {
  SimulatedRun run = Short(6);
  run.seconds = 10;
  const Recording recording = Simulate(run);
  std::vector<double> bytes;
  double sum = 0;
  for (const fd_record_event& share : OfKind(recording, FD_RECORD_SHARE)) {
    bytes.push_back(static_cast<double>(share.bytes));
    sum += bytes.back();
  }
  std::sort(bytes.begin(), bytes.end());
  const double mean = sum / static_cast<double>(bytes.size());
  EXPECT_LT(bytes[bytes.size() / 20], 0.85 * mean);
  EXPECT_GT(bytes[bytes.size() * 19 / 20], 1.15 * mean);
}

TEST(SimulatedRunTest, APauseHoldsThePipeline) {
  SimulatedRun run = Short(9);
  run.faults.pause_ns = 120e6;
  run.faults.pause_at_s = 1;
  const Recording recording = Simulate(run);
  const std::vector<fd_record_event> held = OfKind(recording, FD_RECORD_HELD);
  ASSERT_EQ(held.size(), 2u);
  for (const fd_record_event& event : held) EXPECT_NEAR(static_cast<double>(event.end_ns - event.start_ns), 80e6, 40e6);
  EXPECT_THAT(OfKind(Simulate(Short(9)), FD_RECORD_HELD), testing::IsEmpty());
}

TEST(SimulatedRunTest, AStolenLeaderStopsForThatLong) {
  SimulatedRun run = Short(10);
  run.seconds = 10;
  run.faults.stolen = SimulatedFaults::Core::kLeader;
  run.faults.stolen_home = 1;
  int late = 0;
  for (const fd_record_event& hop : OfKind(Simulate(run), FD_RECORD_HOP)) {
    const bool long_one = hop.end_ns - hop.start_ns > 4'000'000;
    if (long_one && hop.home == 1) ++late;
    EXPECT_FALSE(long_one && hop.home == 0);
  }
  // One or both micro-batches' hops each time.
  EXPECT_GE(late, 8);
  EXPECT_LE(late, 20);
}

// Planned in periods, and at random as often on average, in random lengths; and meanwhile the core ends nothing.
TEST(SimulatedRunTest, ThePipelineEndsNothingWhileItsCoreIsAway) {
  SimulatedRun run = Short(12);
  run.seconds = 20;
  run.faults.stolen = SimulatedFaults::Core::kPipeline;
  run.faults.stolen_period_ns = 50e6;
  for (const SimulatedTheft& theft : PlanThefts(run)) EXPECT_NEAR(theft.end - theft.start, 5e6, 1);
  run.faults.stolen_ns = 2e6;
  run.faults.stolen_ns_max = 10e6;
  run.faults.stolen_at_random = true;
  const std::vector<SimulatedTheft> thefts = PlanThefts(run);
  EXPECT_NEAR(static_cast<double>(thefts.size()), 400, 60);
  double sum_ns = 0, end = 0;
  for (const SimulatedTheft& theft : thefts) {
    EXPECT_GE(theft.start, end);
    EXPECT_GE(theft.end - theft.start, 2e6 - 1);
    EXPECT_LE(theft.end - theft.start, 10e6 + 1);
    sum_ns += theft.end - theft.start;
    end = theft.end;
  }
  EXPECT_NEAR(sum_ns / static_cast<double>(thefts.size()), 6e6, 0.5e6);
  for (const fd_record_event& part : OfKind(Simulate(run), FD_RECORD_STAGE_PART)) {
    const auto ended = static_cast<double>(part.end_ns);
    const auto next = std::partition_point(thefts.begin(), thefts.end(),
                                           [ended](const SimulatedTheft& theft) { return theft.end <= ended + 1; });
    ASSERT_TRUE(next == thefts.end() || ended <= next->start + 1);
  }
}

// A home on the engine's host has its clock, and hardly any wire.
TEST(SimulatedRunTest, LocalHomesAreInMemory) {
  SimulatedRun run = Short(13);
  run.local_homes = 1;
  const Recording recording = Simulate(run);
  EXPECT_EQ(recording.SameHost(2), (std::vector<bool>{true, false}));
  uint64_t least_rest_ns[2] = {UINT64_MAX, UINT64_MAX};
  for (const fd_record_event& hop : OfKind(recording, FD_RECORD_HOP)) {
    const bool within = hop.home_end_ns > hop.start_ns + WorkNs(hop) && hop.home_end_ns < hop.end_ns;
    EXPECT_EQ(within, hop.home == 0);
    uint64_t& least_ns = least_rest_ns[hop.home];
    least_ns = std::min(least_ns, hop.end_ns - hop.start_ns - WorkNs(hop));
  }
  EXPECT_LT(least_rest_ns[0], 5000u);
  EXPECT_GT(least_rest_ns[1], 6000u);
}

TEST(SimulatedRunTest, OpenLoopIdlesBetweenRequests) {
  SimulatedRun run = Short(11);
  run.requests.arrivals_per_s = 3;
  run.requests.output_max = 70;
  run.requests.prefill_chunk = 64;
  const Recording recording = Simulate(run);
  EXPECT_FALSE(OfKind(recording, FD_RECORD_IDLE).empty());
  EXPECT_FALSE(OfKind(recording, FD_RECORD_LEAVE).empty());
  EXPECT_GE(recording.intended.size(), OfKind(recording, FD_RECORD_JOIN).size());
  for (const fd_record_event& leave : OfKind(recording, FD_RECORD_LEAVE)) {
    EXPECT_GT(recording.intended.at(leave.id - 1).ended_ns, leave.end_ns);
  }
}

TEST(SimulatedRunTest, AnOpenLoopAtMoreThanIsServedMakesAQueue) {
  SimulatedRun run = Short(12);
  run.requests.sequences = 6;
  run.requests.arrivals_per_s = 40;
  const Recording recording = Simulate(run);
  const size_t joined = OfKind(recording, FD_RECORD_JOIN).size();
  EXPECT_GT(joined, 0u);
  EXPECT_GT(OfKind(recording, FD_RECORD_SUBMIT).size(), 4 * joined);
  EXPECT_GE(recording.end_ns, recording.events.back().end_ns);
}

}  // namespace
}  // namespace fastdecode
