// Hops that come late now and then, at no particular time.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tools/latency/findings/finders.h"
#include "tools/latency/findings/robust.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// A hop is late from this excess on, if that is also this many spreads of the link's hops, and so many times its usual.
constexpr double kLateMinNs = 200e3;
constexpr double kLateSpreads = 10;
constexpr double kLateTimes = 3;
// So many of them, in so many blocks, and together this share of the home's hop times: otherwise it is a tail.
constexpr size_t kLateCountMin = 15;
constexpr double kLateBlocksShare = 1.0 / 3;
constexpr double kLateOfHopsMin = 0.005;
// Where the pipeline or the home was busy meanwhile, some of a hop's lateness is hidden: how late they are is judged by
// those of which less than this is, if there are enough.
constexpr double kHiddenShareMax = 0.1;
constexpr size_t kWholeCountMin = 5;
// And they are few: what is so for many is the link's way.
constexpr double kLateShareMax = 0.1;
// Links that are late alike have one cause: amounts and shares within this factor of each other.
constexpr double kAlike = 1.8;

// What of a hop can be late. Memory is not, and a hop that waited there for the home's leader is the leader's
// (delays.h); but something may hold a reply back, of which the one clock says when it was ready and when the pipeline
// had looked.
double WireNs(const HopTimes& hop, bool in_memory) {
  return static_cast<double>(in_memory ? hop.wire_ns - hop.wire_there_ns : hop.wire_ns);
}

// Of one link.
struct UsualWire {
  double ns = 0, spread_ns = 0;
};

UsualWire MeasureUsual(const Evidence& evidence, int home) {
  const bool in_memory = evidence.InMemory(home);
  std::vector<double> wire_ns;
  for (const HopTimes* hop : evidence.HopsOfLink(home).hops) wire_ns.push_back(WireNs(*hop, in_memory));
  const double spread_ns = Spread(wire_ns);
  return {Median(std::move(wire_ns)), spread_ns};
}

// Hops of one link, of decode steps.
struct LateHops {
  int home = -1;
  size_t count = 0, hops = 0;
  double ns = 0, share = 0, cost_ns = 0;
};

// Collects the late hops of one link.
class LateHopsSum {
 public:
  LateHopsSum(const Evidence& evidence, int home, const std::vector<Stalls>& stalls)
      : evidence_(evidence),
        home_(home),
        in_memory_(evidence.InMemory(home)),
        stalls_(stalls),
        usual_(MeasureUsual(evidence, home)),
        floor_ns_(std::max({kLateMinNs, kLateSpreads * usual_.spread_ns, (kLateTimes - 1) * usual_.ns})),
        excess_ns_(evidence.timeline.hops.size(), 0),
        in_block_(static_cast<size_t>(evidence.blocks()), false) {
    evidence.VisitHops(home, [this](const HopTimes& hop) {
      ++hops_;
      hops_ns_ += static_cast<double>(hop.seen_ns - hop.posted_ns);
      if (IsLate(hop) && !IsExplained(hop)) Add(hop);
    });
  }

  // Nothing: too few, too short, or so many that it is the link's way.
  std::optional<LateHops> Judge() const {
    const auto blocks = static_cast<double>(std::count(in_block_.begin(), in_block_.end(), true));
    if (all_ns_.size() < kLateCountMin || blocks < kLateBlocksShare * evidence_.blocks()) return std::nullopt;
    if (late_ns_ < kLateOfHopsMin * hops_ns_) return std::nullopt;
    LateHops late;
    late.home = home_;
    late.count = all_ns_.size();
    late.hops = hops_;
    late.share = static_cast<double>(late.count) / static_cast<double>(late.hops);
    if (late.share > kLateShareMax) return std::nullopt;
    late.ns = Median(whole_ns_.size() >= kWholeCountMin ? whole_ns_ : all_ns_);
    late.cost_ns = evidence_.CostOf(excess_ns_)[static_cast<size_t>(home_)];
    return late;
  }

 private:
  // For certain, whatever else it may have been.
  bool IsLate(const HopTimes& hop) const {
    const double least_ns = in_memory_ ? WireNs(hop, true) : static_cast<double>(hop.wire_least_ns);
    return least_ns - usual_.ns >= floor_ns_;
  }

  bool IsExplained(const HopTimes& hop) const {
    const uint64_t at_ns = hop.seen_ns - hop.pickup_ns;
    return std::any_of(stalls_.begin(), stalls_.end(), [&](const Stalls& stall) {
      return (stall.home < 0 || stall.home == home_) && stall.Explains(at_ns);
    });
  }

  // What of the lateness may not be in the hop's time on the wire. On its way there, a late pickup hides nothing.
  double HiddenNs(const HopTimes& hop) const {
    if (in_memory_) return static_cast<double>(hop.pickup_ns);
    const bool there =
        static_cast<double>(hop.wire_there_ns) > (1 - kHiddenShareMax) * static_cast<double>(hop.wire_ns);
    return static_cast<double>(hop.queue_ns + (there ? 0 : hop.pickup_ns));
  }

  void Add(const HopTimes& hop) {
    const double excess_ns = WireNs(hop, in_memory_) - usual_.ns;
    if (HiddenNs(hop) < kHiddenShareMax * excess_ns) whole_ns_.push_back(excess_ns);
    all_ns_.push_back(excess_ns);
    late_ns_ += excess_ns;
    excess_ns_[static_cast<size_t>(&hop - evidence_.timeline.hops.data())] = excess_ns;
    in_block_[static_cast<size_t>(evidence_.BlockOf(hop.seen_ns))] = true;
  }

  const Evidence& evidence_;
  const int home_;
  const bool in_memory_;
  const std::vector<Stalls>& stalls_;
  const UsualWire usual_;
  const double floor_ns_;
  size_t hops_ = 0;
  double hops_ns_ = 0, late_ns_ = 0;
  std::vector<double> all_ns_, whole_ns_;  // by how much late ones are; those of which nothing is hidden
  std::vector<double> excess_ns_;          // [hops] of these, else 0
  std::vector<bool> in_block_;             // [blocks] that have late ones
};

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

// all: what to call them if they are of no one link.
Finding DescribeLateHops(const Evidence& evidence, const LateHops& late, const char* all) {
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
  finding.line = (late.home < 0 ? all : evidence.recording.HomeName(late.home)) + text + CostText(late.cost_ns) + ")";
  return finding;
}

}  // namespace

std::vector<Finding> FindLateHops(const Evidence& evidence, const std::vector<Stalls>& stalls) {
  std::vector<Finding> findings;
  if (!evidence.long_enough()) return findings;
  std::vector<LateHops> links, in_memory;
  size_t over_network = 0;
  for (int home = 0; home < evidence.timeline.homes; ++home) {
    if (!evidence.InMemory(home)) ++over_network;
    const std::optional<LateHops> late = LateHopsSum(evidence, home, stalls).Judge();
    if (late) (evidence.InMemory(home) ? in_memory : links).push_back(*late);
  }
  if (links.size() > 1 && links.size() == over_network && Alike(links)) links = {Together(links)};
  const bool mixed = over_network < static_cast<size_t>(evidence.timeline.homes);
  for (const LateHops& link : links) {
    findings.push_back(DescribeLateHops(evidence, link, mixed ? "all links over the network" : "all links"));
  }
  for (const LateHops& link : in_memory) findings.push_back(DescribeLateHops(evidence, link, ""));
  return findings;
}

}  // namespace fastdecode
