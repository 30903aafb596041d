#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_PHASES_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_PHASES_H_

#include <vector>

#include "tools/latency/analysis/critical_path.h"
#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// Every kind of duration there is, of whole steps: first the engine's in the order of a step, then each home's in the
// order of a hop. Shares of phases that contain others contain theirs: "token" all, "S-Part stage" the GEMMs and the
// rest, "hop" what follows it. Phases that never were are left out.
std::vector<Phase> MeasurePhases(const Recording& recording, const Timeline& timeline, const TokenTime& token_time);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_PHASES_H_
