#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_ANALYSIS_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_ANALYSIS_H_

#include <cstddef>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// Fills in all that follows from the recording alone: phases, critical path, busy shares, bubbles, homes, what
// their links carried, worst tokens.
// (Requests and SLOs: requests.h. Findings: findings.h.)
LatencyResult Analyze(const Recording& recording, const Timeline& timeline, size_t worst_tokens);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_ANALYSIS_H_
