// FAST PATH (docs/FAST_PATH.md)
#include "engine/schedule/step_cost_tracker.h"

#include <algorithm>
#include <bit>

namespace fastdecode {

namespace {

constexpr double kHalfLifeShare = 0.0034597;  // 1 - 0.5^(1/200)
constexpr double kFactorMin = 0.7, kFactorMax = 1.4;
// A step further off than that counts as so far off: something else than the work held it up.
constexpr double kRatioMin = 0.5, kRatioMax = 2;
constexpr double kMeanCountMax = 64;
// A sequence costs a home about as much as so many tokens of KV, beside its own (docs/PERFORMANCE.md).
constexpr double kSequenceTokens = 12;
// What a read rate is worth in steps, and for how many tokens it stands.
constexpr double kRateWeight = 10, kRateTokens = 65'536;

double Follow(double factor, double measured, double expected) {
  const double ratio = std::clamp(measured / expected, kRatioMin, kRatioMax);
  return std::clamp(factor + kHalfLifeShare * (ratio - factor), kFactorMin, kFactorMax);
}

// What the near homes add to a stage.
double NearUs(const StepCosts& costs, const MicroBatchLoad& load) {
  double near_us = 0;
  for (size_t h = 0; h < costs.home_limit; ++h) {
    if (costs.homes[h].near) near_us = std::max(near_us, HomeUs(costs.homes[h], load.homes[h]));
  }
  return near_us;
}

}  // namespace

StepCostTracker::StepCostTracker(const Start& start) : is_calibrated_(start.calibrated.has_value()), start_(start) {
  if (is_calibrated_) costs_ = *start.calibrated;
  costs_.layers = start.layers;
  costs_.home_limit = 0;
}

void StepCostTracker::AddHome(int home, double read_rate, bool near) {
  const auto h = static_cast<size_t>(home);
  costs_.home_limit = std::max(costs_.home_limit, h + 1);
  homes_[h] = {};
  if (is_calibrated_) {
    costs_.homes[h] = start_.calibrated->homes[h];
  } else {
    costs_.homes[h] = {};
    if (read_rate > 0) {
      const double token_us = start_.kv_token_bytes / read_rate, us = kRateTokens * token_us;
      costs_.homes[h].token_us = token_us;
      const double weight = kRateWeight / std::max(us * us, 1.0);
      homes_[h].line = {weight, weight * kRateTokens, weight * us, weight * kRateTokens * kRateTokens,
                        weight * kRateTokens * us};
    }
  }
  costs_.homes[h].near = near;
  homes_[h].near_rate = near ? read_rate : 0;
  Apply();
}

bool StepCostTracker::Knows(const MicroBatchLoad& load) const {
  if (is_calibrated_) return true;
  for (size_t h = 0; h < costs_.home_limit; ++h) {
    if (load.homes[h].sequences > 0 && costs_.homes[h].tokens_max == 0) return false;  // none was learned
  }
  return costs_.stage.count > 0;
}

StepForecast StepCostTracker::Note(int m, const MicroBatchLoad& load, const MeasuredStep& took) {
  loads_[static_cast<size_t>(m)] = load;
  const RoundTimes round = PredictRound(costs_, loads_.data(), start_.micro_batches);
  StepForecast forecast;
  const double near_us = took.near_us > 0 ? 0 : NearUs(costs_, load);
  if (took.stage_us > 0) forecast.stage_us = round.s_factor * (costs_.stage.At(load.rows) + near_us);
  if (took.round_us > 0 && !took.has_chunks) forecast.round_us = round.us;
  if (is_calibrated_) {
    Correct(load, took, round, forecast.stage_us);
  } else {
    Learn(load, took, round);
  }
  Apply();
  return forecast;
}

void StepCostTracker::Correct(const MicroBatchLoad& load, const MeasuredStep& took, const RoundTimes& round,
                              double stage_us) {
  if (stage_us > 0) s_factor_ = Follow(s_factor_, took.stage_us, stage_us / s_factor_);
  for (size_t h = 0; h < costs_.home_limit && !took.has_chunks; ++h) {
    if (took.home_us[h] <= 0 || load.homes[h].sequences <= 0) continue;
    const double expected_us = round.r_factor * HomeUs(start_.calibrated->homes[h], load.homes[h]);
    if (expected_us > 0) homes_[h].factor = Follow(homes_[h].factor, took.home_us[h], expected_us);
  }
  const int near = took.has_chunks || took.near_us <= 0 ? -1 : SlowestNearHome(load);
  if (near < 0) return;
  const double expected_us = round.s_factor * HomeUs(start_.calibrated->homes[near], load.homes[near]);
  if (expected_us > 0) homes_[near].factor = Follow(homes_[near].factor, took.near_us, expected_us);
}

void StepCostTracker::Learn(const MicroBatchLoad& load, const MeasuredStep& took, const RoundTimes& round) {
  // Chunks' rows would make a line through far fewer decode rows meaningless.
  if (took.has_chunks) return;
  // However little the near homes leave, some of a stage is the S-Part's.
  if (took.stage_us > 0) {
    const double near_us = took.near_us > 0 ? 0 : NearUs(costs_, load);
    LearnStage(load.rows, std::max(took.stage_us - near_us, took.stage_us / 10));
  }
  if (const int near = SlowestNearHome(load); took.near_us > 0 && near >= 0) {
    LearnHome(static_cast<size_t>(near), load.homes[near], took.near_us);
  }
  for (size_t h = 0; h < costs_.home_limit; ++h) {
    if (took.home_us[h] > 0 && load.homes[h].sequences > 0) LearnHome(h, load.homes[h], took.home_us[h]);
  }
  LearnHop(took);
  if (took.round_us <= 0 || took.stage_us <= 0) return;
  // At most twice what it was, however long something held the step up.
  const double bound_us = rest_us_ < 0 ? round.us : 2 * rest_us_ + 1;
  const double rest_us = std::clamp(took.round_us - (round.us - costs_.boundary_us), 0.0, bound_us);
  rest_us_ = rest_us_ < 0 ? rest_us : rest_us_ + kHalfLifeShare * (rest_us - rest_us_);
}

// The near home whose time the S-Part's attention took: several attend side by side. -1: it had nothing at any.
int StepCostTracker::SlowestNearHome(const MicroBatchLoad& load) const {
  int slowest = -1;
  double most_us = -1;
  for (size_t h = 0; h < costs_.home_limit; ++h) {
    if (!costs_.homes[h].near || load.homes[h].sequences <= 0) continue;
    const double us = HomeUs(costs_.homes[h], load.homes[h]);
    if (us <= most_us) continue;
    most_us = us;
    slowest = static_cast<int>(h);
  }
  return slowest;
}

// With several micro-batches a reply may be there long before the S-Part's stage for another one is over.
void StepCostTracker::LearnHop(const MeasuredStep& took) {
  const auto has_rows = [](const MicroBatchLoad& each) { return each.rows > 0; };
  const bool seen_at_once = std::count_if(loads_.begin(), loads_.end(), has_rows) == 1;
  double& hop_us = costs_.hop_us;
  if (took.hop_us > 0 && seen_at_once) {
    hop_us = hop_us == 0 ? took.hop_us : hop_us + kHalfLifeShare * (took.hop_us - hop_us);
    return;
  }
  for (const double bound_us : {took.hop_us, took.hop_bound_us}) {
    if (bound_us > 0 && (hop_us == 0 || bound_us < hop_us)) hop_us = bound_us;
  }
}

void StepCostTracker::LearnStage(double rows, double us) {
  const auto bucket = static_cast<size_t>(std::bit_width(static_cast<unsigned>(std::max(rows, 1.0)))) - 1;
  Mean& mean = stages_[std::min(bucket, kRowBuckets - 1)];
  mean.count = std::min(mean.count + 1, kMeanCountMax);
  mean.rows += (rows - mean.rows) / mean.count;
  mean.us += (us - mean.us) / mean.count;
}

// Relative errors count alike: each step has the weight of one over its squared time.
void StepCostTracker::LearnHome(size_t home, const HomeLoad& load, double us) {
  Line& line = homes_[home].line;
  for (double* sum : {&line.weight, &line.x, &line.y, &line.xx, &line.xy}) *sum *= 1 - kHalfLifeShare;
  const double weight = 1 / (us * us), x = load.tokens + kSequenceTokens * load.sequences;
  line.weight += weight;
  line.x += weight * x;
  line.y += weight * us;
  line.xx += weight * x * x;
  line.xy += weight * x * us;
  const double spread = line.weight * line.xx - line.x * line.x;
  double slope = line.xy / line.xx, start = 0;  // through the origin
  if (spread > 1e-6 * line.weight * line.xx) {
    const double fitted = (line.weight * line.xy - line.x * line.y) / spread;
    const double at_zero = (line.y - fitted * line.x) / line.weight;
    if (fitted < 0) {
      slope = 0;
      start = line.y / line.weight;
    } else if (at_zero >= 0) {
      slope = fitted;
      start = at_zero;
    }
  }
  HomeCosts& costs = costs_.homes[home];
  costs.hop_us = start;
  costs.sequence_us = kSequenceTokens * slope;
  costs.token_us = slope;
  costs.tokens_max = std::max(costs.tokens_max, load.tokens / load.sequences);
}

// Brings the costs up to date.
void StepCostTracker::Apply() {
  if (is_calibrated_) {
    const StepCosts& from = *start_.calibrated;
    for (size_t i = 0; i < from.stage.count; ++i) costs_.stage.us[i] = s_factor_ * from.stage.us[i];
    for (size_t i = 0; i < from.head.count; ++i) costs_.head.us[i] = s_factor_ * from.head.us[i];
    for (size_t h = 0; h < costs_.home_limit; ++h) {
      costs_.homes[h].hop_us = homes_[h].factor * from.homes[h].hop_us;
      costs_.homes[h].sequence_us = homes_[h].factor * from.homes[h].sequence_us;
      costs_.homes[h].token_us = homes_[h].factor * from.homes[h].token_us;
      costs_.homes[h].pair_us = homes_[h].factor * from.homes[h].pair_us;
    }
    return;
  }
  costs_.boundary_us = std::max(0.0, rest_us_);
  costs_.stage.count = 0;
  for (const Mean& mean : stages_) {
    if (mean.count > 0) costs_.stage.Add(mean.rows, mean.us);
  }
  if (costs_.stage.count > 0) return;
  double near_rate = 0;
  for (const Home& home : homes_) near_rate += home.near_rate;
  if (near_rate > 0) costs_.stage.Add(0, start_.weight_bytes / near_rate / costs_.layers);
}

}  // namespace fastdecode
