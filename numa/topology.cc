#include "numa/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "numa/cpu_affinity.h"
#include "numa/memory_limit.h"

namespace fastdecode {

namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<hwloc_topology, TopologyDeleter>;

struct BitmapDeleter {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using HwlocBitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

// Loads this machine, or the one that `synthetic` describes unless it is empty. `more_flags`: of hwloc.
absl::StatusOr<HwlocTopology> Load(const std::string& synthetic, unsigned long more_flags = 0) {
  hwloc_topology_t raw;
  if (hwloc_topology_init(&raw) != 0) return absl::InternalError("hwloc_topology_init failed");
  HwlocTopology topology(raw);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("hwloc does not understand the machine '", synthetic, "'"));
  }
  // With the disallowed parts too: nodes that this process may not use are listed.
  if (hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | more_flags) != 0 ||
      hwloc_topology_load(raw) != 0) {
    return absl::InternalError("hwloc cannot read this machine's topology");
  }
  return topology;
}

// Sets a node's cores, in the order that NumaNode promises. `physical`: of each physical core the PUs, ascending.
void SetCores(std::vector<std::vector<int>> physical, NumaNode* node) {
  std::erase_if(physical, [](const std::vector<int>& core) { return core.empty(); });
  std::sort(physical.begin(), physical.end());
  node->cores.clear();
  node->physical_of.clear();
  node->physical_cores = static_cast<int>(physical.size());
  for (size_t round = 0;; ++round) {
    std::vector<std::pair<int, int>> entries;  // of the cores that have so many PUs: the PU, and which core it is on
    for (size_t i = 0; i < physical.size(); ++i) {
      if (round < physical[i].size()) entries.emplace_back(physical[i][round], static_cast<int>(i));
    }
    if (entries.empty()) return;
    std::sort(entries.begin(), entries.end());
    for (const auto& [pu, core] : entries) {
      node->cores.push_back(pu);
      node->physical_of.push_back(core);
    }
  }
}

// The PUs of `set`.
void ListCores(hwloc_topology_t topology, hwloc_const_bitmap_t set, NumaNode* node) {
  std::vector<std::vector<int>> physical;
  const HwlocBitmap seen(hwloc_bitmap_alloc());
  const auto add_core = [&](hwloc_const_bitmap_t core_set) {
    std::vector<int>& pus = physical.emplace_back();
    for (int pu = hwloc_bitmap_first(core_set); pu >= 0; pu = hwloc_bitmap_next(core_set, pu)) {
      if (!hwloc_bitmap_isset(set, pu) || hwloc_bitmap_isset(seen.get(), pu)) continue;
      hwloc_bitmap_set(seen.get(), pu);
      pus.push_back(pu);
    }
  };
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    add_core(core->cpuset);
  }
  // A machine whose kernel does not tell cores: every PU is one.
  const HwlocBitmap rest(hwloc_bitmap_alloc());
  hwloc_bitmap_andnot(rest.get(), set, seen.get());
  for (int pu = hwloc_bitmap_first(rest.get()); pu >= 0; pu = hwloc_bitmap_next(rest.get(), pu)) {
    const HwlocBitmap one(hwloc_bitmap_alloc());
    hwloc_bitmap_only(one.get(), pu);
    add_core(one.get());
  }
  SetCores(std::move(physical), node);
}

// Nodes by OS index with their share of `allowed`. A node of memory alone (HBM, CXL) has in hwloc the PUs near it; they
// belong to the first node that has them, as they do for the kernel.
std::vector<NumaNode> ListNodes(hwloc_topology_t topology, hwloc_const_bitmap_t allowed) {
  std::vector<hwloc_obj_t> objects;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    objects.push_back(node);
  }
  std::sort(objects.begin(), objects.end(), [](hwloc_obj_t a, hwloc_obj_t b) { return a->os_index < b->os_index; });
  const HwlocBitmap left(hwloc_bitmap_dup(allowed));
  std::vector<NumaNode> nodes;
  for (const hwloc_obj_t object : objects) {
    NumaNode node;
    node.os_index = static_cast<int>(object->os_index);
    node.memory_allowed = hwloc_bitmap_isset(hwloc_topology_get_allowed_nodeset(topology), object->os_index) != 0;
    node.memory_bytes = object->attr->numanode.local_memory;
    node.free_bytes = node.memory_bytes;
    const HwlocBitmap mine(hwloc_bitmap_alloc());
    hwloc_bitmap_and(mine.get(), object->cpuset, left.get());
    hwloc_bitmap_andnot(left.get(), left.get(), mine.get());
    ListCores(topology, mine.get(), &node);
    nodes.push_back(std::move(node));
  }
  return nodes;
}

std::vector<int> ListBarred(hwloc_topology_t topology, hwloc_const_bitmap_t allowed) {
  const HwlocBitmap barred(hwloc_bitmap_alloc());
  hwloc_bitmap_andnot(barred.get(), hwloc_topology_get_topology_cpuset(topology), allowed);
  std::vector<int> cores;
  for (int pu = hwloc_bitmap_first(barred.get()); pu >= 0; pu = hwloc_bitmap_next(barred.get(), pu)) {
    cores.push_back(pu);
  }
  return cores;
}

// The cores of an affinity, within what the cpuset allows; all of these where the affinity cannot be known.
HwlocBitmap AllowedOf(hwloc_topology_t topology, const CpuAffinity& affinity) {
  HwlocBitmap allowed(hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(topology)));
  if (affinity.cores.empty()) return allowed;
  const HwlocBitmap mine(hwloc_bitmap_alloc());
  for (const int core : affinity.cores) hwloc_bitmap_set(mine.get(), static_cast<unsigned>(core));
  hwloc_bitmap_and(allowed.get(), allowed.get(), mine.get());
  return allowed;
}

// Empty unless the kernel refused to say the affinity.
std::string DescribeRefusal(const CpuAffinity& affinity) {
  if (affinity.refusal == 0) return "";
  return absl::StrCat("sched_getaffinity: ", std::strerror(affinity.refusal), ": ",
                      affinity.cores.empty()
                          ? "and /proc does not say either which cores this process may use: all are taken to be its "
                            "own; name others with --s-cores and --r-cores"
                          : "the cores that this process may use are those that /proc/thread-self/status names");
}

std::string ReadCpuModel() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

absl::Status CheckAnyCore(const std::vector<NumaNode>& nodes) {
  const bool any = std::any_of(nodes.begin(), nodes.end(), [](const NumaNode& node) { return !node.cores.empty(); });
  return any ? absl::OkStatus() : absl::FailedPreconditionError("no NUMA node has a core that this process may run on");
}

}  // namespace

absl::StatusOr<Topology> Topology::Discover() {
  const CpuAffinity affinity = CpuAffinity::OfThisThread();
  // hwloc 2.9 asks for the affinity until it gets it, with ever more cores: it must not, where that is refused.
  const absl::StatusOr<HwlocTopology> machine =
      Load("", affinity.refusal != 0 ? HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING : 0);
  if (!machine.ok()) return machine.status();
  const HwlocBitmap allowed = AllowedOf(machine->get(), affinity);
  Topology topology;
  topology.nodes = ListNodes(machine->get(), allowed.get());
  topology.barred_cores = ListBarred(machine->get(), allowed.get());
  topology.warning = DescribeRefusal(affinity);
  const absl::Status status = CheckAnyCore(topology.nodes);
  if (!status.ok()) return status;
  const MemoryLimit limit = MemoryLimit::Read();
  for (NumaNode& node : topology.nodes) {
    const NodeMemory memory = NodeMemory::Read(node.os_index);
    if (memory.total_bytes != 0) {
      node.memory_bytes = memory.total_bytes;
      node.free_bytes = memory.free_bytes;
    }
    node.free_bytes = std::min(node.free_bytes, limit.available_bytes);
  }
  topology.memory_limit_bytes = limit.limit_bytes;
  topology.cpu_quota = CpuQuota::Read();
  topology.cpu_model = ReadCpuModel();
  return topology;
}

absl::StatusOr<Topology> Topology::Synthetic(const std::string& description, const std::vector<int>& allowed_cores) {
  const absl::StatusOr<HwlocTopology> machine = Load(description);
  if (!machine.ok()) return machine.status();
  const HwlocBitmap allowed(hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(machine->get())));
  if (!allowed_cores.empty()) hwloc_bitmap_zero(allowed.get());
  for (const int core : allowed_cores) hwloc_bitmap_set(allowed.get(), static_cast<unsigned>(core));
  hwloc_bitmap_and(allowed.get(), allowed.get(), hwloc_topology_get_allowed_cpuset(machine->get()));
  Topology topology;
  topology.nodes = ListNodes(machine->get(), allowed.get());
  topology.barred_cores = ListBarred(machine->get(), allowed.get());
  const absl::Status status = CheckAnyCore(topology.nodes);
  if (!status.ok()) return status;
  for (const NumaNode& node : topology.nodes) topology.memory_limit_bytes += node.memory_bytes;
  topology.cpu_model = description;
  return topology;
}

std::vector<int> Topology::AllowedCores() const {
  std::vector<int> cores;
  for (const NumaNode& node : nodes) cores.insert(cores.end(), node.cores.begin(), node.cores.end());
  std::sort(cores.begin(), cores.end());
  return cores;
}

Topology Topology::Without(const std::vector<int>& without) const {
  Topology left = *this;
  for (NumaNode& node : left.nodes) SetCores(PhysicalCores(node, without), &node);
  return left;
}

int Topology::NodeOfCore(int core) const {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (std::find(nodes[i].cores.begin(), nodes[i].cores.end(), core) != nodes[i].cores.end())
      return static_cast<int>(i);
  }
  return -1;
}

std::vector<std::vector<int>> PhysicalCores(const NumaNode& node, const std::vector<int>& without) {
  std::vector<std::vector<int>> physical(static_cast<size_t>(node.physical_cores));
  for (size_t i = 0; i < node.cores.size(); ++i) {
    if (std::find(without.begin(), without.end(), node.cores[i]) != without.end()) continue;
    physical[static_cast<size_t>(node.physical_of[i])].push_back(node.cores[i]);
  }
  for (std::vector<int>& core : physical) std::sort(core.begin(), core.end());
  return physical;
}

std::string Topology::ToString() const {
  std::string text = absl::StrCat(cpu_model, ", up to ", FormatBytes(memory_limit_bytes), " of memory\n");
  for (const NumaNode& node : nodes) {
    absl::StrAppend(&text, "node ", node.os_index, ": cores ", FormatCores(node.cores), " (", node.physical_cores,
                    " physical), ", FormatBytes(node.free_bytes), " of ", FormatBytes(node.memory_bytes), " free",
                    node.UsableAsHome() ? "" : ", cannot be a home", "\n");
  }
  return text;
}

std::string FormatCores(std::vector<int> cores) {
  if (cores.empty()) return "none";
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  std::vector<std::string> ranges;
  for (size_t i = 0; i < cores.size();) {
    size_t end = i + 1;
    while (end < cores.size() && cores[end] == cores[end - 1] + 1) ++end;
    ranges.push_back(end == i + 1 ? absl::StrCat(cores[i]) : absl::StrCat(cores[i], "-", cores[end - 1]));
    i = end;
  }
  return absl::StrJoin(ranges, ",");
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const bool whole = value == static_cast<double>(static_cast<uint64_t>(value));
  return whole ? absl::StrFormat("%.0f %s", value, kUnits[unit]) : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace fastdecode
