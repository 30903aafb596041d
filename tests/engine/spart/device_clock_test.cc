#include "engine/spart/cuda/device_clock.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

#include "engine/spart/cuda/stage_parts.h"

namespace fastdecode {
namespace {

// A host and a device, whose clocks are known here alone; signals take a microsecond and at times much longer.
class Machine {
 public:
  Machine(uint64_t seed, double drift) : random_(seed), drift_(drift) {}

  void LearnFromStage(DeviceClock* clock) {
    now_ns_ += 50e3;
    const double started = now_ns_;
    now_ns_ += Signal();
    const double begun = now_ns_;
    now_ns_ += 300e3;
    const double published = now_ns_;
    now_ns_ += Signal();
    clock->Learn(Host(started), Device(begun), Device(published), Host(now_ns_));
  }
  double Error(const DeviceClock& clock) const {
    return std::abs(static_cast<double>(static_cast<int64_t>(clock.ToHost(Device(now_ns_)) - Host(now_ns_))));
  }
  void SetClock() { offset_ns_ -= 3e9; }

 private:
  double Signal() { return 1000 + std::exponential_distribution(1 / 2000.0)(random_); }
  static uint64_t Host(double ns) { return 7'000'000'000'000 + static_cast<uint64_t>(ns); }
  uint64_t Device(double ns) const { return static_cast<uint64_t>(offset_ns_ + ns * (1 + drift_)); }

  std::mt19937_64 random_;
  const double drift_;
  double now_ns_ = 0, offset_ns_ = 5e15;
};

TEST(DeviceClockTest, IsOffByNoMoreThanItSays) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const double drift = (static_cast<double>(seed % 11) - 5) * 30e-6;
    Machine machine(seed, drift);
    DeviceClock clock;
    for (int stage = 0; stage < 2000; ++stage) {
      machine.LearnFromStage(&clock);
      ASSERT_LE(machine.Error(clock), static_cast<double>(clock.error_ns()) + 2) << seed << " " << stage;
    }
    // The fastest signals take 1000 ns, and what was learnt ten stages ago is off by 700 ns for the drift.
    EXPECT_LT(clock.error_ns(), 2000u);
  }
}

TEST(DeviceClockTest, LearnsAnewWhenAClockWasSet) {
  Machine machine(1, 20e-6);
  DeviceClock clock;
  for (int stage = 0; stage < 100; ++stage) machine.LearnFromStage(&clock);
  machine.SetClock();
  for (int stage = 0; stage < 100; ++stage) {
    machine.LearnFromStage(&clock);
    ASSERT_LE(machine.Error(clock), static_cast<double>(clock.error_ns()) + 2);
  }
}

// Moments that the clocks' difference puts outside of the stage are cut off at its ends, and none overlaps another.
TEST(StagePartsTest, PartsFillNoMoreThanTheStage) {
  DeviceClock clock;
  clock.Learn(/*before_host=*/1000, /*after_device=*/500'000, /*before_device=*/500'900, /*after_host=*/2000);
  ASSERT_EQ(clock.ToHost(500'000), 1050u);
  const StageStamps stamps = {.begun = 500'000,
                              .gathered = 500'100,
                              .projected = 500'200,
                              .mlp_normed = 500'250,
                              .activated = 500'450,
                              .mlp_projected = 500'600,
                              .normed = 500'650,
                              .qkv = 500'800,
                              .published = 500'900};
  StageTrace trace;
  AddStageParts({.stage = 2, .layers = 3, .start_ns = 1000, .seen_ns = 2000}, stamps, clock, &trace);
  const StageTrace::Part expected[] = {{kStageSignal, 2, 1000, 1050},  {kStageO, 1, 1150, 1250},
                                       {kStageGateUp, 1, 1300, 1500}, {kStageDown, 1, 1500, 1650},
                                       {kStageQkv, 2, 1700, 1850},     {kStageSignal, 2, 1950, 2000}};
  ASSERT_EQ(trace.count, 6);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(trace.parts[i].what, expected[i].what) << i;
    EXPECT_EQ(trace.parts[i].layer, expected[i].layer) << i;
    EXPECT_EQ(trace.parts[i].start_ns, expected[i].start_ns) << i;
    EXPECT_EQ(trace.parts[i].end_ns, expected[i].end_ns) << i;
  }
  trace.count = 0;
  AddStageParts({.stage = 3, .layers = 3, .start_ns = 1200, .seen_ns = 1400}, stamps, clock, &trace);
  uint64_t at_ns = 1200;
  for (int i = 0; i < trace.count; ++i) {
    EXPECT_GE(trace.parts[i].start_ns, at_ns);
    EXPECT_GE(trace.parts[i].end_ns, trace.parts[i].start_ns);
    at_ns = trace.parts[i].end_ns;
  }
  EXPECT_EQ(at_ns, 1400u);
  EXPECT_EQ(trace.parts[4].what, kStageLogits);
}

}  // namespace
}  // namespace fastdecode
