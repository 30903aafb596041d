#include "engine/bench/fit_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace fastdecode {
namespace {

// A machine whose costs are known.
StepCosts KnownCosts() {
  StepCosts costs;
  costs.layers = 20;
  for (const double rows : {1, 4, 16, 64}) {
    costs.stage.Add(rows, 200 + 5 * rows);
    costs.head.Add(rows, 300 + 2 * rows);
  }
  costs.boundary_us = 20;
  costs.boundary_row_us = 0.5;
  costs.hop_us = 4;
  costs.hop_row_us = 0.25;
  costs.homes[0] = {.hop_us = 6, .sequence_us = 0.3, .token_us = 0.02};
  costs.homes[1] = {.hop_us = 3, .sequence_us = 0.1, .token_us = 0.01};
  return costs;
}

// What it measures of itself, each figure wrong by up to `noise`.
MeasuredWindow Measure(const StepCosts& costs, int batch, int context, int micro_batches, double noise,
                       std::mt19937_64* random) {
  const auto spoil = [&](double us) {
    return us * (1 + noise * std::uniform_real_distribution<double>(-1, 1)(*random));
  };
  MeasuredWindow window;
  window.batch = batch;
  window.context = context;
  window.micro_batches = micro_batches;
  window.tokens = static_cast<double>(batch) * context;
  window.homes = {{.share = 0.5}, {.share = 0.5}};
  const std::vector<MicroBatchLoad> loads = LoadsOf(window);
  const RoundTimes round = PredictRound(costs, loads.data(), micro_batches);
  const double rest_us =
      micro_batches * (costs.head.At(window.rows()) + costs.boundary_us + costs.boundary_row_us * window.rows());
  const double s = (round.s_us - rest_us) / (costs.layers * micro_batches * costs.stage.At(window.rows()));
  window.round_us = spoil(round.us);
  window.layer_us = spoil(s * costs.stage.At(window.rows()));
  window.s_us = costs.layers * window.layer_us + costs.head.At(window.rows());
  window.overhead_us = costs.hop_us + costs.hop_row_us * window.rows();
  for (size_t h = 0; h < 2; ++h) {
    const HomeCosts& home = costs.homes[h];
    const double r = micro_batches > 1 ? 1 + costs.r_slowed * (round.s_us - rest_us) / (round.us - rest_us) : 1;
    window.homes[h].hop_us = spoil(
        r * (home.hop_us + home.sequence_us * loads[0].homes[h].sequences + home.token_us * loads[0].homes[h].tokens));
  }
  return window;
}

std::vector<MeasuredWindow> Grid(const StepCosts& costs, double noise, int micro_batches = 1) {
  std::mt19937_64 random(1);
  std::vector<MeasuredWindow> windows;
  for (const int batch : {1, 4, 16, 64}) {
    if (batch < micro_batches) continue;
    for (const int context : {32, 512, 4096})
      windows.push_back(Measure(costs, batch, context, micro_batches, noise, &random));
  }
  return windows;
}

TEST(FitCostsTest, KnownCostsAreFoundAgain) {
  const StepCosts known = KnownCosts();
  const Fit fit = FitCosts(Grid(known, 0), known.layers, /*has_fabric=*/true);
  for (const double rows : {1, 4, 16, 30, 64}) {
    EXPECT_NEAR(fit.costs.stage.At(rows), known.stage.At(rows), 1e-9) << rows;
    EXPECT_NEAR(fit.costs.head.At(rows), known.head.At(rows), 1e-6) << rows;
  }
  for (const size_t h : {0, 1}) {
    EXPECT_NEAR(fit.costs.homes[h].hop_us, known.homes[h].hop_us, 1e-6);
    EXPECT_NEAR(fit.costs.homes[h].sequence_us, known.homes[h].sequence_us, 1e-6);
    EXPECT_NEAR(fit.costs.homes[h].token_us, known.homes[h].token_us, 1e-9);
    EXPECT_EQ(fit.costs.homes[h].tokens_max, 4096);
    EXPECT_FALSE(fit.costs.homes[h].near);
  }
  EXPECT_NEAR(fit.costs.boundary_us, known.boundary_us, 1e-6);
  EXPECT_NEAR(fit.costs.boundary_row_us, known.boundary_row_us, 1e-6);
  ASSERT_EQ(fit.residuals.size(), 12u);
  for (const Residual& residual : fit.residuals) EXPECT_NEAR(residual.ratio(), 1, 1e-9);
}

TEST(FitCostsTest, FiguresThatAreALittleWrongGiveRoundsThatAre) {
  const StepCosts known = KnownCosts();
  for (const Residual& residual : FitCosts(Grid(known, 0.02), known.layers, true).residuals) {
    EXPECT_NEAR(residual.ratio(), 1, 0.05) << residual.window.batch << " of " << residual.window.context;
  }
}

TEST(FitCostsTest, HowBothSidesSlowEachOtherDownIsFoundInSeveralMicroBatches) {
  StepCosts known = KnownCosts();
  std::vector<MeasuredWindow> windows = Grid(known, 0);
  known.s_slowed = 0.12;
  known.r_slowed = 0.2;
  for (const MeasuredWindow& window : Grid(known, 0, 2)) windows.push_back(window);
  const Fit fit = FitCosts(windows, known.layers, true);
  EXPECT_NEAR(fit.costs.s_slowed, 0.12, 0.02);
  EXPECT_NEAR(fit.costs.r_slowed, 0.2, 0.03);
}

TEST(FitCostsTest, WhatTheSPartAttendsIsKnownByItself) {
  StepCosts known = KnownCosts();
  known.homes[0].near = true;
  std::vector<MeasuredWindow> windows = Grid(known, 0);
  for (MeasuredWindow& window : windows) {
    window.homes = {{.share = 1}};
    window.overhead_us = 0;
    const std::vector<MicroBatchLoad> loads = LoadsOf(window);
    const double near_us = HomeUs(known.homes[0], loads[0].homes[0]);
    window.layer_us = known.stage.At(window.rows()) + near_us;
    window.attend_us = known.layers * near_us;
    window.s_us = known.layers * window.layer_us + known.head.At(window.rows());
    window.round_us = PredictRound(known, loads.data(), 1).us;
  }
  const Fit fit = FitCosts(windows, known.layers, false);
  EXPECT_TRUE(fit.costs.homes[0].near);
  EXPECT_NEAR(fit.costs.homes[0].hop_us, known.homes[0].hop_us, 1e-6);
  EXPECT_NEAR(fit.costs.homes[0].sequence_us, known.homes[0].sequence_us, 1e-6);
  EXPECT_NEAR(fit.costs.homes[0].token_us, known.homes[0].token_us, 1e-9);
  EXPECT_NEAR(fit.costs.stage.At(30), known.stage.At(30), 1e-6);
  for (const Residual& residual : fit.residuals) EXPECT_NEAR(residual.ratio(), 1, 1e-6);
}

// Beside a worker, whose replies lie unseen while the S-Part attends for longer than they take; few sequences are all
// near.
TEST(FitCostsTest, ANearHomeAndAWorkerAreFoundAgain) {
  StepCosts known = KnownCosts();
  known.homes[0].near = true;
  known.hop_row_us = 0;
  std::vector<MeasuredWindow> windows = Grid(known, 0);
  for (MeasuredWindow& window : windows) {
    if (window.batch == 1) window.homes = {{.share = 1}, {.share = 0}};
    const std::vector<MicroBatchLoad> loads = LoadsOf(window);
    const double near_us = HomeUs(known.homes[0], loads[0].homes[0]);
    window.homes[0].hop_us = 0;
    window.homes[1].hop_us = HomeUs(known.homes[1], loads[0].homes[1]);
    const bool has_hops = window.homes[1].hop_us > 0;
    window.attend_us = known.layers * near_us;
    window.layer_us = known.stage.At(window.rows()) + (has_hops ? 0 : near_us);
    window.s_us = known.layers * window.layer_us + known.head.At(window.rows());
    window.overhead_us =
        has_hops ? std::max(known.hop_us, near_us - window.homes[1].hop_us) : 0;  // seen once it has attended
    window.round_us = PredictRound(known, loads.data(), 1).us;
  }
  const Fit fit = FitCosts(windows, known.layers, false);
  EXPECT_TRUE(fit.costs.homes[0].near);
  EXPECT_FALSE(fit.costs.homes[1].near);
  EXPECT_NEAR(fit.costs.homes[0].token_us, known.homes[0].token_us, 1e-9);
  EXPECT_NEAR(fit.costs.homes[1].token_us, known.homes[1].token_us, 1e-9);
  EXPECT_NEAR(fit.costs.stage.At(30), known.stage.At(30), 1e-6);
  EXPECT_NEAR(fit.costs.boundary_us, known.boundary_us, 1e-6);
  for (const Residual& residual : fit.residuals) EXPECT_NEAR(residual.ratio(), 1, 0.02);
}

// In shared memory no link is to be seen, whatever the hops' times do by chance.
TEST(FitCostsTest, WithoutAFabricRowsTakeNoTimeOnTheLink) {
  const StepCosts known = KnownCosts();
  const Fit fit = FitCosts(Grid(known, 0), known.layers, /*has_fabric=*/false);
  EXPECT_EQ(fit.costs.hop_row_us, 0);
  EXPECT_GT(fit.costs.hop_us, 0);
}

// 600 tokens in chunks of 256: each row attends to all before it and to itself.
TEST(FitPairsTest, PairsOfAPromptAreCounted) {
  const MeasuredPrompt prompt = {.tokens = 600, .chunk = 256};
  EXPECT_EQ(prompt.chunks(), 3);
  EXPECT_EQ(prompt.load().sequences, 3);
  EXPECT_EQ(prompt.load().tokens, 256 + 512 + 600);
  EXPECT_EQ(prompt.load().pairs, 600.0 * 601 / 2);
}

TEST(FitPairsTest, KnownCostsAreFoundAgain) {
  StepCosts costs = KnownCosts();
  constexpr double kPairUs = 0.002;
  std::vector<MeasuredPrompt> prompts;
  for (const int tokens : {512, 2048}) {
    MeasuredPrompt prompt = {.tokens = tokens, .chunk = 256, .home = 1};
    const HomeLoad load = prompt.load();
    prompt.home_us = prompt.chunks() * costs.homes[1].hop_us + load.sequences * costs.homes[1].sequence_us +
                     load.tokens * costs.homes[1].token_us + load.pairs * kPairUs;
    prompts.push_back(prompt);
  }
  FitPairs(prompts, 2, &costs);
  EXPECT_NEAR(costs.homes[1].pair_us, kPairUs, 1e-9);
  EXPECT_NEAR(costs.homes[0].pair_us, kPairUs, 1e-9) << "nobody's prompt was there";
  // At a home that attends within stages these are known.
  MeasuredPrompt within = {.tokens = 48, .chunk = 32, .home = 1, .in_stages = true};
  StepCosts near = costs;
  near.homes[1] = {.token_us = 0.01, .near = true};
  within.home_us = near.stage.At(32) + near.stage.At(16) + within.load().tokens * 0.01 + within.load().pairs * kPairUs;
  FitPairs({within}, 2, &near);
  EXPECT_NEAR(near.homes[1].pair_us, kPairUs, 1e-9);
  costs.homes[0].pair_us = 5;
  FitPairs({}, 2, &costs);
  EXPECT_EQ(costs.homes[0].pair_us, 5) << "nothing was measured";
}

// 2 x + 3 y with relative errors: by hand.
TEST(SolveNonNegativeTest, FindsTheLeastRelativeError) {
  EXPECT_NEAR(SolveNonNegative({{1, 0}, {1, 1}}, {2, 5})[0], 2, 1e-12);
  EXPECT_NEAR(SolveNonNegative({{1, 0}, {1, 1}}, {2, 5})[1], 3, 1e-12);
  // One unknown, values 1 and 2 of the same row: sum (x-1)^2 + (x/2-1)^2 is least at x = (1 + 1/2) / (1 + 1/4) = 1.2.
  EXPECT_NEAR(SolveNonNegative({{1}, {1}}, {1, 2})[0], 1.2, 1e-12);
}

// The same with errors relative to 1: the mean.
TEST(SolveNonNegativeTest, ErrorsCountByTheirScales) {
  EXPECT_NEAR(SolveNonNegative({{1}, {1}}, {1, 2}, {1, 1})[0], 1.5, 1e-12);
  EXPECT_NEAR(SolveNonNegative({{1}, {1}}, {1, 2}, {1, 1e6})[0], 1, 1e-6);
}

// The unbounded solution is x = 3, y = -1; with y = 0 the best x of (x/3 - 1)^2 + (x/2 - 1)^2 is (1/3 + 1/2) / (1/9 +
// 1/4).
TEST(SolveNonNegativeTest, WhatWouldBeNegativeIsZero) {
  const std::vector<double> x = SolveNonNegative({{1, 0}, {1, 1}}, {3, 2});
  EXPECT_NEAR(x[0], (1.0 / 3 + 1.0 / 2) / (1.0 / 9 + 1.0 / 4), 1e-12);
  EXPECT_EQ(x[1], 0);
}

TEST(ReadWindowTest, IsWhatStatisticsSay) {
  nlohmann::json statistics = {{"batch", 8},
                               {"context", 100},
                               {"micro_batches", 2},
                               {"rounds", 10.0},
                               {"round_us", 5000.0},
                               {"rows", 80},
                               {"step_model", {{"rounds", 20}, {"rounds_ns", 90'000'000}}},
                               {"steps", 20},
                               {"s_busy_ns", 40'000'000},
                               {"layer_stages", 180},
                               {"layer_stage_ns", 36'000'000},
                               {"stage_attend_ns", 2'000'000},
                               {"hop_overhead_ns", 800'000},
                               {"kv_bytes", 32'000'000},
                               {"homes",
                                {{{"page_bytes", 3200}, {"pages_used", 30}, {"hops", 200}, {"r_busy_ns", 6'000'000}},
                                 {{"page_bytes", 3200}, {"pages_used", 10}, {"hops", 200}, {"r_busy_ns", 2'000'000}}}}};
  const absl::StatusOr<MeasuredWindow> read = ReadWindow(statistics);
  ASSERT_TRUE(read.ok()) << read.status();
  const MeasuredWindow& window = *read;
  EXPECT_EQ(window.batch, 8);
  EXPECT_EQ(window.rows(), 4);
  EXPECT_DOUBLE_EQ(window.round_us, 4500);
  EXPECT_DOUBLE_EQ(window.s_us, 2000);
  EXPECT_DOUBLE_EQ(window.layer_us, 200);
  EXPECT_DOUBLE_EQ(window.attend_us, 100);
  EXPECT_DOUBLE_EQ(window.overhead_us, 2);
  EXPECT_DOUBLE_EQ(window.tokens, 32'000'000 / 100.0 / 10);
  ASSERT_EQ(window.homes.size(), 2u);
  EXPECT_DOUBLE_EQ(window.homes[0].share, 0.75);
  EXPECT_DOUBLE_EQ(window.homes[0].hop_us, 30);
  EXPECT_DOUBLE_EQ(window.homes[1].hop_us, 10);
  const std::vector<MicroBatchLoad> loads = LoadsOf(window);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_DOUBLE_EQ(loads[1].homes[0].sequences, 3);
  EXPECT_DOUBLE_EQ(loads[1].homes[1].tokens, 0.25 * 32'000 / 2);
  statistics["step_model"]["rounds"] = 0;
  EXPECT_DOUBLE_EQ(ReadWindow(statistics)->round_us, 5000) << "the engine saw none";
  statistics["homes"][1]["index"] = 1;
  statistics["homes"][1].erase("pages_used");
  EXPECT_EQ(ReadWindow(statistics).status(), absl::UnavailableError("home 1 has not said what pages it uses"));
}

}  // namespace
}  // namespace fastdecode
