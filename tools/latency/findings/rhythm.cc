#include "tools/latency/findings/rhythm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace fastdecode {

namespace {

// Two moments make any period; three more that fit by chance, at 6 % each, are one case in thousands.
constexpr size_t kBeatsMin = 5;
constexpr double kFitMin = 0.8;    // of the moments
constexpr double kBeatsHit = 0.6;  // of the beats between the first and the last
constexpr double kToleranceShare = 0.03;
constexpr size_t kCandidatesMax = 64;

// Moments that follow from one another by whole periods, beginning with `first`.
struct Chain {
  std::vector<size_t> moments;
  std::vector<double> beats;
};

Chain Follow(const std::vector<double>& moments_ns, size_t first, double period_ns, double tolerance_ns) {
  Chain chain;
  chain.moments.push_back(first);
  chain.beats.push_back(0);
  for (size_t i = first + 1; i < moments_ns.size(); ++i) {
    const double since_ns = moments_ns[i] - moments_ns[chain.moments.back()];
    const double beats = std::round(since_ns / period_ns);
    if (std::abs(since_ns - beats * period_ns) > 2 * tolerance_ns) continue;
    chain.moments.push_back(i);
    chain.beats.push_back(chain.beats.back() + beats);
  }
  return chain;
}

// The period and the first beat by least squares.
struct Beat {
  double period_ns = 0, first_ns = 0;
};

Beat Fit(const std::vector<double>& moments_ns, const Chain& chain) {
  const double count = static_cast<double>(chain.moments.size());
  double mean_beat = 0, mean_ns = 0, squares = 0, products = 0;
  for (size_t i = 0; i < chain.moments.size(); ++i) {
    mean_beat += chain.beats[i] / count;
    mean_ns += moments_ns[chain.moments[i]] / count;
  }
  for (size_t i = 0; i < chain.moments.size(); ++i) {
    squares += (chain.beats[i] - mean_beat) * (chain.beats[i] - mean_beat);
    products += (chain.beats[i] - mean_beat) * (moments_ns[chain.moments[i]] - mean_ns);
  }
  if (squares <= 0) return {};
  const double period_ns = products / squares;
  return {period_ns, mean_ns - mean_beat * period_ns};
}

// How many moments fit, which ascend; fills in the rhythm if they are enough.
size_t Judge(const std::vector<double>& moments_ns, const Beat& beat, double tolerance_ns, Rhythm* rhythm) {
  size_t fitting = 0, beats = 0;  // beats that some moment fits
  double first = 0, last = 0;
  rhythm->period_ns = beat.period_ns;
  rhythm->fits.assign(moments_ns.size(), false);
  for (size_t i = 0; i < moments_ns.size(); ++i) {
    const double at = std::round((moments_ns[i] - beat.first_ns) / beat.period_ns);
    if (std::abs(moments_ns[i] - beat.first_ns - at * beat.period_ns) > tolerance_ns) continue;
    rhythm->fits[i] = true;
    if (fitting == 0) first = at;
    if (fitting == 0 || at > last) ++beats;
    last = at;
    ++fitting;
  }
  if (beats < kBeatsMin) return 0;
  const bool hit = static_cast<double>(beats) >= kBeatsHit * (last - first + 1);
  const bool fit = static_cast<double>(fitting) >= kFitMin * static_cast<double>(moments_ns.size());
  return hit && fit ? fitting : 0;
}

}  // namespace

std::optional<Rhythm> FindRhythm(const std::vector<double>& moments_ns, double tolerance_ns, double least_period_ns) {
  if (moments_ns.size() < kBeatsMin) return std::nullopt;
  std::optional<Rhythm> best;
  size_t most = 0;
  const size_t stride = std::max<size_t>(1, 2 * moments_ns.size() / kCandidatesMax);
  for (size_t i = 0; i + 2 < moments_ns.size(); i += stride) {
    // One moment between two beats is allowed for.
    for (size_t next = i + 1; next <= i + 2; ++next) {
      const double gap_ns = moments_ns[next] - moments_ns[i];
      if (gap_ns < least_period_ns) continue;
      const Chain chain = Follow(moments_ns, i, gap_ns, std::max(tolerance_ns, kToleranceShare * gap_ns));
      const Beat beat = Fit(moments_ns, chain);
      if (beat.period_ns < least_period_ns) continue;
      Rhythm rhythm;
      const size_t fitting = Judge(moments_ns, beat, std::max(tolerance_ns, kToleranceShare * beat.period_ns), &rhythm);
      if (fitting <= most) continue;
      most = fitting;
      best = rhythm;
    }
  }
  return best;
}

}  // namespace fastdecode
