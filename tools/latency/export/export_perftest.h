#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_PERFTEST_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_PERFTEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/latency/distribution.h"

namespace fastdecode {

// One row of a table as perftest's ib_write_lat prints it.
struct PerftestRow {
  std::string name;  // a line "# NAME" before the first of consecutive rows that have it
  uint64_t bytes = 0;
  Distribution ns;  // not empty
};

// The columns of ib_write_lat, for programs that read these: #bytes, #iterations, t_min[usec], t_max[usec],
// t_typical[usec] (the median), t_avg[usec], t_stdev[usec], 99% percentile[usec], 99.9% percentile[usec]. Unlike there,
// t_max is the largest of all samples, and a percentile of too few is "-".
std::string PerftestText(const std::vector<PerftestRow>& rows);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_PERFTEST_H_
