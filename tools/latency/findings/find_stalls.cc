// Moments at which a core stood still: something else had it, be it a timer, another process or the hypervisor.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/latency/findings/delays.h"
#include "tools/latency/findings/finders.h"
#include "tools/latency/findings/rhythm.h"
#include "tools/latency/findings/robust.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Lengths above which a rhythm is looked for: each so many times the one before.
constexpr double kLengthSteps = 1.5;
constexpr double kNoDelay = 1e18;
// Two delays of one stall: the hops of two micro-batches, say.
constexpr double kSameStall = 2;  // lengths
// A period is at least so many lengths: what stands still more than this is not interrupted but slow.
constexpr double kPeriodLengthsMin = 5;
// Where they come without a rhythm they must take this share of the time, and be so many times as long as what they
// interrupt: there are spans that take some times as long by themselves.
constexpr double kIrregularShareMin = 0.005;
constexpr double kIrregularTimes = 6;
constexpr size_t kIrregularMin = 8;
// A stall is seen shorter than it was where it began before there was anything to do. The upper quartile is whole as
// long as a quarter of them are.
constexpr double kWholeQuantile = 0.75;

std::vector<Delay> MergeDelays(std::vector<Delay> delays) {
  std::sort(delays.begin(), delays.end(), [](const Delay& a, const Delay& b) { return a.end_ns < b.end_ns; });
  std::vector<Delay> merged;
  for (const Delay& delay : delays) {
    const bool same = !merged.empty() && static_cast<double>(delay.end_ns - merged.back().end_ns) <
                                             kSameStall * std::max(delay.ns, merged.back().ns);
    if (!same) {
      merged.push_back(delay);
      continue;
    }
    const bool at_work = merged.back().at_work || delay.at_work;
    if (delay.ns > merged.back().ns) merged.back() = delay;
    merged.back().at_work = at_work;
  }
  return merged;
}

Stalls Summarize(const Evidence& evidence, const std::vector<Delay>& stalls) {
  Stalls summary;
  std::vector<double> lengths;
  double sum_ns = 0;
  for (const Delay& stall : stalls) {
    lengths.push_back(stall.ns);
    sum_ns += stall.ns;
    summary.ends_ns.push_back(stall.end_ns);
  }
  summary.ns = QuantileOf(lengths, kWholeQuantile);
  summary.share = sum_ns * 1e-9 / evidence.seconds();
  summary.period_ns = evidence.seconds() * 1e9 / static_cast<double>(stalls.size());
  return summary;
}

// Those of `stalls` that come in a rhythm, if most do. REQUIRES: by time.
std::optional<Stalls> FindRegularAmong(const Evidence& evidence, const std::vector<Delay>& stalls) {
  std::vector<double> moments_ns, lengths;
  for (const Delay& stall : stalls) {
    moments_ns.push_back(static_cast<double>(stall.end_ns - evidence.timeline.start_ns));
    lengths.push_back(stall.ns);
  }
  const double length_ns = Median(lengths);
  const std::optional<Rhythm> rhythm = FindRhythm(moments_ns, length_ns, kPeriodLengthsMin * length_ns);
  if (!rhythm) return std::nullopt;
  std::vector<Delay> fitting;
  bool at_work = false;
  for (size_t i = 0; i < stalls.size(); ++i) {
    if (!rhythm->fits[i]) continue;
    fitting.push_back(stalls[i]);
    at_work |= stalls[i].at_work;
  }
  // What never touches any work is the way to it.
  if (!at_work) return std::nullopt;
  Stalls regular = Summarize(evidence, fitting);
  regular.regular = true;
  regular.period_ns = rhythm->period_ns;
  regular.share = regular.ns / regular.period_ns;
  return regular;
}

// The same of those that are long enough, for some length: ordinary spans may have a tail that is as dense but shorter.
std::optional<Stalls> FindRegular(const Evidence& evidence, const std::vector<Delay>& stalls) {
  double longest_ns = 0, shortest_ns = kNoDelay;
  for (const Delay& stall : stalls) {
    longest_ns = std::max(longest_ns, stall.ns);
    shortest_ns = std::min(shortest_ns, stall.ns);
  }
  for (double least_ns = shortest_ns; least_ns <= longest_ns; least_ns *= kLengthSteps) {
    std::vector<Delay> long_enough;
    for (const Delay& stall : stalls) {
      if (stall.ns >= least_ns) long_enough.push_back(stall);
    }
    if (std::optional<Stalls> regular = FindRegularAmong(evidence, long_enough)) return regular;
  }
  return std::nullopt;
}

std::optional<Stalls> FindIrregular(const Evidence& evidence, std::vector<Delay> stalls) {
  std::erase_if(stalls, [](const Delay& stall) { return stall.ns < kIrregularTimes * stall.usual_ns; });
  if (stalls.size() < kIrregularMin) return std::nullopt;
  Stalls irregular = Summarize(evidence, stalls);
  if (irregular.share < kIrregularShareMin) return std::nullopt;
  return irregular;
}

std::vector<Delay> AtWork(const std::vector<Delay>& delays) {
  std::vector<Delay> at_work;
  for (const Delay& delay : delays) {
    if (delay.at_work) at_work.push_back(delay);
  }
  return at_work;
}

// Delays before the work may be the link's: they count where they come in one rhythm with those amid work.
std::optional<Stalls> Judge(const Evidence& evidence, const std::vector<Delay>& delays) {
  const std::vector<Delay> all = MergeDelays(delays);
  if (std::optional<Stalls> regular = FindRegular(evidence, all)) return regular;
  const std::vector<Delay> amid = MergeDelays(AtWork(delays));
  if (std::optional<Stalls> regular = FindRegular(evidence, amid)) return regular;
  return FindIrregular(evidence, amid);
}

const char* CoreName(Stalls::Core core) {
  switch (core) {
    case Stalls::Core::kPipeline:
      return "the S-Part's pipeline thread";
    case Stalls::Core::kLeader:
      return "its leader";
    case Stalls::Core::kTeam:
      return "one of its team besides the leader";
  }
  return "?";
}

}  // namespace

bool Stalls::Explains(uint64_t at_ns) const {
  const auto margin = static_cast<uint64_t>(kSameStall * ns);
  const auto next = std::lower_bound(ends_ns.begin(), ends_ns.end(), at_ns);
  if (next != ends_ns.end() && *next - at_ns <= margin) return true;
  return next != ends_ns.begin() && at_ns - *(next - 1) <= margin;
}

std::vector<Stalls> FindStalls(const Evidence& evidence) {
  std::vector<Stalls> found;
  const auto add = [&](const std::vector<Delay>& delays, Stalls::Core core, int home) {
    std::optional<Stalls> stalls = Judge(evidence, delays);
    if (!stalls) return;
    stalls->core = core;
    stalls->home = home;
    found.push_back(*stalls);
  };
  if (evidence.timeline.end_ns <= evidence.timeline.start_ns) return found;
  add(PipelineDelays(evidence), Stalls::Core::kPipeline, -1);
  for (int home = 0; home < evidence.timeline.homes; ++home) {
    add(LeaderDelays(evidence, home), Stalls::Core::kLeader, home);
    add(TeamDelays(evidence, home), Stalls::Core::kTeam, home);
  }
  return found;
}

Finding DescribeStalls(const Evidence& evidence, const Stalls& stalls) {
  Finding finding;
  finding.phase = stalls.core == Stalls::Core::kPipeline ? "S-Part"
                  : stalls.core == Stalls::Core::kLeader ? "home leader"
                                                         : "team";
  finding.home = stalls.home;
  finding.kind = "stalls";
  finding.amount = stalls.ns;
  finding.unit = "ns";
  finding.share = stalls.share;
  finding.period_ns = stalls.period_ns;
  finding.cost_ns = stalls.share * evidence.token_ns();
  const std::string where = stalls.home < 0 ? "" : evidence.recording.HomeName(stalls.home) + ": ";
  char text[200];
  std::snprintf(text, sizeof(text), "%s stands still for %s%s %s (%zu times, %.2f %% of the time; ",
                CoreName(stalls.core), stalls.regular ? "" : "up to about ", FormatNs(stalls.ns).c_str(),
                stalls.regular ? ("every " + FormatNs(stalls.period_ns)).c_str() : "now and then",
                stalls.ends_ns.size(), 100 * stalls.share);
  finding.line = where + text + CostText(finding.cost_ns) + ")";
  return finding;
}

}  // namespace fastdecode
