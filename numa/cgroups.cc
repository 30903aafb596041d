#include "numa/cgroups.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace fastdecode {

namespace {

bool Names(const std::string& list, const std::string& controller) {
  const std::vector<std::string> names = absl::StrSplit(list, ',');
  return std::find(names.begin(), names.end(), controller) != names.end();
}

// One cgroup hierarchy, as mounted here.
struct CgroupMount {
  int version;
  std::string root;   // the cgroup that is mounted at `point`
  std::string point;  // without the tests' root
};

// mountinfo: "36 35 0:29 /root /mount/point options - type source super-options".
std::vector<CgroupMount> FindMounts(const std::string& controller, const std::string& root) {
  std::vector<CgroupMount> mounts;
  for (const std::string& line : ReadLines(root + "/proc/self/mountinfo")) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() != 2) continue;
    const std::vector<std::string> fields = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> tail = absl::StrSplit(halves[1], ' ');
    if (fields.size() < 5 || tail.size() < 3) continue;
    if (tail[0] == "cgroup2") mounts.push_back({2, fields[3], fields[4]});
    if (tail[0] == "cgroup" && Names(tail[2], controller)) mounts.push_back({1, fields[3], fields[4]});
  }
  return mounts;
}

// This process's cgroup in the hierarchy of `version`: "0::/path" or "4:memory:/path".
std::optional<std::string> FindOwnCgroup(const std::string& controller, const std::string& root, int version) {
  for (const std::string& line : ReadLines(root + "/proc/self/cgroup")) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (version == 2 ? fields[0] == "0" : Names(fields[1], controller)) return fields[2];
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> ReadLines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  const std::vector<std::string> lines = ReadLines(path);
  uint64_t value;
  if (lines.empty() || !absl::SimpleAtoi(lines[0], &value)) return std::nullopt;
  return value;
}

std::vector<Cgroup> ListCgroups(const std::string& controller, const std::string& root) {
  std::vector<Cgroup> cgroups;
  for (const CgroupMount& mount : FindMounts(controller, root)) {
    std::string path = FindOwnCgroup(controller, root, mount.version).value_or("/");
    // In a container the mount may show only a subtree, while /proc/self/cgroup names the whole path.
    if (mount.root != "/") path = path.rfind(mount.root, 0) == 0 ? path.substr(mount.root.size()) : "";
    while (!path.empty() && path.back() == '/') path.pop_back();
    cgroups.push_back({mount.version, mount.point + path});
    while (!path.empty()) {
      const size_t slash = path.rfind('/');
      path.resize(slash == std::string::npos ? 0 : slash);
      cgroups.push_back({mount.version, mount.point + path});
    }
  }
  return cgroups;
}

}  // namespace fastdecode
