// A core that something takes at random moments is found, and how often and for how long is counted; while hops that
// come late at random are the wire's.
#include <algorithm>
#include <ostream>
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
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Core = SimulatedFaults::Core;

struct Lengths {
  const char* name;
  double ns, ns_max, period_ns;
};
constexpr Lengths kLengths[] = {
    {"FiveMs", 5e6, 0, 1e9},
    {"TwentyMs", 20e6, 0, 2e9},
    {"TwoToTenMs", 2e6, 10e6, 1e9},
};

// What is to be said of the thefts of a run: counted from the plan, as far as steps were recorded meanwhile.
auto AreThefts(const SimulatedRun& run, const Timeline& timeline) {
  std::vector<double> lengths;
  double sum_ns = 0;
  for (const SimulatedTheft& theft : PlanThefts(run)) {
    if (theft.start < static_cast<double>(timeline.start_ns) || theft.end > static_cast<double>(timeline.end_ns))
      continue;
    lengths.push_back(theft.end - theft.start);
    sum_ns += lengths.back();
  }
  std::sort(lengths.begin(), lengths.end());
  const auto recorded_ns = static_cast<double>(timeline.end_ns - timeline.start_ns);
  const double share = sum_ns / recorded_ns;
  const double period_ns = recorded_ns / static_cast<double>(lengths.size());
  const bool pipeline = run.faults.stolen == Core::kPipeline;
  const std::string phase = pipeline ? "S-Part" : run.faults.stolen == Core::kLeader ? "home leader" : "team";
  return AllOf(
      Names(Planted{"stalls", phase, pipeline ? -1 : run.faults.stolen_home, -1, lengths[(lengths.size() - 1) / 2]}),
      Field("share", &Finding::share, DoubleNear(share, kAmountTolerance * share)),
      Field("period", &Finding::period_ns, DoubleNear(period_ns, kAmountTolerance * period_ns)),
      Field(&Finding::line, HasSubstr(" now and then")));
}

void ExpectTheftsAlone(const SimulatedRun& run) {
  const Recording recording = Simulate(run);
  const Timeline timeline = BuildTimeline(recording);
  EXPECT_THAT(FindFaults(recording, timeline), ElementsAre(AreThefts(run, timeline)));
}

struct Theft {
  Core core;
  Lengths lengths;
  int seed;
};

void PrintTo(const Theft& theft, std::ostream* out) { *out << theft.lengths.name << ", seed " << theft.seed; }

std::string NameOf(const testing::TestParamInfo<Theft>& info) {
  const Theft& theft = info.param;
  const char* core = theft.core == Core::kPipeline ? "Pipeline" : theft.core == Core::kLeader ? "Leader" : "Team";
  return std::string(core) + theft.lengths.name + std::to_string(theft.seed);
}

class FindStallsTest : public testing::TestWithParam<Theft> {
 protected:
  SimulatedRun Run() const {
    const auto& [core, lengths, seed] = GetParam();
    SimulatedRun run = RunOfHomes(seed);
    run.seconds = 10 * lengths.period_ns * 1e-9;
    run.faults.stolen = core;
    run.faults.stolen_home = core == Core::kPipeline ? -1 : seed % run.homes;
    run.faults.stolen_at_random = true;
    run.faults.stolen_ns = lengths.ns;
    run.faults.stolen_ns_max = lengths.ns_max;
    run.faults.stolen_period_ns = lengths.period_ns;
    return run;
  }
};

std::vector<Theft> AllThefts() {
  std::vector<Theft> thefts;
  for (const Core core : {Core::kPipeline, Core::kLeader, Core::kHelper}) {
    for (const Lengths& lengths : kLengths) {
      for (int seed = 1; seed <= 5; ++seed) thefts.push_back({core, lengths, seed});
    }
  }
  return thefts;
}
INSTANTIATE_TEST_SUITE_P(Thefts, FindStallsTest, testing::ValuesIn(AllThefts()), NameOf);

TEST_P(FindStallsTest, AtRandomMoments) { ExpectTheftsAlone(Run()); }

// A leader with little to do loses most of its stolen time while it waits for hops. In memory these are its own...
SimulatedRun LazyRun(int seed) {
  SimulatedRun run = RunOfHomes(seed);
  run.kv_bytes_per_token = 200;
  run.faults.stolen = Core::kLeader;
  run.faults.stolen_home = seed % run.homes;
  run.faults.stolen_at_random = true;
  return run;
}

class FindLazyStallsTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, FindLazyStallsTest, testing::Range(1, 6));

TEST_P(FindLazyStallsTest, OnTheEnginesHost) {
  SimulatedRun run = LazyRun(GetParam());
  run.seconds = 20;
  run.local_homes = run.homes;
  ExpectTheftsAlone(run);
}

// ...and elsewhere as many of them as go with those amid work.
TEST_P(FindLazyStallsTest, OverTheNetwork) {
  SimulatedRun run = LazyRun(GetParam());
  run.seconds = 30;
  run.kv_bytes_per_token = 400;
  ExpectTheftsAlone(run);
}

TEST_P(FindLazyStallsTest, LateHopsAreTheWires) {
  SimulatedRun run = LazyRun(GetParam());
  run.faults.stolen = Core::kNone;
  for (const int micro_batches : {1, 2}) {
    run.micro_batches = micro_batches;
    run.faults.late_home = run.faults.stolen_home;
    run.faults.late_share = 0.01;
    run.faults.late_ns = 2e6;
    EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"outliers", "wire", run.faults.late_home, -1, 2e6})));
  }
}

TEST_P(FindLazyStallsTest, StallsAndLateHopsAtOnce) {
  SimulatedRun run = RunOfHomes(GetParam());
  run.seconds = 20;
  run.faults.stolen = Core::kLeader;
  run.faults.stolen_home = GetParam() % run.homes;
  run.faults.stolen_at_random = true;
  run.faults.late_share = 0.01;
  run.faults.late_ns = 2e6;
  const Recording recording = Simulate(run);
  const Timeline timeline = BuildTimeline(recording);
  EXPECT_THAT(FindFaults(recording, timeline),
              UnorderedElementsAre(AreThefts(run, timeline), Names(Planted{"outliers", "wire", -1, -1, 2e6})));
}

// Two or three times are nothing to speak of.
TEST_P(FindLazyStallsTest, ThreeStallsAreNoFinding) {
  SimulatedRun run = RunOfHomes(GetParam());
  run.faults.stolen_period_ns = 4e9;
  for (const Core core : {Core::kPipeline, Core::kLeader, Core::kHelper}) {
    run.faults.stolen = core;
    run.faults.stolen_home = 0;
    EXPECT_THAT(FindIn(run), IsEmpty());
  }
}

TEST_P(FindLazyStallsTest, CostsWhatATokenTakesLonger) {
  SimulatedRun run = RunOfHomes(GetParam());
  run.faults.stolen = Core::kPipeline;
  run.faults.stolen_at_random = true;
  run.faults.stolen_ns = 40e6;
  run.faults.stolen_period_ns = 400e6;
  ExpectCostsOf(run, RunOfHomes(GetParam()));
}

}  // namespace
}  // namespace fastdecode
