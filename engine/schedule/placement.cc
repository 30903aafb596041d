// FAST PATH (docs/FAST_PATH.md)
#include "engine/schedule/placement.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace fastdecode {

namespace {

// Some answers are so much longer than the mean: what is late at far homes is alone in the end, which costs as much as
// they are slower.
constexpr double kLonger = 0.75;
constexpr double kHeldBonus = 1.1;
constexpr double kFirstGainMin = 1.02;  // the model is no better than that
constexpr StepPlan kFarPlans[] = {StepPlan::kTogether, StepPlan::kMixed, StepPlan::kApart};

bool Possible(StepPlan plan, int micro_batches) { return plan == StepPlan::kTogether || micro_batches > 1; }

// The near ones of a load, or the far ones.
MicroBatchLoad Part(const StepCosts& costs, const MicroBatchLoad& load, bool near) {
  MicroBatchLoad part;
  for (size_t h = 0; h < costs.home_limit; ++h) {
    if (costs.homes[h].near != near) continue;
    part.homes[h] = load.homes[h];
    part.rows += load.homes[h].sequences;
  }
  return part;
}

// What `times` such loads are together.
MicroBatchLoad Times(const StepCosts& costs, const MicroBatchLoad& load, double times) {
  MicroBatchLoad all;
  for (size_t h = 0; h < costs.home_limit; ++h) {
    all.homes[h] = {load.homes[h].sequences * times, load.homes[h].tokens * times, load.homes[h].pairs * times};
    all.rows += all.homes[h].sequences;
  }
  return all;
}

// As if `count` of those that wait were at far homes.
PlanInputs WithFar(const PlanInputs& inputs, double count) {
  PlanInputs with = inputs;
  const MicroBatchLoad more = Times(*inputs.costs, inputs.each, count);
  for (size_t h = 0; h < inputs.costs->home_limit; ++h) {
    with.held.homes[h].sequences += more.homes[h].sequences;
    with.held.homes[h].tokens += more.homes[h].tokens;
  }
  return with;
}

// All layers of the slowest home.
double SlowestHomeUs(const StepCosts& costs, const MicroBatchLoad& load) {
  double us = 0;
  for (size_t h = 0; h < costs.home_limit; ++h) us = std::max(us, HomeUs(costs.homes[h], load.homes[h]));
  return costs.layers * us;
}

// All layers of the slowest far home among those that have, or would get, somebody.
double FarUs(const PlanInputs& inputs, const MicroBatchLoad& far) {
  const StepCosts& costs = *inputs.costs;
  double us = 0;
  for (size_t h = 0; h < costs.home_limit; ++h) {
    if (far.homes[h].sequences <= 0 && inputs.each.homes[h].sequences <= 0) continue;
    us = std::max(us, costs.homes[h].hop_us + AddedHomeUs(costs.homes[h], far.homes[h]));
  }
  return costs.layers * us;
}

double StepUs(const StepCosts& costs, const MicroBatchLoad& load) { return PredictRound(costs, &load, 1).us; }

// How long the S-Part works for one step of so many rows, without attention.
double WeightsUs(const StepCosts& costs, double rows) {
  return costs.layers * costs.stage.At(rows) + BetweenUs(costs, rows);
}

// Near ones step all the time, and far ones come in between.
double ApartRate(const PlanInputs& inputs) {
  const StepCosts& costs = *inputs.costs;
  const MicroBatchLoad near = Part(costs, inputs.held, true), far = Part(costs, inputs.held, false);
  const int far_batches = inputs.micro_batches - 1;
  const double near_step_us = near.rows > 0 ? StepUs(costs, near) : WeightsUs(costs, 1);
  const double far_us = SlowestHomeUs(costs, far);
  const double weights_us = WeightsUs(costs, far.rows / far_batches);
  // The S-Part has always something to do for those near: one far micro-batch comes in the middle of it, each time; of
  // several one has its KV read while the S-Part works for others, in turn with those near. What it works for far ones
  // it does not for near ones.
  const double far_weights_us = far_batches * weights_us;
  double far_step_us = std::max(far_us, far_weights_us + near_step_us);
  if (far_batches == 1) far_step_us = weights_us + std::max(far_us + near_step_us / 2, near_step_us);
  const double near_share = 1 - far_weights_us / far_step_us;
  return far.rows / far_step_us + near.rows * near_share / near_step_us;
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

bool HasFar(const PlanInputs& inputs) {
  for (size_t h = 0; h < inputs.costs->home_limit; ++h) {
    if (!inputs.costs->homes[h].near && inputs.held.homes[h].sequences > 0) return true;
  }
  return false;
}

double TokenRate(StepPlan plan, const PlanInputs& inputs) {
  const StepCosts& costs = *inputs.costs;
  switch (plan) {
    case StepPlan::kNear: {
      const MicroBatchLoad near = Part(costs, inputs.held, true);
      return near.rows > 0 ? near.rows / StepUs(costs, near) : 0;
    }
    case StepPlan::kTogether: {
      const MicroBatchLoad all = Times(costs, inputs.held, 1);
      return all.rows / StepUs(costs, all);
    }
    case StepPlan::kMixed: {
      std::array<MicroBatchLoad, kMicroBatchesOfModelMax> loads;
      std::fill_n(loads.begin(), inputs.micro_batches, Times(costs, inputs.held, 1.0 / inputs.micro_batches));
      const double rows = loads[0].rows * inputs.micro_batches;
      return rows / PredictRound(costs, loads.data(), inputs.micro_batches).us;
    }
    case StepPlan::kApart:
      break;
  }
  return ApartRate(inputs);
}

double FarShare(const PlanInputs& inputs) {
  const StepCosts& costs = *inputs.costs;
  const MicroBatchLoad near = Part(costs, inputs.held, true), far = Part(costs, inputs.held, false);
  const double most = std::min(inputs.waiting, inputs.room);
  if (near.rows <= 0) return most;
  double added_us = 0;
  for (size_t h = 0; h < costs.home_limit; ++h) {
    if (!costs.homes[h].near) added_us = std::max(added_us, AddedHomeUs(costs.homes[h], inputs.each.homes[h]));
  }
  // Near, each that waits takes its turn after those before it; at far homes all take longer by each.
  const double near_step_us = StepUs(costs, near);
  const double turn_us = near_step_us / near.rows * inputs.growth;
  const double near_end_us = near_step_us + inputs.waiting * turn_us;
  const double each_us = inputs.growth * costs.layers * added_us;
  const double far_step_us = WeightsUs(costs, far.rows) + inputs.growth * FarUs(inputs, far);
  // What is alone in the end goes on no slower than all went near.
  if ((far.rows + most) * turn_us >= far_step_us + most * each_us) return most;
  const double longest = 1 + kLonger * std::max(0.0, 1 - turn_us / each_us);
  const double far_end_us = longest * far_step_us;
  const double share = (near_end_us - far_end_us) / (longest * each_us + turn_us);
  return std::floor(std::clamp(share, 0.0, most));
}

StepPlan ChoosePlan(StepPlan held, const PlanInputs& inputs) {
  return HasFar(inputs) ? BestPlan(held, inputs).plan : StepPlan::kNear;
}

bool IsBetterFar(const PlanInputs& inputs, const HomeLoad& more, int near, int far) {
  const auto rate_with = [&](int home) {
    PlanInputs with = inputs;
    HomeLoad& load = with.held.homes[static_cast<size_t>(home)];
    load.sequences += more.sequences;
    load.tokens += more.tokens;
    // No plan is preferred for having been there.
    return HasFar(with) ? BestPlan(StepPlan::kNear, with).rate : TokenRate(StepPlan::kNear, with);
  };
  return rate_with(far) > rate_with(near);
}

double CostOfHome(const PlanInputs& inputs, int home, const HomeLoad& more, double steps, double found,
                  double chunk_rows) {
  const StepCosts& costs = *inputs.costs;
  MicroBatchLoad with = inputs.held;
  HomeLoad& load = with.homes[static_cast<size_t>(home)];
  load.sequences += more.sequences;
  load.tokens += more.tokens;
  const double step_us = SlowestHomeUs(costs, with) - SlowestHomeUs(costs, inputs.held);
  const double row_us = costs.stage.At(chunk_rows) / chunk_rows;
  const double pairs_us = costs.homes[static_cast<size_t>(home)].pair_us * found / 2;
  return steps * step_us - found * costs.layers * (row_us + pairs_us);
}

double GainTogether(const PlanInputs& inputs) {
  return TokenRate(StepPlan::kTogether, inputs) / TokenRate(StepPlan::kMixed, inputs);
}

Placement ChoosePlacement(StepPlan held, const PlanInputs& inputs, bool must_go) {
  const double share = FarShare(inputs), count = must_go ? std::max(share, 1.0) : share;
  if (count < 1) return {false, held};
  const Best with = BestPlan(held, WithFar(inputs, count));
  const double without =
      HasFar(inputs) ? BestPlan(held, inputs).rate : kFirstGainMin * TokenRate(StepPlan::kNear, inputs);
  if (!must_go && with.rate <= without) return {false, held};
  return {true, with.plan};
}

}  // namespace fastdecode
