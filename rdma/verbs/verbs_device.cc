#include "rdma/verbs/verbs_device.h"

#include <arpa/inet.h>
#include <endian.h>
#include <numa.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace fastdecode {

namespace {

constexpr char kNoDevice[] =
    "no RDMA device: is its driver loaded (`rdma link`), are /dev/infiniband/uverbs* there and open to this user?";
// Behind all that the kernel knows a distance to.
constexpr int kDistanceUnknown = 1 << 20;

bool IsIpv4(const ibv_gid& gid) {
  constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof(kPrefix)) == 0;
}

// fe80::/10
bool IsLinkLocal(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }

const char* GidTypeName(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_IB:
      return "InfiniBand";
    case IBV_GID_TYPE_ROCE_V1:
      return "RoCE v1";
    case IBV_GID_TYPE_ROCE_V2:
      return "RoCE v2";
  }
  return "unknown type";
}

int NodeOfDevice(const ibv_device& device) {
  int node = -1;
  std::ifstream(absl::StrCat(device.ibdev_path, "/device/numa_node")) >> node;
  return node;
}

// "100 Gb/sec (4X EDR)"
double RateOfPort(const ibv_device& device, int port) {
  double gbit_per_s = 0;
  std::string unit;
  std::ifstream(absl::StrCat(device.ibdev_path, "/ports/", port, "/rate")) >> gbit_per_s >> unit;
  return unit == "Gb/sec" && gbit_per_s > 0 ? gbit_per_s : 0;
}

int Distance(int node, int device_node) {
  if (node < 0) return 0;
  if (device_node < 0 || numa_available() < 0) return kDistanceUnknown;
  const int distance = numa_distance(node, device_node);
  return distance > 0 ? distance : kDistanceUnknown;
}

// All devices, those nearest to `node` first. Owns the list; Thread: one.
class DeviceList {
 public:
  DeviceList(const VerbsCalls& calls, int node) : calls_(calls) {
    int count = 0;
    list_ = calls.get_device_list(&count);
    for (int i = 0; list_ != nullptr && i < count; ++i) devices_.push_back(list_[i]);
    std::stable_sort(devices_.begin(), devices_.end(), [node](const ibv_device* a, const ibv_device* b) {
      return Distance(node, NodeOfDevice(*a)) < Distance(node, NodeOfDevice(*b));
    });
  }
  ~DeviceList() {
    if (list_ != nullptr) calls_.free_device_list(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  const std::vector<ibv_device*>& devices() const { return devices_; }
  std::string Names() const {
    return absl::StrJoin(devices_, ", ",
                         [](std::string* out, const ibv_device* device) { absl::StrAppend(out, device->name); });
  }

 private:
  const VerbsCalls& calls_;
  ibv_device** list_;
  std::vector<ibv_device*> devices_;
};

// Of iWARP, EFA and usNIC: they have no reliable connections, or no immediate data.
absl::Status CheckTransport(const ibv_device& device) {
  if (device.transport_type == IBV_TRANSPORT_IB) return absl::OkStatus();
  const char* const spoken = device.transport_type == IBV_TRANSPORT_IWARP ? "iWARP" : "a transport of its own";
  return absl::FailedPreconditionError(
      absl::StrCat(device.name, " speaks ", spoken,
                   ", not InfiniBand or RoCE: links need their reliable connections, and writes with immediate data"));
}

absl::StatusOr<VerbsDevice> Open(const VerbsCalls& calls, ibv_device* device) {
  VerbsDevice opened;
  opened.name = device->name;
  opened.node = NodeOfDevice(*device);
  opened.context = VerbsHandle<ibv_context>(calls.open_device(device),
                                            [&calls](ibv_context* context) { calls.close_device(context); });
  if (opened.context == nullptr) {
    return VerbsError(opened.name, "ibv_open_device", errno, "may this user open /dev/infiniband/uverbs*?");
  }
  if (const int error = calls.query_device(opened.context.get(), &opened.attributes); error != 0) {
    return VerbsError(opened.name, "ibv_query_device", error, "");
  }
  return opened;
}

// NotFound if it has no active port (that the options allow).
absl::Status ChoosePort(const VerbsCalls& calls, const FabricOptions& options, VerbsDevice* device) {
  const int ports = device->attributes.phys_port_cnt;
  if (options.port > ports) {
    return absl::InvalidArgumentError(
        absl::StrCat("RDMA port ", options.port, ": ", device->name, " has ports 1 to ", ports));
  }
  std::string states;
  for (int port = options.port > 0 ? options.port : 1; port <= (options.port > 0 ? options.port : ports); ++port) {
    ibv_port_attr attributes = {};
    if (const int error = calls.query_port(device->context.get(), static_cast<uint8_t>(port), &attributes);
        error != 0) {
      return VerbsError(device->name, "ibv_query_port", error, "");
    }
    if (attributes.state == IBV_PORT_ACTIVE) {
      device->port = static_cast<uint8_t>(port);
      device->port_attributes = attributes;
      return absl::OkStatus();
    }
    absl::StrAppend(&states, states.empty() ? "" : ", ", "port ", port, " is in state ", int{attributes.state});
  }
  return absl::NotFoundError(absl::StrCat(device->name, " has no active port (", states,
                                          "): is the cable in, and the network interface up (`rdma link`)?"));
}

// Lower is better. A link-local address, which every interface has and no router forwards, is often the table's first.
int GidRank(const ibv_gid_entry& entry, bool ethernet) {
  if (!ethernet) return entry.gid_type == IBV_GID_TYPE_IB ? 0 : 1;
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return 3;
  if (IsLinkLocal(entry.gid)) return 2;
  return IsIpv4(entry.gid) ? 0 : 1;
}

absl::Status ChooseGid(const VerbsCalls& calls, const FabricOptions& options, VerbsDevice* device) {
  constexpr size_t kEntriesMax = 1600;  // 64 KB, as the kernel's length field goes; more is EINVAL
  std::vector<ibv_gid_entry> entries(kEntriesMax);
  const ssize_t count = calls.query_gid_table(device->context.get(), entries.data(), entries.size());
  if (count < 0) return VerbsError(device->name, "ibv_query_gid_table", static_cast<int>(-count), "");
  const ibv_gid_entry* best = nullptr;
  std::string indices;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[i];
    if (entry.port_num != device->port) continue;
    absl::StrAppend(&indices, indices.empty() ? "" : ", ", entry.gid_index);
    if (options.gid_index >= 0) {
      if (entry.gid_index == static_cast<uint32_t>(options.gid_index)) best = &entry;
      continue;
    }
    // The table is in order of the index: of equals the first stays.
    if (best == nullptr || GidRank(entry, device->ethernet()) < GidRank(*best, device->ethernet())) best = &entry;
  }
  if (best == nullptr) {
    const std::string wanted = options.gid_index >= 0 ? absl::StrCat("GID ", options.gid_index) : "GID";
    return absl::NotFoundError(absl::StrCat(device->name, " port ", int{device->port}, " has no ", wanted, " (it has ",
                                            indices.empty() ? "none" : indices,
                                            "): has its network interface an address?"));
  }
  device->gid = *best;
  return absl::OkStatus();
}

// The first partition of an InfiniBand port in which it is a full member: two limited members do not hear each other.
// RoCE has no partitions, but one key that stands for all.
uint16_t ChoosePartition(const VerbsCalls& calls, const VerbsDevice& device) {
  constexpr uint16_t kFullMember = 0x8000;
  if (device.ethernet()) return 0;
  for (uint16_t index = 0; index < device.port_attributes.pkey_tbl_len; ++index) {
    __be16 key = 0;
    if (calls.query_pkey(device.context.get(), device.port, index, &key) != 0) continue;
    if ((be16toh(key) & kFullMember) != 0) return index;
  }
  return 0;
}

absl::Status CheckOptions(const FabricOptions& options) {
  const auto out_of_range = [](const char* field, int value, const char* range) {
    return absl::InvalidArgumentError(absl::StrCat("fabric ", field, ": ", value, " is not ", range));
  };
  ibv_mtu mtu;
  if (options.port < 0 || options.port > 255) return out_of_range("port", options.port, "0 to 255");
  if (options.gid_index < -1) return out_of_range("GID index", options.gid_index, "-1 or more");
  if (options.mtu != 0 && !MtuFromBytes(options.mtu, &mtu)) {
    return out_of_range("MTU", options.mtu, "0, 256, 512, 1024, 2048 or 4096");
  }
  if (options.traffic_class < 0 || options.traffic_class > 255) {
    return out_of_range("traffic class", options.traffic_class, "0 to 255");
  }
  if (options.service_level < 0 || options.service_level > 15) {
    return out_of_range("service level", options.service_level, "0 to 15");
  }
  return absl::OkStatus();
}

}  // namespace

std::string VerbsDevice::Name() const {
  return absl::StrCat(name, " port ", int{port}, ", GID ", gid.gid_index, " ", FormatGid(gid.gid), " (",
                      GidTypeName(gid.gid_type), ")");
}

std::string VerbsDevice::Describe() const {
  return absl::StrCat(Name(), ", ", ethernet() ? "Ethernet" : "InfiniBand", ", MTU ",
                      MtuBytes(port_attributes.active_mtu), ", ",
                      node < 0 ? std::string("NUMA node unknown") : absl::StrCat("NUMA node ", node));
}

LinkLine VerbsDevice::Line() const { return {absl::StrCat(name, " port ", int{port}), gbit_per_s}; }

absl::Status CheckLibrary(const VerbsCalls& calls) {
  if (calls.missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no RDMA device: ", calls.missing, "; ", calls.missing_advice));
}

absl::StatusOr<VerbsDevice> OpenVerbsDevice(const VerbsCalls& calls, const FabricOptions& options, int node) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  if (absl::Status status = CheckLibrary(calls); !status.ok()) return status;
  const DeviceList list(calls, node);
  if (list.devices().empty()) return absl::NotFoundError(kNoDevice);
  absl::Status why_not =
      absl::NotFoundError(absl::StrCat("no RDMA device is called '", options.device, "'; there are: ", list.Names()));
  bool any_tried = false;
  for (ibv_device* device : list.devices()) {
    if (!options.device.empty() && options.device != device->name) continue;
    if (absl::Status other = CheckTransport(*device); !other.ok()) {
      if (!any_tried) why_not = std::move(other);
      continue;
    }
    any_tried = true;
    absl::StatusOr<VerbsDevice> opened = Open(calls, device);
    absl::Status status = opened.status();
    if (status.ok()) status = ChoosePort(calls, options, &*opened);
    if (status.ok()) status = ChooseGid(calls, options, &*opened);
    if (status.ok()) {
      opened->pkey_index = ChoosePartition(calls, *opened);
      opened->gbit_per_s = RateOfPort(*device, opened->port);
      return opened;
    }
    why_not = std::move(status);
  }
  return why_not;
}

int MtuBytes(ibv_mtu mtu) { return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0; }

bool MtuFromBytes(int bytes, ibv_mtu* mtu) {
  for (int value = IBV_MTU_256; value <= IBV_MTU_4096; ++value) {
    if (MtuBytes(static_cast<ibv_mtu>(value)) != bytes) continue;
    *mtu = static_cast<ibv_mtu>(value);
    return true;
  }
  return false;
}

std::string FormatGid(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (IsIpv4(gid)) {
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  }
  return text;
}

absl::Status VerbsError(const std::string& device, const char* call, int error, const std::string& advice) {
  const std::string text = absl::StrCat(call, " on ", device, ": ", std::generic_category().message(error), " (", error,
                                        ")", advice.empty() ? "" : "; ", advice);
  switch (error) {
    case ENOMEM:
    case ENOSPC:
      return absl::ResourceExhaustedError(text);
    case EPERM:
    case EACCES:
      return absl::PermissionDeniedError(text);
    case EINVAL:
      return absl::InvalidArgumentError(text);
  }
  return absl::UnavailableError(text);
}

}  // namespace fastdecode
