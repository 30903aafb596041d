// Links: one that takes longer than the others, and hops that come late now and then.
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

// A few microseconds more are a switch more.
constexpr ExcessFloor kFloor = {30e3, 0.5};
// A link whose usual round trip is longer is slow, whatever the others are.
constexpr double kRoundTripMaxNs = 1e6;
// A hop whose wire time is this well known counts in comparisons.
constexpr double kKnownNs = 1000;
constexpr double kKnownShare = 0.25;
constexpr size_t kKnownHopsMin = 50;

// A hop is late from this excess on, if that is also this many spreads of the link's hops, and so many times its usual.
constexpr double kLateMinNs = 200e3;
constexpr double kLateSpreads = 10;
constexpr double kLateTimes = 3;
// So many of them, in so many blocks, and together this share of the home's hop times: otherwise it is a tail.
constexpr size_t kLateCountMin = 15;
constexpr double kLateBlocksShare = 1.0 / 3;
constexpr double kLateOfHopsMin = 0.005;
// And they are few: what is so for many is the link's way.
constexpr double kLateShareMax = 0.1;
// Links that are late alike have one cause: amounts and shares within this factor of each other.
constexpr double kAlike = 1.8;

bool WireIsKnown(const HopTimes& hop) {
  const double known_ns = static_cast<double>(hop.wire_least_ns);
  return static_cast<double>(hop.wire_ns) <= known_ns + std::max(kKnownNs, kKnownShare * known_ns);
}

std::vector<Line> FitLinks(const Evidence& evidence) {
  std::vector<std::vector<Sample>> samples(static_cast<size_t>(evidence.timeline.homes));
  for (const StepTimes* step : evidence.decode_steps()) {
    for (const HopTimes* hop = evidence.HopsBegin(*step); hop != evidence.HopsEnd(*step); ++hop) {
      if (!WireIsKnown(*hop)) continue;
      samples[static_cast<size_t>(hop->home)].push_back(
          {static_cast<double>(hop->payload_bytes), static_cast<double>(hop->wire_ns), evidence.BlockOf(step->end_ns)});
    }
  }
  std::vector<Line> lines;
  for (const std::vector<Sample>& of_home : samples) lines.push_back(FitLine(of_home, evidence.blocks()));
  return lines;
}

Finding SlowLink(const Evidence& evidence, int home, double ns) {
  Finding finding;
  finding.phase = "wire";
  finding.home = home;
  finding.kind = "slower";
  finding.amount = ns;
  finding.unit = "ns";
  finding.cost_ns = evidence.CostOfHops(home, ns);
  return finding;
}

// Hops of one link, of decode steps.
struct LateHops {
  int home = -1;
  size_t count = 0, hops = 0;
  double ns = 0, share = 0, cost_ns = 0;
};

// By the hops whose wire time is known.
double UsualWireNs(const std::vector<const HopTimes*>& hops, double* spread_ns) {
  std::vector<double> wire_ns;
  for (const HopTimes* hop : hops) {
    if (WireIsKnown(*hop)) wire_ns.push_back(static_cast<double>(hop->wire_ns));
  }
  *spread_ns = Spread(wire_ns);
  return Median(std::move(wire_ns));
}

std::optional<LateHops> MeasureLateHops(const Evidence& evidence, int home, const std::vector<Stalls>& stalls) {
  std::vector<const HopTimes*> hops;
  for (const StepTimes* step : evidence.decode_steps()) {
    for (const HopTimes* hop = evidence.HopsBegin(*step); hop != evidence.HopsEnd(*step); ++hop) {
      if (hop->home == home) hops.push_back(hop);
    }
  }
  double spread_ns = 0, hops_ns = 0, late_ns = 0;
  const double usual_ns = UsualWireNs(hops, &spread_ns);
  const double floor_ns = std::max({kLateMinNs, kLateSpreads * spread_ns, (kLateTimes - 1) * usual_ns});
  LateHops late;
  late.home = home;
  late.hops = hops.size();
  std::vector<double> all_ns, whole_ns;
  std::vector<bool> in_block(static_cast<size_t>(evidence.blocks()), false);
  for (const HopTimes* hop : hops) {
    hops_ns += static_cast<double>(hop->seen_ns - hop->posted_ns);
    const double excess_ns = static_cast<double>(hop->wire_ns) - usual_ns;
    // For certain, whatever else it may have been.
    if (static_cast<double>(hop->wire_least_ns) - usual_ns < floor_ns) continue;
    const uint64_t at_ns = hop->seen_ns - hop->pickup_ns;
    const bool explained = std::any_of(stalls.begin(), stalls.end(), [&](const Stalls& stall) {
      return (stall.home < 0 || stall.home == home) && stall.Explains(at_ns);
    });
    if (explained) continue;
    // Where the pipeline or the home was busy meanwhile, some of it is hidden.
    const double hidden_ns = static_cast<double>(hop->pickup_ns + hop->queue_ns);
    if (hidden_ns < 0.1 * excess_ns) whole_ns.push_back(excess_ns);
    all_ns.push_back(excess_ns);
    late_ns += excess_ns;
    late.cost_ns += SavedWithout(*hop, excess_ns);
    in_block[static_cast<size_t>(evidence.BlockOf(hop->seen_ns))] = true;
  }
  late.count = all_ns.size();
  const auto blocks = static_cast<double>(std::count(in_block.begin(), in_block.end(), true));
  if (late.count < kLateCountMin || blocks < kLateBlocksShare * evidence.blocks()) return std::nullopt;
  if (late_ns < kLateOfHopsMin * hops_ns) return std::nullopt;
  if (static_cast<double>(late.count) > kLateShareMax * static_cast<double>(late.hops)) return std::nullopt;
  late.ns = Median(whole_ns.size() >= kLateCountMin / 3 ? whole_ns : all_ns);
  late.share = static_cast<double>(late.count) / static_cast<double>(late.hops);
  late.cost_ns /= static_cast<double>(evidence.decode_steps().size());
  return late;
}

bool Alike(const std::vector<LateHops>& links) {
  const auto within = [&links](double LateHops::*member) {
    const auto [least, most] = std::minmax_element(
        links.begin(), links.end(), [member](const LateHops& a, const LateHops& b) { return a.*member < b.*member; });
    return (*most).*member <= kAlike * (*least).*member;
  };
  return within(&LateHops::ns) && within(&LateHops::share);
}

LateHops Together(const std::vector<LateHops>& links) {
  LateHops all;
  for (const LateHops& link : links) {
    all.count += link.count;
    all.hops += link.hops;
    all.ns += link.ns * static_cast<double>(link.count);
    all.cost_ns += link.cost_ns;
  }
  all.ns /= static_cast<double>(all.count);
  all.share = static_cast<double>(all.count) / static_cast<double>(all.hops);
  return all;
}

Finding DescribeLateHops(const Evidence& evidence, const LateHops& late) {
  Finding finding;
  finding.phase = "wire";
  finding.home = late.home;
  finding.kind = "outliers";
  finding.amount = late.ns;
  finding.unit = "ns";
  finding.share = late.share;
  finding.cost_ns = late.cost_ns;
  char text[160];
  std::snprintf(text, sizeof(text),
                ": %.2g %% of the hops take %s longer on the wire, at no particular time (%zu of %zu; ",
                100 * late.share, FormatNs(late.ns).c_str(), late.count, late.hops);
  finding.line =
      (late.home < 0 ? "all links" : evidence.recording.HomeName(late.home)) + text + CostText(late.cost_ns) + ")";
  return finding;
}

}  // namespace

std::vector<Finding> FindSlowLinks(const Evidence& evidence) {
  std::vector<Finding> findings;
  if (!evidence.long_enough()) return findings;
  const std::vector<Line> lines = FitLinks(evidence);
  for (size_t h = 0; h < lines.size(); ++h) {
    const int home = static_cast<int>(h);
    const std::string name = evidence.recording.HomeName(home);
    if (const std::optional<Excess> excess = CompareHome(lines, h, kFloor)) {
      Finding finding = SlowLink(evidence, home, excess->ns);
      finding.line = name + ": its link's round trip takes " + FormatNs(excess->ns) +
                     " longer than that of the other homes (" + FormatNs(excess->own.level) +
                     " without the home's work; " + CostText(finding.cost_ns) + ")";
      findings.push_back(finding);
    } else if (lines[h].samples >= kKnownHopsMin && lines[h].level > kRoundTripMaxNs) {
      const double ns = lines[h].level;
      Finding finding = SlowLink(evidence, home, ns);
      finding.line = name + ": its link's round trip takes " + FormatNs(ns) + " beside the home's work (" +
                     CostText(finding.cost_ns) + ")";
      findings.push_back(finding);
    }
  }
  return findings;
}

std::vector<Finding> FindLateHops(const Evidence& evidence, const std::vector<Stalls>& stalls) {
  std::vector<Finding> findings;
  if (!evidence.long_enough()) return findings;
  std::vector<LateHops> links;
  for (int home = 0; home < evidence.timeline.homes; ++home) {
    if (const std::optional<LateHops> late = MeasureLateHops(evidence, home, stalls)) links.push_back(*late);
  }
  if (links.size() > 1 && static_cast<int>(links.size()) == evidence.timeline.homes && Alike(links)) {
    findings.push_back(DescribeLateHops(evidence, Together(links)));
    return findings;
  }
  for (const LateHops& link : links) findings.push_back(DescribeLateHops(evidence, link));
  return findings;
}

}  // namespace fastdecode
