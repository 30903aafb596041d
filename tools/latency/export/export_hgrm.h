#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_HGRM_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_HGRM_H_

#include <ostream>
#include <string>

#include "tools/latency/distribution.h"
#include "tools/latency/result.h"

namespace fastdecode {

// The text form of HdrHistogram's percentile distributions, which its plotters read: Value (ms, to the ns), Percentile,
// TotalCount (samples up to this value), 1/(1-Percentile). Percentiles come closer to each other towards 1, five each
// time that the rest halves. Values are exact: where HdrHistogram tells of its buckets, it says one a sample. What
// has not ended counts as in Distribution; a last line says of how many that is.
void WriteHgrm(const Distribution& ns, std::ostream& out);

// The distribution that `name` means: "ttft", "tpot", "itl" or "e2e" of the first RequestFigures; else the name of a
// phase, the first of that name, or "PHASE@WHERE" ("attend@home 1"). nullptr: there is none.
const Distribution* FindDistribution(const LatencyResult& result, const std::string& name);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_HGRM_H_
