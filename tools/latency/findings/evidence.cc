#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tools/latency/analysis/critical_path.h"
#include "tools/latency/findings/finders.h"
#include "tools/latency/findings/robust.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Enough blocks for an error by their differences, each with enough steps for a median, and long enough that what
// drifts over tenths of a second is not the same in two of them.
constexpr int kBlocksMax = 12, kLongBlocksMin = 6;
constexpr size_t kStepsOfBlock = 6;
// A hop whose wire time is this well known says how long its link takes...
constexpr double kKnownNs = 1000;
constexpr double kKnownShare = 0.25;
// ...if so many of the hops do, or if these take at most so many times what all do as far as one can see.
constexpr double kKnownOfHopsMin = 0.1;
constexpr double kKnownTimesMax = 3;

bool WireIsKnown(const HopTimes& hop) {
  const double known_ns = static_cast<double>(hop.wire_least_ns);
  return static_cast<double>(hop.wire_ns) <= known_ns + std::max(kKnownNs, kKnownShare * known_ns);
}

double UsualWireNs(const std::vector<const HopTimes*>& hops) {
  std::vector<double> wire_ns;
  for (const HopTimes* hop : hops) wire_ns.push_back(static_cast<double>(hop->wire_ns));
  return Median(std::move(wire_ns));
}

}  // namespace

Evidence::Evidence(const Recording& of, const Timeline& in)
    : recording(of), timeline(in), pipeline(of.events, !of.stages_overlap()), in_memory_(of.SameHost(in.homes)) {
  for (size_t home = 0; home < in_memory_.size(); ++home) {
    // Said to have the engine's clock, and found to have it.
    const bool clock_known = home < in.clocks.size() && in.clocks[home].known;
    in_memory_[home] = in_memory_[home] && clock_known && in.clocks[home].bound_ns == 0;
  }
  double sum_ns = 0, following = 0;
  for (const StepTimes& step : timeline.steps) {
    if (step.prefill || step.rows == 0) continue;
    decode_steps_.push_back(&step);
    if (!MakesTokens(step)) continue;
    sum_ns += static_cast<double>(step.end_ns - step.start_ns) * step.tokens;
    following += step.tokens;
  }
  token_ns_ = following > 0 ? sum_ns / following : 0;
  blocks_ = std::clamp(static_cast<int>(decode_steps_.size() / kStepsOfBlock), 1, kBlocksMax);
}

bool Evidence::long_enough() const { return blocks_ >= kLongBlocksMin; }

int Evidence::BlockOf(uint64_t at_ns) const {
  if (at_ns <= timeline.start_ns || timeline.end_ns <= timeline.start_ns) return 0;
  const double share =
      static_cast<double>(at_ns - timeline.start_ns) / static_cast<double>(timeline.end_ns - timeline.start_ns);
  return std::min(blocks_ - 1, static_cast<int>(share * blocks_));
}

std::span<const PartTimes> Evidence::PartsOf(const StepTimes& step) const {
  if (step.stages == 0) return {};
  const StageTimes& first = timeline.stages[step.first_stage];
  const StageTimes& last = timeline.stages[step.first_stage + step.stages - 1];
  return {timeline.parts.data() + first.first_part, last.first_part + last.parts - first.first_part};
}

LinkHops Evidence::HopsOfLink(int home) const {
  std::vector<const HopTimes*> known, all;
  VisitHops(home, [&](const HopTimes& hop) {
    all.push_back(&hop);
    if (WireIsKnown(hop)) known.push_back(&hop);
  });
  const bool many = static_cast<double>(known.size()) >= kKnownOfHopsMin * static_cast<double>(all.size());
  if (many || UsualWireNs(known) <= kKnownTimesMax * UsualWireNs(all)) return {known, true};
  return {all, false};
}

double Evidence::SavedOfLayer(std::span<const HopTimes> layer, const HopTimes& last,
                              std::span<const double> excess_ns) const {
  uint64_t ready_ns = 0;
  for (size_t i = 0; i < layer.size(); ++i) {
    const uint64_t there_ns = layer[i].seen_ns - layer[i].pickup_ns;
    ready_ns = std::max(ready_ns, there_ns - static_cast<uint64_t>(excess_ns[i]));
  }
  const uint64_t seen_ns = pipeline.FreeFrom(ready_ns);
  return last.seen_ns > seen_ns ? static_cast<double>(last.seen_ns - seen_ns) : 0;
}

std::vector<double> Evidence::CostOf(const std::vector<double>& excess_ns) const {
  std::vector<double> cost_ns(static_cast<size_t>(timeline.homes), 0);
  double tokens = 0;
  for (const StepTimes* step : decode_steps_) {
    const std::span<const HopTimes> hops = HopsOf(*step);
    const std::span<const double> excess_of_step = std::span(excess_ns).subspan(step->first_hop, step->hops);
    tokens += step->tokens;
    for (size_t first = 0; first < hops.size();) {
      const auto count = static_cast<size_t>(hops[first].homes);
      const std::span<const HopTimes> layer = hops.subspan(first, count);
      const HopTimes& last = *std::find_if(layer.begin(), layer.end(), [](const HopTimes& hop) { return hop.last; });
      cost_ns[static_cast<size_t>(last.home)] +=
          SavedOfLayer(layer, last, excess_of_step.subspan(first, count)) * step->tokens;
      first += count;
    }
  }
  for (double& cost : cost_ns) cost = tokens > 0 ? cost / tokens : 0;
  return cost_ns;
}

std::vector<double> Evidence::CostOfHomes(const std::vector<double>& excess_ns) const {
  std::vector<double> of_hops;
  of_hops.reserve(timeline.hops.size());
  for (const HopTimes& hop : timeline.hops) of_hops.push_back(excess_ns[static_cast<size_t>(hop.home)]);
  return CostOf(of_hops);
}

double Evidence::CostOfHome(int home, double excess_ns) const {
  std::vector<double> of_homes(static_cast<size_t>(timeline.homes), 0);
  of_homes[static_cast<size_t>(home)] = excess_ns;
  return CostOfHomes(of_homes)[static_cast<size_t>(home)];
}

std::string CostText(double cost_ns) {
  return cost_ns < 500 ? "hidden behind other work" : FormatNs(cost_ns) + " of the mean token";
}

}  // namespace fastdecode
