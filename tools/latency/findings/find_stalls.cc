// Moments at which a core stood still: something else had it, be it a timer, another process or the hypervisor.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <numeric>
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
// Something that was over so many lengths before or after a stall may be due to it.
constexpr double kExplainedWithin = 2;
// A period is at least so many lengths: what stands still more than this is not interrupted but slow.
constexpr double kPeriodLengthsMin = 5;
// Where they come without a rhythm they must take this share of the time, and be so many times as long as what they
// interrupt: there are spans that take some times as long by themselves.
constexpr double kIrregularShareMin = 0.002;
constexpr double kIrregularTimes = 3;
constexpr size_t kIrregularMin = 4;
// So many of them amid work. The others may be the link's, or the team's: they count if they are as long, within these
// factors of the shortest and the longest amid work, and as many as there must be beside so many amid work, or fewer;
// within so many standard deviations of both.
constexpr size_t kAmidMin = 2;
constexpr double kShorter = 0.5, kLonger = 1.25;
constexpr double kAmidDeviations = 2, kBesideDeviations = 3;
// A stall is seen shorter than it was where it began before there was anything to do. The upper quartile is whole as
// long as a quarter of them are.
constexpr double kWholeQuantile = 0.75;

bool EndsBefore(const Delay& a, const Delay& b) { return a.end_ns < b.end_ns; }

// Spans of two kinds that overlap have the same stall in them.
std::vector<Delay> MergeDelays(std::vector<Delay> delays) {
  std::sort(delays.begin(), delays.end(), EndsBefore);
  std::vector<Delay> merged;
  for (const Delay& delay : delays) {
    const bool same =
        !merged.empty() && static_cast<double>(delay.end_ns - merged.back().end_ns) < delay.ns + delay.usual_ns;
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

std::vector<double> LikelyLengths(const std::vector<Delay>& stalls) {
  std::vector<double> lengths;
  for (const Delay& stall : stalls) lengths.push_back(stall.LikelyNs());
  return lengths;
}

Stalls Summarize(const Evidence& evidence, const std::vector<Delay>& stalls) {
  Stalls summary;
  const std::vector<double> lengths = LikelyLengths(stalls);
  for (const Delay& stall : stalls) summary.ends_ns.push_back(stall.end_ns);
  summary.ns = Median(lengths);
  summary.ns_max = *std::max_element(lengths.begin(), lengths.end());
  summary.share = std::accumulate(lengths.begin(), lengths.end(), 0.0) * 1e-9 / evidence.seconds();
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
  std::vector<double> seen_ns;
  bool at_work = false;
  for (size_t i = 0; i < stalls.size(); ++i) {
    if (!rhythm->fits[i]) continue;
    fitting.push_back(stalls[i]);
    seen_ns.push_back(stalls[i].ns);
    at_work |= stalls[i].at_work;
  }
  // What never touches any work is the way to it.
  if (!at_work) return std::nullopt;
  Stalls regular = Summarize(evidence, fitting);
  regular.regular = true;
  regular.ns = QuantileOf(std::move(seen_ns), kWholeQuantile);
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

// Those of `beside` that a core with so many stalls `amid` its work, which takes `busy_share` of the time, must have
// had beside: nothing, if they are too many for that. REQUIRES: amid.
std::vector<Delay> GoingWith(const std::vector<Delay>& amid, std::vector<Delay> beside, double busy_share) {
  const std::vector<double> lengths = LikelyLengths(amid);
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  std::erase_if(beside, [least = kShorter * *least, most = kLonger * *most](const Delay& delay) {
    return delay.LikelyNs() < least || delay.LikelyNs() > most;
  });
  const auto at_most = [](double expected, double deviations) {
    return expected + deviations * std::sqrt(expected) + deviations;
  };
  const double amid_most = at_most(static_cast<double>(amid.size()), kAmidDeviations);
  const double beside_most = at_most(amid_most * (1 - busy_share) / busy_share, kBesideDeviations);
  if (static_cast<double>(beside.size()) > beside_most) beside.clear();
  return beside;
}

std::optional<Stalls> FindIrregular(const Evidence& evidence, const std::vector<Delay>& delays, double busy_share) {
  std::vector<Delay> amid, beside;
  for (const Delay& delay : delays) {
    if (delay.ns >= kIrregularTimes * delay.usual_ns) (delay.at_work ? amid : beside).push_back(delay);
  }
  if (amid.size() < kAmidMin) return std::nullopt;
  std::vector<Delay> stalls = amid;
  for (const Delay& delay : GoingWith(amid, std::move(beside), busy_share)) stalls.push_back(delay);
  if (stalls.size() < kIrregularMin) return std::nullopt;
  std::sort(stalls.begin(), stalls.end(), EndsBefore);
  const Stalls irregular = Summarize(evidence, stalls);
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

// Delays that are not amid work may be another's: they count where they come in one rhythm with those amid work, or go
// with them otherwise. busy_share: of the time in which the core is at work.
std::optional<Stalls> Judge(const Evidence& evidence, const std::vector<Delay>& delays, double busy_share) {
  const std::vector<Delay> all = MergeDelays(delays);
  if (std::optional<Stalls> regular = FindRegular(evidence, all)) return regular;
  const std::vector<Delay> amid = MergeDelays(AtWork(delays));
  if (std::optional<Stalls> regular = FindRegular(evidence, amid)) return regular;
  return FindIrregular(evidence, all, busy_share);
}

// Of a home's leader.
double BusyShare(const Evidence& evidence, int home) {
  uint64_t own_ns = 0;
  for (const HopTimes& hop : evidence.timeline.hops) {
    if (hop.home == home) own_ns += hop.work_ns() - hop.team_ns;
  }
  return std::min(1.0, static_cast<double>(own_ns) * 1e-9 / evidence.seconds());
}

const char* CoreName(Stalls::Core core) {
  switch (core) {
    case Stalls::Core::kPipeline:
      return "the S-Part's pipeline thread";
    case Stalls::Core::kLeader:
      return "the home leader";
    case Stalls::Core::kTeam:
      return "one of the team besides the leader";
  }
  return "?";
}

}  // namespace

bool Stalls::Explains(uint64_t at_ns) const {
  const auto margin = static_cast<uint64_t>(kExplainedWithin * ns);
  const auto next = std::lower_bound(ends_ns.begin(), ends_ns.end(), at_ns);
  if (next != ends_ns.end() && *next - at_ns <= margin) return true;
  return next != ends_ns.begin() && at_ns - *(next - 1) <= margin;
}

std::vector<Stalls> FindStalls(const Evidence& evidence) {
  std::vector<Stalls> found;
  const auto add = [&](std::optional<Stalls> stalls, Stalls::Core core, int home) {
    if (!stalls) return false;
    stalls->core = core;
    stalls->home = home;
    found.push_back(std::move(*stalls));
    return true;
  };
  if (evidence.timeline.end_ns <= evidence.timeline.start_ns) return found;
  add(Judge(evidence, PipelineDelays(evidence), 1), Stalls::Core::kPipeline, -1);
  for (int home = 0; home < evidence.timeline.homes; ++home) {
    std::vector<Delay> leader = LeaderDelays(evidence, home), team = TeamDelays(evidence, home);
    const bool by_team = add(Judge(evidence, team, 1), Stalls::Core::kTeam, home);
    // A leader that stands still while it waits for its team looks like the team.
    for (Delay& delay : team) {
      delay.at_work = false;
      if (!by_team) leader.push_back(delay);
    }
    add(Judge(evidence, leader, BusyShare(evidence, home)), Stalls::Core::kLeader, home);
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
  const std::string length = FormatNs(stalls.ns);
  const std::string when = stalls.regular ? "for " + length + " every " + FormatNs(stalls.period_ns)
                                          : "now and then, for " + length + " and at most " + FormatNs(stalls.ns_max);
  char text[200];
  std::snprintf(text, sizeof(text), "%s stands still %s (%zu times, %.2f %% of the time; ", CoreName(stalls.core),
                when.c_str(), stalls.ends_ns.size(), 100 * stalls.share);
  finding.line = where + text + CostText(finding.cost_ns) + ")";
  return finding;
}

}  // namespace fastdecode
