// Links that take longer than others of their kind, and links that all take long.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/latency/findings/compare_homes.h"
#include "tools/latency/findings/finders.h"
#include "tools/latency/findings/robust.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// A few microseconds more are a switch more.
constexpr ExcessFloor kLinkFloor = {30e3, 0.5};
// A link whose usual round trip is longer is slow, whatever the others are.
constexpr double kRoundTripMaxNs = 1e6;
constexpr size_t kKnownHopsMin = 50;
// More homes are not told one by one.
constexpr size_t kHomesToldMax = 4;

// [homes] wire time over bytes, where it is known.
std::vector<Line> FitLinks(const Evidence& evidence) {
  std::vector<Line> lines;
  for (int home = 0; home < evidence.timeline.homes; ++home) {
    std::vector<Sample> samples;
    const LinkHops link = evidence.HopsOfLink(home);
    for (const HopTimes* hop : link.hops) {
      if (!link.known) break;
      samples.push_back(
          {static_cast<double>(hop->payload_bytes), static_cast<double>(hop->wire_ns), evidence.BlockOf(hop->seen_ns)});
    }
    lines.push_back(FitLine(samples, evidence.blocks()));
  }
  return lines;
}

// Links of one kind: over the network, or in memory. Neither is the other's like.
class Links {
 public:
  Links(const Evidence& evidence, const std::vector<Line>& lines, bool in_memory)
      : evidence_(evidence), lines_(lines), kind_(in_memory ? " in memory" : " over the network") {
    for (size_t h = 0; h < lines.size(); ++h) {
      const bool same_kind = evidence.InMemory(static_cast<int>(h)) == in_memory;
      if (!same_kind) mixed_ = true;
      if (same_kind && lines[h].samples > 0) homes_.push_back(h);
    }
    ChooseUsual();
  }

  std::vector<Finding> FindSlow() const {
    std::vector<Finding> findings;
    if (homes_.empty()) return findings;
    AddSlower(&findings);
    if (homes_.size() == 1 && IsLong(homes_.front())) findings.push_back(DescribeLong(homes_.front()));
    if (homes_.size() > 1 && IsLong(usual_[usual_.size() / 2])) findings.push_back(DescribeAllLong());
    return findings;
  }

 private:
  // What links are compared with: the largest group of links that are alike, of groups as large the quickest. But many
  // slow links make none quick: if that group's round trip is too long by itself, it is the quickest group.
  void ChooseUsual() {
    if (homes_.empty()) return;
    std::vector<double> bytes;
    for (const size_t h : homes_) bytes.push_back(lines_[h].mean_x);
    const double x = Median(std::move(bytes));
    const auto level = [this, x](size_t h) { return ExpectedAt(lines_[h], x); };
    std::sort(homes_.begin(), homes_.end(), [&level](size_t a, size_t b) { return level(a) < level(b); });
    // Alike are links between which there are others in steps of at most the floor.
    std::vector<std::vector<size_t>> groups = {{homes_.front()}};
    for (size_t i = 1; i < homes_.size(); ++i) {
      const double before = level(homes_[i - 1]);
      if (level(homes_[i]) - before > kLinkFloor.Of(before)) groups.emplace_back();
      groups.back().push_back(homes_[i]);
    }
    const auto largest = std::max_element(groups.begin(), groups.end(),
                                          [](const auto& a, const auto& b) { return a.size() < b.size(); });
    usual_ = IsLong((*largest)[largest->size() / 2]) ? groups.front() : *largest;
  }

  bool IsLong(size_t home) const {
    return lines_[home].samples >= kKnownHopsMin && lines_[home].level > kRoundTripMaxNs;
  }
  bool IsUsual(size_t home) const { return std::find(usual_.begin(), usual_.end(), home) != usual_.end(); }

  // Each that takes longer than the usual ones; what they cost together is divided among them.
  void AddSlower(std::vector<Finding>* findings) const {
    std::vector<Excess> slower;
    std::vector<double> excess_ns(lines_.size(), 0);
    for (const size_t h : homes_) {
      if (IsUsual(h)) continue;
      if (const std::optional<Excess> excess = CompareWith(lines_, h, usual_, kLinkFloor)) {
        slower.push_back(*excess);
        excess_ns[h] = excess->ns;
      } else if (IsLong(h)) {
        findings->push_back(DescribeLong(h));
      }
    }
    const std::vector<double> cost_ns = evidence_.CostOfHomes(excess_ns);
    for (const Excess& excess : slower) {
      findings->push_back(DescribeSlower(excess, cost_ns[static_cast<size_t>(excess.home)]));
    }
  }

  static Finding SlowLink(int home, double ns, double cost_ns) {
    Finding finding;
    finding.phase = "wire";
    finding.home = home;
    finding.kind = "slower";
    finding.amount = ns;
    finding.unit = "ns";
    finding.cost_ns = cost_ns;
    return finding;
  }

  Finding DescribeSlower(const Excess& excess, double cost_ns) const {
    Finding finding = SlowLink(excess.home, excess.ns, cost_ns);
    finding.line = evidence_.recording.HomeName(excess.home) + ": its link's round trip takes " + FormatNs(excess.ns) +
                   " longer on the wire than " + UsualNames() + (mixed_ ? "," + std::string(kind_) + " too" : "") +
                   " (" + FormatNs(excess.own.level) + " without the home's work; " + CostText(cost_ns) + ")";
    return finding;
  }

  Finding DescribeLong(size_t h) const {
    const int home = static_cast<int>(h);
    const double ns = lines_[h].level;
    Finding finding = SlowLink(home, ns, evidence_.CostOfHome(home, ns));
    finding.line = evidence_.recording.HomeName(home) + ": its link's round trip takes " + FormatNs(ns) +
                   " on the wire, beside the home's work (" + CostText(finding.cost_ns) + ")";
    return finding;
  }

  // The usual ones are slow as well: said once, of all.
  Finding DescribeAllLong() const {
    std::vector<double> levels, excess_ns(lines_.size(), 0);
    for (const size_t h : usual_) levels.push_back(lines_[h].level);
    const double ns = Median(std::move(levels));
    for (const size_t h : homes_) excess_ns[h] = std::min(ns, lines_[h].level);
    double cost_ns = 0;
    for (const double of_home : evidence_.CostOfHomes(excess_ns)) cost_ns += of_home;
    Finding finding = SlowLink(-1, ns, cost_ns);
    finding.line = "all links" + std::string(mixed_ ? kind_ : "") + ": a round trip takes " + FormatNs(ns) +
                   (usual_.size() < homes_.size() ? " or more" : "") + " on the wire, beside the home's work (" +
                   CostText(cost_ns) + ")";
    return finding;
  }

  // "that of home 0", "those of homes 0, 2 and 3", "those of the 12 homes that are alike".
  std::string UsualNames() const {
    if (usual_.size() == 1) return "that of home " + std::to_string(usual_.front());
    if (usual_.size() > kHomesToldMax) return "those of the " + std::to_string(usual_.size()) + " homes that are alike";
    std::vector<size_t> homes = usual_;
    std::sort(homes.begin(), homes.end());
    std::string names = "those of homes ";
    for (size_t i = 0; i < homes.size(); ++i) {
      names += (i == 0 ? "" : i + 1 == homes.size() ? " and " : ", ") + std::to_string(homes[i]);
    }
    return names;
  }

  const Evidence& evidence_;
  const std::vector<Line>& lines_;  // [homes]
  const char* const kind_;
  bool mixed_ = false;         // there are links of the other kind
  std::vector<size_t> homes_;  // of which something is known, the quickest first
  std::vector<size_t> usual_;  // of these
};

}  // namespace

std::vector<Finding> FindSlowLinks(const Evidence& evidence) {
  std::vector<Finding> findings;
  if (!evidence.long_enough()) return findings;
  const std::vector<Line> lines = FitLinks(evidence);
  for (const bool in_memory : {false, true}) {
    for (Finding& finding : Links(evidence, lines, in_memory).FindSlow()) findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace fastdecode
