#ifndef FASTDECODE_NUMA_CGROUPS_H_
#define FASTDECODE_NUMA_CGROUPS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastdecode {

// The lines of a small file of /proc, /sys or the cgroup tree; none if it cannot be read.
std::vector<std::string> ReadLines(const std::string& path);

// The single number of such a file; nothing for "max" or a missing file.
std::optional<uint64_t> ReadNumber(const std::string& path);

// A cgroup that this process is in, itself or by one below it.
struct Cgroup {
  int version;
  std::string directory;  // without `root`
};

// Those of the hierarchies that may limit what `controller` ("memory", "cpu") controls, as far as they are mounted
// here: from this process's own up to the mount's root. `root` goes before every path, for tests.
std::vector<Cgroup> ListCgroups(const std::string& controller, const std::string& root);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_CGROUPS_H_
