#include "tools/latency/machine/provenance.h"

#include <cpuid.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <optional>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "numa/memory_limit.h"
#include "numa/topology.h"
#include "tools/doctor/host_facts.h"

namespace fastdecode {

namespace {

using Json = nlohmann::json;

Json OrNull(const std::optional<std::string>& text) { return text && !text->empty() ? Json(*text) : Json(); }
Json OrNull(const std::optional<int64_t>& number) { return number ? Json(*number) : Json(); }
Json OrNull(const std::string& text) { return OrNull(std::optional<std::string>(text)); }
Json CoresOrNull(const std::optional<std::vector<int>>& cores) { return cores ? Json(FormatCores(*cores)) : Json(); }

// ---- Reading

std::string FormatTime(int64_t time_s) {
  const time_t time = static_cast<time_t>(time_s);
  tm parts = {};
  char text[32] = "";
  if (gmtime_r(&time, &parts) != nullptr) std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// As one would type it into a shell.
std::string Quote(const std::string& word) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::strchr("_-+=./,:@%", c) != nullptr;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string ReadCommandLine(const SysRoot& root) {
  std::string text = root.Text("/proc/self/cmdline").value_or("");
  if (!text.empty() && text.back() == '\0') text.pop_back();
  if (text.empty()) return "";
  std::vector<std::string> words = absl::StrSplit(text, '\0');
  for (std::string& word : words) word = Quote(word);
  return absl::StrJoin(words, " ");
}

// Those of the kernel's parameters that decide how steadily a core runs. The others are nobody's business.
Json ReadKernelParameters(const SysRoot& root) {
  const std::set<std::string> names = {"isolcpus",
                                       "nohz_full",
                                       "nohz",
                                       "rcu_nocbs",
                                       "rcu_nocb_poll",
                                       "idle",
                                       "processor.max_cstate",
                                       "tsc",
                                       "intel_idle.max_cstate",
                                       "mitigations",
                                       "clocksource",
                                       "iommu",
                                       "intel_iommu",
                                       "amd_iommu",
                                       "intel_pstate",
                                       "amd_pstate",
                                       "transparent_hugepage",
                                       "preempt",
                                       "skew_tick",
                                       "nosmt",
                                       "irqaffinity",
                                       "nmi_watchdog",
                                       "nosoftlockup",
                                       "threadirqs",
                                       "numa_balancing"};
  Json found = Json::array();
  const std::string text = root.Text("/proc/cmdline").value_or("");
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' ', absl::SkipEmpty()))) {
    if (names.count(word.substr(0, word.find('='))) > 0) found.push_back(word);
  }
  return found;
}

std::set<std::string> ReadCpuFlags(const SysRoot& root) {
  return absl::StrSplit(root.Field("/proc/cpuinfo", "flags").value_or(""), ' ', absl::SkipEmpty());
}

// "on" and "off", however the driver writes it.
Json ReadBoost(const SysRoot& root) {
  if (const std::optional<int64_t> boost = root.Number(absl::StrCat(kCpusFolder, "cpufreq/boost"))) return *boost != 0;
  if (const std::optional<int64_t> off = root.Number(absl::StrCat(kCpusFolder, "intel_pstate/no_turbo")))
    return *off == 0;
  return Json();
}

Json ReadSmt(const SysRoot& root) {
  const std::optional<int64_t> active = root.Number(absl::StrCat(kCpusFolder, "smt/active"));
  return active ? Json(*active != 0) : Json();
}

// "none", its name, or "yes"; null if there are no flags to look at.
Json ReadHypervisor(const std::set<std::string>& flags, const std::string& name) {
  if (flags.empty()) return Json();
  if (flags.count("hypervisor") == 0) return "none";
  return name.empty() ? "yes" : name;
}

Json ReadCpu(const SysRoot& root, const ProvenanceInput& input, const std::set<std::string>& flags) {
  return {{"model", OrNull(root.Field("/proc/cpuinfo", "model name"))},
          {"microcode", OrNull(root.Field("/proc/cpuinfo", "microcode"))},
          {"online", CoresOrNull(ReadCpuList(root, absl::StrCat(kCpusFolder, "online")))},
          {"allowed", CoresOrNull(ReadAllowedCpus(root))},
          {"smt", ReadSmt(root)},
          {"governor", OrNull(DescribeGovernors(ReadGovernors(root)))},
          {"frequency_driver", OrNull(root.Text(absl::StrCat(kCpusFolder, "cpu0/cpufreq/scaling_driver")))},
          {"boost", ReadBoost(root)},
          {"isolated", CoresOrNull(ReadCpuList(root, absl::StrCat(kCpusFolder, "isolated")))},
          {"nohz_full", CoresOrNull(ReadCpuList(root, absl::StrCat(kCpusFolder, "nohz_full")))},
          {"hypervisor", ReadHypervisor(flags, input.hypervisor)}};
}

Json ReadIdle(const SysRoot& root) {
  const std::string folder = absl::StrCat(kCpusFolder, "cpuidle/");
  std::optional<std::string> governor = root.Text(folder + "current_governor");
  if (!governor) governor = root.Text(folder + "current_governor_ro");
  Json states = Json::array();
  const std::string of_cpu0 = absl::StrCat(kCpusFolder, "cpu0/cpuidle/");
  for (const std::string& state : root.List(of_cpu0)) {
    if (!NumberAfter("state", state)) continue;
    states.push_back({{"name", OrNull(root.Text(of_cpu0 + state + "/name"))},
                      {"latency_us", OrNull(root.Number(of_cpu0 + state + "/latency"))},
                      {"disabled", root.Number(of_cpu0 + state + "/disable").value_or(0) != 0}});
  }
  return {{"driver", OrNull(root.Text(folder + "current_driver"))}, {"governor", OrNull(governor)}, {"states", states}};
}

Json ReadClock(const SysRoot& root, const std::set<std::string>& flags) {
  return {{"source", OrNull(root.Text("/sys/devices/system/clocksource/clocksource0/current_clocksource"))},
          {"invariant_tsc", flags.empty() ? Json() : Json(flags.count("nonstop_tsc") > 0)}};
}

Json ReadMemory(const SysRoot& root) {
  Json nodes = Json::array();
  uint64_t bytes = 0;
  for (const std::string& name : root.List(kNodesFolder)) {
    const std::optional<int> node = NumberAfter("node", name);
    if (!node) continue;
    const std::string folder = absl::StrCat(kNodesFolder, name);
    const NodeMemory memory = NodeMemory::Read(*node, root.prefix());
    bytes += memory.total_bytes;
    nodes.push_back({{"node", *node},
                     {"cpus", CoresOrNull(ReadCpuList(root, folder + "/cpulist"))},
                     {"bytes", memory.total_bytes},
                     {"huge_2m", OrNull(root.Number(folder + "/hugepages/hugepages-2048kB/nr_hugepages"))},
                     {"huge_1g", OrNull(root.Number(folder + "/hugepages/hugepages-1048576kB/nr_hugepages"))}});
  }
  const std::optional<int64_t> balancing = root.Number("/proc/sys/kernel/numa_balancing");
  return {{"bytes", bytes > 0 ? Json(bytes) : Json()},
          {"transparent_huge_pages", OrNull(ReadChoice(root, absl::StrCat(kTransparentFolder, "enabled")))},
          {"numa_balancing", balancing ? Json(*balancing != 0) : Json()},
          {"nodes", nodes}};
}

Json ReadNetwork(const SysRoot& root) {
  Json devices = Json::array();
  for (const RdmaDevice& device : ReadRdmaDevices(root)) {
    Json ports = Json::array();
    for (const RdmaPort& port : device.ports) {
      ports.push_back({{"port", port.number},
                       {"state", OrNull(port.state)},
                       {"link_layer", OrNull(port.link_layer)},
                       {"rate", OrNull(port.rate)},
                       {"mtu", OrNull(ReadInterfaceMtu(root, device, port))}});
    }
    devices.push_back({{"name", device.name},
                       {"type", OrNull(device.software ? "Soft-RoCE" : device.type)},
                       {"driver", OrNull(device.driver)},
                       {"firmware", OrNull(device.firmware)},
                       {"interface", OrNull(device.interface)},
                       {"node", device.node >= 0 ? Json(device.node) : Json()},
                       {"ports", ports}});
  }
  return devices;
}

Json ReadGpu(const SysRoot& root) {
  Json devices = Json::array();
  // A container may see a GPU in the driver's folder alone.
  std::vector<std::string> addresses = ListGpus(root);
  if (addresses.empty()) addresses = root.List("/proc/driver/nvidia/gpus");
  for (const std::string& address : addresses) {
    devices.push_back({{"address", address}, {"model", GpuModel(root, address)}});
  }
  const std::optional<NvidiaDriver> driver = ReadNvidiaDriver(root);
  return {{"driver", driver ? OrNull(driver->version) : Json()}, {"devices", devices}};
}

// "0.52 0.31 0.20 2/231 12345"
Json ReadLoad(const SysRoot& root) {
  std::istringstream text(root.Text("/proc/loadavg").value_or(""));
  double one, five, fifteen;
  int64_t running, threads;
  char slash;
  if (!(text >> one >> five >> fifteen >> running >> slash >> threads)) return Json();
  return {{"minutes", {one, five, fifteen}}, {"running", running}, {"threads", threads}};
}

std::string HypervisorOfThisCpu() {
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & (1u << 31)) == 0) return "";
  // Leaf of hypervisors, above what __get_cpuid allows.
  __cpuid(0x40000000, eax, ebx, ecx, edx);
  char id[13] = "";
  std::memcpy(id, &ebx, 4);
  std::memcpy(id + 4, &ecx, 4);
  std::memcpy(id + 8, &edx, 4);
  const std::array<std::pair<const char*, const char*>, 7> names = {{{"KVMKVMKVM", "KVM"},
                                                                     {"Microsoft Hv", "Hyper-V"},
                                                                     {"VMwareVMware", "VMware"},
                                                                     {"XenVMMXenVMM", "Xen"},
                                                                     {"TCGTCGTCGTCG", "QEMU without KVM"},
                                                                     {"bhyve bhyve ", "bhyve"},
                                                                     {"ACRNACRNACRN", "ACRN"}}};
  for (const auto& [sign, name] : names) {
    if (std::strcmp(sign, id) == 0) return name;
  }
  return "";
}

}  // namespace

ProvenanceInput ProvenanceInput::Now(std::string version) {
  ProvenanceInput input;
  input.version = std::move(version);
  input.hypervisor = HypervisorOfThisCpu();
  input.time_s = static_cast<int64_t>(std::time(nullptr));
  return input;
}

nlohmann::json ReadProvenance(const SysRoot& root, const ProvenanceInput& input) {
  const std::set<std::string> flags = ReadCpuFlags(root);
  std::optional<std::string> product = root.Text("/sys/class/dmi/id/product_name");
  const std::optional<std::string> vendor = root.Text("/sys/class/dmi/id/sys_vendor");
  if (product && vendor) product = absl::StrCat(*vendor, " ", *product);
  return {{"time", FormatTime(input.time_s)},
          {"version", input.version},
          {"command_line", OrNull(input.command_line.empty() ? ReadCommandLine(root) : input.command_line)},
          {"host", OrNull(root.Text("/proc/sys/kernel/hostname"))},
          {"product", OrNull(product)},
          {"kernel",
           {{"release", OrNull(root.Text("/proc/sys/kernel/osrelease"))},
            {"version", OrNull(root.Text("/proc/sys/kernel/version"))},
            {"parameters", ReadKernelParameters(root)}}},
          {"cpu", ReadCpu(root, input, flags)},
          {"idle", ReadIdle(root)},
          {"clock", ReadClock(root, flags)},
          {"memory", ReadMemory(root)},
          {"network", ReadNetwork(root)},
          {"gpu", ReadGpu(root)},
          {"load", ReadLoad(root)}};
}

}  // namespace fastdecode
