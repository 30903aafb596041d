#include <algorithm>
#include <string>

#include "tools/latency/findings/finders.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Enough blocks for an error by their differences, each with enough steps for a median, and long enough that what
// drifts over tenths of a second is not the same in two of them.
constexpr int kBlocksMax = 12, kBlocksMin = 6;
constexpr size_t kStepsOfBlock = 6;
// A reply that waited at least so long for the pipeline would have been seen no earlier, had it come earlier.
constexpr uint64_t kPickupLateNs = 2000;

}  // namespace

Evidence::Evidence(const Recording& of, const Timeline& in) : recording(of), timeline(in) {
  double sum_ns = 0;
  size_t following = 0;
  for (const StepTimes& step : timeline.steps) {
    if (step.prefill || step.rows == 0) continue;
    decode_steps_.push_back(&step);
    if (!step.follows) continue;
    sum_ns += static_cast<double>(step.end_ns - step.start_ns);
    ++following;
  }
  token_ns_ = following > 0 ? sum_ns / static_cast<double>(following) : 0;
  blocks_ = std::clamp(static_cast<int>(decode_steps_.size() / kStepsOfBlock), 1, kBlocksMax);
}

bool Evidence::long_enough() const { return blocks_ >= kBlocksMin; }

int Evidence::BlockOf(uint64_t at_ns) const {
  if (at_ns <= timeline.start_ns || timeline.end_ns <= timeline.start_ns) return 0;
  const double share =
      static_cast<double>(at_ns - timeline.start_ns) / static_cast<double>(timeline.end_ns - timeline.start_ns);
  return std::min(blocks_ - 1, static_cast<int>(share * blocks_));
}

double SavedWithout(const HopTimes& hop, double excess_ns) {
  if (!hop.last || hop.pickup_ns > kPickupLateNs) return 0;
  return hop.homes > 1 ? std::min(excess_ns, static_cast<double>(hop.waited_for_ns)) : excess_ns;
}

double Evidence::CostOfHops(int home, double excess_ns) const {
  if (decode_steps_.empty()) return 0;
  double sum_ns = 0;
  for (const StepTimes* step : decode_steps_) {
    for (const HopTimes* hop = HopsBegin(*step); hop != HopsEnd(*step); ++hop) {
      if (hop->home == home) sum_ns += SavedWithout(*hop, excess_ns);
    }
  }
  return sum_ns / static_cast<double>(decode_steps_.size());
}

std::string CostText(double cost_ns) {
  return cost_ns < 500 ? "hidden behind other work" : FormatNs(cost_ns) + " of the mean token";
}

}  // namespace fastdecode
