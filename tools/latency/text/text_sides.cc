// Of the report: the two sides, S-Part and homes, against each other and against what the machine can do.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/latency/text/text_sections.h"
#include "tools/latency/text/text_table.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

std::string Figure(double value) { return absl::StrFormat("%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value); }

}  // namespace

std::string OverlapSection(const LatencyResult& result, size_t width) {
  std::string out = Heading("OVERLAP");
  out += Paragraph("  ",
                   absl::StrCat("S-Part busy ", FormatShare(result.s_busy), ", busiest home ",
                                FormatShare(result.r_busy), ", overlap ", FormatShare(result.overlap)),
                   width);
  TextTable table({{"idle", true, TextTable::kAlways, 8},
                   {"because", true, TextTable::kAlways, 12},
                   {"time", false, 80},
                   {"share", false, TextTable::kAlways}});
  for (const Bubble& bubble : result.bubbles) {
    table.AddRow({bubble.where, bubble.cause, FormatNs(bubble.ns), FormatShare(bubble.share)});
  }
  if (!table.empty()) out += table.Format(width, kTextIndent);
  return out + "\n";
}

std::string HomesSection(const LatencyResult& result, size_t width) {
  if (result.homes.empty()) return "";
  std::vector<HomeFigures> homes = result.homes;
  std::stable_sort(homes.begin(), homes.end(),
                   [](const HomeFigures& a, const HomeFigures& b) { return a.waited_for_ns > b.waited_for_ns; });
  TextTable table({{"home", true, TextTable::kAlways, 12},
                   {"hops", false, 50},
                   {"last back", false, 90},
                   {"waited for", false, 95},
                   {"busy", false, 85},
                   {"KV share", false, 75},
                   TextTable::Numbers("GB/s", 80),
                   {"round trip", false, 40},
                   {"clock", false, 30},
                   {"within", false, 30},
                   TextTable::Numbers("ppm", 20)});
  for (const HomeFigures& home : homes) {
    table.AddRow({home.name.empty() ? HomeOrEngine(home.home, "") : home.name, FormatCount(home.hops),
                  homes.size() > 1 ? FormatShare(home.last_share) : "",
                  homes.size() > 1 ? FormatNs(home.waited_for_ns) : "", FormatShare(home.busy_share),
                  homes.size() > 1 ? FormatShare(home.kv_share) : "", Figure(home.gb_per_s),
                  home.min_round_trip_ns > 0 ? FormatNs(home.min_round_trip_ns) : "",
                  home.clock_bound_ns > 0 ? FormatSignedNs(home.clock_offset_ns) : "",
                  home.clock_bound_ns > 0 ? FormatNs(home.clock_bound_ns) : "",
                  home.clock_bound_ns > 0 ? absl::StrFormat("%+.2f", home.clock_drift_ppm) : ""});
  }
  std::string out = Heading(homes.size() > 1 ? "HOMES, the most waited for first" : "HOME");
  out += table.Format(width, kTextIndent);
  if (homes.size() > 1) {
    out += Paragraph("  ",
                     "last back: of the hops to several homes, those of which it was the last to come back; waited "
                     "for: how long for it alone, a hop, on average",
                     width);
  }
  return out + "\n";
}

std::string AchievedSection(const LatencyResult& result, size_t width) {
  TextTable table({{"what", true, TextTable::kAlways, 16},
                   TextTable::Numbers("achieved", TextTable::kAlways),
                   TextTable::Numbers("possible", 90),
                   {"", true, 95},
                   {"share", false, 80},
                   {"possible by", true, 50, 12}});
  for (const Achieved& achieved : result.achieved) {
    const bool known = achieved.possible > 0;
    table.AddRow({achieved.what, Figure(achieved.achieved), known ? Figure(achieved.possible) : "-", achieved.unit,
                  known ? FormatShare(achieved.achieved / achieved.possible) : "", achieved.possible_by});
  }
  if (table.empty()) return "";
  std::string out = Heading("ACHIEVED, OF WHAT IS POSSIBLE") + table.Format(width, kTextIndent);
  for (const Achieved& achieved : result.achieved) {
    if (!achieved.note.empty()) out += Paragraph("  ", absl::StrCat(achieved.what, ": ", achieved.note), width);
  }
  return out + "\n";
}

}  // namespace fastdecode
