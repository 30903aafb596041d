// Costs that follow what steps take: of a made-up machine whose costs are known.
#include "engine/schedule/step_cost_tracker.h"

#include <gtest/gtest.h>

#include <random>

namespace fastdecode {
namespace {

constexpr int kLayers = 8;

StepCosts Known() {
  StepCosts costs;
  costs.layers = kLayers;
  costs.stage.Add(1, 100);
  costs.stage.Add(64, 400);
  costs.stage.Add(256, 1200);
  costs.head = CostCurve::Constant(50);
  costs.boundary_us = 30;
  costs.homes[0] = {.hop_us = 5, .sequence_us = 0.6, .token_us = 0.05, .tokens_max = 8192};
  costs.homes[1] = {.hop_us = 8, .sequence_us = 1.2, .token_us = 0.10, .tokens_max = 8192};
  return costs;
}

MicroBatchLoad Load(double sequences, double tokens_each) {
  MicroBatchLoad load;
  load.rows = sequences;
  load.homes[0] = {sequences / 2, sequences / 2 * tokens_each};
  load.homes[1] = load.homes[0];
  return load;
}

// What a step of such a machine takes, its S-Part s times as long and its homes r times.
MeasuredStep Took(const StepCosts& costs, const MicroBatchLoad& load, double s = 1, double r = 1) {
  StepCosts now = costs;
  for (size_t i = 0; i < now.stage.count; ++i) now.stage.us[i] *= s;
  for (size_t i = 0; i < now.head.count; ++i) now.head.us[i] *= s;
  for (HomeCosts& home : now.homes) {
    home.hop_us *= r;
    home.sequence_us *= r;
    home.token_us *= r;
  }
  MeasuredStep took;
  took.stage_us = now.stage.At(load.rows);
  for (size_t h = 0; h < 2; ++h) took.home_us[h] = HomeUs(now.homes[h], load.homes[h]);
  took.round_us = PredictRound(now, &load, 1).us;
  return took;
}

StepCostTracker::Start Start(std::optional<StepCosts> calibrated) {
  StepCostTracker::Start start;
  start.calibrated = calibrated;
  start.layers = kLayers;
  start.kv_token_bytes = 4096;
  return start;
}

class StepCostTrackerTest : public testing::Test {
 protected:
  void AddHomes(StepCostTracker* tracker) {
    tracker->AddHome(0, 80'000, false);
    tracker->AddHome(1, 40'000, false);
  }
};

TEST_F(StepCostTrackerTest, ACalibrationHoldsWhereStepsTakeWhatItSays) {
  StepCostTracker tracker(Start(Known()));
  AddHomes(&tracker);
  EXPECT_TRUE(tracker.calibrated());
  const MicroBatchLoad load = Load(64, 1000);
  for (int i = 0; i < 1000; ++i) {
    const StepForecast forecast = tracker.Note(0, load, Took(Known(), load));
    EXPECT_NEAR(forecast.stage_us, 400, 1e-6);
    EXPECT_NEAR(forecast.round_us, PredictRound(Known(), &load, 1).us, 1e-6);
  }
  EXPECT_NEAR(tracker.s_factor(), 1, 1e-9);
  EXPECT_NEAR(tracker.home_factor(1), 1, 1e-9);
}

TEST_F(StepCostTrackerTest, HalfOfAChangeIsFollowedIn200Steps) {
  StepCostTracker tracker(Start(Known()));
  AddHomes(&tracker);
  const MicroBatchLoad load = Load(64, 1000);
  for (int i = 0; i < 200; ++i) tracker.Note(0, load, Took(Known(), load, 1.2, 0.9));
  EXPECT_NEAR(tracker.s_factor(), 1.1, 1e-3);
  EXPECT_NEAR(tracker.home_factor(0), 0.95, 1e-3);
  for (int i = 0; i < 4000; ++i) tracker.Note(0, load, Took(Known(), load, 1.2, 0.9));
  EXPECT_NEAR(tracker.costs().stage.At(64), 1.2 * 400, 0.5);
  EXPECT_NEAR(tracker.costs().homes[1].token_us, 0.9 * 0.10, 1e-4);
}

TEST_F(StepCostTrackerTest, OneStandstillCountsLittleAndNothingLeavesTheBounds) {
  StepCostTracker tracker(Start(Known()));
  AddHomes(&tracker);
  const MicroBatchLoad load = Load(64, 1000);
  tracker.Note(0, load, Took(Known(), load, 5000, 5000));
  EXPECT_LT(tracker.s_factor(), 1.005);
  for (int i = 0; i < 10'000; ++i) tracker.Note(0, load, Took(Known(), load, 9, 0.01));
  EXPECT_DOUBLE_EQ(tracker.s_factor(), 1.4);
  EXPECT_DOUBLE_EQ(tracker.home_factor(0), 0.7);
}

TEST_F(StepCostTrackerTest, PromptChunksDoNotCorrectHomes) {
  StepCostTracker tracker(Start(Known()));
  AddHomes(&tracker);
  const MicroBatchLoad load = Load(64, 1000);
  MeasuredStep took = Took(Known(), load, 1.3, 1.3);
  took.has_chunks = true;
  for (int i = 0; i < 500; ++i) EXPECT_EQ(tracker.Note(0, load, took).round_us, 0);
  EXPECT_GT(tracker.s_factor(), 1.2);
  EXPECT_EQ(tracker.home_factor(0), 1);
}

// While both sides work each slows the other down: that is in the calibration, and must not be corrected for again.
TEST_F(StepCostTrackerTest, WhatTheSidesCostEachOtherIsNotCountedTwice) {
  StepCosts known = Known();
  known.s_slowed = 0.2;
  known.r_slowed = 0.1;
  StepCostTracker::Start start = Start(known);
  start.micro_batches = 2;
  StepCostTracker tracker(start);
  AddHomes(&tracker);
  const MicroBatchLoad loads[2] = {Load(64, 200), Load(64, 200)};
  known.home_limit = 2;
  const RoundTimes round = PredictRound(known, loads, 2);
  ASSERT_GT(round.s_factor, 1.1);
  MeasuredStep took = Took(known, loads[0], round.s_factor, round.r_factor);
  took.round_us = round.us;
  tracker.Note(0, loads[0], took);
  for (int i = 0; i < 2000; ++i) tracker.Note(i % 2, loads[0], took);
  EXPECT_NEAR(tracker.s_factor(), 1, 1e-3);
  EXPECT_NEAR(tracker.home_factor(1), 1, 1e-3);
}

TEST_F(StepCostTrackerTest, AnIdleMicroBatchIsNotReckonedWith) {
  StepCostTracker::Start start = Start(Known());
  start.micro_batches = 2;
  StepCostTracker tracker(start);
  AddHomes(&tracker);
  const MicroBatchLoad load = Load(64, 10);
  MeasuredStep took = Took(Known(), load);
  tracker.Note(1, load, took);
  const double both_us = tracker.Note(0, load, took).round_us;
  tracker.NoteIdle(1);
  EXPECT_NEAR(tracker.Note(0, load, took).round_us, PredictRound(Known(), &load, 1).us, 1e-6);
  EXPECT_GT(both_us, 1.5 * PredictRound(Known(), &load, 1).us);
}

// Without a calibration it begins with what read rates say...
TEST_F(StepCostTrackerTest, ReadRatesAreTheStart) {
  StepCostTracker::Start start = Start(std::nullopt);
  start.weight_bytes = 8e9;
  StepCostTracker tracker(start);
  tracker.AddHome(0, 4e6, true);
  tracker.AddHome(1, 80'000, false);
  EXPECT_FALSE(tracker.calibrated());
  EXPECT_DOUBLE_EQ(tracker.costs().stage.At(256), 8e9 / 4e6 / kLayers);
  EXPECT_DOUBLE_EQ(tracker.costs().homes[1].token_us, 4096.0 / 80'000);
  EXPECT_EQ(tracker.costs().homes[1].hop_us, 0);
}

// ...and after some hundred steps of differing batches knows what steps cost, within the steps' own noise.
TEST_F(StepCostTrackerTest, CostsAreLearned) {
  StepCostTracker tracker(Start(std::nullopt));
  AddHomes(&tracker);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.95, 1.05), context(50, 4000);
  const int batches[] = {1, 4, 16, 64, 128, 256};
  for (int i = 0; i < 3000; ++i) {
    const MicroBatchLoad load = Load(batches[i % 6], context(random));
    tracker.Note(0, load, Took(Known(), load, noise(random), noise(random)));
  }
  const StepCosts& costs = tracker.costs();
  for (const double rows : {1.0, 4.0, 64.0, 256.0}) {
    EXPECT_NEAR(costs.stage.At(rows), Known().stage.At(rows), 0.02 * Known().stage.At(rows)) << rows;
  }
  for (const double sequences : {16.0, 64.0, 256.0}) {
    for (const double tokens : {100.0, 1000.0, 4000.0}) {
      const MicroBatchLoad load = Load(sequences, tokens);
      const double known = PredictRound(Known(), &load, 1).us;
      EXPECT_NEAR(PredictRound(costs, &load, 1).us, known, 0.04 * known) << sequences << " of " << tokens;
    }
  }
}

// A near home's KV is read within stages, and what is left of a stage is the S-Part's own.
TEST_F(StepCostTrackerTest, NearHomesAreNotTheSPart) {
  StepCostTracker::Start start = Start(std::nullopt);
  start.weight_bytes = 8e9;
  StepCostTracker tracker(start);
  tracker.AddHome(0, 4e6, true);
  MicroBatchLoad load;
  load.rows = 60;
  load.homes[0] = {60, 60 * 2048};
  MeasuredStep took;
  took.stage_us = 300 + 60 * 2048 * 4096 / 4e6;
  for (int i = 0; i < 100; ++i) tracker.Note(0, load, took);
  EXPECT_NEAR(tracker.costs().stage.At(60), 300, 1);
}

// Where the S-Part says how long it attended, nothing need be taken from a rate.
TEST_F(StepCostTrackerTest, ANearHomesCostsAreLearned) {
  StepCostTracker::Start start = Start(std::nullopt);
  start.weight_bytes = 8e9;
  StepCostTracker tracker(start);
  tracker.AddHome(0, 1e6, true);
  EXPECT_FALSE(tracker.Knows(Load(2, 10)));
  MicroBatchLoad load;
  load.rows = 60;
  for (int i = 0; i < 2000; ++i) {
    load.homes[0] = {60, 60.0 * (100 + i)};
    tracker.Note(0, load, {.stage_us = 300, .near_us = 40 + load.homes[0].tokens * 0.02});
  }
  EXPECT_NEAR(tracker.costs().stage.At(60), 300, 1);
  EXPECT_NEAR(HomeUs(tracker.costs().homes[0], load.homes[0]), 40 + load.homes[0].tokens * 0.02, 40);
  EXPECT_NEAR(PredictRound(tracker.costs(), &load, 1).us, kLayers * (340 + load.homes[0].tokens * 0.02), kLayers * 45);
  EXPECT_TRUE(tracker.Knows(load));
}

TEST_F(StepCostTrackerTest, ANearHomeThatTakesLongerHasAFactor) {
  StepCosts known = Known();
  known.homes[0].near = true;
  StepCostTracker tracker(Start(known));
  tracker.AddHome(0, 1e6, true);
  MicroBatchLoad load;
  load.rows = 60;
  load.homes[0] = {60, 60'000};
  const MeasuredStep took = {.stage_us = known.stage.At(60), .near_us = 1.3 * HomeUs(known.homes[0], load.homes[0])};
  for (int i = 0; i < 4000; ++i) tracker.Note(0, load, took);
  EXPECT_NEAR(tracker.s_factor(), 1, 0.01);
  EXPECT_NEAR(tracker.home_factor(0), 1.3, 0.01);
}

// One micro-batch waits for its hops, and no reply lies there unseen while stages of another run.
TEST_F(StepCostTrackerTest, WhatAHopTakesIsLearnedFromOneMicroBatchAlone) {
  StepCostTracker::Start start = Start(std::nullopt);
  start.micro_batches = 2;
  StepCostTracker tracker(start);
  AddHomes(&tracker);
  const MicroBatchLoad load = Load(8, 100);
  MeasuredStep took = Took(Known(), load);
  took.hop_us = 50;
  tracker.Note(0, load, took);
  EXPECT_EQ(tracker.costs().hop_us, 50);
  took.hop_us = 900;
  tracker.Note(1, load, took);
  EXPECT_EQ(tracker.costs().hop_us, 50);
  tracker.NoteIdle(1);
  for (int i = 0; i < 2000; ++i) tracker.Note(0, load, took);
  EXPECT_NEAR(tracker.costs().hop_us, 900, 10);
}

}  // namespace
}  // namespace fastdecode
