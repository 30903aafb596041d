#include "tools/doctor/rdma.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fastdecode {

namespace {

constexpr char kDevices[] = "/sys/class/infiniband/";
constexpr char kVerbs[] = "/sys/class/infiniband_verbs/";
constexpr char kNodes[] = "/sys/devices/system/node/";

std::string VendorName(const std::string& pci_number) {
  if (pci_number == "0x15b3") return "NVIDIA (Mellanox)";
  if (pci_number == "0x14e4") return "Broadcom";
  if (pci_number == "0x8086") return "Intel";
  if (pci_number == "0x1d0f") return "Amazon";
  return pci_number.empty() ? "" : absl::StrCat("PCI vendor ", pci_number);
}

// By "1: CA", "2: switch", "3: router", "4: RNIC", "5: usNIC", "6: usNIC UDP", "7: unspecified" (EFA).
std::string UnfitTransport(const std::string& node_type) {
  if (node_type.empty() || (node_type[0] >= '1' && node_type[0] <= '3')) return "";
  return node_type[0] == '4' ? "iWARP" : "a transport of its own";
}

// A GID of a port; nothing if the entry is empty or no GID.
std::optional<RdmaGid> ReadGid(const SysRoot& root, const std::string& port, const std::string& entry) {
  RdmaGid gid;
  std::array<uint8_t, 16> raw;
  const std::string text = root.Text(absl::StrCat(port, "/gids/", entry)).value_or("");
  if (!absl::SimpleAtoi(entry, &gid.index) || inet_pton(AF_INET6, text.c_str(), raw.data()) != 1) return std::nullopt;
  if (raw == std::array<uint8_t, 16>{}) return std::nullopt;
  constexpr std::array<uint8_t, 12> kIpv4Begin = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  gid.ipv4 = std::equal(kIpv4Begin.begin(), kIpv4Begin.end(), raw.begin());
  gid.link_local = raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
  char address[INET6_ADDRSTRLEN] = "";
  inet_ntop(gid.ipv4 ? AF_INET : AF_INET6, raw.data() + (gid.ipv4 ? kIpv4Begin.size() : 0), address, sizeof(address));
  gid.address = address;
  gid.type = root.Text(absl::StrCat(port, "/gid_attrs/types/", entry)).value_or("type not readable");
  gid.interface = root.Text(absl::StrCat(port, "/gid_attrs/ndevs/", entry)).value_or("");
  return gid;
}

RdmaPort ReadPort(const SysRoot& root, const std::string& path, int number) {
  RdmaPort port;
  port.number = number;
  const std::string state = root.Text(path + "/state").value_or("");  // "4: ACTIVE"
  const size_t colon = state.find(": ");
  port.state = colon == std::string::npos ? state : state.substr(colon + 2);
  port.link_layer = root.Text(path + "/link_layer").value_or("");
  port.rate = root.Text(path + "/rate").value_or("");
  for (const std::string& entry : root.List(path + "/gids")) {
    if (std::optional<RdmaGid> gid = ReadGid(root, path, entry)) port.gids.push_back(*std::move(gid));
  }
  return port;
}

std::optional<std::string> FindUverbs(const SysRoot& root, const std::string& device) {
  for (const std::string& name : root.List(kVerbs)) {
    if (root.Text(absl::StrCat(kVerbs, name, "/ibdev")) == device) return name;
  }
  return std::nullopt;
}

RdmaDevice ReadDevice(const SysRoot& root, const std::string& name) {
  RdmaDevice device;
  device.name = name;
  device.path = kDevices + name;
  device.vendor = VendorName(root.Text(device.path + "/device/vendor").value_or(""));
  device.type = root.Text(device.path + "/hca_type").value_or("");
  device.driver = root.LinkName(device.path + "/device/driver").value_or("");
  device.firmware = root.Text(device.path + "/fw_ver").value_or("");
  device.interface = root.Text(device.path + "/parent").value_or("");
  device.software = device.vendor.empty() && !device.interface.empty();
  const std::vector<std::string> interfaces = root.List(device.path + "/device/net");
  if (device.interface.empty() && interfaces.size() == 1) device.interface = interfaces.front();
  device.unfit = UnfitTransport(root.Text(device.path + "/node_type").value_or(""));
  device.uverbs = FindUverbs(root, name);
  device.node = static_cast<int>(root.Number(device.path + "/device/numa_node").value_or(-1));
  for (const std::string& entry : root.List(device.path + "/ports")) {
    int number;
    if (absl::SimpleAtoi(entry, &number))
      device.ports.push_back(ReadPort(root, device.path + "/ports/" + entry, number));
  }
  return device;
}

// Distance in ACPI's units; nothing if the kernel does not say. A node's file has a column for each node there is.
std::optional<int> ReadDistance(const SysRoot& root, int from, int to) {
  std::istringstream columns(root.Text(absl::StrCat(kNodes, "node", from, "/distance")).value_or(""));
  for (const std::string& name : root.List(kNodes)) {
    int node, distance;
    if (name.rfind("node", 0) != 0 || !absl::SimpleAtoi(name.substr(4), &node)) continue;
    if (!(columns >> distance)) break;
    if (node == to) return distance;
  }
  return std::nullopt;
}

// Lower is better.
int GidRank(const RdmaGid& gid, bool ethernet) {
  if (!ethernet) return 0;
  if (gid.type != "RoCE v2") return 3;
  if (gid.link_local) return 2;
  return gid.ipv4 ? 0 : 1;
}

}  // namespace

const RdmaGid* RdmaPort::ChosenGid() const {
  const auto best = std::min_element(gids.begin(), gids.end(), [this](const RdmaGid& a, const RdmaGid& b) {
    return GidRank(a, ethernet()) < GidRank(b, ethernet());
  });
  return best == gids.end() ? nullptr : &*best;
}

bool RdmaDevice::HasActivePort() const {
  return unfit.empty() && std::any_of(ports.begin(), ports.end(), [](const RdmaPort& port) { return port.active(); });
}

std::vector<RdmaDevice> ReadRdmaDevices(const SysRoot& root) {
  std::vector<RdmaDevice> devices;
  for (const std::string& name : root.List(kDevices)) devices.push_back(ReadDevice(root, name));
  return devices;
}

std::string NearestDevice::Describe() const { return absl::StrCat(name, " on node ", node, ", distance ", distance); }

std::optional<NearestDevice> FindNearestDevice(const SysRoot& root, const std::vector<RdmaDevice>& devices, int node) {
  std::optional<NearestDevice> nearest;
  for (const RdmaDevice& device : devices) {
    if (device.node < 0 || !device.HasActivePort()) continue;
    const std::optional<int> distance = ReadDistance(root, node, device.node);
    if (!distance || (nearest && nearest->distance <= *distance)) continue;
    nearest = NearestDevice{device.name, device.node, *distance};
  }
  return nearest;
}

}  // namespace fastdecode
