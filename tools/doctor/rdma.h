#ifndef FASTDECODE_TOOLS_DOCTOR_RDMA_H_
#define FASTDECODE_TOOLS_DOCTOR_RDMA_H_

#include <optional>
#include <string>
#include <vector>

#include "tools/doctor/sys_root.h"

namespace fastdecode {

// From this distance on (ACPI's, 10 is the node itself) memory or device is behind a link between sockets; nodes of one
// socket are nearer.
constexpr int kFarDistance = 20;

struct RdmaGid {
  int index = 0;
  std::string address;    // "10.0.0.1", or as IPv6 is written
  std::string type;       // "RoCE v2", "IB/RoCE v1"
  std::string interface;  // "" if not readable
  bool ipv4 = false;
  bool link_local = false;  // fe80::/10, which no router forwards

  bool routable() const { return type == "RoCE v2" && !link_local; }
};

// A port as sysfs has it; "" is what cannot be read.
struct RdmaPort {
  int number = 1;
  std::string state;       // "ACTIVE"
  std::string link_layer;  // "Ethernet", "InfiniBand"
  std::string rate;        // "100 Gb/sec (4X EDR)"
  std::vector<RdmaGid> gids;

  bool active() const { return state == "ACTIVE"; }
  bool ethernet() const { return link_layer == "Ethernet"; }
  // The one that a link takes unless told otherwise (rdma/verbs/verbs_device.cc): RoCE v2 over IPv4, then over IPv6,
  // then over a link-local address, then the first; null: no GID.
  const RdmaGid* ChosenGid() const;
};

struct RdmaDevice {
  std::string name;    // mlx5_0
  std::string path;    // /sys/class/infiniband/mlx5_0
  std::string vendor;  // "NVIDIA", or the number in PCI
  std::string type;    // what the vendor calls it: "MT4123"
  std::string driver;  // mlx5_core
  std::string firmware;
  std::string interface;              // whose packets carry its traffic, if the device says so for all of its ports
  bool software = false;              // Soft-RoCE and the like: done by the kernel, without a device
  std::string unfit;                  // what it speaks, if no link takes it for that (iWARP, EFA); "": it is fit
  std::optional<std::string> uverbs;  // "uverbs0"
  int node = -1;                      // -1: the kernel does not say
  std::vector<RdmaPort> ports;

  // Of a device that links take.
  bool HasActivePort() const;
};

// All devices of the host, by name.
std::vector<RdmaDevice> ReadRdmaDevices(const SysRoot& root);

struct NearestDevice {
  std::string name;
  int node = 0;
  int distance = 0;

  std::string Describe() const;  // "mlx5_0 on node 1, distance 21"
};

// Of those with an active port and a known node; nothing if there is none, or distances cannot be read.
std::optional<NearestDevice> FindNearestDevice(const SysRoot& root, const std::vector<RdmaDevice>& devices, int node);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_DOCTOR_RDMA_H_
