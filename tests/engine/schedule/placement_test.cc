#include "engine/schedule/placement.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

// 8 layers of llama-3-8b on an H200, with 60 sequences of 2048 tokens (64 MiB) in its 4 GiB, which are full. Home 0 is
// the GPU, home 1 a host.
constexpr double kTokens = 2048;
constexpr double kSequenceBytes = 64 << 20;
constexpr size_t kNearHome = 0, kFarHome = 1;

struct Case : PlanInputs {
  Case(double far_gb_per_s, double waits) {
    own_costs.home_limit = 2;
    own_costs.stage = CostCurve::Constant(1100);
    own_costs.homes[kNearHome] = {.token_us = kSequenceBytes / 4.2e6 / kTokens, .near = true};
    own_costs.homes[kFarHome].token_us = kSequenceBytes / (far_gb_per_s * 1e3) / kTokens;
    costs = &own_costs;
    micro_batches = 2;
    held.homes[kNearHome] = {60, 60 * kTokens};
    waiting = room = waits;
    each.homes[kFarHome] = {1, kTokens};
  }
  Case(const Case& other) : PlanInputs(other), own_costs(other.own_costs) { costs = &own_costs; }
  Case& operator=(const Case& other) {
    PlanInputs::operator=(other);
    own_costs = other.own_costs;
    costs = &own_costs;
    return *this;
  }
  double FarUs() const { return held.homes[kFarHome].tokens * own_costs.homes[kFarHome].token_us; }
  double NearUs() const { return held.homes[kNearHome].tokens * own_costs.homes[kNearHome].token_us; }
  // So many at a home, whose KV takes so long to be read.
  void Hold(size_t home, double sequences, double us) {
    held.homes[home] = {sequences, us / own_costs.homes[home].token_us};
  }

  StepCosts own_costs;
};

Case Inputs(double far_gb_per_s, double waiting) { return Case(far_gb_per_s, waiting); }

Case Taken(Case inputs, double count) {
  inputs.waiting -= count;
  inputs.room -= count;
  inputs.held.homes[kFarHome].sequences += count;
  inputs.held.homes[kFarHome].tokens += count * kTokens;
  return inputs;
}

Placement Choose(const PlanInputs& inputs, StepPlan held = StepPlan::kNear) {
  return ChoosePlacement(held, inputs, /*must_go=*/false);
}

TEST(PlacementTest, RatesAreThoseOfTheReads) {
  Case inputs = Inputs(80, 0);
  EXPECT_NEAR(TokenRate(StepPlan::kNear, inputs) * 1e6, 60 / 2.0587e-3, 10);
  inputs = Taken(Inputs(80, 196), 196);
  const double far_us = 196 * 838.86;
  EXPECT_NEAR(inputs.FarUs(), far_us, 10);
  EXPECT_NEAR(TokenRate(StepPlan::kTogether, inputs), 256 / (far_us + 1100), 1e-6);
  EXPECT_NEAR(TokenRate(StepPlan::kMixed, inputs), 256 / far_us, 1e-6);
  EXPECT_NEAR(TokenRate(StepPlan::kApart, inputs), 196 / (far_us + 2122) + 60 * (1 - 1100 / (far_us + 2122)) / 2058.7,
              1e-5)
      << "half of a near step comes first";
  inputs.Hold(kFarHome, 196, 6600);
  inputs.micro_batches = 4;
  EXPECT_NEAR(TokenRate(StepPlan::kApart, inputs), 196 / 6600.0 + 60 * 0.5 / 2058.7, 1e-5);
  inputs.Hold(kFarHome, 196, 1000);  // three micro-batches' weights take longer than a far home's KV: all take turns
  EXPECT_NEAR(TokenRate(StepPlan::kApart, inputs), 256 / (3300 + 2058.7), 1e-5);
}

TEST(PlacementTest, ASlowHomeGetsAShareOfALongQueueApart) {
  const Placement many = Choose(Inputs(80, 4000));
  EXPECT_TRUE(many.far);
  EXPECT_EQ(many.plan, StepPlan::kApart);
  EXPECT_FALSE(Choose(Inputs(80, 15)).far);
  // All of them there would give 3 % more tokens, for 20 s; near ones are done with all in one.
  EXPECT_GT(TokenRate(StepPlan::kApart, Taken(Inputs(80, 196), 196)), 1.03 * TokenRate(StepPlan::kNear, Inputs(80, 0)));
  EXPECT_FALSE(Choose(Inputs(80, 196)).far);
}

TEST(PlacementTest, NoMoreThanThereIsRoomFor) {
  Case inputs = Inputs(80, 4000);
  EXPECT_GT(FarShare(inputs), 50);
  inputs.room = 50;
  EXPECT_EQ(FarShare(inputs), 50);
  inputs.held.homes[kNearHome] = {};
  EXPECT_EQ(FarShare(inputs), 50);
}

TEST(PlacementTest, FastHomesStepWithTheNearOne) {
  const Placement many = Choose(Inputs(4000, 196));
  EXPECT_TRUE(many.far);
  EXPECT_EQ(many.plan, StepPlan::kMixed);
  const Placement few = Choose(Inputs(4000, 60));
  EXPECT_TRUE(few.far);
  EXPECT_EQ(few.plan, StepPlan::kTogether);
  Case one = Inputs(4000, 196);
  one.micro_batches = 1;
  EXPECT_TRUE(Choose(one).far);
  EXPECT_EQ(Choose(one).plan, StepPlan::kTogether) << "there is no other";
}

// What is placed at far homes is done when the rest is: the next of the queue is asked for again and again.
TEST(PlacementTest, TheShareEndsWithTheQueue) {
  Case inputs = Inputs(80, 4000);
  StepPlan plan = StepPlan::kNear;
  int taken = 0;
  for (Placement next = Choose(inputs, plan); next.far; next = Choose(inputs, plan)) {
    plan = next.plan;
    inputs = Taken(inputs, 1);
    ASSERT_LT(++taken, 4000);
  }
  EXPECT_EQ(taken, static_cast<int>(FarShare(Inputs(80, 4000))));
  const double near_step_us = 1100 + inputs.NearUs();
  const double near_end_us = near_step_us * (1 + inputs.waiting / 60), far_end_us = 1100 + inputs.FarUs();
  EXPECT_LE(1.5 * far_end_us, near_end_us) << "the longest of them, too";
  EXPECT_GT(2 * far_end_us, near_end_us);
}

// KV doubles as they go on: that counts at far homes, and near they take their turns later.
TEST(PlacementTest, TheShareKnowsThatKvGrows) {
  Case inputs = Inputs(80, 4000);
  const double share = FarShare(inputs);
  inputs.growth = 1.5;
  EXPECT_NEAR(FarShare(inputs), share, 0.05 * share) << "both, with many";
  inputs = Taken(inputs, share);
  EXPECT_LT(FarShare(inputs), 5);
  inputs.waiting = inputs.room = 40;
  inputs.held.homes[kFarHome] = {};
  inputs.growth = 1;
  const double few = FarShare(inputs);
  inputs.growth = 3;
  EXPECT_LE(FarShare(inputs), few + 1);
}

// Where far homes are faster than the near one in all, nobody waits for it.
TEST(PlacementTest, FasterHomesGetAll) {
  Case inputs = Inputs(4000, 196);
  EXPECT_EQ(FarShare(inputs), 196);
  inputs = Inputs(600, 20);
  inputs.Hold(kNearHome, 3, 50);
  EXPECT_EQ(FarShare(inputs), 20);
}

// Whatever the rates, the model gives no less for what it chooses than near homes give alone.
TEST(PlacementTest, NeverLessThanNearAlone) {
  for (const double gb_per_s : {10.0, 80.0, 300.0, 1000.0, 4200.0, 20000.0}) {
    for (const int micro_batches : {1, 2, 3, 4}) {
      for (double waiting = 1; waiting < 5000; waiting *= 1.7) {
        Case inputs = Inputs(gb_per_s, std::floor(waiting));
        inputs.micro_batches = micro_batches;
        const double alone = TokenRate(StepPlan::kNear, inputs);
        const Placement chosen = Choose(inputs);
        if (!chosen.far) continue;
        const double with = TokenRate(chosen.plan, Taken(inputs, FarShare(inputs)));
        EXPECT_GT(with, alone) << gb_per_s << " GB/s, " << micro_batches << " micro-batches, " << waiting;
      }
    }
  }
}

TEST(PlacementTest, APlanThatHoldsIsLeftForOneThatIsATenthBetter) {
  Case inputs = Inputs(80, 0);
  inputs.own_costs.stage = CostCurve::Constant(1000);
  inputs.Hold(kNearHome, 100, 1000);
  inputs.Hold(kFarHome, 100, 2100);  // together 3100, mixed 3000
  EXPECT_EQ(ChoosePlan(StepPlan::kNear, inputs), StepPlan::kMixed);
  EXPECT_EQ(ChoosePlan(StepPlan::kTogether, inputs), StepPlan::kTogether);
  inputs.Hold(kFarHome, 100, 1900);  // together 2900
  EXPECT_EQ(ChoosePlan(StepPlan::kNear, inputs), StepPlan::kTogether);
  EXPECT_EQ(ChoosePlan(StepPlan::kMixed, inputs), StepPlan::kMixed);
  inputs.Hold(kFarHome, 100, 1500);  // together 2500
  EXPECT_EQ(ChoosePlan(StepPlan::kMixed, inputs), StepPlan::kTogether);
  inputs.held.homes[kFarHome] = {};
  EXPECT_EQ(ChoosePlan(StepPlan::kMixed, inputs), StepPlan::kNear);
}

TEST(PlacementTest, OneThatMustGoGoes) {
  const Placement placement = ChoosePlacement(StepPlan::kNear, Inputs(80, 1), /*must_go=*/true);
  EXPECT_TRUE(placement.far);
  EXPECT_EQ(placement.plan, StepPlan::kTogether) << "its KV is read while near homes read theirs";
  EXPECT_EQ(ChoosePlacement(StepPlan::kNear, Inputs(8, 1), /*must_go=*/true).plan, StepPlan::kApart);
}

// What hops cost counts against far homes: so few are better off near.
TEST(PlacementTest, HopsThatTakeLongKeepThemNear) {
  Case inputs = Inputs(4000, 60);
  EXPECT_TRUE(Choose(inputs).far);
  inputs.own_costs.homes[kFarHome].hop_us = 20'000;
  EXPECT_FALSE(Choose(inputs).far);
}

// Two far homes take what waits side by side: the slower one is what a step waits for.
TEST(PlacementTest, TheSlowestFarHomeCounts) {
  Case inputs = Taken(Inputs(80, 0), 50);
  inputs.own_costs.home_limit = 3;
  inputs.own_costs.homes[2].token_us = inputs.own_costs.homes[kFarHome].token_us;
  inputs.held.homes[2] = inputs.held.homes[kFarHome];
  EXPECT_NEAR(TokenRate(StepPlan::kTogether, inputs), (60 + 100) / (1100 + inputs.FarUs()), 1e-9);
  inputs.own_costs.homes[2].token_us *= 2;
  EXPECT_NEAR(TokenRate(StepPlan::kTogether, inputs), (60 + 100) / (1100 + 2 * inputs.FarUs()), 1e-9);
}

// With nobody near, waiting for nobody there gains nothing.
TEST(PlacementTest, ALoneFarOneIsNotApart) {
  Case inputs = Taken(Inputs(80, 0), 1);
  inputs.held.homes[kNearHome] = {};
  EXPECT_EQ(ChoosePlan(StepPlan::kNear, inputs), StepPlan::kTogether);
  for (const StepPlan plan : {StepPlan::kTogether, StepPlan::kMixed, StepPlan::kApart}) {
    EXPECT_GT(TokenRate(plan, inputs), 0) << static_cast<int>(plan);
  }
  EXPECT_EQ(TokenRate(StepPlan::kNear, inputs), 0);
}

// A stage of 1100 us, and a sequence's KV is read in 16 us near and in 67 us far.
TEST(PlacementTest, OneMoreGoesWhereTheRoundIsShorter) {
  Case inputs = Inputs(1000, 0);
  const HomeLoad more = {1, kTokens};
  inputs.held = {};
  EXPECT_FALSE(IsBetterFar(inputs, more, kNearHome, kFarHome)) << "alone it is faster near";
  inputs.Hold(kNearHome, 3, 48);
  EXPECT_FALSE(IsBetterFar(inputs, more, kNearHome, kFarHome)) << "64 us near, and else 67 us far";
  inputs.Hold(kNearHome, 5, 80);
  EXPECT_TRUE(IsBetterFar(inputs, more, kNearHome, kFarHome)) << "96 us near, and else 80 near and 67 us far at once";
}

TEST(PlacementTest, WhatAllTogetherGainFollowsFromWhatBinds) {
  Case inputs = Inputs(1000, 0);
  inputs.held = {};
  inputs.Hold(kFarHome, 10, 100);
  // Together 1100 + 100; in two micro-batches the weights are read twice.
  EXPECT_NEAR(GainTogether(inputs), 2200.0 / 1200, 1e-9);
  inputs.Hold(kFarHome, 10, 6600);
  // Together 1100 + 6600; in two the homes are always busy.
  EXPECT_NEAR(GainTogether(inputs), 6600.0 / 7700, 1e-9);
}

TEST(PlacementTest, WithNobodyNearAllGoFar) {
  Case inputs = Inputs(80, 5);
  inputs.held.homes[kNearHome] = {};
  EXPECT_EQ(FarShare(inputs), 5);
  EXPECT_TRUE(Choose(inputs).far);
}

}  // namespace
}  // namespace fastdecode
