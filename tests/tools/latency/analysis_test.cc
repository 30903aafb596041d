#include "tools/latency/analysis/analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/tools/latency/event_maker.h"
#include "tests/tools/latency/simulated_run.h"

namespace fastdecode {
namespace {

LatencyResult AnalyzeEvents(const std::vector<fd_record_event>& events, size_t worst = 3) {
  const Recording recording = MakeRecording(events, 1);
  return Analyze(recording, BuildTimeline(recording), worst);
}

const CriticalPath::Part& PartOf(const LatencyResult& result, Place place) {
  static const CriticalPath::Part kNone;
  for (const CriticalPath::Part& part : result.critical_path.parts) {
    if (part.place == place) return part;
  }
  return kNone;
}

const Phase& PhaseOf(const LatencyResult& result, const std::string& name, const std::string& where) {
  static const Phase kNone;
  for (const Phase& phase : result.phases) {
    if (phase.name == name && phase.where == where) return phase;
  }
  return kNone;
}

double BubbleNs(const LatencyResult& result, const std::string& where, const std::string& cause) {
  for (const Bubble& bubble : result.bubbles) {
    if (bubble.where == where && bubble.cause == cause) return bubble.ns;
  }
  return 0;
}

double BubbleNs(const LatencyResult& result, const std::string& where) {
  double ns = 0;
  for (const Bubble& bubble : result.bubbles) {
    if (bubble.where == where) ns += bubble.ns;
  }
  return ns;
}

// Three steps without a pause: two whose tokens follow others. The homes had been idle since the step before.
std::vector<fd_record_event> ThreeSteps() {
  EventMaker make;
  for (uint32_t step = 1; step <= 3; ++step) make.TwoHomeStep(step, 10000 + 2000 * step);
  for (fd_record_event& event : make.events) {
    // The link takes as long there as back, as far as anybody can tell: 20 each at home 0, 25 at home 1. They end their
    // work at 780 and 1115, and begin that of the next step at 320 and 345.
    if (event.kind == FD_RECORD_HOP && event.step > 1) event.idle_ns = event.home == 0 ? 1540 : 1230;
  }
  return make.events;
}

TEST(Analysis, CriticalPathOfTheMeanToken) {
  const LatencyResult result = AnalyzeEvents(ThreeSteps());
  EXPECT_EQ(result.steps, 3u);
  EXPECT_EQ(result.tokens, 6u);
  EXPECT_EQ(result.start_ns, 12000u);
  EXPECT_EQ(result.end_ns, 18000u);
  const CriticalPath& path = result.critical_path;
  EXPECT_EQ(path.tokens, 4u);
  EXPECT_DOUBLE_EQ(path.token_ns, 2000);
  EXPECT_DOUBLE_EQ(path.residual_ns, 15);
  const std::pair<Place, double> expected[] = {{Place::kCompose, 80}, {Place::kStage, 860},   {Place::kPost, 25},
                                               {Place::kWire, 50},    {Place::kPrepare, 100}, {Place::kAppend, 40},
                                               {Place::kAttend, 500}, {Place::kMerge, 60},    {Place::kTeam, 70},
                                               {Place::kPickup, 100}, {Place::kFinish, 100}};
  ASSERT_EQ(path.parts.size(), std::size(expected));
  double sum = path.residual_ns;
  for (size_t i = 0; i < path.parts.size(); ++i) {
    const CriticalPath::Part& part = path.parts[i];
    EXPECT_EQ(part.place, expected[i].first);
    EXPECT_DOUBLE_EQ(part.mean_ns, expected[i].second) << PlaceName(part.place);
    EXPECT_DOUBLE_EQ(part.share, expected[i].second / 2000);
    sum += part.mean_ns;
  }
  EXPECT_DOUBLE_EQ(sum, path.token_ns);
  EXPECT_EQ(path.wire_uncertain_ns, 0);  // the homes were idle: nothing queued
  EXPECT_EQ(PartOf(result, Place::kAttend).home, 1);
  EXPECT_EQ(PartOf(result, Place::kStage).home, -1);
}

// Of three steps of 2000 ns each hop has 4096 bytes, and is 40 ns on the wire to home 0, 50 to home 1.
std::vector<Achieved> WiresOf(const nlohmann::json& homes, double memory_gb_per_s) {
  Recording recording = MakeRecording(ThreeSteps(), 1);
  recording.engine["homes"] = homes;
  recording.memory_gb_per_s = memory_gb_per_s;
  return Analyze(recording, BuildTimeline(recording), 0).achieved;
}

TEST(Analysis, WiresAgainstTheLineRate) {
  const nlohmann::json homes = {
      {{"index", 0}, {"link_device", "mlx5_0 port 1"}, {"link_gbit_per_s", 1000}, {"same_host", false}},
      {{"index", 1}, {"link_device", "rxe0 port 1"}, {"link_gbit_per_s", 0}, {"same_host", false}}};
  const std::vector<Achieved> wires = WiresOf(homes, 0);
  ASSERT_EQ(wires.size(), 4u);
  EXPECT_EQ(wires[0].what, "wire, home 0");
  EXPECT_NEAR(wires[0].achieved, 3 * 4096 / 6000.0, 1e-9);
  EXPECT_EQ(wires[0].possible, 250);  // 125 GB/s each way
  EXPECT_EQ(wires[0].possible_by, "line rate of mlx5_0 port 1, both ways");
  EXPECT_EQ(wires[1].what, "wire, home 0, in hops");
  EXPECT_NEAR(wires[1].achieved, 4096 / 40.0, 1e-9);
  EXPECT_EQ(wires[1].possible, 125);
  EXPECT_NEAR(wires[3].achieved, 4096 / 50.0, 1e-9);
  EXPECT_EQ(wires[3].possible, 0);
  EXPECT_EQ(wires[3].possible_by, "line rate of rxe0 port 1 not known");
}

TEST(Analysis, SharedMemoryAgainstTheReadTest) {
  const nlohmann::json homes = {{{"index", 0}, {"link_device", ""}, {"same_host", true}}};
  const std::vector<Achieved> wires = WiresOf(homes, 60);
  ASSERT_EQ(wires.size(), 3u);
  EXPECT_EQ(wires[0].what, "shared memory, home 0, in hops");
  EXPECT_EQ(wires[0].possible, 60);
  EXPECT_EQ(wires[0].possible_by, kReadTest);
  EXPECT_NE(wires[0].note, "");                            // 102 GB/s are no DRAM's
  EXPECT_EQ(wires[1].possible_by, "line rate not known");  // an engine that does not describe home 1
  EXPECT_EQ(WiresOf(homes, 200)[0].note, "");
  EXPECT_EQ(WiresOf(homes, 0)[0].possible_by, "read test not made");
}

// What a busy home kept waiting may as well have been on the way, and the whole of it is said to be uncertain.
TEST(Analysis, QueueAtABusyHomeIsUncertain) {
  EventMaker make;
  for (uint32_t step = 1; step <= 40; ++step) {
    make.TwoHomeStep(step, 10000 + 2000 * step);
    if (step != 20) continue;
    // It came after 25 as ever, and its work of 670 began 100 later.
    for (fd_record_event& event : make.events) {
      if (event.kind != FD_RECORD_HOP || event.step != step || event.home != 1) continue;
      event.idle_ns = 0;
      event.attend_ns -= 100;
    }
  }
  const Timeline timeline = BuildTimeline(MakeRecording(make.events, 1));
  const HopTimes& hop = timeline.hops[2 * 19 + 1];
  ASSERT_EQ(hop.step, 20u);
  EXPECT_EQ(hop.queue_ns, 100u);
  EXPECT_EQ(hop.wire_ns, 50u);
  EXPECT_GE(hop.queue_uncertain_ns, 100u);
  EXPECT_LE(hop.queue_uncertain_ns, 150u);
  EXPECT_NEAR(AnalyzeEvents(make.events).critical_path.wire_uncertain_ns * 39, hop.queue_uncertain_ns, 1e-6);
}

// A step counts as often as it has tokens.
TEST(Analysis, StepsAreWeightedByTheirTokens) {
  EventMaker make;
  make.TwoHomeStep(1, 10000);
  make.TwoHomeStep(2, 12000);
  make.TwoHomeStep(3, 15000);  // 1000 later: 3000
  for (fd_record_event& event : make.events) {
    if (event.kind == FD_RECORD_FINISH && event.step == 3) event.count = 6;
  }
  const LatencyResult result = AnalyzeEvents(make.events);
  EXPECT_EQ(result.critical_path.tokens, 8u);
  EXPECT_DOUBLE_EQ(result.critical_path.token_ns, (2 * 2000 + 6 * 3000) / 8.0);
  EXPECT_DOUBLE_EQ(PartOf(result, Place::kBoundary).mean_ns, 6 * 1000 / 8.0);
  const Phase& token = PhaseOf(result, "token", "engine");
  EXPECT_EQ(token.ns.count(), 8u);
  EXPECT_EQ(token.ns.Quantile(0.5), 3000u);
  EXPECT_DOUBLE_EQ(token.share, 1);
}

TEST(Analysis, Phases) {
  const LatencyResult result = AnalyzeEvents(ThreeSteps());
  struct Expected {
    const char *name, *where;
    size_t count;
    double mean_ns, share;
  };
  const Expected expected[] = {
      {"token", "engine", 4, 2000, 1},
      {"compose", "engine", 3, 80, 80 / 2000.0},
      {"S-Part stage", "engine", 6, 430, 860 / 2000.0},
      {"GEMM qkv", "engine", 3, 130, 130 / 2000.0},
      {"GEMM o", "engine", 3, 160, 160 / 2000.0},
      {"GEMM logits", "engine", 3, 480, 480 / 2000.0},
      {"S-Part rest", "engine", 6, (70 + 20) / 2.0, 90 / 2000.0},
      {"post", "engine", 3, 25, 25 / 2000.0},
      {"pickup", "engine", 3, 100, 100 / 2000.0},
      {"finish", "engine", 3, 100, 100 / 2000.0},
      {"hop", "home 0", 3, 500, 0},  // never the last
      {"attend", "home 0", 3, 460, 0},
      {"hop", "home 1", 3, 820, 820 / 2000.0},
      {"wire", "home 1", 3, 50, 50 / 2000.0},
      {"attend", "home 1", 3, 500, 500 / 2000.0},
      {"team", "home 1", 3, 70, 70 / 2000.0},
  };
  for (const Expected& one : expected) {
    const Phase& phase = PhaseOf(result, one.name, one.where);
    EXPECT_EQ(phase.ns.count(), one.count) << one.name << ", " << one.where;
    EXPECT_DOUBLE_EQ(phase.ns.mean_ns(), one.mean_ns) << one.name << ", " << one.where;
    EXPECT_DOUBLE_EQ(phase.share, one.share) << one.name << ", " << one.where;
  }
  EXPECT_TRUE(PhaseOf(result, "boundary", "engine").ns.empty());
  EXPECT_TRUE(PhaseOf(result, "delivery", "scheduler").ns.empty());
}

TEST(Analysis, Homes) {
  const LatencyResult result = AnalyzeEvents(ThreeSteps());
  ASSERT_EQ(result.homes.size(), 2u);
  const HomeFigures &near = result.homes[0], &far = result.homes[1];
  EXPECT_EQ(near.name, "home 0");
  EXPECT_EQ(near.hops, 3u);
  EXPECT_EQ(near.last_share, 0);
  EXPECT_EQ(near.waited_for_ns, 0);
  EXPECT_DOUBLE_EQ(near.busy_share, 460 / 2000.0);
  EXPECT_DOUBLE_EQ(near.kv_share, 0.25);
  EXPECT_DOUBLE_EQ(near.gb_per_s, 1000 / 460.0);
  EXPECT_EQ(near.min_round_trip_ns, 40);
  EXPECT_EQ(far.last_share, 1);
  EXPECT_EQ(far.waited_for_ns, 340);
  EXPECT_DOUBLE_EQ(far.busy_share, 770 / 2000.0);
  EXPECT_DOUBLE_EQ(far.kv_share, 0.75);
  EXPECT_LE(std::abs(far.clock_offset_ns), far.clock_bound_ns);
  EXPECT_LE(far.clock_bound_ns, 50);
  EXPECT_DOUBLE_EQ(result.s_busy, 860 / 2000.0);
  EXPECT_DOUBLE_EQ(result.r_busy, 770 / 2000.0);
  EXPECT_DOUBLE_EQ(result.overlap, 860 / 2000.0);
}

// Where a hop's work lies within its round trip is known to 1 ns, of each hop.
constexpr double kDivided = 3;

TEST(Analysis, BubblesOfASteadyRun) {
  const LatencyResult result = AnalyzeEvents(ThreeSteps());
  // From the last posting at 345, which is when home 1 begins, to stage 1 at 1240.
  EXPECT_NEAR(BubbleNs(result, "S-Part", "R late: home 1"), 3 * 770, kDivided);
  EXPECT_NEAR(BubbleNs(result, "S-Part", "link: home 1"), 3 * 25, kDivided);
  EXPECT_NEAR(BubbleNs(result, "S-Part", "S late"), 3 * 100, kDivided);
  EXPECT_NEAR(BubbleNs(result, "S-Part"), 3 * 895, kDivided);
  // Home 1: 345 to 320 on the way; to 0 the engine; of the step before from 2000 to 1140 the engine, then the way back.
  // The first step's hops say that they came after 1 ns, on their way.
  EXPECT_NEAR(BubbleNs(result, "home 1", "link"), 1 + 2 * (25 + 25), kDivided);
  EXPECT_NEAR(BubbleNs(result, "home 1", "S late"), 2 * (320 + 860), kDivided);
  EXPECT_NEAR(BubbleNs(result, "home 1"), 1 + 2 * 1230, kDivided);
  // Home 0: from 780 to 1115 the micro-batch was at home 1.
  EXPECT_NEAR(BubbleNs(result, "home 0", "link"), 1 + 2 * (20 + 25), kDivided);
  EXPECT_NEAR(BubbleNs(result, "home 0", "R late: home 1"), 2 * (1115 - 780), kDivided);
  EXPECT_NEAR(BubbleNs(result, "home 0", "S late"), 2 * (300 + 860), kDivided);
  EXPECT_NEAR(BubbleNs(result, "home 0"), 1 + 2 * 1540, kDivided);
  for (size_t i = 1; i < result.bubbles.size(); ++i) EXPECT_GE(result.bubbles[i - 1].ns, result.bubbles[i].ns);
  EXPECT_DOUBLE_EQ(result.bubbles[0].share, result.bubbles[0].ns / 6000);
}

// The only home dies, the client gives up 2 s later, and the next request comes 3 s after that.
TEST(Analysis, NobodyWaitsForALostHomeBehindACancellation) {
  constexpr uint64_t kLost = 12100, kCancelled = kLost + 2'000'000'000, kNext = kCancelled + 3'000'000'000;
  EventMaker make;
  make.TwoHomeStep(1, 10000);
  const auto leave = [&make](int16_t home, fd_record_leave how, uint64_t at_ns) {
    fd_record_event& event = make.Add(FD_RECORD_LEAVE, 0, 1, at_ns, at_ns);
    event.id = 7;
    event.home = home;
    event.part = static_cast<uint16_t>(how);
    event.count = 2;
  };
  leave(1, FD_LEAVE_HOME_LOST, kLost);
  leave(-1, FD_LEAVE_CANCELLED, kCancelled);
  make.Add(FD_RECORD_IDLE, 0, 0, kLost, kNext);
  make.TwoHomeStep(2, kNext);
  const LatencyResult result = AnalyzeEvents(make.events);
  EXPECT_NEAR(BubbleNs(result, "S-Part", "home lost"), 2e9, 1e6);
  EXPECT_NEAR(BubbleNs(result, "S-Part", "no requests"), 3e9, 1e6);
}

TEST(Analysis, BubblesOfTheSchedulerAndOfNoRequests) {
  EventMaker make;
  make.TwoHomeStep(1, 10000);
  make.Add(FD_RECORD_HELD, 0, 2, 12000, 12700);
  make.TwoHomeStep(2, 12700);
  make.Add(FD_RECORD_IDLE, 0, 0, 14700, 20000);
  make.Add(FD_RECORD_JOIN, 0, 3, 19000, 20000);
  make.Add(FD_RECORD_JOIN, 0, 3, 19000, 20000);
  make.TwoHomeStep(3, 20000);
  for (fd_record_event& event : make.events) {
    if (event.kind == FD_RECORD_HOP && event.step == 2) event.idle_ns = 1230 + 700;
    if (event.kind == FD_RECORD_HOP && event.step == 3) event.idle_ns = 1230 + 5300;
    if (event.kind == FD_RECORD_HOP && event.home == 0 && event.step > 1) event.idle_ns += 310;
  }
  const LatencyResult result = AnalyzeEvents(make.events);
  EXPECT_NEAR(BubbleNs(result, "S-Part", "scheduler"), 700, kDivided);
  EXPECT_NEAR(BubbleNs(result, "S-Part", "no requests"), 5300, kDivided);
  for (const char* home : {"home 0", "home 1"}) {
    EXPECT_NEAR(BubbleNs(result, home, "scheduler"), 700, kDivided) << home;
    // What was before the sequences of step 3 came is nobody's: all of it is for want of requests.
    const double work_ended = std::string(home) == "home 0" ? 780 : 1115;
    EXPECT_NEAR(BubbleNs(result, home, "no requests"), 2000 - work_ended + 5300, kDivided);
  }
  EXPECT_EQ(PartOf(result, Place::kScheduler).mean_ns, 700);
  EXPECT_EQ(PhaseOf(result, "held", "engine").ns.count(), 1u);
}

TEST(Analysis, WorstTokensAreOfTheLongestSteps) {
  EventMaker make;
  uint64_t at = 10000;
  const uint64_t pauses[] = {0, 300, 100, 900, 200};
  for (uint32_t step = 1; step <= 5; ++step) {
    at += pauses[step - 1];
    make.TwoHomeStep(step, at);
    at += 2000;
  }
  const LatencyResult result = AnalyzeEvents(make.events, 2);
  ASSERT_EQ(result.worst.size(), 2u);
  const TokenStory& worst = result.worst[0];
  EXPECT_EQ(worst.step, 4u);
  EXPECT_EQ(worst.id, 7u);
  EXPECT_EQ(worst.index, 4u);
  EXPECT_EQ(worst.end_ns - worst.start_ns, 2900u);
  EXPECT_EQ(worst.place_ns[static_cast<size_t>(Place::kBoundary)], 900u);
  ASSERT_EQ(worst.longest.size(), 5u);
  EXPECT_EQ(worst.longest[0].place, Place::kBoundary);
  EXPECT_EQ(worst.longest[0].ns, 900u);
  EXPECT_EQ(worst.longest[0].layer, -1);
  EXPECT_EQ(worst.longest[1].place, Place::kStage);
  EXPECT_EQ(worst.longest[1].layer, 1);
  EXPECT_EQ(worst.longest[2].place, Place::kAttend);
  EXPECT_EQ(worst.longest[2].home, 1);
  EXPECT_EQ(result.worst[1].step, 2u);
}

TEST(Analysis, NothingRecordedIsSaidAndIsNoError) {
  const LatencyResult nothing = AnalyzeEvents({});
  EXPECT_TRUE(nothing.phases.empty());
  EXPECT_TRUE(nothing.bubbles.empty());
  EXPECT_EQ(nothing.critical_path.tokens, 0u);
  EXPECT_EQ(nothing.warnings.size(), 1u);
  EventMaker one;
  one.TwoHomeStep(1, 10000);
  const LatencyResult first = AnalyzeEvents(one.events);
  EXPECT_EQ(first.critical_path.tokens, 0u);
  EXPECT_EQ(first.warnings.size(), 1u);
  EXPECT_EQ(PhaseOf(first, "hop", "home 1").ns.count(), 1u);
}

// Whatever the engine does, everything adds up: a token's parts to its time, what a home did and did not to all of it.
void ExpectAddsUp(const Recording& recording) {
  const LatencyResult result = Analyze(recording, BuildTimeline(recording), 5);
  const CriticalPath& path = result.critical_path;
  ASSERT_GT(path.tokens, 0u);
  double sum = path.residual_ns;
  for (const CriticalPath::Part& part : path.parts) sum += part.mean_ns;
  EXPECT_NEAR(sum, path.token_ns, 1e-6 * path.token_ns);
  EXPECT_LT(std::abs(path.residual_ns), 0.02 * path.token_ns);
  EXPECT_NEAR(PhaseOf(result, "token", "engine").ns.mean_ns(), path.token_ns, 1e-6 * path.token_ns);
  for (const TokenStory& story : result.worst) {
    uint64_t ns = 0;
    for (const uint64_t place : story.place_ns) ns += place;
    EXPECT_NEAR(static_cast<double>(ns), static_cast<double>(story.end_ns - story.start_ns), 0.02 * path.token_ns);
  }
  if (recording.lost > 0) return;
  const double span = static_cast<double>(result.end_ns - result.start_ns);
  EXPECT_NEAR(result.s_busy + BubbleNs(result, "S-Part") / span, 1, 0.03);
  for (const HomeFigures& home : result.homes) {
    EXPECT_NEAR(home.busy_share + BubbleNs(result, "home " + std::to_string(home.home)) / span, 1, 0.03) << home.home;
  }
}

SimulatedRun RunOf(int sequences, int micro_batches) {
  SimulatedRun run;
  run.seconds = 3;
  run.requests.sequences = sequences;
  run.micro_batches = micro_batches;
  return run;
}

TEST(Analysis, SimulatedRunsAddUp) {
  for (const int sequences : {24, 130}) {
    for (const int micro_batches : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(sequences) + " sequences, " + std::to_string(micro_batches) + " micro-batches");
      ExpectAddsUp(Simulate(RunOf(sequences, micro_batches)));
    }
  }
  SimulatedRun open = RunOf(24, 2);
  open.requests.arrivals_per_s = 20;
  open.requests.prefill_chunk = 128;
  ExpectAddsUp(Simulate(open));
}

TEST(Analysis, HolesCostTheirStepsAlone) {
  Recording recording = Simulate(RunOf(24, 2));
  const size_t size = recording.events.size();
  std::vector<fd_record_event> kept;
  for (size_t i = 0; i < size; ++i) {
    if (i % (size / 5) < size / 50) {
      ++recording.lost;
    } else {
      kept.push_back(recording.events[i]);
    }
  }
  recording.events = kept;
  ExpectAddsUp(recording);
  EXPECT_EQ(Analyze(recording, BuildTimeline(recording), 1).warnings.size(), 1u);
}

// The simulated link takes 4 us each way and 12.5 bytes a ns; none of it may hide the other things that hops wait for.
TEST(Analysis, WireOfSimulatedRunsIsTheLinks) {
  for (const int micro_batches : {1, 2, 3}) {
    for (const int sequences : {24, 130}) {
      const SimulatedRun run = RunOf(sequences, micro_batches);
      const Timeline timeline = BuildTimeline(Simulate(run));
      double wire_ns = 0, link_ns = 0;
      for (const HopTimes& hop : timeline.hops) {
        wire_ns += static_cast<double>(hop.wire_ns);
        link_ns += 2 * run.link.one_way_ns + static_cast<double>(hop.payload_bytes) / run.link.bytes_per_ns;
      }
      EXPECT_NEAR(wire_ns / link_ns, 1, 0.2) << micro_batches << " micro-batches, " << sequences << " sequences";
    }
  }
}

}  // namespace
}  // namespace fastdecode
