#ifndef FASTDECODE_NUMA_FRONT_CORES_H_
#define FASTDECODE_NUMA_FRONT_CORES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "numa/core_plan.h"
#include "numa/topology.h"

namespace fastdecode {

// The cores that the engine leaves to its caller's threads, such as those of an HTTP front, by options.front_cores. A
// list: these. auto: the last physical core of the S-Part's node with all its hyperthreads, if the process may use four
// or more physical cores, else none. The node is the S-Part's because the caller's threads share memory with the
// engine's there; and the core is the last because the first ones often serve interrupts, and are the S-Part's. Cores
// that other options name are not taken, and those that other processes hold only if there are no others; a physical
// core is left to the node's teams. Where other options settle all cores of the engine, four are not asked for. Errors:
// InvalidArgument for cores that are not there, that another option names, too, or without which no core is left.
absl::StatusOr<std::vector<int>> ChooseFrontCores(const Topology& topology, const CorePlanOptions& options);

// The machine without the cores that a list names. With auto, with none, and with a list that ChooseFrontCores refuses,
// it is whole.
Topology WithoutNamedFrontCores(const Topology& topology, const std::string& front_cores);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_FRONT_CORES_H_
