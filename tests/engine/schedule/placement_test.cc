#include "engine/schedule/placement.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

// 8 layers of llama-3-8b on an H200, with 60 sequences of 2048 tokens (64 MiB) in its 4 GiB, which are full.
PlanInputs Inputs(double far_gb_per_s, double waiting) {
  constexpr double kSequenceBytes = 64 << 20;
  PlanInputs inputs;
  inputs.micro_batches = 2;
  inputs.weights_us = 1100;
  inputs.near_us = 60 * kSequenceBytes / 4.2e6;
  inputs.near_sequences = 60;
  inputs.waiting = inputs.room = waiting;
  inputs.waiting_us = kSequenceBytes / (far_gb_per_s * 1e3);
  return inputs;
}

PlanInputs Taken(PlanInputs inputs, double count) {
  inputs.waiting -= count;
  inputs.room -= count;
  inputs.far_sequences += count;
  inputs.far_us += count * inputs.waiting_us;
  return inputs;
}

Placement Choose(const PlanInputs& inputs, StepPlan held = StepPlan::kNear) {
  return ChoosePlacement(held, inputs, /*must_go=*/false);
}

TEST(PlacementTest, RatesAreThoseOfTheReads) {
  PlanInputs inputs = Inputs(80, 0);
  EXPECT_NEAR(TokenRate(StepPlan::kNear, inputs) * 1e6, 60 / 2.0587e-3, 10);
  inputs = Taken(Inputs(80, 196), 196);
  const double far_us = 196 * 838.86;
  EXPECT_NEAR(inputs.far_us, far_us, 10);
  EXPECT_NEAR(TokenRate(StepPlan::kTogether, inputs), 256 / (far_us + 1100), 1e-6);
  EXPECT_NEAR(TokenRate(StepPlan::kMixed, inputs), 256 / far_us, 1e-6);
  EXPECT_NEAR(TokenRate(StepPlan::kApart, inputs), 196 / (far_us + 2122) + 60 * (1 - 1100 / (far_us + 2122)) / 2058.7,
              1e-5)
      << "half of a near step comes first";
  inputs.far_us = 6600;
  inputs.micro_batches = 4;
  EXPECT_NEAR(TokenRate(StepPlan::kApart, inputs), 196 / 6600.0 + 60 * 0.5 / 2058.7, 1e-5);
  inputs.far_us = 1000;  // three micro-batches' weights take longer than a far home's KV: all take turns
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
  PlanInputs inputs = Inputs(80, 4000);
  EXPECT_GT(FarShare(inputs), 50);
  inputs.room = 50;
  EXPECT_EQ(FarShare(inputs), 50);
  inputs.near_sequences = 0;
  EXPECT_EQ(FarShare(inputs), 50);
}

TEST(PlacementTest, FastHomesStepWithTheNearOne) {
  const Placement many = Choose(Inputs(4000, 196));
  EXPECT_TRUE(many.far);
  EXPECT_EQ(many.plan, StepPlan::kMixed);
  const Placement few = Choose(Inputs(4000, 60));
  EXPECT_TRUE(few.far);
  EXPECT_EQ(few.plan, StepPlan::kTogether);
  PlanInputs one = Inputs(4000, 196);
  one.micro_batches = 1;
  EXPECT_TRUE(Choose(one).far);
  EXPECT_EQ(Choose(one).plan, StepPlan::kTogether) << "there is no other";
}

// What is placed at far homes is done when the rest is: the next of the queue is asked for again and again.
TEST(PlacementTest, TheShareEndsWithTheQueue) {
  PlanInputs inputs = Inputs(80, 4000);
  StepPlan plan = StepPlan::kNear;
  int taken = 0;
  for (Placement next = Choose(inputs, plan); next.far; next = Choose(inputs, plan)) {
    plan = next.plan;
    inputs = Taken(inputs, 1);
    ASSERT_LT(++taken, 4000);
  }
  EXPECT_EQ(taken, static_cast<int>(FarShare(Inputs(80, 4000))));
  const double near_step_us = inputs.weights_us + inputs.near_us;
  const double near_end_us = near_step_us * (1 + inputs.waiting / 60), far_end_us = inputs.weights_us + inputs.far_us;
  EXPECT_LE(1.5 * far_end_us, near_end_us) << "the longest of them, too";
  EXPECT_GT(2 * far_end_us, near_end_us);
}

// KV doubles as they go on: that counts at far homes, and near they take their turns later.
TEST(PlacementTest, TheShareKnowsThatKvGrows) {
  PlanInputs inputs = Inputs(80, 4000);
  const double share = FarShare(inputs);
  inputs.growth = 1.5;
  EXPECT_NEAR(FarShare(inputs), share, 0.05 * share) << "both, with many";
  inputs = Taken(inputs, share);
  EXPECT_LT(FarShare(inputs), 5);
  inputs.waiting = inputs.room = 40;
  inputs.far_sequences = inputs.far_us = 0;
  inputs.growth = 1;
  const double few = FarShare(inputs);
  inputs.growth = 3;
  EXPECT_LE(FarShare(inputs), few + 1);
}

// Where far homes are faster than the near one in all, nobody waits for it.
TEST(PlacementTest, FasterHomesGetAll) {
  PlanInputs inputs = Inputs(4000, 196);
  EXPECT_EQ(FarShare(inputs), 196);
  inputs = Inputs(600, 20);
  inputs.near_sequences = 3;
  inputs.near_us = 50;
  EXPECT_EQ(FarShare(inputs), 20);
}

// Whatever the rates, the model gives no less for what it chooses than near homes give alone.
TEST(PlacementTest, NeverLessThanNearAlone) {
  for (const double gb_per_s : {10.0, 80.0, 300.0, 1000.0, 4200.0, 20000.0}) {
    for (const int micro_batches : {1, 2, 3, 4}) {
      for (double waiting = 1; waiting < 5000; waiting *= 1.7) {
        PlanInputs inputs = Inputs(gb_per_s, std::floor(waiting));
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
  PlanInputs inputs;
  inputs.micro_batches = 2;
  inputs.weights_us = 1000;
  inputs.near_us = 1000;
  inputs.near_sequences = inputs.far_sequences = 100;
  inputs.far_us = 2100;  // together 3100, mixed 3000
  EXPECT_EQ(ChoosePlan(StepPlan::kNear, inputs), StepPlan::kMixed);
  EXPECT_EQ(ChoosePlan(StepPlan::kTogether, inputs), StepPlan::kTogether);
  inputs.far_us = 1900;  // together 2900
  EXPECT_EQ(ChoosePlan(StepPlan::kNear, inputs), StepPlan::kTogether);
  EXPECT_EQ(ChoosePlan(StepPlan::kMixed, inputs), StepPlan::kMixed);
  inputs.far_us = 1500;  // together 2500
  EXPECT_EQ(ChoosePlan(StepPlan::kMixed, inputs), StepPlan::kTogether);
  inputs.far_sequences = 0;
  EXPECT_EQ(ChoosePlan(StepPlan::kMixed, inputs), StepPlan::kNear);
}

TEST(PlacementTest, OneThatMustGoGoes) {
  const Placement placement = ChoosePlacement(StepPlan::kNear, Inputs(80, 1), /*must_go=*/true);
  EXPECT_TRUE(placement.far);
  EXPECT_EQ(placement.plan, StepPlan::kTogether) << "its KV is read while near homes read theirs";
  EXPECT_EQ(ChoosePlacement(StepPlan::kNear, Inputs(8, 1), /*must_go=*/true).plan, StepPlan::kApart);
}

TEST(PlacementTest, WithNobodyNearAllGoFar) {
  PlanInputs inputs = Inputs(80, 5);
  inputs.near_us = inputs.near_sequences = 0;
  EXPECT_EQ(FarShare(inputs), 5);
  EXPECT_TRUE(Choose(inputs).far);
}

}  // namespace
}  // namespace fastdecode
