#include "numa/memory_limit.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "numa/cgroups.h"

namespace fastdecode {

namespace {

constexpr char kNodesFolder[] = "/sys/devices/system/node/";

// The number after `key` as a word of its own in "key: 123 kB" or "key 123" lines, in the file's unit.
std::optional<uint64_t> FindNumber(const std::vector<std::string>& lines, const std::string& key) {
  for (const std::string& line : lines) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      uint64_t value;
      if ((word == key || word == key + ":") && words >> value) return value;
    }
  }
  return std::nullopt;
}

// Limit and available bytes of one cgroup directory, if it has a limit. Above memory.high the kernel does not kill, but
// takes pages back and makes whoever wants more wait.
std::optional<MemoryLimit> ReadCgroup(const std::string& root, const Cgroup& cgroup) {
  const std::string path = root + cgroup.directory;
  const bool v2 = cgroup.version == 2;
  std::optional<MemoryLimit> result;
  for (const char* file : v2 ? std::vector{"/memory.max", "/memory.high"} : std::vector{"/memory.limit_in_bytes"}) {
    const std::optional<uint64_t> limit = ReadNumber(path + file);
    if (limit && (!result || *limit < result->limit_bytes)) {
      result = MemoryLimit{*limit, 0, absl::StrCat("cgroup ", cgroup.directory, file)};
    }
  }
  if (!result) return std::nullopt;
  const uint64_t used = ReadNumber(path + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  const std::vector<std::string> stat = ReadLines(path + "/memory.stat");
  const std::string prefix = v2 ? "" : "total_";
  const uint64_t cache =
      FindNumber(stat, prefix + "inactive_file").value_or(0) + FindNumber(stat, prefix + "active_file").value_or(0);
  const uint64_t kept = used - std::min(used, cache);
  result->available_bytes = result->limit_bytes - std::min(result->limit_bytes, kept);
  return result;
}

}  // namespace

MemoryLimit MemoryLimit::Read(const std::string& root) {
  const std::vector<std::string> meminfo = ReadLines(root + "/proc/meminfo");
  MemoryLimit result;
  result.limit_bytes = FindNumber(meminfo, "MemTotal").value_or(UINT64_MAX / 1024) * 1024;
  result.available_bytes = FindNumber(meminfo, "MemAvailable").value_or(UINT64_MAX / 1024) * 1024;
  result.source = "this machine";
  for (const Cgroup& cgroup : ListCgroups("memory", root)) {
    const std::optional<MemoryLimit> found = ReadCgroup(root, cgroup);
    if (!found) continue;
    if (found->limit_bytes < result.limit_bytes) {
      result.limit_bytes = found->limit_bytes;
      result.source = found->source;
    }
    result.available_bytes = std::min(result.available_bytes, found->available_bytes);
  }
  return result;
}

bool NodeMemory::IsOnlyOne(int node_os_index, const std::string& root) {
  return ReadNumber(absl::StrCat(root, kNodesFolder, "has_memory")) == static_cast<uint64_t>(node_os_index);
}

NodeMemory NodeMemory::Read(int node_os_index, const std::string& root) {
  // The only node is the machine, whose numbers are the better ones: some guests' memory joins its node as it is
  // needed.
  if (IsOnlyOne(node_os_index, root)) {
    const std::vector<std::string> meminfo = ReadLines(root + "/proc/meminfo");
    return {FindNumber(meminfo, "MemTotal").value_or(0) * 1024, FindNumber(meminfo, "MemAvailable").value_or(0) * 1024};
  }
  const std::vector<std::string> meminfo =
      ReadLines(absl::StrCat(root, kNodesFolder, "node", node_os_index, "/meminfo"));
  const auto bytes = [&](const char* key) { return FindNumber(meminfo, key).value_or(0) * 1024; };
  return {bytes("MemTotal"), bytes("MemFree") + bytes("Active(file)") + bytes("Inactive(file)")};
}

}  // namespace fastdecode
