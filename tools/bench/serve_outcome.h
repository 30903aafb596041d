#ifndef FASTDECODE_TOOLS_BENCH_SERVE_OUTCOME_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_OUTCOME_H_

#include <fastdecode/fastdecode.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/serve_report.h"
#include "tools/load/goodput.h"
#include "tools/load/rate_search.h"
#include "tools/load/result.h"

namespace fastdecode::serve_bench {

// The gaps between the tokens of answers that run all the while.
struct InterferencePoint {
  std::optional<int> chunk;          // the engine's --prefill-chunk; nothing: as it is
  Distribution alone, with_prompts;  // percentiles 50 and 99
  size_t gaps_alone = 0, gaps_with_prompts = 0;
  size_t prompts = 0;
  double prompt_ttft_ms = 0;  // median
};

// What a command has measured, before it is printed.
struct ServeOutcome {
  std::string where;  // "at http://127.0.0.1:8000"
  ReportOptions options;
  load::LoadRun run;  // of several the one whose figures are shown in full

  // Rates at which the load was run: the requested ones, or those of a search.
  std::vector<load::RatePoint> points;
  double target = 0.9;  // share of requests that are to meet their limits
  // Searches, one for each seed.
  std::vector<load::RateSearchResult> searches;
  std::vector<InterferencePoint> interference;
  std::vector<std::string> notes;  // what to know of the figures
  std::optional<Error> failure;    // why some of it is missing: the first of the reasons

  // The median of the searches that were complete; nothing: none was.
  std::optional<double> MaxRate() const;
};

// The rates of a curve with what share of the requests met all limits; runs that were cut are left out.
std::vector<std::pair<double, double>> AttainmentCurve(const std::vector<load::RatePoint>& points);

// Behind the table of one run: goodput, the curve over rates, the curve over limits, the highest rate, interference.
std::string GoodputText(const ServeOutcome& outcome);
// The same as JSON; null where nothing of it was asked for.
nlohmann::ordered_json GoodputJson(const ServeOutcome& outcome);
// One page of curves.
void WriteCurves(const ServeOutcome& outcome, std::ostream& out);

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_OUTCOME_H_
