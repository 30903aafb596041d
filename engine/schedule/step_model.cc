// FAST PATH (docs/FAST_PATH.md)
#include "engine/schedule/step_model.h"

#include <algorithm>

namespace fastdecode {

namespace {

// What one layer asks of everything, before the two sides slow each other down.
struct LayerWork {
  std::array<double, kHomesOfModelMax> home_us{};
  double link_us = 0;    // of the busiest link: each home has its own way, and the engine's port takes all
  double stages_us = 0;  // with near homes' attention
  double longest_path_us = 0;
  double longest_round_us = 0;  // of one micro-batch's path through all layers, with what it does between its steps
};

// The S-Part's stages and the homes' hops of one layer for all micro-batches. `s` and `r`: how much longer they take.
LayerWork AddUp(const StepCosts& costs, const MicroBatchLoad* loads, int micro_batches, double s, double r) {
  LayerWork work;
  for (int m = 0; m < micro_batches; ++m) {
    const MicroBatchLoad& load = loads[m];
    if (load.rows <= 0) continue;
    const double stage_us = s * costs.stage.At(load.rows);
    double near_us = 0, far_us = 0, far_rows = 0;
    for (size_t h = 0; h < costs.home_limit; ++h) {
      const double us = HomeUs(costs.homes[h], load.homes[h]);
      if (us == 0) continue;
      if (costs.homes[h].near) {
        near_us = std::max(near_us, s * us);  // several of them attend side by side
        continue;
      }
      work.home_us[h] += r * us;
      far_us = std::max(far_us, r * us);
      far_rows += load.homes[h].sequences;
    }
    const double link_us = far_rows * costs.hop_row_us;
    const double hop_us = far_us > 0 ? costs.hop_us + link_us + far_us : 0;
    work.stages_us += stage_us + near_us;
    work.link_us += link_us;
    // Near homes attend while hops are out.
    const double path_us = stage_us + std::max(near_us, hop_us);
    work.longest_path_us = std::max(work.longest_path_us, path_us);
    work.longest_round_us = std::max(work.longest_round_us, costs.layers * path_us + BetweenUs(costs, load.rows));
  }
  return work;
}

struct Layer {
  double us = 0;
  double home_us = 0;
  int home = -1;
  RoundLimit limit = RoundLimit::kSPart;
};

Layer LayerOf(const StepCosts& costs, const LayerWork& work) {
  Layer layer;
  for (size_t h = 0; h < costs.home_limit; ++h) {
    if (work.home_us[h] <= layer.home_us) continue;
    layer.home_us = work.home_us[h];
    layer.home = static_cast<int>(h);
  }
  const auto longest = [&layer](double us, RoundLimit limit) {
    if (us <= layer.us) return;
    layer.us = us;
    layer.limit = limit;
  };
  longest(work.stages_us, RoundLimit::kSPart);
  longest(layer.home_us, RoundLimit::kHome);
  longest(work.link_us, RoundLimit::kLink);
  longest(work.longest_path_us, RoundLimit::kPath);
  return layer;
}

// The layers one after the other, and what the S-Part does between steps: as far as it does not fit into the time in
// which it waits for the homes of others.
double RoundUs(const StepCosts& costs, const LayerWork& work, double layer_us, const MicroBatchLoad* loads,
               int micro_batches) {
  double between_us = 0, count = 0;
  for (int m = 0; m < micro_batches; ++m) {
    if (loads[m].rows <= 0) continue;
    between_us += BetweenUs(costs, loads[m].rows);
    ++count;
  }
  const double layers_us = costs.layers * layer_us;
  if (count <= 1) return layers_us + between_us;
  const double slack_us = std::max(0.0, layer_us - work.stages_us) * (count - 1) / count;
  double round_us = layers_us;
  for (int m = 0; m < micro_batches; ++m) {
    if (loads[m].rows > 0) round_us += std::max(0.0, BetweenUs(costs, loads[m].rows) - slack_us);
  }
  return std::max({round_us, costs.layers * work.stages_us + between_us, work.longest_round_us});
}

bool IsCovered(const StepCosts& costs, const MicroBatchLoad& load) {
  if (load.rows > 0 && (!costs.stage.Covers(load.rows) || !costs.head.Covers(load.rows))) return false;
  for (size_t h = 0; h < costs.home_limit; ++h) {
    const HomeLoad& there = load.homes[h];
    if (there.sequences > 0 && there.tokens > there.sequences * costs.homes[h].tokens_max) return false;
  }
  return true;
}

}  // namespace

double AddedHomeUs(const HomeCosts& costs, const HomeLoad& more) {
  return more.sequences * costs.sequence_us + more.tokens * costs.token_us + more.pairs * costs.pair_us;
}

double HomeUs(const HomeCosts& costs, const HomeLoad& load) {
  return load.sequences > 0 ? costs.hop_us + AddedHomeUs(costs, load) : 0;
}

double BetweenUs(const StepCosts& costs, double rows) {
  return costs.head.At(rows) + costs.boundary_us + rows * costs.boundary_row_us;
}

double CostCurve::At(double at) const {
  if (count == 0) return 0;
  if (count == 1 || at <= size[0]) return us[0];
  size_t next = 1;
  while (next + 1 < count && size[next] < at) ++next;
  const double share = (at - size[next - 1]) / (size[next] - size[next - 1]);
  const double on_line = us[next - 1] + share * (us[next] - us[next - 1]);
  return at <= size[next] ? on_line : std::clamp(on_line, us[next], us[next] * at / size[next]);
}

RoundTimes PredictRound(const StepCosts& costs, const MicroBatchLoad* loads, int micro_batches) {
  RoundTimes round;
  double between_us = 0;
  int active = 0;
  for (int m = 0; m < micro_batches; ++m) {
    if (loads[m].rows <= 0) continue;
    ++active;
    between_us += BetweenUs(costs, loads[m].rows);
    round.extrapolated |= !IsCovered(costs, loads[m]);
  }
  LayerWork work = AddUp(costs, loads, micro_batches, 1, 1);
  Layer layer = LayerOf(costs, work);
  round.us = RoundUs(costs, work, layer.us, loads, micro_batches);
  // Each side is slowed by how busy the other one is, which follows from how long the round takes. One micro-batch by
  // itself is never at both.
  const bool overlaps = active > 1;
  for (int i = 0; i < 2 && overlaps && round.us > 0; ++i) {
    round.s_factor = 1 + costs.s_slowed * costs.layers * layer.home_us / round.us;
    round.r_factor = 1 + costs.r_slowed * (costs.layers * work.stages_us + between_us) / round.us;
    work = AddUp(costs, loads, micro_batches, round.s_factor, round.r_factor);
    layer = LayerOf(costs, work);
    round.us = RoundUs(costs, work, layer.us, loads, micro_batches);
  }
  round.s_us = costs.layers * work.stages_us + between_us;
  round.r_us = costs.layers * layer.home_us;
  round.limit = layer.limit;
  round.home = layer.home;
  return round;
}

}  // namespace fastdecode
