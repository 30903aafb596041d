// What is wrong now and then: stalls of a core in a rhythm, late hops, pauses of the scheduler.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/tools/latency/planted_fault.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class FindMomentsTest : public testing::TestWithParam<int> {
 protected:
  // With one to three homes.
  SimulatedRun Run() const {
    SimulatedRun run;
    run.seed = static_cast<uint64_t>(GetParam());
    run.homes = 1 + GetParam() % 3;
    return run;
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, FindMomentsTest, testing::Range(1, 6));

auto EverySecond() {
  return AllOf(Field(&Finding::period_ns, DoubleNear(1e9, 10e6)), Field(&Finding::share, DoubleNear(0.005, 0.00075)));
}

TEST_P(FindMomentsTest, ACoreStolenFromALeader) {
  SimulatedRun run = Run();
  run.faults.stolen = SimulatedFaults::Core::kLeader;
  run.faults.stolen_home = GetParam() % run.homes;
  EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Names(Planted{"stalls", "home leader", run.faults.stolen_home, -1, 5e6}),
                                             EverySecond())));
}

TEST_P(FindMomentsTest, ACoreStolenFromATeam) {
  SimulatedRun run = Run();
  run.faults.stolen = SimulatedFaults::Core::kHelper;
  run.faults.stolen_home = GetParam() % run.homes;
  EXPECT_THAT(FindIn(run),
              ElementsAre(AllOf(Names(Planted{"stalls", "team", run.faults.stolen_home, -1, 5e6}), EverySecond())));
}

TEST_P(FindMomentsTest, ACoreStolenFromTheSPart) {
  SimulatedRun run = Run();
  run.faults.stolen = SimulatedFaults::Core::kPipeline;
  EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Names(Planted{"stalls", "S-Part", -1, -1, 5e6}), EverySecond())));
}

// How many hops were late is by chance as well: what the simulation made late is counted in its recording, of which
// each hop that takes this long is one.
double LateShare(const Recording& recording, int home, double late_ns) {
  double late = 0, hops = 0;
  for (const fd_record_event& event : recording.events) {
    if (event.kind != FD_RECORD_HOP || (home >= 0 && event.home != home)) continue;
    ++hops;
    late += static_cast<double>(event.end_ns - event.start_ns) > late_ns;
  }
  return late / hops;
}

TEST_P(FindMomentsTest, OneHopInAHundredLateOnOneLink) {
  SimulatedRun run = Run();
  run.homes = 2;
  run.faults.late_home = GetParam() % 2;
  run.faults.late_share = 0.01;
  run.faults.late_ns = 2e6;
  const Recording recording = Simulate(run);
  const double share = LateShare(recording, run.faults.late_home, 2e6);
  EXPECT_NEAR(share, 0.01, 0.003);
  EXPECT_THAT(FindFaults(recording, BuildTimeline(recording)),
              ElementsAre(AllOf(Names(Planted{"outliers", "wire", run.faults.late_home, -1, 2e6}),
                                Field(&Finding::share, DoubleNear(share, 0.15 * share)))));
}

TEST(FindLateHopsTest, OneHopInAHundredLateOnAllLinks) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SimulatedRun run;
    run.seed = seed;
    run.homes = 4;
    run.seconds = 15;
    run.faults.late_share = 0.01;
    run.faults.late_ns = 2e6;
    EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Names(Planted{"outliers", "wire", -1, -1, 2e6}),
                                               Field(&Finding::share, DoubleNear(0.01, 0.0015)),
                                               Field(&Finding::line, HasSubstr("all links: ")))));
  }
}

TEST_P(FindMomentsTest, LateHopsCostWhatATokenTakesLonger) {
  SimulatedRun run = Run();
  run.faults.late_share = 0.03;
  run.faults.late_ns = 3e6;
  ExpectCostsOf(run, Run());
}

TEST(FindLateHopsTest, OnAllLinksOverTheNetworkBesideHomesInMemory) {
  SimulatedRun run;
  run.homes = 4;
  run.local_homes = 2;
  run.seconds = 15;
  run.faults.late_share = 0.01;
  run.faults.late_ns = 2e6;
  EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Names(Planted{"outliers", "wire", -1, -1, 2e6}),
                                             Field(&Finding::line, HasSubstr("all links over the network: ")))));
}

TEST_P(FindMomentsTest, StallsAndLateHopsAtOnce) {
  SimulatedRun run = Run();
  run.faults.stolen = SimulatedFaults::Core::kLeader;
  run.faults.stolen_home = 0;
  run.faults.late_share = 0.01;
  run.faults.late_ns = 2e6;
  EXPECT_THAT(FindIn(run), UnorderedElementsAre(Names(Planted{"stalls", "home leader", 0, -1, 5e6}),
                                                Names(Planted{"outliers", "wire", run.homes == 1 ? 0 : -1, -1, 2e6})));
}

// Memory is never late by itself: something holds replies back, and neither the leader nor the pipeline stands still.
TEST_P(FindMomentsTest, RepliesThatAreHeldBackInMemory) {
  SimulatedRun run = Run();
  run.local_homes = run.homes;
  run.faults.late_in_memory = true;
  run.faults.late_home = GetParam() % run.homes;
  run.faults.late_share = 0.01;
  run.faults.late_ns = 2e6;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"outliers", "wire", run.faults.late_home, -1, 2e6})));
}

TEST_P(FindMomentsTest, APauseOfTheScheduler) {
  SimulatedRun run = Run();
  run.faults.pause_ns = 120e6;
  run.faults.pause_at_s = 2 + 0.3 * GetParam();
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"pause", "scheduler", -1, -1, 120e6})));
}

}  // namespace
}  // namespace fastdecode
