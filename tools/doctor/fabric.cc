#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/host_facts.h"
#include "tools/doctor/rdma.h"
#include "tools/doctor/traffic.h"

namespace fastdecode {

namespace {

constexpr int kRdmaMtuMax = 4096;
constexpr int kRdmaMtuMin = 256;
// GRH, UDP, BTH, XRC, atomic ETH and ICRC: what the kernel takes off an interface's MTU before it chooses RoCE's.
constexpr int kRoceHeaderBytes = 40 + 8 + 12 + 4 + 28 + 4;
constexpr int kInterfaceMtuAdvised = 4200;

std::string PortName(const RdmaDevice& device, const RdmaPort& port) {
  return absl::StrCat(device.name, "/", port.number);
}

void ExamineDriver(const SysRoot& root, CheckList* list) {
  constexpr char kName[] = "kernel verbs";
  const std::optional<std::string> version = root.Text("/sys/class/infiniband_verbs/abi_version");
  if (version) {
    list->Ok(kName, absl::StrCat("ib_uverbs is there, ABI ", *version));
    return;
  }
  list->Error(kName, "ib_uverbs is not there",
              "`modprobe ib_uverbs`, and the driver of the NIC (mlx5_ib, bnxt_re, irdma); in a container the host's");
}

void ExamineLibrary(const DoctorHost& host, CheckList* list) {
  constexpr char kName[] = "user verbs";
  if (host.verbs_missing.empty()) {
    list->Ok(kName, "libibverbs is there");
  } else {
    list->Error(kName, host.verbs_missing, host.verbs_advice);
  }
}

void ExamineUnfitDevice(const RdmaDevice& device, bool other_active, CheckList* list) {
  list->Add(device.name, other_active ? CheckStatus::kWarning : CheckStatus::kError,
            absl::StrCat(device.vendor, device.vendor.empty() ? "" : " ", device.type, device.type.empty() ? "" : ", ",
                         "speaks ", device.unfit, ", not InfiniBand or RoCE: no link takes it"),
            "links need a NIC of InfiniBand or RoCE; some that speak iWARP can be told to (`devlink dev param show`)");
}

void ExamineDevice(const SysRoot& root, const RdmaDevice& device, CheckList* list) {
  const auto known = [](const std::string& text) { return text.empty() ? std::string(kNotReadable) : text; };
  if (device.software) {
    list->Warning(device.name,
                  absl::StrCat("done by the kernel (Soft-RoCE) over ", device.interface, ", without an RDMA NIC"),
                  "right for tests, slow for serving: use a NIC that does RDMA");
  } else {
    list->Ok(device.name, absl::StrCat(known(device.vendor), " ", device.type, ", driver ", known(device.driver),
                                       ", firmware ", known(device.firmware)));
  }
  const std::string name = absl::StrCat(device.name, " access");
  const std::string file = absl::StrCat("/dev/infiniband/", device.uverbs.value_or("uverbs*"));
  const std::string error = device.uverbs ? root.AccessError(file) : "the kernel names no uverbs file for it";
  if (error.empty()) {
    list->Ok(name, absl::StrCat(file, " may be read and written"));
  } else {
    list->Error(name, absl::StrCat(file, ": ", error),
                "let this user read and write it (a udev rule, group rdma); in a container --device=/dev/infiniband");
  }
}

void ExamineState(const RdmaDevice& device, const RdmaPort& port, bool other_active, CheckList* list) {
  const std::string name = PortName(device, port);
  if (port.state.empty()) {
    list->Unknown(name, absl::StrCat("state ", kNotReadable), "`rdma link` or `ibv_devinfo` says it");
    return;
  }
  const std::string found =
      absl::StrCat(port.state, ", ", port.link_layer.empty() ? "link layer not readable" : port.link_layer, ", ",
                   port.rate.empty() ? "rate not readable" : port.rate);
  if (port.active()) {
    list->Ok(name, found);
    return;
  }
  const std::string interface = InterfaceOf(device, port);
  list->Add(name, other_active ? CheckStatus::kWarning : CheckStatus::kError, found,
            port.ethernet() ? absl::StrCat("is the cable in, and the interface up (`ip link set dev ",
                                           interface.empty() ? "IF" : interface, " up`)? `rdma link` says more")
                            : "is the cable in, and does a subnet manager run (`ibstat`, `sminfo`)?");
}

void ExamineMtu(const SysRoot& root, const RdmaDevice& device, const RdmaPort& port, CheckList* list) {
  const std::string name = absl::StrCat(PortName(device, port), " MTU");
  const std::string interface = InterfaceOf(device, port);
  const std::optional<int64_t> interface_mtu = ReadInterfaceMtu(root, device, port);
  if (!interface_mtu) {
    list->Unknown(name, kNotReadable, absl::StrCat("`ibv_devinfo -d ", device.name, "` says active_mtu: 4096 is best"));
    return;
  }
  int mtu = kRdmaMtuMax;
  while (mtu > kRdmaMtuMin && mtu + kRoceHeaderBytes > *interface_mtu) mtu /= 2;
  const std::string found = absl::StrCat("RDMA ", mtu, ", as ", interface, " has ", *interface_mtu);
  if (mtu == kRdmaMtuMax) {
    list->Ok(name, found);
    return;
  }
  list->Warning(name, found,
                absl::StrCat("small packets cost bandwidth: `ip link set dev ", interface, " mtu ",
                             kInterfaceMtuAdvised, "` or more, on all hosts and the switches between them"));
}

std::string DescribeGid(const RdmaGid& gid) {
  return absl::StrCat("GID ", gid.index, " ", gid.address, " (", gid.type,
                      gid.interface.empty() ? "" : absl::StrCat(", ", gid.interface), ")");
}

void ExamineGids(const RdmaDevice& device, const RdmaPort& port, CheckList* list) {
  const std::string name = absl::StrCat(PortName(device, port), " GID");
  const RdmaGid* chosen = port.ChosenGid();
  if (chosen == nullptr) {
    list->Error(name, "none, or not readable",
                "has its interface an address (`ip addr`)? In a container: is it in this network namespace?");
    return;
  }
  std::vector<std::string> others;
  for (const RdmaGid& gid : port.gids) {
    if (&gid != chosen) others.push_back(DescribeGid(gid));
  }
  std::string found = absl::StrCat("a link takes ", DescribeGid(*chosen));
  if (!others.empty()) absl::StrAppend(&found, "; there are also ", absl::StrJoin(others, ", "));
  if (port.ethernet() && !chosen->routable()) {
    list->Warning(name, found,
                  absl::StrCat("give ", chosen->interface.empty() ? "its interface" : chosen->interface,
                               " an address, for a GID of type RoCE v2 that can be routed"));
    return;
  }
  list->Ok(name, found);
}

// How far each node with a home is from a NIC.
void ExamineDistances(const DoctorHost& host, const std::vector<RdmaDevice>& devices, CheckList* list) {
  for (const RdmaDevice& device : devices) {
    if (device.node >= 0) list->Ok(device.name + " place", absl::StrCat("on NUMA node ", device.node));
  }
  if (!host.topology) return;
  for (const NumaNode& node : host.topology->nodes) {
    if (!node.UsableAsHome()) continue;
    const std::string name = absl::StrCat("node ", node.os_index, " to NIC");
    const std::optional<NearestDevice> nearest = FindNearestDevice(host.root, devices, node.os_index);
    if (!nearest && host.topology->nodes.size() == 1) {
      list->Ok(name, "the only NUMA node");
    } else if (!nearest) {
      list->Unknown(name, "the kernel does not say on which node an active device is", "`lstopo` may show it");
    } else if (nearest->distance < kFarDistance) {
      list->Ok(name, absl::StrCat("nearest device: ", nearest->Describe()));
    } else {
      list->Warning(name, absl::StrCat("nearest active device: ", nearest->Describe()),
                    "its hops cross the link between sockets: a second NIC on this node is faster");
    }
  }
}

void ExamineFirewall(const std::vector<RdmaDevice>& devices, CheckList* list) {
  const bool ethernet = std::any_of(devices.begin(), devices.end(), [](const RdmaDevice& device) {
    return device.unfit.empty() &&
           std::any_of(device.ports.begin(), device.ports.end(), [](const RdmaPort& port) { return port.ethernet(); });
  });
  if (!ethernet) return;
  list->Unknown("firewall", "whether UDP port 4791 (RoCE v2) passes cannot be tested from one host",
                "let it pass both ways between the hosts, and the TCP port of --listen; `ib_send_lat -d DEVICE` on one "
                "host and `ib_send_lat -d DEVICE HOST` on the other show whether RDMA does");
}

void ExamineIommu(const SysRoot& root, CheckList* list) {
  constexpr char kName[] = "IOMMU";
  constexpr char kGroups[] = "/sys/kernel/iommu_groups";
  const std::vector<std::string> groups = root.List(kGroups);
  if (groups.empty()) {
    list->Ok(kName, "off, or hidden from this host (no IOMMU groups)");
    return;
  }
  std::set<std::string> types;
  for (const std::string& group : groups) {
    if (const auto type = root.Text(absl::StrCat(kGroups, "/", group, "/type"))) types.insert(*type);
  }
  const std::vector<std::string> words = absl::StrSplit(root.Text("/proc/cmdline").value_or(""), ' ');
  const bool asked = std::find(words.begin(), words.end(), "iommu=pt") != words.end() ||
                     std::find(words.begin(), words.end(), "iommu.passthrough=1") != words.end();
  const std::string found = absl::StrCat("on, ", groups.size(), " groups", types.empty() ? "" : " of type ",
                                         absl::StrJoin(types, ", "), asked ? "; iommu=pt" : "");
  if (asked || types == std::set<std::string>{"identity"}) {
    list->Ok(kName, found);
    return;
  }
  list->Warning(kName, found,
                "translating every access costs latency, and large GPU memory may not register: boot with iommu=pt");
}

}  // namespace

void ExamineFabric(const DoctorHost& host, CheckList* list) {
  ExamineDriver(host.root, list);
  ExamineLibrary(host, list);
  const std::vector<RdmaDevice> devices = ReadRdmaDevices(host.root);
  if (devices.empty()) {
    list->Error(
        "RDMA devices", "none; homes on this host (local, unix:) work without",
        "is there a NIC (`lspci`), and its driver (`rdma link`)? For tests: `rdma link add rxe0 type rxe netdev IF`");
  }
  const bool any_active =
      std::any_of(devices.begin(), devices.end(), [](const RdmaDevice& device) { return device.HasActivePort(); });
  for (const RdmaDevice& device : devices) {
    if (!device.unfit.empty()) {
      ExamineUnfitDevice(device, any_active, list);
      continue;
    }
    ExamineDevice(host.root, device, list);
    for (const RdmaPort& port : device.ports) {
      ExamineState(device, port, any_active, list);
      if (!port.active()) continue;
      ExamineMtu(host.root, device, port, list);
      ExamineGids(device, port, list);
      ExamineTraffic(host.root, device, port, InterfaceOf(device, port), list);
    }
  }
  // Soft-RoCE is at no node.
  const bool any_nic = std::any_of(devices.begin(), devices.end(),
                                   [](const RdmaDevice& device) { return device.HasActivePort() && !device.software; });
  if (any_nic) ExamineDistances(host, devices, list);
  ExamineFirewall(devices, list);
  ExamineIommu(host.root, list);
}

}  // namespace fastdecode
