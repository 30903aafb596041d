#ifndef FASTDECODE_NUMA_MEMORY_LIMIT_H_
#define FASTDECODE_NUMA_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

namespace fastdecode {

// How much memory this process may use. Linux overcommits: whoever touches more than `available_bytes` is killed or
// brought almost to a stop, not told.
struct MemoryLimit {
  uint64_t limit_bytes = 0;      // the machine's memory or the tightest cgroup limit above this process
  uint64_t available_bytes = 0;  // of that, not yet used; file cache that the kernel would give up counts as available
  std::string source;            // who sets it: "this machine" or the cgroup's file

  // Reads /proc and the cgroup tree, versions 1 and 2. What cannot be read sets no limit.
  // `root` goes before every path, for tests.
  static MemoryLimit Read(const std::string& root = "");
};

// One NUMA node's memory. All 0 if the kernel does not say.
struct NodeMemory {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;  // counting file cache that the kernel would give up

  static NodeMemory Read(int node_os_index, const std::string& root = "");
  // Whether no other node has memory.
  static bool IsOnlyOne(int node_os_index, const std::string& root = "");
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_MEMORY_LIMIT_H_
