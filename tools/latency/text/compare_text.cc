// What a comparison says to people and to programs.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/latency/analysis/compare.h"
#include "tools/latency/text/text.h"
#include "tools/latency/text/text_sections.h"
#include "tools/latency/text/text_table.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// "+12.3 %".
std::string FormatChange(double change) {
  return absl::StrFormat("%+.*f %%", std::fabs(change) < 0.000995 ? 2 : 1, change * 100);
}

std::string FormatBounded(std::optional<double> ns, bool at_least) {
  return ns ? absl::StrCat(at_least ? ">= " : "", FormatNs(*ns)) : "-";
}

std::string FormatBoundedChange(const ComparedStatistic& row) {
  return absl::StrCat(row.b_at_least ? ">= " : row.a_at_least ? "<= " : "", FormatChange(row.change.change));
}

std::string NameOf(const ComparedStatistic& row) {
  return absl::StrCat(row.metric, row.where.empty() ? "" : absl::StrCat(", ", row.where), " ", row.statistic);
}

std::string Conclusion(const Comparison& comparison, const CompareOptions& options) {
  if (!comparison.judged()) {
    return absl::StrCat("NOTHING COULD BE JUDGED: of no figure",
                        options.phases_count ? "" : " of requests, tokens or steps",
                        " is enough known of both; record for longer");
  }
  std::vector<std::string> failed;
  for (const ComparedStatistic& row : comparison.rows) {
    if (!row.failed) continue;
    const std::string range = row.b_at_least ? " or more" : absl::StrCat(" to ", FormatChange(row.change.high));
    failed.push_back(
        absl::StrCat(NameOf(row), " by ", FormatBoundedChange(row), " (", FormatChange(row.change.low), range, ")"));
  }
  if (failed.empty()) return absl::StrCat("B is not slower than A by more than ", FormatShare(options.threshold));
  return absl::StrCat("B IS SLOWER than A: ", absl::StrJoin(failed, "; "));
}

// What people feel, and what changed.
bool IsShown(const ComparedStatistic& row) {
  return row.counts || row.verdict == ChangeVerdict::kSlower || row.verdict == ChangeVerdict::kFaster;
}

std::string Rows(const Comparison& comparison, const CompareOptions& options, size_t width) {
  TextTable table({{"metric", true, TextTable::kAlways, 10},
                   {"where", true, 95, 6},
                   {"", true, TextTable::kAlways},
                   {"A", false, 60},
                   {"B", false, 60},
                   {"change", false, TextTable::kAlways},
                   {"from", false, 80},
                   {"to", false, 80},
                   {"verdict", true, TextTable::kAlways}});
  size_t hidden = 0;
  for (const ComparedStatistic& row : comparison.rows) {
    if (!IsShown(row)) {
      ++hidden;
      continue;
    }
    const bool low_known = row.judged() && !row.a_at_least, high_known = row.judged() && !row.b_at_least;
    table.AddRow({row.metric, row.where, row.statistic, FormatBounded(row.a_ns, row.a_at_least),
                  FormatBounded(row.b_ns, row.b_at_least), row.judged() ? FormatBoundedChange(row) : "",
                  low_known ? FormatChange(row.change.low) : "", high_known ? FormatChange(row.change.high) : "",
                  absl::StrCat(ChangeVerdictName(row.verdict), row.failed ? " !" : "")});
  }
  std::string out = absl::StrCat(Heading("B AGAINST A"), table.Format(width, kTextIndent));
  if (hidden > 0) {
    out += Paragraph(
        "  ", absl::StrCat(FormatCount(hidden), " more, of phases: no difference seen, or too few samples"), width);
  }
  return absl::StrCat(
      out,
      Paragraph("  ",
                absl::StrFormat("from, to: an interval of %.6g %%, by how much stretches of each run "
                                "differ. Of %.0f rows without a difference one shows one by chance, and "
                                "more if a run is hardly longer than its requests",
                                options.confidence * 100, 1 / (1 - options.confidence)),
                width),
      "\n");
}

std::string Differences(const Comparison& comparison, size_t width) {
  if (comparison.differences.empty()) return "";
  std::string out = Heading("NOT THE SAME BESIDES");
  for (const Comparison::Difference& difference : comparison.differences) {
    out += Paragraph(absl::StrFormat("  %-11s  A: ", difference.what), difference.a, width);
    out += Paragraph(absl::StrFormat("  %-11s  B: ", ""), difference.b, width);
  }
  return out + "\n";
}

std::string Missing(const Comparison& comparison, size_t width) {
  std::string out;
  if (!comparison.only_a.empty()) out += Paragraph("  only in A: ", absl::StrJoin(comparison.only_a, "; "), width);
  if (!comparison.only_b.empty()) out += Paragraph("  only in B: ", absl::StrJoin(comparison.only_b, "; "), width);
  return out.empty() ? "" : Heading("NOT COMPARED") + out + "\n";
}

}  // namespace

std::string FormatComparison(const Comparison& comparison, const CompareOptions& options, size_t width) {
  width = std::max(width, kTextWidthMin);
  std::string warnings;
  for (const std::string& warning : comparison.warnings) warnings += Paragraph("  ! ", warning, width);
  if (!warnings.empty()) warnings = absl::StrCat(Heading("WARNINGS, of what spoils these figures"), warnings, "\n");
  return absl::StrCat(Heading("VERDICT"), Paragraph("  ", Conclusion(comparison, options), width), "\n", warnings,
                      Rows(comparison, options, width)) +
         absl::StrCat(Missing(comparison, width), Differences(comparison, width));
}

nlohmann::json ToJson(const Comparison& comparison, const CompareOptions& options) {
  const auto number = [](std::optional<double> ns) { return ns ? nlohmann::json(*ns) : nlohmann::json(); };
  nlohmann::json rows = nlohmann::json::array(), differences = nlohmann::json::array();
  for (const ComparedStatistic& row : comparison.rows) {
    const auto share = [&](double value) {
      return row.judged() && std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
    };
    rows.push_back({{"metric", row.metric},
                    {"where", row.where},
                    {"statistic", row.statistic},
                    {"a_ns", number(row.a_ns)},
                    {"a_at_least", row.a_at_least},
                    {"b_ns", number(row.b_ns)},
                    {"b_at_least", row.b_at_least},
                    {"change", share(row.change.change)},
                    {"change_low", share(row.change.low)},
                    {"change_high", share(row.change.high)},
                    {"verdict", ChangeVerdictName(row.verdict)},
                    {"counts", row.counts},
                    {"failed", row.failed}});
  }
  for (const Comparison::Difference& difference : comparison.differences) {
    differences.push_back({{"what", difference.what}, {"a", difference.a}, {"b", difference.b}});
  }
  return {{"threshold", options.threshold},
          {"confidence", options.confidence},
          {"resamples", options.resamples},
          {"seed", options.seed},
          {"slower", comparison.judged() ? nlohmann::json(comparison.failed()) : nlohmann::json()},
          {"rows", rows},
          {"only_a", comparison.only_a},
          {"only_b", comparison.only_b},
          {"differences", differences},
          {"warnings", comparison.warnings}};
}

}  // namespace fastdecode
