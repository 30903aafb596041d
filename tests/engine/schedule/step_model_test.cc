#include "engine/schedule/step_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace fastdecode {
namespace {

// ---- the law, against a machine that runs micro-batches event by event

// Micro-batches go round through the S-Part and their homes, each of which takes them one at a time in order of
// arrival.
class EventMachine {
 public:
  // between_us: what the S-Part does beside the stage in every so many layers, between two steps.
  EventMachine(std::vector<double> stage_us, std::vector<std::vector<double>> home_us, double hop_us,
               double between_us = 0, int layers = 1)
      : stage_us_(std::move(stage_us)),
        home_us_(std::move(home_us)),
        hop_us_(hop_us),
        between_us_(between_us),
        layers_(layers) {}

  // The mean time of a layer of all micro-batches, once they go round evenly.
  double LayerUs() const {
    const int kWarmUp = 40 * layers_, kMeasured = 200 * layers_;
    const size_t count = stage_us_.size();
    std::vector<double> ready(count, 0);  // when its replies are in
    std::vector<int> rounds(count, 0);
    std::vector<double> home_free(home_us_[0].size(), 0);
    double s_free = 0, start = 0;
    for (;;) {
      // Whoever is ready first is next at the S-Part.
      const size_t m = static_cast<size_t>(std::min_element(ready.begin(), ready.end()) - ready.begin());
      s_free = std::max(s_free, ready[m]) + stage_us_[m] + (rounds[m] % layers_ == 0 ? between_us_ : 0);
      ready[m] = s_free;
      for (size_t h = 0; h < home_free.size(); ++h) {
        if (home_us_[m][h] == 0) continue;
        home_free[h] = std::max(home_free[h], s_free + hop_us_ / 2) + home_us_[m][h];
        ready[m] = std::max(ready[m], home_free[h] + hop_us_ / 2);
      }
      ++rounds[m];
      if (m == 0 && rounds[0] == kWarmUp) start = s_free;
      if (m == 0 && rounds[0] == kWarmUp + kMeasured) return (s_free - start) / kMeasured;
    }
  }

 private:
  const std::vector<double> stage_us_;              // [micro-batch]
  const std::vector<std::vector<double>> home_us_;  // [micro-batch][home]
  const double hop_us_;
  const double between_us_;
  const int layers_;
};

StepCosts Costs(double stage_row_us, double hop_us) {
  StepCosts costs;
  costs.stage.Add(1, stage_row_us);
  costs.stage.Add(1000, 1000 * stage_row_us);
  costs.head = CostCurve::Constant(0);
  costs.hop_us = hop_us;
  return costs;
}

TEST(StepModelTest, OneAndTwoMicroBatchesTakeAsLongAsEventByEvent) {
  std::mt19937_64 random(1);
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (int i = 0; i < 300; ++i) {
    const int count = 1 + i % 2;
    StepCosts costs = Costs(/*stage_row_us=*/1, /*hop_us=*/i % 3 == 0 ? 0 : between(0, 20));
    std::vector<MicroBatchLoad> loads(static_cast<size_t>(count));
    std::vector<double> stage_us;
    std::vector<std::vector<double>> home_us;
    const double rows = between(10, 100);
    for (MicroBatchLoad& load : loads) {
      load.rows = rows;
      stage_us.push_back(load.rows);
      home_us.emplace_back();
      for (size_t h = 0; h < 2; ++h) {
        costs.homes[h].token_us = 0.01;
        load.homes[h] = {.sequences = load.rows / 2, .tokens = between(100, 20'000)};
        home_us.back().push_back(0.01 * load.homes[h].tokens);
      }
    }
    const double expected = EventMachine(stage_us, home_us, costs.hop_us).LayerUs();
    EXPECT_NEAR(PredictRound(costs, loads.data(), count).us, expected, 1e-9 * expected) << i;
  }
}

// Heads are long and homes may be busy meanwhile.
TEST(StepModelTest, WhatIsDoneBetweenStepsHidesBehindHomes) {
  std::mt19937_64 random(2);
  const auto between = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  double hidden_most = 0;
  for (const int layers : {2, 8, 22}) {
    for (int i = 0; i < 200; ++i) {
      const int count = 1 + i % 2;
      const bool has_hops = i % 4 >= 2;
      StepCosts costs = Costs(/*stage_row_us=*/1, has_hops ? between(0, 5) : 0);
      costs.layers = layers;
      costs.head = CostCurve::Constant(between(0, 30));
      costs.homes[0].token_us = 1;
      MicroBatchLoad load = {.rows = between(1, 10)};
      load.homes[0] = {.sequences = load.rows, .tokens = between(1, 20)};
      const std::vector<MicroBatchLoad> loads(static_cast<size_t>(count), load);
      const std::vector<double> stages(loads.size(), load.rows);
      const std::vector<std::vector<double>> homes(loads.size(), {load.homes[0].tokens});
      const double expected = layers * EventMachine(stages, homes, costs.hop_us, costs.head.us[0], layers).LayerUs();
      const double bound = count == 1 || !has_hops ? 1e-9 : layers == 2 ? 0.08 : 0.03;
      const double predicted = PredictRound(costs, loads.data(), count).us;
      EXPECT_NEAR(predicted, expected, bound * expected) << layers << " layers, " << i;
      const double layer_us = EventMachine(stages, homes, costs.hop_us).LayerUs();
      hidden_most = std::max(hidden_most, 1 - (predicted - layers * layer_us) / (count * costs.head.us[0]));
    }
  }
  EXPECT_GT(hidden_most, 0.9);
}

// ---- what limits a round

TEST(StepModelTest, ARoundSaysWhatLimitsIt) {
  StepCosts costs = Costs(1, 0);
  costs.layers = 10;
  costs.homes[3].token_us = 0.01;
  MicroBatchLoad loads[2];
  for (MicroBatchLoad& load : loads) load = {.rows = 50};
  for (MicroBatchLoad& load : loads) load.homes[3] = {.sequences = 50, .tokens = 1000};
  RoundTimes round = PredictRound(costs, loads, 2);
  EXPECT_EQ(round.limit, RoundLimit::kSPart);
  EXPECT_DOUBLE_EQ(round.us, 1000);
  EXPECT_DOUBLE_EQ(round.s_us, 1000);
  EXPECT_DOUBLE_EQ(round.r_us, 200);
  for (MicroBatchLoad& load : loads) load.homes[3].tokens = 8000;
  round = PredictRound(costs, loads, 2);
  EXPECT_EQ(round.limit, RoundLimit::kHome);
  EXPECT_EQ(round.home, 3);
  EXPECT_DOUBLE_EQ(round.us, 1600);
  round = PredictRound(costs, loads, 1);
  EXPECT_EQ(round.limit, RoundLimit::kPath);
  EXPECT_DOUBLE_EQ(round.us, 1300);
  costs.hop_row_us = 2;
  round = PredictRound(costs, loads, 2);
  EXPECT_EQ(round.limit, RoundLimit::kPath) << "stage, 100 us on the link, and 80 us at the home";
  EXPECT_DOUBLE_EQ(round.us, 2300);
}

TEST(StepModelTest, WhereCoresAreSharedTimesAddUp) {
  StepCosts costs = Costs(1, 5);
  costs.homes[0] = {.token_us = 0.01, .near = true};
  MicroBatchLoad loads[2];
  for (MicroBatchLoad& load : loads) load = {.rows = 50};
  for (MicroBatchLoad& load : loads) load.homes[0] = {.sequences = 50, .tokens = 8000};
  EXPECT_DOUBLE_EQ(PredictRound(costs, loads, 1).us, 50 + 80);
  EXPECT_DOUBLE_EQ(PredictRound(costs, loads, 2).us, 2 * (50 + 80));
}

TEST(StepModelTest, ANearHomeAttendsWithinStagesWhileHopsAreOut) {
  StepCosts costs = Costs(1, 0);
  costs.homes[0] = {.token_us = 0.01, .near = true};
  costs.homes[1].token_us = 0.01;
  MicroBatchLoad load = {.rows = 100};
  load.homes[0] = {.sequences = 50, .tokens = 4000};
  EXPECT_DOUBLE_EQ(PredictRound(costs, &load, 1).us, 140);
  load.homes[1] = {.sequences = 50, .tokens = 3000};
  EXPECT_DOUBLE_EQ(PredictRound(costs, &load, 1).us, 140);
  load.homes[1].tokens = 9000;
  EXPECT_DOUBLE_EQ(PredictRound(costs, &load, 1).us, 190);
}

// With S and R alone as long as each other and each slowed by a tenth, both are busy all the time.
TEST(StepModelTest, BothSidesSlowEachOtherDownAsFarAsTheyAreBusy) {
  StepCosts costs = Costs(1, 0);
  costs.s_slowed = costs.r_slowed = 0.1;
  costs.homes[0].token_us = 0.01;
  MicroBatchLoad loads[2];
  for (MicroBatchLoad& load : loads) load = {.rows = 50};
  for (MicroBatchLoad& load : loads) load.homes[0] = {.sequences = 50, .tokens = 5000};
  EXPECT_NEAR(PredictRound(costs, loads, 2).us, 110, 1e-9);
  for (MicroBatchLoad& load : loads) load.homes[0].tokens = 500;  // R is busy a tenth of the time
  EXPECT_NEAR(PredictRound(costs, loads, 2).us, 101, 0.2);
}

TEST(StepModelTest, BoundariesAndTheHeadBelongToARound) {
  StepCosts costs = Costs(1, 0);
  costs.head = CostCurve::Constant(7);
  costs.boundary_us = 3;
  costs.boundary_row_us = 0.5;
  MicroBatchLoad load = {.rows = 10};
  EXPECT_DOUBLE_EQ(PredictRound(costs, &load, 1).us, 10 + 7 + 3 + 5);
  EXPECT_DOUBLE_EQ(PredictRound(costs, &load, 1).s_us, 25);
}

// ---- curves

TEST(StepModelTest, ACurveGoesThroughItsPointsAndOnFromTheLastTwo) {
  CostCurve curve;
  EXPECT_EQ(curve.At(10), 0);
  curve.Add(1, 10);
  curve.Add(16, 40);
  curve.Add(64, 136);
  EXPECT_DOUBLE_EQ(curve.At(0.5), 10);
  EXPECT_DOUBLE_EQ(curve.At(1), 10);
  EXPECT_DOUBLE_EQ(curve.At(8.5), 25);
  EXPECT_DOUBLE_EQ(curve.At(16), 40);
  EXPECT_DOUBLE_EQ(curve.At(40), 88);
  EXPECT_DOUBLE_EQ(curve.At(100), 208);
  EXPECT_FALSE(curve.Covers(0.5));
  EXPECT_TRUE(curve.Covers(64));
  EXPECT_FALSE(curve.Covers(65));
  CostCurve one;
  one.Add(16, 40);
  EXPECT_TRUE(one.Covers(16));
  EXPECT_FALSE(one.Covers(15));
  EXPECT_FALSE(one.Covers(17));
  CostCurve falling;
  falling.Add(1, 10);
  falling.Add(2, 4);
  EXPECT_EQ(falling.At(100), 4) << "more costs no less";
  CostCurve steep;
  steep.Add(7.9, 10);
  steep.Add(8, 20);
  EXPECT_DOUBLE_EQ(steep.At(16), 40) << "nor does it grow faster than the size";
  EXPECT_TRUE(CostCurve::Constant(5).Covers(1e9));
  EXPECT_DOUBLE_EQ(CostCurve::Constant(5).At(1e9), 5);
}

TEST(StepModelTest, ARoundSaysThatItLiesBeyondWhatWasMeasured) {
  StepCosts costs = Costs(1, 0);
  costs.homes[0] = {.token_us = 0.01, .tokens_max = 8192};
  MicroBatchLoad load = {.rows = 100};
  load.homes[0] = {.sequences = 100, .tokens = 100 * 8192};
  EXPECT_FALSE(PredictRound(costs, &load, 1).extrapolated);
  load.homes[0].tokens *= 1.01;
  EXPECT_TRUE(PredictRound(costs, &load, 1).extrapolated);
  load.homes[0].tokens = 100;
  load.rows = 1001;
  EXPECT_TRUE(PredictRound(costs, &load, 1).extrapolated);
  load.rows = 100;
  EXPECT_FALSE(PredictRound(costs, &load, 1).extrapolated);
  load.homes[1] = {.sequences = 1, .tokens = 1};
  EXPECT_TRUE(PredictRound(costs, &load, 1).extrapolated) << "a home of which nothing was measured";
}

}  // namespace
}  // namespace fastdecode
