#ifndef FASTDECODE_NUMA_TOPOLOGY_H_
#define FASTDECODE_NUMA_TOPOLOGY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "numa/cpu_quota.h"

namespace fastdecode {

// One NUMA node as this process may use it.
struct NumaNode {
  int os_index = 0;
  // OS numbers of the PUs that this process may run on, one of each physical core first (in OS order), then the second
  // hyperthread of each core, and so on. Empty: the node cannot be a home.
  std::vector<int> cores;
  int physical_cores = 0;  // how many leading entries of `cores` are on different physical cores
  // [i]: which of the leading entries of `cores` is on the same physical core as entry i.
  std::vector<int> physical_of;
  bool memory_allowed = false;  // by the process's cpuset
  uint64_t memory_bytes = 0;    // installed; 0: the node cannot be a home
  uint64_t free_bytes = 0;      // free now, counting file cache that the kernel would give up

  bool UsableAsHome() const { return !cores.empty() && memory_allowed && memory_bytes > 0; }
};

// The machine as this process may use it: its CPU affinity and its cgroup's cpuset, CPU quota and memory limit are
// respected.
// A plain value, right at the moment of Discover().
struct Topology {
  std::vector<NumaNode> nodes;      // by os_index, also those without allowed cores; each PU is in one node only
  std::vector<int> barred_cores;    // PUs that are online, but not for this process; ascending
  uint64_t memory_limit_bytes = 0;  // what this process may use at most: the machine's memory or its cgroup's limit
  CpuQuota cpu_quota;
  std::string cpu_model;
  std::string warning;  // for the log: what the kernel refused to say, and what was done about it; empty: nothing

  // Call it from a thread that has not been pinned yet: a pinned one sees only its own core.
  // Errors: Internal if hwloc fails, FailedPrecondition if no allowed core is found.
  static absl::StatusOr<Topology> Discover();

  // As Discover(), for a machine that hwloc's synthetic description makes up ("numa:2 core:4 pu:2") and a process that
  // may run on `allowed_cores` (empty: on all). For planning and tests.
  static absl::StatusOr<Topology> Synthetic(const std::string& description, const std::vector<int>& allowed_cores);

  // All allowed PUs, ascending.
  std::vector<int> AllowedCores() const;
  // The same machine for a process that may not run on these cores.
  Topology Without(const std::vector<int>& without) const;
  // Index into `nodes` of the node that holds this PU, -1 if none.
  int NodeOfCore(int core) const;

  // Several lines for people: the CPU, the limit, then one line a node.
  std::string ToString() const;
};

// The PUs of each physical core of a node, ascending, but for `without`; in the order of the node's cores.
std::vector<std::vector<int>> PhysicalCores(const NumaNode& node, const std::vector<int>& without = {});

// "0,2-5": the cores, sorted, as people write them; "none" if empty.
std::string FormatCores(std::vector<int> cores);

// "1.5 GiB".
std::string FormatBytes(uint64_t bytes);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_TOPOLOGY_H_
