#include "tools/latency/analysis/hop_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace fastdecode {
namespace {

// One home that serves one hop after the other, and a pipeline that looks for replies except while it is at a stage.
struct SimulatedHome {
  double there_ns = 8000, back_ns = 6000;
  double jitter_ns = 0;   // mean of what comes on top, each way
  double slow_share = 0;  // of hops, that take slow_ns longer, there or back
  double slow_ns = 0;
  double work_ns = 60e3;
  double gap_ns = 100e3;  // mean, from one posting to the next
  double stage_ns = 40e3;
  double stages_share = 0;  // of time in which the pipeline is at stages
  double look_ns = 100;
  double clock_offset_ns = 3e9;
  double drift_ppm = 30;
  int hops = 3000;
};

struct Truth {
  double wire_ns, queue_ns, pickup_ns;
};

struct Stream {
  std::vector<fd_record_event> events;
  std::vector<Truth> truth;
};

// Seen, and looked for in vain before it.
struct Look {
  double seen_ns, polled_ns;
};
Look LookFor(const SimulatedHome& home, double arrival_ns) {
  if (home.stages_share > 0) {
    const double period = home.stage_ns / home.stages_share;
    const double begun = std::floor(arrival_ns / period) * period;
    // It looks before a stage, and after it.
    if (arrival_ns <= begun + home.stage_ns) return {begun + home.stage_ns + home.look_ns / 2, begun - 1};
  }
  const double look = std::ceil(arrival_ns / home.look_ns) * home.look_ns;
  return {look, look - home.look_ns};
}

Stream Simulate(const SimulatedHome& home, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> jitter(1), gap(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  struct Posted {
    double posted, there, arrival;
  };
  std::vector<Posted> posted;
  double at = 1e6;
  for (int i = 0; i < home.hops; ++i) {
    at += home.gap_ns * gap(random);
    double there = home.there_ns + home.jitter_ns * jitter(random);
    if (uniform(random) < home.slow_share / 2) there += home.slow_ns;
    posted.push_back({std::floor(at), there, std::floor(at) + there});
  }
  std::sort(posted.begin(), posted.end(), [](const Posted& a, const Posted& b) { return a.arrival < b.arrival; });
  struct Done {
    fd_record_event event;
    Truth truth;
  };
  std::vector<Done> all;
  double free = 0;
  for (const Posted& hop : posted) {
    const double start = std::max(hop.arrival, free), end = start + home.work_ns;
    double back = home.back_ns + home.jitter_ns * jitter(random);
    if (uniform(random) < home.slow_share / 2) back += home.slow_ns;
    const Look look = LookFor(home, end + back);
    Done done = {};
    done.event.kind = FD_RECORD_HOP;
    done.event.home = 0;
    done.event.bytes = 4096;
    done.event.start_ns = static_cast<uint64_t>(hop.posted);
    done.event.end_ns = static_cast<uint64_t>(look.seen_ns);
    done.event.polled_ns = look.polled_ns > hop.posted ? static_cast<uint64_t>(look.polled_ns) : 0;
    const double home_end = end + home.clock_offset_ns + home.drift_ppm * 1e-6 * end;
    done.event.home_end_ns =
        done.event.end_ns + static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(
                                static_cast<uint32_t>(static_cast<uint64_t>(home_end) - done.event.end_ns))));
    done.event.idle_ns = hop.arrival > free ? static_cast<uint32_t>(hop.arrival - free) + 1 : 0;
    done.event.attend_ns = static_cast<uint32_t>(home.work_ns);
    done.truth = {hop.there + back, start - hop.arrival, look.seen_ns - end - back};
    free = end + 300;
    all.push_back(done);
  }
  std::sort(all.begin(), all.end(), [](const Done& a, const Done& b) { return a.event.end_ns < b.event.end_ns; });
  Stream stream;
  for (const Done& done : all) {
    stream.events.push_back(done.event);
    stream.truth.push_back(done.truth);
  }
  return stream;
}

struct Means {
  double wire = 0, queue = 0, pickup = 0;
};
struct Compared {
  Means truth, said;
  double worst_ns = 0;            // of any part of any hop
  double worst_beyond_ns = 0;     // of its uncertainty
  double most_over_least_ns = 0;  // wire_least_ns over the true wire
  double wire_least = 0;          // mean
};

Compared Compare(const Stream& stream) {
  const HopsApart apart = TakeHopsApart(stream.events, 1);
  Compared compared;
  const double count = static_cast<double>(apart.hops.size());
  EXPECT_EQ(apart.hops.size(), stream.truth.size());
  for (size_t i = 0; i < apart.hops.size(); ++i) {
    const HopTimes& hop = apart.hops[i];
    const Truth& truth = stream.truth[i];
    EXPECT_EQ(hop.wire_ns + hop.queue_ns + hop.pickup_ns + hop.work_ns(), hop.seen_ns - hop.posted_ns);
    const double errors[] = {static_cast<double>(hop.wire_ns) - truth.wire_ns,
                             static_cast<double>(hop.queue_ns) - truth.queue_ns,
                             static_cast<double>(hop.pickup_ns) - truth.pickup_ns};
    for (const double error : errors) {
      compared.worst_ns = std::max(compared.worst_ns, std::abs(error));
      compared.worst_beyond_ns =
          std::max(compared.worst_beyond_ns, std::abs(error) - static_cast<double>(hop.uncertain_ns));
    }
    const double wire_least = static_cast<double>(hop.wire_least_ns);
    compared.most_over_least_ns = std::max(compared.most_over_least_ns, wire_least - truth.wire_ns);
    compared.wire_least += wire_least / count;
    EXPECT_LE(hop.queue_uncertain_ns, hop.uncertain_ns);
    EXPECT_LE(hop.wire_least_ns, hop.wire_ns);
    compared.truth.wire += truth.wire_ns / count;
    compared.truth.queue += truth.queue_ns / count;
    compared.truth.pickup += truth.pickup_ns / count;
    compared.said.wire += static_cast<double>(hop.wire_ns) / count;
    compared.said.queue += static_cast<double>(hop.queue_ns) / count;
    compared.said.pickup += static_cast<double>(hop.pickup_ns) / count;
  }
  return compared;
}

// Rounding, a look, and what the clocks' drift leaves open.
constexpr double kSlackNs = 1500;

TEST(HopTimes, QueueOfABusyHome) {
  SimulatedHome home;
  home.gap_ns = 80e3;  // 75 % busy
  const Compared compared = Compare(Simulate(home, 1));
  EXPECT_GT(compared.truth.queue, 50e3);
  EXPECT_LT(compared.worst_ns, kSlackNs);
}

TEST(HopTimes, LatePickupWhileThePipelineIsAtStages) {
  SimulatedHome home;
  home.gap_ns = 1e6;
  home.stages_share = 0.7;
  const Compared compared = Compare(Simulate(home, 2));
  EXPECT_GT(compared.truth.pickup, 10e3);
  EXPECT_LT(compared.worst_ns, kSlackNs);
}

// Both at once is what a round trip alone cannot tell apart.
TEST(HopTimes, QueueAndLatePickupAtOnce) {
  SimulatedHome home;
  home.gap_ns = 80e3;
  home.stages_share = 0.7;
  const Compared compared = Compare(Simulate(home, 3));
  EXPECT_GT(compared.truth.queue, 50e3);
  EXPECT_GT(compared.truth.pickup, 10e3);
  EXPECT_LT(compared.worst_ns, kSlackNs);
}

TEST(HopTimes, SlowWireIsNoQueueOfAnIdleHome) {
  SimulatedHome home;
  home.gap_ns = 3e6;
  home.slow_share = 0.02;
  home.slow_ns = 2e6;
  const Compared compared = Compare(Simulate(home, 4));
  EXPECT_GT(compared.truth.wire, 14e3 + 30e3);
  EXPECT_NEAR(compared.said.wire, compared.truth.wire, 0.02 * compared.truth.wire);
  EXPECT_GT(compared.wire_least, 0.9 * compared.truth.wire);  // there is nothing else that it may be
}

// A hop that took 2 ms longer cannot have waited 2 ms at a home that had been at work for 100 us.
TEST(HopTimes, SlowWireIsOnlyQueueAsFarAsTheHomeWasBusy) {
  SimulatedHome home;
  home.gap_ns = 120e3;
  home.slow_share = 0.02;
  home.slow_ns = 2e6;
  home.stages_share = 0.5;
  const Compared compared = Compare(Simulate(home, 5));
  EXPECT_NEAR(compared.said.wire, compared.truth.wire, 0.15 * compared.truth.wire);
  EXPECT_NEAR(compared.said.queue, compared.truth.queue, 0.1 * compared.truth.queue);
}

TEST(HopTimes, UncertaintyHoldsTheTruth) {
  uint64_t seed = 10;
  for (const double jitter : {0.0, 2e3, 30e3}) {
    for (const double gap : {62e3, 100e3, 1e6}) {
      for (const double stages : {0.0, 0.5, 0.95}) {
        SimulatedHome home;
        home.jitter_ns = jitter;
        home.gap_ns = gap;
        home.stages_share = stages;
        const Compared compared = Compare(Simulate(home, seed++));
        EXPECT_LT(compared.worst_beyond_ns, kSlackNs) << "jitter " << jitter << " gap " << gap << " stages " << stages;
        EXPECT_LT(compared.most_over_least_ns, kSlackNs)
            << "jitter " << jitter << " gap " << gap << " stages " << stages;
      }
    }
  }
}

// A clock that says nothing: then pickup is at most what the pipeline did not look, and the rest a queue.
TEST(HopTimes, WithoutAHomeClockTheRoundTripAloneDecides) {
  for (const double stages : {0.0, 0.7}) {
    SimulatedHome home;
    home.gap_ns = 80e3;
    home.stages_share = stages;
    Stream stream = Simulate(home, 6);
    for (fd_record_event& event : stream.events) event.home_end_ns = 0;
    const Compared compared = Compare(stream);
    EXPECT_NEAR(compared.said.wire, compared.truth.wire, 1000);
    EXPECT_NEAR(compared.said.queue + compared.said.pickup, compared.truth.queue + compared.truth.pickup, 1000);
    EXPECT_LT(compared.worst_beyond_ns, kSlackNs);
    if (stages == 0) {
      EXPECT_NEAR(compared.said.queue, compared.truth.queue, 1000);
    }
  }
}

// Hops with more rows take longer on the link; that is neither queue nor pickup.
TEST(HopTimes, LargeHopsAreNotMeasuredBySmallOnes) {
  SimulatedHome home;
  home.gap_ns = 1e6;
  home.stages_share = 0.5;
  Stream small = Simulate(home, 7);
  home.there_ns = 80e3;
  home.back_ns = 60e3;
  const Stream large = Simulate(home, 8);
  std::vector<fd_record_event> events = small.events;
  for (fd_record_event event : large.events) {
    event.bytes = 1 << 20;
    events.push_back(event);
  }
  const HopsApart apart = TakeHopsApart(events, 1);
  double wire_ns = 0;
  for (const HopTimes& hop : apart.hops) {
    if (hop.payload_bytes == 1 << 20) wire_ns += static_cast<double>(hop.wire_ns);
  }
  EXPECT_NEAR(wire_ns / static_cast<double>(large.events.size()), 140e3, 3e3);
  EXPECT_NEAR(static_cast<double>(apart.least_rest_ns[0]), 14e3, 500);
}

// Large hops that always come while the home is at a small one, and are ready while the pipeline is at a stage: what
// all of them have in common is not the link's.
TEST(HopTimes, WhatAllHopsOfOneSizeWaitIsNotTheLinks) {
  constexpr uint64_t kThere = 8000, kBack = 6000, kWork = 50000, kLateLook = 30000;
  std::vector<fd_record_event> events;
  const auto add = [&events](uint64_t posted, uint64_t begun, uint64_t unseen, uint64_t bytes) {
    fd_record_event event = {};
    event.kind = FD_RECORD_HOP;
    event.home = 0;
    event.bytes = bytes;
    event.start_ns = posted;
    event.attend_ns = kWork;
    event.idle_ns = begun == posted + kThere ? 1000 : 0;
    event.home_end_ns = begun + kWork;
    event.end_ns = event.home_end_ns + kBack + unseen;
    event.polled_ns = event.end_ns - std::max<uint64_t>(unseen, 100);
    events.push_back(event);
  };
  for (uint64_t at = 1000000; at < 200000000; at += 500000) {
    add(at, at + kThere, 0, 1 << 12);
    add(at + 10000, at + kThere + kWork, kLateLook, 1 << 16);  // waits for 40 us
  }
  const HopsApart apart = TakeHopsApart(events, 1);
  for (const HopTimes& hop : apart.hops) {
    EXPECT_NEAR(static_cast<double>(hop.wire_ns), kThere + kBack, 200);
    EXPECT_NEAR(static_cast<double>(hop.queue_ns), hop.idle_ns > 0 ? 0 : 40e3, 200);
    EXPECT_NEAR(static_cast<double>(hop.pickup_ns), hop.idle_ns > 0 ? 0 : kLateLook, 200);
  }
  EXPECT_NEAR(static_cast<double>(apart.least_rest_ns[0]), kThere + kBack, 200);
}

// All replies come while the pipeline is at stages, and the hops are few: what they have in common would pass for the
// link, if the clock did not say when they were ready.
TEST(HopTimesTest, OnTheSameHostALatePipelineIsNoSlowLink) {
  SimulatedHome home;
  home.there_ns = home.back_ns = 150;
  home.clock_offset_ns = home.drift_ppm = 0;
  home.stages_share = 0.999;
  home.stage_ns = 20e6;
  home.gap_ns = 20e6;
  home.hops = 20;
  const Stream stream = Simulate(home, 3);
  const HopsApart apart = TakeHopsApart(stream.events, 1, {true});
  for (size_t i = 0; i < apart.hops.size(); ++i) {
    EXPECT_LT(static_cast<double>(apart.hops[i].wire_ns), stream.truth[i].wire_ns + 11'000);
    EXPECT_NEAR(static_cast<double>(apart.hops[i].pickup_ns), stream.truth[i].pickup_ns, 11'000);
  }
}

TEST(HopTimesTest, AClockThatIsNotTheEnginesIsFoundOut) {
  SimulatedHome home;
  const Stream stream = Simulate(home, 4);
  const HopsApart said = TakeHopsApart(stream.events, 1, {true}), unsaid = TakeHopsApart(stream.events, 1, {false});
  EXPECT_NEAR(said.clocks[0].offset_ns, unsaid.clocks[0].offset_ns, 1);
  EXPECT_GT(said.clocks[0].bound_ns, 0);
}

}  // namespace
}  // namespace fastdecode
