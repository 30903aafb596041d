// Of the report: the phases, and the mean token taken apart.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/latency/text/text_sections.h"
#include "tools/latency/text/text_table.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr size_t kBarMax = 40;
constexpr double kLowPercentile = 0.5;

// Footnotes of one table.
class Notes {
 public:
  // " [1]", or "" for no note.
  std::string Mark(const std::string& note) {
    if (note.empty()) return "";
    auto found = std::find(notes_.begin(), notes_.end(), note);
    if (found == notes_.end()) found = notes_.insert(found, note);
    return absl::StrCat(" [", found - notes_.begin() + 1, "]");
  }
  std::string Format(size_t width) const {
    std::string out;
    for (size_t i = 0; i < notes_.size(); ++i) {
      out += Paragraph(absl::StrCat("  [", i + 1, "] "), notes_[i], width);
    }
    return out;
  }

 private:
  std::vector<std::string> notes_;
};

TimeUnit UnitOf(const std::vector<Phase>& phases) {
  std::vector<double> medians;
  for (const Phase& phase : phases) {
    if (!phase.ns.empty()) medians.push_back(static_cast<double>(phase.ns.Quantile(kLowPercentile)));
  }
  return ChooseUnit(std::move(medians));
}

}  // namespace

std::string PhasesSection(const LatencyResult& result, size_t width) {
  TextTable table({{"phase", true, TextTable::kAlways, 14},
                   {"where", true, 95, 6},
                   {"count", false, 85},
                   TextTable::Numbers("min", 40),
                   TextTable::Numbers("p50", TextTable::kAlways),
                   TextTable::Numbers("p90", 70),
                   TextTable::Numbers("p99", 90),
                   TextTable::Numbers("p99.9", 50),
                   TextTable::Numbers("max", 80),
                   {"share", false, 60}});
  const TimeUnit unit = UnitOf(result.phases);
  Notes notes;
  bool withheld = false;
  for (const Phase& phase : result.phases) {
    const Distribution& ns = phase.ns;
    if (ns.empty()) continue;
    const auto percentile = [&](double share) {
      const std::optional<uint64_t> value = ns.Percentile(share);
      withheld |= !value;
      return value ? FormatIn(unit, static_cast<double>(*value)) : "-";
    };
    table.AddRow({phase.name + notes.Mark(phase.note), phase.where, FormatCount(ns.count()),
                  FormatIn(unit, static_cast<double>(ns.min_ns())), percentile(0.5), percentile(0.9), percentile(0.99),
                  percentile(0.999), FormatIn(unit, static_cast<double>(ns.max_ns())),
                  phase.share > 0 ? FormatShare(phase.share) : ""});
  }
  if (table.empty()) return "";
  std::string out = Heading(absl::StrCat("PHASES, ", unit.name)) + table.Format(width, kTextIndent);
  if (withheld) {
    out += Paragraph("  -   ",
                     absl::StrCat("withheld: fewer than ", Distribution::kBeyondMin, " samples lie beyond it"), width);
  }
  return out + notes.Format(width) + "\n";
}

std::string CriticalPathSection(const LatencyResult& result, size_t width) {
  const CriticalPath& path = result.critical_path;
  if (path.tokens == 0) return "";
  std::vector<double> times = {std::fabs(path.residual_ns)};
  double sum_ns = 0;
  for (const CriticalPath::Part& part : path.parts) {
    times.push_back(part.mean_ns);
    sum_ns += part.mean_ns;
  }
  const double longest_ns = *std::max_element(times.begin(), times.end());
  const TimeUnit unit = ChooseUnit(times);
  const size_t bar_max = std::min(kBarMax, width / 4);
  const auto bar = [&](double ns) {
    return std::string(static_cast<size_t>(std::lround(ns / longest_ns * static_cast<double>(bar_max))), '#');
  };
  TextTable table({{"part", true, TextTable::kAlways, 14},
                   {"mostly at", true, 60, 6},
                   TextTable::Numbers(unit.name, TextTable::kAlways),
                   {"share", false, TextTable::kAlways},
                   {"", true, 50}});
  for (const CriticalPath::Part& part : path.parts) {
    table.AddRow({PlaceName(part.place), HomeOrEngine(part.home, "engine"), FormatIn(unit, part.mean_ns),
                  FormatShare(part.share), longest_ns > 0 ? bar(part.mean_ns) : ""});
  }
  const auto share = [&](double ns) { return FormatShare(path.token_ns > 0 ? ns / path.token_ns : 0); };
  table.AddRow({"parts", "", FormatIn(unit, sum_ns), share(sum_ns), ""});
  table.AddRow({"residual", "", FormatIn(unit, path.residual_ns), share(path.residual_ns), ""});
  table.AddRow({"token", "", FormatIn(unit, path.token_ns), share(path.token_ns), ""});
  std::string out =
      Heading(absl::StrCat("THE MEAN TOKEN of ", FormatCount(path.tokens), ": ", FormatNs(path.token_ns)));
  out += table.Format(width, kTextIndent);
  if (path.wire_uncertain_ns > 0) {
    out += Paragraph("  ",
                     absl::StrCat("wire and home queue are told apart by the link's least round trip, right within ",
                                  FormatNs(path.wire_uncertain_ns)),
                     width);
  }
  return out + "\n";
}

}  // namespace fastdecode
