// Of the report: single tokens, and requests.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/latency/text/text_sections.h"
#include "tools/latency/text/text_table.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Of a token's time, to be named.
constexpr double kNamedShareMin = 0.02;

// "+--1111---222-----+": where its longest spans lie, by their number. Shorter ones are drawn over longer ones.
std::string Strip(const TokenStory& story, size_t columns) {
  std::string strip(columns, '-');
  const double whole_ns = static_cast<double>(story.end_ns - story.start_ns);
  const auto column = [&](uint64_t ns) {
    const double share = static_cast<double>(ns - std::min(ns, story.start_ns)) / whole_ns;
    return std::min(columns - 1, static_cast<size_t>(share * static_cast<double>(columns)));
  };
  for (size_t i = 0; i < story.longest.size() && i < 9; ++i) {
    const TokenStory::Longest& span = story.longest[i];
    const size_t first = column(span.start_ns);
    const size_t last = std::max(first, column(span.start_ns + span.ns - std::min<uint64_t>(span.ns, 1)));
    std::fill(strip.begin() + static_cast<ptrdiff_t>(first), strip.begin() + static_cast<ptrdiff_t>(last) + 1,
              static_cast<char>('1' + i));
  }
  return strip;
}

std::string DescribeSpan(const TokenStory::Longest& span, uint64_t token_start_ns) {
  std::string text = PlaceName(span.place);
  if (span.layer >= 0) absl::StrAppend(&text, ", layer ", span.layer);
  if (span.home >= 0) absl::StrAppend(&text, ", home ", span.home);
  const uint64_t after_ns = span.start_ns - std::min(span.start_ns, token_start_ns);
  return absl::StrCat(text, ": ", FormatNs(static_cast<double>(span.ns)), " from +",
                      FormatNs(static_cast<double>(after_ns)));
}

// "S-Part 40.0 %, home attend 30.0 %", most first.
std::string DescribePlaces(const TokenStory& story) {
  const double whole_ns = static_cast<double>(story.end_ns - story.start_ns);
  std::vector<std::pair<uint64_t, Place>> places;
  for (size_t i = 0; i < story.place_ns.size(); ++i) places.emplace_back(story.place_ns[i], static_cast<Place>(i));
  std::stable_sort(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> parts;
  for (const auto& [ns, place] : places) {
    const double share = static_cast<double>(ns) / whole_ns;
    if (share >= kNamedShareMin) parts.push_back(absl::StrCat(PlaceName(place), " ", FormatShare(share)));
  }
  return absl::StrJoin(parts, ", ");
}

std::string Story(const TokenStory& story, size_t rank, size_t width) {
  const double whole_ns = static_cast<double>(story.end_ns - std::min(story.start_ns, story.end_ns));
  std::string out = Paragraph(absl::StrCat("  #", rank, " "),
                              absl::StrCat(FormatNs(whole_ns), ": token ", story.index, " of request ", story.id,
                                           ", step ", story.step, " of micro-batch ", story.micro_batch),
                              width);
  if (whole_ns <= 0) return out;
  absl::StrAppend(&out, "     |", Strip(story, width - 7), "|\n");
  for (size_t i = 0; i < story.longest.size() && i < 9; ++i) {
    out += Paragraph(absl::StrCat("     ", i + 1, " "), DescribeSpan(story.longest[i], story.start_ns), width);
  }
  return out + Paragraph("     all of it: ", DescribePlaces(story), width);
}

struct MetricRow {
  const char* name;
  const char* start;  // "" where it does not matter
  const Distribution* ns;
};

// What does not depend on the start is the same in all figures.
std::vector<MetricRow> MetricRows(const std::vector<RequestFigures>& all) {
  std::vector<MetricRow> rows;
  for (const RequestFigures& figures : all) rows.push_back({"TTFT", figures.start.c_str(), &figures.ttft_ns});
  rows.push_back({"TPOT", "", &all.front().tpot_ns});
  rows.push_back({"ITL", "", &all.front().itl_ns});
  for (const RequestFigures& figures : all) rows.push_back({"e2e", figures.start.c_str(), &figures.e2e_ns});
  return rows;
}

// TTFT and ITL are orders of magnitude apart: each figure has a unit of its own.
void AddMetric(const MetricRow& row, TextTable* table) {
  const Distribution& ns = *row.ns;
  if (ns.empty() && ns.unfinished() == 0) return;
  const auto at_least = [](double least_ns) { return absl::StrCat(">= ", FormatNs(least_ns)); };
  const auto percentile = [&](double share) -> std::string {
    if (const std::optional<uint64_t> value = ns.Percentile(share)) return FormatNs(static_cast<double>(*value));
    const std::optional<uint64_t> least = ns.AtLeast(share);
    return least ? at_least(static_cast<double>(*least)) : "-";
  };
  const std::string mean = ns.empty() ? "-" : ns.mean_known() ? FormatNs(ns.mean_ns()) : at_least(ns.mean_ns());
  table->AddRow({row.name, row.start, FormatCount(ns.count()), mean, percentile(0.5), percentile(0.9), percentile(0.99),
                 percentile(0.999), ns.empty() ? "-" : FormatNs(static_cast<double>(ns.max_ns()))});
}

std::string DescribeUnfinished(const RequestFigures& figures) {
  const size_t all = figures.requests + figures.failed + figures.unfinished;
  std::string text = absl::StrCat(FormatCount(figures.unfinished), " of ", FormatCount(all), " requests had not finished");
  if (figures.ttft_ns.unfinished() > 0) {
    absl::StrAppend(&text, ", ", FormatCount(figures.ttft_ns.unfinished()), " of them without a first token");
  }
  return absl::StrCat(text, " (their waits so far count as lower bounds)");
}

}  // namespace

std::string WorstTokensSection(const LatencyResult& result, size_t width) {
  if (result.worst.empty()) return "";
  std::string out = Heading("WORST TOKENS");
  for (size_t i = 0; i < result.worst.size(); ++i) out += Story(result.worst[i], i + 1, width);
  return out + "\n";
}

std::string RequestsSection(const LatencyResult& result, size_t width) {
  if (result.requests.empty()) return "";
  const RequestFigures& first = result.requests.front();
  if (first.requests + first.failed + first.unfinished == 0) return "";
  TextTable table({{"", true, TextTable::kAlways},
                   {"start", true, 95},
                   {"count", false, 70},
                   {"mean", false, 75},
                   {"p50", false, TextTable::kAlways},
                   {"p90", false, 85},
                   {"p99", false, 90},
                   {"p99.9", false, 50},
                   {"max", false, 80}});
  for (const MetricRow& row : MetricRows(result.requests)) AddMetric(row, &table);
  std::string out = Heading(
      absl::StrCat("REQUESTS: ", FormatCount(first.requests), " whole ones",
                   first.failed > 0 ? absl::StrCat("; ", FormatCount(first.failed), " FAILED") : std::string()));
  if (!table.empty()) out += table.Format(width, kTextIndent);
  if (first.unfinished > 0) out += Paragraph("  ", DescribeUnfinished(first), width);
  if (result.requests.size() > 1) {
    out += Paragraph("  ",
                     "by the intended start a stall is charged to every request that it delayed; by submission it "
                     "hides those that were submitted late",
                     width);
  }
  return out + "\n";
}

}  // namespace fastdecode
