#include "numa/cpu_quota.h"

#include <cstdint>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "numa/cgroups.h"

namespace fastdecode {

namespace {

// The quota of one cgroup directory, if it has one. Version 2: "quota period" or "max period" in one file; version 1: a
// file each, with -1 for no quota.
std::optional<CpuQuota> ReadQuota(const std::string& root, const Cgroup& cgroup) {
  const std::string file = cgroup.directory + (cgroup.version == 2 ? "/cpu.max" : "/cpu.cfs_quota_us");
  const std::vector<std::string> lines = ReadLines(root + file);
  if (lines.empty()) return std::nullopt;
  std::istringstream words(lines[0]);
  double quota, period;
  if (!(words >> quota) || quota <= 0) return std::nullopt;
  CpuQuota found;
  found.source = absl::StrCat(file, ": ", lines[0]);
  if (cgroup.version == 1) {
    const std::optional<uint64_t> number = ReadNumber(absl::StrCat(root, cgroup.directory, "/cpu.cfs_period_us"));
    if (!number) return std::nullopt;
    period = static_cast<double>(*number);
    absl::StrAppend(&found.source, " of ", *number);
  } else if (!(words >> period)) {
    return std::nullopt;
  }
  if (period <= 0) return std::nullopt;
  found.cpus = quota / period;
  return found;
}

}  // namespace

CpuQuota CpuQuota::Read(const std::string& root) {
  CpuQuota result;
  for (const Cgroup& cgroup : ListCgroups("cpu", root)) {
    const std::optional<CpuQuota> found = ReadQuota(root, cgroup);
    if (found && (result.cpus == 0 || found->cpus < result.cpus)) result = *found;
  }
  return result;
}

}  // namespace fastdecode
