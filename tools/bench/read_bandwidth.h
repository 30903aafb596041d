#ifndef FASTDECODE_TOOLS_BENCH_READ_BANDWIDTH_H_
#define FASTDECODE_TOOLS_BENCH_READ_BANDWIDTH_H_

#include <vector>

namespace fastdecode {

// One thread a core; entries may be -1 (not pinned).
using CoreGroup = std::vector<int>;

// GB/s (1e9 bytes) of each group, all groups reading at the same time: every core reads memory of its own node, taken in
// the largest pages to be had, from start to end, again and again. The median of several windows, by the way to read
// (ReadStreams) that is faster in all.
// Throws Error if there is no memory for it.
std::vector<double> MeasureReadBandwidth(const std::vector<CoreGroup>& groups);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_READ_BANDWIDTH_H_
