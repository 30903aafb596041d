#include "numa/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fastdecode {

namespace {

// Lines of a small /proc, /sys or cgroup file; none if it cannot be read.
std::vector<std::string> ReadLines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

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

// The single number of a file; nothing for "max" or a missing file.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  const std::vector<std::string> lines = ReadLines(path);
  uint64_t value;
  if (lines.empty() || !absl::SimpleAtoi(lines[0], &value)) return std::nullopt;
  return value;
}

// One cgroup hierarchy that limits memory, as mounted here.
struct CgroupMount {
  int version;
  std::string root;   // the cgroup that is mounted at `point`
  std::string point;  // without the tests' root
};

// mountinfo: "36 35 0:29 /root /mount/point options - type source super-options".
std::vector<CgroupMount> FindMemoryMounts(const std::string& root) {
  std::vector<CgroupMount> mounts;
  for (const std::string& line : ReadLines(root + "/proc/self/mountinfo")) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> fields = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> tail = absl::StrSplit(halves[1], ' ');
    if (fields.size() < 5 || tail.size() < 3) continue;
    const std::vector<std::string> super_options = absl::StrSplit(tail[2], ',');
    const bool has_memory = std::find(super_options.begin(), super_options.end(), "memory") != super_options.end();
    if (tail[0] == "cgroup2") mounts.push_back({2, fields[3], fields[4]});
    if (tail[0] == "cgroup" && has_memory) mounts.push_back({1, fields[3], fields[4]});
  }
  return mounts;
}

// This process's cgroup in the hierarchy of `version`: "0::/path" or "4:memory:/path".
std::optional<std::string> FindOwnCgroup(const std::string& root, int version) {
  for (const std::string& line : ReadLines(root + "/proc/self/cgroup")) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool has_memory = std::find(controllers.begin(), controllers.end(), "memory") != controllers.end();
    if (version == 2 ? fields[0] == "0" : has_memory) return fields[2];
  }
  return std::nullopt;
}

// Limit and available bytes of one cgroup directory, if it has a limit.
std::optional<MemoryLimit> ReadCgroup(const std::string& root, const std::string& directory, int version) {
  const std::string path = root + directory;
  const bool v2 = version == 2;
  const std::optional<uint64_t> limit = ReadNumber(path + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!limit) return std::nullopt;
  const uint64_t used = ReadNumber(path + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  const std::vector<std::string> stat = ReadLines(path + "/memory.stat");
  const std::string prefix = v2 ? "" : "total_";
  const uint64_t cache =
      FindNumber(stat, prefix + "inactive_file").value_or(0) + FindNumber(stat, prefix + "active_file").value_or(0);
  const uint64_t kept = used - std::min(used, cache);
  return MemoryLimit{*limit, *limit - std::min(*limit, kept), directory};
}

// Lowers `*result` to what the cgroups from this process's own up to the mount's root allow.
void ApplyHierarchy(const std::string& root, const CgroupMount& mount, MemoryLimit* result) {
  std::string path = FindOwnCgroup(root, mount.version).value_or("/");
  // In a container the mount may show only a subtree, while /proc/self/cgroup names the whole path.
  if (mount.root != "/") path = path.rfind(mount.root, 0) == 0 ? path.substr(mount.root.size()) : "";
  while (!path.empty() && path.back() == '/') path.pop_back();
  for (;;) {
    if (const std::optional<MemoryLimit> found = ReadCgroup(root, mount.point + path, mount.version)) {
      if (found->limit_bytes < result->limit_bytes) {
        result->limit_bytes = found->limit_bytes;
        result->source = "cgroup " + found->source;
      }
      result->available_bytes = std::min(result->available_bytes, found->available_bytes);
    }
    if (path.empty()) return;
    const size_t slash = path.rfind('/');
    path.resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace

MemoryLimit MemoryLimit::Read(const std::string& root) {
  const std::vector<std::string> meminfo = ReadLines(root + "/proc/meminfo");
  MemoryLimit result;
  result.limit_bytes = FindNumber(meminfo, "MemTotal").value_or(UINT64_MAX / 1024) * 1024;
  result.available_bytes = FindNumber(meminfo, "MemAvailable").value_or(UINT64_MAX / 1024) * 1024;
  result.source = "this machine";
  for (const CgroupMount& mount : FindMemoryMounts(root)) ApplyHierarchy(root, mount, &result);
  return result;
}

NodeMemory NodeMemory::Read(int node_os_index, const std::string& root) {
  const std::string nodes = root + "/sys/devices/system/node/";
  // The only node is the machine, whose numbers are the better ones: some guests' memory joins its node as it is
  // needed.
  if (ReadNumber(nodes + "has_memory") == static_cast<uint64_t>(node_os_index)) {
    const std::vector<std::string> meminfo = ReadLines(root + "/proc/meminfo");
    return {FindNumber(meminfo, "MemTotal").value_or(0) * 1024, FindNumber(meminfo, "MemAvailable").value_or(0) * 1024};
  }
  const std::vector<std::string> meminfo = ReadLines(absl::StrCat(nodes, "node", node_os_index, "/meminfo"));
  const auto bytes = [&](const char* key) { return FindNumber(meminfo, key).value_or(0) * 1024; };
  return {bytes("MemTotal"), bytes("MemFree") + bytes("Active(file)") + bytes("Inactive(file)")};
}

}  // namespace fastdecode
