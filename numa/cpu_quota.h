#ifndef FASTDECODE_NUMA_CPU_QUOTA_H_
#define FASTDECODE_NUMA_CPU_QUOTA_H_

#include <string>

namespace fastdecode {

// How much CPU time this process may use, whatever CPUs it may run on. Whoever has used it up stands still until the
// next period, for tens of milliseconds, and polling uses it up as work does.
struct CpuQuota {
  double cpus = 0;     // whose whole time it is, by the tightest quota of the cgroups above this process; 0: no quota
  std::string source;  // who sets it, file and value: "/sys/fs/cgroup/cpu.max: 800000 100000"

  // Reads the cgroup tree, versions 1 and 2. What cannot be read sets no quota. `root` goes before every path, for
  // tests.
  static CpuQuota Read(const std::string& root = "");
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_CPU_QUOTA_H_
