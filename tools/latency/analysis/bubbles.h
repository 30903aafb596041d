#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_BUBBLES_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_BUBBLES_H_

#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// Share of the recorded time in which some stage ran.
double MeasureStagesBusy(const Recording& recording, const Timeline& timeline);

// When the S-Part or a home had nothing to do, and what the micro-batch waited for that came next: "R late: home 1" was
// queued or at work there, "link: home 1" on its way there or back, "S late" in a stage or before it, "scheduler" held,
// "home lost" at a home that did not answer any more, or without one, "no requests" not there. Of the S-Part itself "S
// late" means that it could have gone on and did not: its thread was away. What comes before a step that was not
// recorded whole is left out, but for "home lost". Largest first.
std::vector<Bubble> FindBubbles(const Recording& recording, const Timeline& timeline);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_BUBBLES_H_
