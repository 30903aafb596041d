#ifndef FASTDECODE_TOOLS_DOCTOR_HOST_FACTS_H_
#define FASTDECODE_TOOLS_DOCTOR_HOST_FACTS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/rdma.h"
#include "tools/doctor/sys_root.h"

namespace fastdecode {

// What a host is made of and how it is set up, as doctor judges it and latency notes it down. Nothing here fails.

inline constexpr char kCpusFolder[] = "/sys/devices/system/cpu/";
inline constexpr char kNodesFolder[] = "/sys/devices/system/node/";
inline constexpr char kNotReadable[] = "not readable";

// The CPUs that a file lists; nothing if it is missing.
std::optional<std::vector<int>> ReadCpuList(const SysRoot& root, const std::string& path);
// Those that this process may run on.
std::optional<std::vector<int>> ReadAllowedCpus(const SysRoot& root);
// The number behind `begin` ("cpu12" with "cpu": 12); nothing if a name is not made so.
std::optional<int> NumberAfter(const std::string& begin, const std::string& name);

// CPUs by the governor of their frequency; empty where the kernel does not say.
std::map<std::string, std::vector<int>> ReadGovernors(const SysRoot& root);
// "performance on CPUs 0-7"; "" for an empty map.
std::string DescribeGovernors(const std::map<std::string, std::vector<int>>& cpus_by_governor);

// "always [madvise] never": what is in brackets.
std::optional<std::string> ReadChoice(const SysRoot& root, const std::string& path);
inline constexpr char kTransparentFolder[] = "/sys/kernel/mm/transparent_hugepage/";

// PCI addresses of NVIDIA's VGA and 3D controllers.
std::vector<std::string> ListGpus(const SysRoot& root);
// What its driver calls it; "NVIDIA GPU" if there is none.
std::string GpuModel(const SysRoot& root, const std::string& address);

// The driver as /proc/driver/nvidia/version names it.
struct NvidiaDriver {
  std::string version;  // "550.54.14"
  int major = 0;
  bool open = false;  // the open kernel module, whose GPL symbols dma-buf needs
};
std::optional<NvidiaDriver> ReadNvidiaDriver(const SysRoot& root);

// The interface whose packets carry the port's: that of the chosen GID, else the device's; "" if not readable.
std::string InterfaceOf(const RdmaDevice& device, const RdmaPort& port);
// Its MTU, headers of RoCE included; nothing for InfiniBand.
std::optional<int64_t> ReadInterfaceMtu(const SysRoot& root, const RdmaDevice& device, const RdmaPort& port);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_DOCTOR_HOST_FACTS_H_
