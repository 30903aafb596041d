#ifndef FASTDECODE_NUMA_CPU_AFFINITY_H_
#define FASTDECODE_NUMA_CPU_AFFINITY_H_

#include <sched.h>

#include <cstddef>
#include <vector>

namespace fastdecode {

// A CPU set of the kernel's with room for so many cores; any number that a kernel may have. Owns: its memory.
class CpuSet {
 public:
  explicit CpuSet(int cores);
  // The set has these cores alone. REQUIRES: at least one.
  explicit CpuSet(const std::vector<int>& cores);
  ~CpuSet() { CPU_FREE(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  size_t bytes() const { return bytes_; }
  cpu_set_t* get() { return set_; }

 private:
  size_t bytes_;
  cpu_set_t* set_;
};

// The cores that a thread may run on. Where the kernel refuses to say (a seccomp filter of a container or a service),
// /proc says it.
struct CpuAffinity {
  std::vector<int> cores;  // OS numbers, ascending; maybe some that are not online. Empty: it cannot be known
  int refusal = 0;         // errno of sched_getaffinity; 0: it was not refused

  static CpuAffinity OfThisThread();
  static CpuAffinity OfMainThread();
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_CPU_AFFINITY_H_
