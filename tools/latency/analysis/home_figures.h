#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOME_FIGURES_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOME_FIGURES_H_

#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// One entry for each home, in order; those without a hop too.
std::vector<HomeFigures> MeasureHomes(const Recording& recording, const Timeline& timeline);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_HOME_FIGURES_H_
