#ifndef FASTDECODE_NUMA_PARALLEL_FOR_H_
#define FASTDECODE_NUMA_PARALLEL_FOR_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fastdecode {

// Runs body(i) for every i in [0, count), in no order, on one thread pinned to each of `cores` (OS numbers of PUs;
// none: on the caller's), and returns when all are done. For starts, not for steps: it makes its threads anew.
void ParallelFor(const std::string& thread_name, const std::vector<int>& cores, int64_t count,
                 const std::function<void(int64_t)>& body);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_PARALLEL_FOR_H_
