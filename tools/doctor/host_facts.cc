#include "tools/doctor/host_facts.h"

#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "numa/topology.h"

namespace fastdecode {

namespace {

constexpr char kPci[] = "/sys/bus/pci/devices/";
constexpr char kNvidia[] = "0x10de";
constexpr char kVga[] = "0x0300";
constexpr char k3d[] = "0x0302";

}  // namespace

std::optional<std::vector<int>> ReadCpuList(const SysRoot& root, const std::string& path) {
  const std::optional<std::string> text = root.Text(path);
  // "(null)" is what some kernels say for none.
  return text && *text != "(null)" ? ParseCpuList(*text) : std::nullopt;
}

std::optional<std::vector<int>> ReadAllowedCpus(const SysRoot& root) {
  const std::optional<std::string> text = root.Field("/proc/self/status", "Cpus_allowed_list");
  return text ? ParseCpuList(*text) : std::nullopt;
}

std::optional<int> NumberAfter(const std::string& begin, const std::string& name) {
  int number;
  if (name.rfind(begin, 0) != 0 || !absl::SimpleAtoi(name.substr(begin.size()), &number)) return std::nullopt;
  return number;
}

std::map<std::string, std::vector<int>> ReadGovernors(const SysRoot& root) {
  std::map<std::string, std::vector<int>> cpus_by_governor;
  for (const std::string& name : root.List(kCpusFolder)) {
    const std::optional<int> cpu = NumberAfter("cpu", name);
    if (!cpu) continue;
    const std::optional<std::string> governor = root.Text(absl::StrCat(kCpusFolder, name, "/cpufreq/scaling_governor"));
    if (governor) cpus_by_governor[*governor].push_back(*cpu);
  }
  return cpus_by_governor;
}

std::string DescribeGovernors(const std::map<std::string, std::vector<int>>& cpus_by_governor) {
  return absl::StrJoin(cpus_by_governor, "; ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, " on CPUs ", FormatCores(entry.second));
  });
}

std::optional<std::string> ReadChoice(const SysRoot& root, const std::string& path) {
  const std::string text = root.Text(path).value_or("");
  const size_t begin = text.find('['), end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return std::nullopt;
  return text.substr(begin + 1, end - begin - 1);
}

std::vector<std::string> ListGpus(const SysRoot& root) {
  std::vector<std::string> gpus;
  for (const std::string& address : root.List(kPci)) {
    const std::string device_class = root.Text(absl::StrCat(kPci, address, "/class")).value_or("").substr(0, 6);
    if (root.Text(absl::StrCat(kPci, address, "/vendor")) != kNvidia) continue;
    if (device_class == kVga || device_class == k3d) gpus.push_back(address);
  }
  return gpus;
}

std::string GpuModel(const SysRoot& root, const std::string& address) {
  return root.Field(absl::StrCat("/proc/driver/nvidia/gpus/", address, "/information"), "Model").value_or("NVIDIA GPU");
}

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (...)": the version is the first
// word that starts with a digit.
std::optional<NvidiaDriver> ReadNvidiaDriver(const SysRoot& root) {
  const std::optional<std::string> line = root.Field("/proc/driver/nvidia/version", "NVRM version");
  if (!line) return std::nullopt;
  NvidiaDriver driver;
  driver.open = line->find("Open Kernel Module") != std::string::npos;
  std::istringstream words(*line);
  for (std::string word; driver.version.empty() && words >> word;) {
    if (word[0] >= '0' && word[0] <= '9') driver.version = word;
  }
  std::istringstream(driver.version) >> driver.major;
  return driver;
}

std::string InterfaceOf(const RdmaDevice& device, const RdmaPort& port) {
  const RdmaGid* gid = port.ChosenGid();
  return gid != nullptr && !gid->interface.empty() ? gid->interface : device.interface;
}

std::optional<int64_t> ReadInterfaceMtu(const SysRoot& root, const RdmaDevice& device, const RdmaPort& port) {
  const std::string interface = InterfaceOf(device, port);
  if (!port.ethernet() || interface.empty()) return std::nullopt;
  return root.Number(absl::StrCat("/sys/class/net/", interface, "/mtu"));
}

}  // namespace fastdecode
