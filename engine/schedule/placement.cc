// FAST PATH (docs/FAST_PATH.md)
#include "engine/schedule/placement.h"

#include <algorithm>
#include <cmath>

namespace fastdecode {

namespace {

// Some answers are so much longer than the mean: what is late at far homes is alone in the end, which costs as much as
// they are slower.
constexpr double kLonger = 0.75;
constexpr double kHeldBonus = 1.1;
constexpr double kFirstGainMin = 1.02;  // latencies of hops and their waits are not in the model
constexpr StepPlan kFarPlans[] = {StepPlan::kTogether, StepPlan::kMixed, StepPlan::kApart};

bool Possible(StepPlan plan, int micro_batches) { return plan == StepPlan::kTogether || micro_batches > 1; }

// As if `count` of those that wait were at far homes.
PlanInputs WithFar(PlanInputs inputs, double count) {
  inputs.far_sequences += count;
  inputs.far_us += count * inputs.waiting_us;
  return inputs;
}

struct Best {
  StepPlan plan;
  double rate;
};

Best BestPlan(StepPlan held, const PlanInputs& inputs) {
  Best best = {StepPlan::kTogether, 0};
  double most = -1;
  for (const StepPlan plan : kFarPlans) {
    if (!Possible(plan, inputs.micro_batches)) continue;
    const double rate = TokenRate(plan, inputs), weighed = plan == held ? kHeldBonus * rate : rate;
    if (weighed <= most) continue;
    most = weighed;
    best = {plan, rate};
  }
  return best;
}

}  // namespace

double TokenRate(StepPlan plan, const PlanInputs& inputs) {
  const double all = inputs.near_sequences + inputs.far_sequences;
  const double weights_us = inputs.weights_us, near_step_us = weights_us + inputs.near_us;
  switch (plan) {
    case StepPlan::kNear:
      return inputs.near_sequences / near_step_us;
    case StepPlan::kTogether:
      return all / (weights_us + std::max(inputs.near_us, inputs.far_us));
    case StepPlan::kMixed:
      return all / std::max(inputs.far_us, inputs.micro_batches * weights_us + inputs.near_us);
    case StepPlan::kApart:
      break;
  }
  // The S-Part has always something to do for those near: one far micro-batch comes in the middle of it, each time; of
  // several one has its KV read while the S-Part works for others, in turn with those near. What it works for far ones
  // it does not for near ones.
  const double far_weights_us = (inputs.micro_batches - 1) * weights_us;
  double far_step_us = std::max(inputs.far_us, far_weights_us + near_step_us);
  if (inputs.micro_batches == 2) far_step_us = weights_us + std::max(inputs.far_us + near_step_us / 2, near_step_us);
  const double near_share = 1 - far_weights_us / far_step_us;
  return inputs.far_sequences / far_step_us + inputs.near_sequences * near_share / near_step_us;
}

double FarShare(const PlanInputs& inputs) {
  const double most = std::min(inputs.waiting, inputs.room);
  if (inputs.near_sequences <= 0) return most;
  // Near, each that waits takes its turn after those before it; at far homes all take longer by each.
  const double near_step_us = inputs.weights_us + inputs.near_us;
  const double turn_us = near_step_us / inputs.near_sequences * inputs.growth;
  const double near_end_us = near_step_us + inputs.waiting * turn_us;
  const double each_us = inputs.growth * inputs.waiting_us;
  const double far_step_us = inputs.weights_us + inputs.growth * inputs.far_us;
  // What is alone in the end goes on no slower than all went near.
  if ((inputs.far_sequences + most) * turn_us >= far_step_us + most * each_us) return most;
  const double longest = 1 + kLonger * std::max(0.0, 1 - turn_us / each_us);
  const double far_end_us = longest * far_step_us;
  const double share = (near_end_us - far_end_us) / (longest * each_us + turn_us);
  return std::floor(std::clamp(share, 0.0, most));
}

StepPlan ChoosePlan(StepPlan held, const PlanInputs& inputs) {
  return inputs.far_sequences > 0 ? BestPlan(held, inputs).plan : StepPlan::kNear;
}

Placement ChoosePlacement(StepPlan held, const PlanInputs& inputs, bool must_go) {
  const double share = FarShare(inputs), count = must_go ? std::max(share, 1.0) : share;
  if (count < 1) return {false, held};
  const Best with = BestPlan(held, WithFar(inputs, count));
  const double without =
      inputs.far_sequences > 0 ? BestPlan(held, inputs).rate : kFirstGainMin * TokenRate(StepPlan::kNear, inputs);
  if (!must_go && with.rate <= without) return {false, held};
  return {true, with.plan};
}

}  // namespace fastdecode
