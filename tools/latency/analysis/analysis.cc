#include "tools/latency/analysis/analysis.h"

#include <algorithm>
#include <string>

#include "tools/latency/analysis/bubbles.h"
#include "tools/latency/analysis/critical_path.h"
#include "tools/latency/analysis/home_figures.h"
#include "tools/latency/analysis/phases.h"
#include "tools/latency/analysis/silence.h"
#include "tools/latency/analysis/wire_rate.h"
#include "tools/latency/text/units.h"

namespace fastdecode {
namespace {

void AddWarnings(const Recording& recording, const Timeline& timeline, LatencyResult* result) {
  if (recording.lost > 0) {
    result->warnings.push_back(
        std::to_string(recording.lost) +
        " events were overwritten before they were read: the steps that they were of are left out");
  }
  if (const double silent_ns = SilentAtEndNs(FindSilences(recording, timeline)); silent_ns > 0) {
    result->warnings.push_back(
        "nothing happened in the last " + FormatNs(silent_ns) +
        " of the recording, though there were requests: figures of steps are of the time before, "
        "and limits that are shorter count as missed");
  }
  if (timeline.steps.empty()) {
    result->warnings.push_back("no step was recorded from its beginning to its end");
  } else if (result->critical_path.tokens == 0) {
    result->warnings.push_back("no token followed another of its sequence: there is no time of a token to take apart");
  }
}

}  // namespace

LatencyResult Analyze(const Recording& recording, const Timeline& timeline, size_t worst_tokens) {
  LatencyResult result;
  result.provenance = recording.provenance;
  result.engine = recording.engine;
  // What was watched, whether something happened or not.
  result.start_ns = recording.start_ns > 0 ? recording.start_ns : timeline.start_ns;
  result.end_ns = recording.end_ns > 0 ? recording.end_ns : timeline.end_ns;
  result.events = timeline.events;
  result.lost_events = recording.lost;
  result.steps = timeline.steps.size();
  for (const StepTimes& step : timeline.steps) result.tokens += step.tokens;

  const TokenTime token_time(timeline);
  result.phases = MeasurePhases(recording, timeline, token_time);
  result.critical_path = DescribePath(token_time, timeline.homes);
  result.homes = MeasureHomes(recording, timeline);
  result.s_busy = MeasureStagesBusy(recording, timeline);
  for (const HomeFigures& home : result.homes) result.r_busy = std::max(result.r_busy, home.busy_share);
  result.overlap = std::max(result.s_busy, result.r_busy);
  result.bubbles = FindBubbles(recording, timeline);
  result.achieved = MeasureWires(recording, timeline);
  result.worst = TellWorst(timeline, worst_tokens);
  AddWarnings(recording, timeline, &result);
  return result;
}

}  // namespace fastdecode
