#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_WIRE_RATE_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_WIRE_RATE_H_

#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// What the link of each home carried, q, k, v there and o back, of what its port can: over the recording, against both
// ways of the port at once; and while a hop was on the wire, where it is on one way at a time, against one. Of links
// that are memory the latter alone, against what the homes' cores read (Recording::memory_gb_per_s). Homes without hops
// are left out.
std::vector<Achieved> MeasureWires(const Recording& recording, const Timeline& timeline);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_WIRE_RATE_H_
