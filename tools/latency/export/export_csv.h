#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_CSV_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_CSV_H_

#include <ostream>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/result.h"

namespace fastdecode {

// Comma-separated values as RFC 4180 has them, but with \n at the ends of lines: a line of names, then one a row. Times
// are whole ns; a cell is empty where there is no such figure. Errors are the stream's.

// The phases: phase, where, count, min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, mean_ns, stdev_ns, share, note.
void WritePhasesCsv(const LatencyResult& result, std::ostream& out);

// The tokens, by end: request, index, micro_batch, step, rows, start_ns, end_ns, ns, one column a Place
// ("home_attend_ns"), residual_ns. Tokens of one step have all but request and index in common.
void WriteTokensCsv(const Timeline& timeline, std::ostream& out);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_CSV_H_
