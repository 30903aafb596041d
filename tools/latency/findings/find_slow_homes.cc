// A home that takes longer than the others for the same work.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tools/latency/findings/compare_homes.h"
#include "tools/latency/findings/finders.h"
#include "tools/latency/findings/robust.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Less is nothing to look for, however sure it is: homes of one kind differ by some percent by where their memory lies,
// and a hop has some microseconds of software anyway.
constexpr ExcessFloor kHomeFloor = {5000, 0.05};
// What else is long at a home where something is: only if it is this share of the longest.
constexpr double kSecondaryShare = 0.25;
// Excess per byte and excess per hop are told apart if the estimate of "how far it goes with the bytes" (0: not at all,
// 1: in proportion) is this many of its errors away from the middle.
constexpr double kTellApart = 2;

struct HomePhase {
  const char* name;
  uint64_t HopTimes::*ns;
};
constexpr HomePhase kAttend = {"attend", &HopTimes::attend_ns};
constexpr HomePhase kTeam = {"team", &HopTimes::team_ns};
constexpr HomePhase kHomePhases[] = {
    {"prepare", &HopTimes::prepare_ns},
    {"append", &HopTimes::append_ns},
    kAttend,
    {"merge", &HopTimes::merge_ns},
    kTeam,
};

struct PhaseExcess {
  HomePhase phase;
  Excess excess;
};

// One sample a step and home: the middle one of its layers, over KV bytes.
std::vector<Line> FitHomes(const Evidence& evidence, uint64_t HopTimes::*ns) {
  const auto homes = static_cast<size_t>(evidence.timeline.homes);
  std::vector<std::vector<Sample>> samples(homes);
  std::vector<std::vector<double>> of_step(homes);
  for (const StepTimes* step : evidence.decode_steps()) {
    for (std::vector<double>& values : of_step) values.clear();
    for (const HopTimes& hop : evidence.HopsOf(*step)) {
      of_step[static_cast<size_t>(hop.home)].push_back(static_cast<double>(hop.*ns));
    }
    for (size_t h = 0; h < homes; ++h) {
      if (of_step[h].empty()) continue;
      const double bytes = static_cast<double>(step->kv_bytes[h]);
      samples[h].push_back({bytes, Median(of_step[h]), evidence.BlockOf(step->end_ns)});
    }
  }
  std::vector<Line> lines;
  for (const std::vector<Sample>& of_home : samples) lines.push_back(FitLine(of_home, evidence.blocks()));
  return lines;
}

Finding Slower(const Evidence& evidence, const HomePhase& phase, const Excess& excess) {
  Finding finding;
  finding.phase = phase.name;
  finding.home = excess.home;
  finding.kind = "slower";
  finding.amount = excess.ns;
  finding.unit = "ns";
  finding.cost_ns = evidence.CostOfHome(excess.home, excess.ns);
  return finding;
}

// Attend may take longer by hop or by byte, which is another fault.
Finding SlowAttend(const Evidence& evidence, const Excess& excess) {
  Finding finding = Slower(evidence, kAttend, excess);
  const std::string name = evidence.recording.HomeName(excess.home);
  const Line &own = excess.own, &other = excess.other;
  // How far the excess goes with the bytes: 0 if it is the same for all hops, 1 if in proportion.
  const double by_bytes = (own.slope - other.slope) * own.mean_x / excess.ns;
  const double error = std::hypot(own.slope_error, other.slope_error) * own.mean_x / excess.ns;
  const bool known = std::isfinite(error) && std::abs(by_bytes - 0.5) > kTellApart * error;
  const double read_ns = other.slope * own.mean_x;
  if (!known || by_bytes < 0.5 || read_ns <= 0) {
    finding.line =
        name + ": attend takes " + FormatNs(excess.ns) + " longer a hop than at the other homes, " +
        (known ? "whatever it reads" : "whether by hop or by byte is not to be told: its KV varied too little") + " (" +
        CostText(finding.cost_ns) + ")";
    return finding;
  }
  finding.kind = "bandwidth";
  finding.amount = read_ns / (read_ns + excess.ns);
  finding.unit = "ratio";
  char text[160];
  std::snprintf(
      text, sizeof(text),
      ": attend reads KV at %.2f times the speed of the other homes (%.2f against %.2f GB/s, %s longer a hop; ",
      finding.amount, finding.amount / other.slope, 1 / other.slope, FormatNs(excess.ns).c_str());
  finding.line = name + text + CostText(finding.cost_ns) + ")";
  return finding;
}

Finding DescribeSlowHome(const Evidence& evidence, const PhaseExcess& slow) {
  if (slow.phase.ns == kAttend.ns) return SlowAttend(evidence, slow.excess);
  Finding finding = Slower(evidence, slow.phase, slow.excess);
  finding.line = evidence.recording.HomeName(slow.excess.home) + ": " + finding.phase + " takes " +
                 FormatNs(slow.excess.ns) + " longer a hop than at the other homes (" + CostText(finding.cost_ns) + ")";
  return finding;
}

}  // namespace

std::vector<Finding> FindSlowHomes(const Evidence& evidence) {
  std::vector<Finding> findings;
  if (!evidence.long_enough()) return findings;
  const auto homes = static_cast<size_t>(evidence.timeline.homes);
  std::vector<std::vector<PhaseExcess>> of_home(homes);
  const std::vector<Line> attend = FitHomes(evidence, kAttend.ns);
  for (const HomePhase& phase : kHomePhases) {
    const std::vector<Line> lines = FitHomes(evidence, phase.ns);
    for (size_t h = 0; h < homes; ++h) {
      ExcessFloor floor = kHomeFloor;
      // The team's wait is the difference of two times that attend takes: as much of these is nothing to look for
      // either.
      if (phase.ns == kTeam.ns) floor.ns = std::max(floor.ns, kHomeFloor.share * attend[h].level);
      const std::optional<Excess> excess = CompareHome(lines, h, floor);
      if (excess) of_home[h].push_back({phase, *excess});
    }
  }
  for (const std::vector<PhaseExcess>& slow_phases : of_home) {
    double longest_ns = 0;
    for (const PhaseExcess& slow : slow_phases) longest_ns = std::max(longest_ns, slow.excess.ns);
    for (const PhaseExcess& slow : slow_phases) {
      if (slow.excess.ns >= kSecondaryShare * longest_ns) findings.push_back(DescribeSlowHome(evidence, slow));
    }
  }
  return findings;
}

}  // namespace fastdecode
