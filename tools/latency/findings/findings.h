#ifndef FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDINGS_H_
#define FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDINGS_H_

#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// What is wrong, costliest first; empty if nothing stands out from its like (homes from homes, layers from layers, a
// moment from other moments).
std::vector<Finding> FindFaults(const Recording& recording, const Timeline& timeline);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FINDINGS_FINDINGS_H_
