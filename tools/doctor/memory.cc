#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "numa/memory_limit.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/host_facts.h"

namespace fastdecode {

namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;
// A link of a model of 7 billion parameters registers some 24 MiB, an end; a host has several.
constexpr uint64_t kLockedBytesMin = uint64_t{64} << 20;

void ExamineLimit(const SysRoot& root, CheckList* list) {
  constexpr char kName[] = "memory limit";
  if (!root.Exists("/proc/meminfo")) {
    list->Unknown(kName, kNotReadable, "is /proc mounted? `free -h` says how much memory there is");
    return;
  }
  const MemoryLimit limit = MemoryLimit::Read(root.prefix());
  list->Ok(kName, absl::StrCat(FormatBytes(limit.limit_bytes), " (", limit.source, "), ",
                               FormatBytes(limit.available_bytes), " available"));
}

void ExamineNode(const DoctorHost& host, const NumaNode& node, CheckList* list) {
  const std::string name = absl::StrCat("NUMA node ", node.os_index);
  const NodeMemory memory = NodeMemory::Read(node.os_index, host.root.prefix());
  std::string found = node.cores.empty() ? "no cores for this process"
                                         : absl::StrCat("CPUs ", FormatCores(node.cores), " (", node.physical_cores,
                                                        " physical core", node.physical_cores == 1 ? ")" : "s)");
  absl::StrAppend(&found, ", ", FormatBytes(memory.total_bytes), ", ", FormatBytes(memory.free_bytes), " free");
  const bool has_cpus =
      !host.root.Text(absl::StrCat(kNodesFolder, "node", node.os_index, "/cpulist")).value_or("").empty();
  if (node.UsableAsHome() || (!has_cpus && node.memory_allowed)) {
    list->Ok(name, absl::StrCat(found, has_cpus ? "" : "; memory alone, so no home"));
    return;
  }
  list->Warning(name, absl::StrCat(found, "; cannot be a home"),
                node.memory_bytes == 0 ? "it has no memory: are its DIMMs there, and on?"
                : node.memory_allowed  ? "put cores of it into this process's CPU set (taskset, --cpuset-cpus)"
                                       : "allow this process its memory (cpuset.mems, --cpuset-mems)");
}

void ExamineNodes(const DoctorHost& host, CheckList* list) {
  if (!host.topology) {
    list->Unknown("NUMA nodes", kNotReadable, "is /sys mounted? `lstopo` or `numactl -H` says what hwloc can see");
    return;
  }
  for (const NumaNode& node : host.topology->nodes) ExamineNode(host, node, list);
}

void ExaminePlacement(const DoctorHost& host, CheckList* list) {
  constexpr char kName[] = "memory placement";
  if (!host.topology) return;
  const auto nodes = std::count_if(host.topology->nodes.begin(), host.topology->nodes.end(),
                                   [](const NumaNode& node) { return node.memory_bytes > 0; });
  if (host.places_memory) {
    list->Ok(kName, "on the node that is asked for");
  } else if (nodes < 2) {
    list->Ok(kName, "refused by the kernel (mbind), but there is one node alone");
  } else {
    list->Warning(kName, "refused by the kernel (mbind)",
                  "KV memory may be on another node than its home's cores: in a container, --cap-add SYS_NICE");
  }
}

// Returns whether there may be transparent huge pages.
bool ExamineTransparent(const SysRoot& root, CheckList* list) {
  constexpr char kName[] = "transparent huge pages";
  const std::optional<std::string> enabled = ReadChoice(root, absl::StrCat(kTransparentFolder, "enabled"));
  if (!enabled) {
    list->Unknown(kName, kNotReadable, "a kernel without them needs reserved huge pages");
    return false;
  }
  const std::optional<std::string> shared = ReadChoice(root, absl::StrCat(kTransparentFolder, "shmem_enabled"));
  const std::string found =
      absl::StrCat(*enabled, "; for memory that processes share: ", shared.value_or(kNotReadable));
  if (*enabled == "never") {
    list->Warning(kName, found, absl::StrCat("`echo madvise > ", kTransparentFolder, "enabled`"));
    return false;
  }
  list->Ok(kName, found);
  return true;
}

// "12 of 16 free of 2 MiB", or nothing if none are reserved.
std::string DescribePool(const SysRoot& root, const std::string& folder, const char* size) {
  const int64_t total = root.Number(folder + "/nr_hugepages").value_or(0);
  const int64_t free = root.Number(folder + "/free_hugepages").value_or(0);
  return total > 0 ? absl::StrCat(free, " of ", total, " pages of ", size, " free") : "";
}

void ExamineReserved(const SysRoot& root, bool transparent, CheckList* list) {
  for (const std::string& node : root.List(kNodesFolder)) {
    int number;
    if (node.rfind("node", 0) != 0 || !absl::SimpleAtoi(node.substr(4), &number)) continue;
    const std::string name = absl::StrCat("huge pages of node ", number);
    const std::string folder = absl::StrCat(kNodesFolder, node, "/hugepages");
    if (root.List(folder).empty()) {
      list->Unknown(name, kNotReadable, "`grep Huge /proc/meminfo` says what the kernel has reserved on all nodes");
      continue;
    }
    const std::string large = DescribePool(root, folder + "/hugepages-1048576kB", "1 GiB");
    const std::string middle = DescribePool(root, folder + "/hugepages-2048kB", "2 MiB");
    if (!large.empty() || !middle.empty()) {
      list->Ok(name, absl::StrCat(large, large.empty() || middle.empty() ? "" : ", ", middle));
    } else if (transparent) {
      list->Ok(name, "none reserved; transparent ones are used");
    } else {
      list->Warning(name, "none reserved, and no transparent ones",
                    absl::StrFormat("KV and rings would lie in pages of 4 KiB, which is slow: "
                                    "`echo N > %s/hugepages-2048kB/nr_hugepages`, 512 for each GiB of --kv-gib",
                                    folder));
    }
  }
}

// The soft limit of "Max locked memory  8388608  unlimited  bytes".
std::optional<uint64_t> ReadLockedLimit(const SysRoot& root) {
  const std::string begin = "Max locked memory";
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(root.Text("/proc/self/limits").value_or(""), '\n'))) {
    if (line.rfind(begin, 0) != 0) continue;
    std::istringstream words(line.substr(begin.size()));
    std::string word;
    uint64_t bytes;
    if (words >> word && word == "unlimited") return kUnlimited;
    if (absl::SimpleAtoi(word, &bytes)) return bytes;
  }
  return std::nullopt;
}

// Whom the kernel lets lock what it likes: CAP_IPC_LOCK, in the first user namespace.
bool LimitDoesNotHold(const SysRoot& root) {
  constexpr int kCapIpcLock = 14;
  const std::string effective = root.Field("/proc/self/status", "CapEff").value_or("");
  uint64_t capabilities;
  if (!absl::SimpleHexAtoi(effective, &capabilities) || (capabilities >> kCapIpcLock & 1) == 0) return false;
  std::istringstream map(root.Text("/proc/self/uid_map").value_or(""));
  uint64_t inside = 1, outside = 1, count = 0;
  map >> inside >> outside >> count;
  return inside == 0 && outside == 0 && count == UINT32_MAX;
}

void ExamineLocked(const SysRoot& root, CheckList* list) {
  constexpr char kName[] = "locked memory";
  constexpr char kRaise[] =
      "registered memory counts; raise it: `ulimit -l unlimited` (limits.conf: memlock), in a service "
      "LimitMEMLOCK=infinity, in a container --ulimit memlock=-1";
  const std::optional<uint64_t> limit = ReadLockedLimit(root);
  if (!limit) {
    list->Unknown(kName, kNotReadable, "`ulimit -l` should say unlimited");
    return;
  }
  if (*limit == kUnlimited) {
    list->Ok(kName, "unlimited");
  } else if (LimitDoesNotHold(root)) {
    list->Ok(kName, absl::StrCat(FormatBytes(*limit), ", but this process may pass it (CAP_IPC_LOCK)"));
  } else if (*limit < kLockedBytesMin) {
    list->Error(kName, absl::StrCat(FormatBytes(*limit), ", less than the rings of a model's links need"), kRaise);
  } else {
    list->Warning(kName, absl::StrCat("at most ", FormatBytes(*limit)), kRaise);
  }
}

}  // namespace

void ExamineMemory(const DoctorHost& host, CheckList* list) {
  ExamineLimit(host.root, list);
  ExamineNodes(host, list);
  ExaminePlacement(host, list);
  const bool transparent = ExamineTransparent(host.root, list);
  ExamineReserved(host.root, transparent, list);
  ExamineLocked(host.root, list);
}

}  // namespace fastdecode
