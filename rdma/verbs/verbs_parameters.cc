#include "rdma/verbs/verbs_parameters.h"

#include <infiniband/verbs.h>

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace fastdecode {

namespace {

constexpr uint64_t kMagic = 0x3173627265764446;  // "FDverbs1", little-endian as all of it
constexpr uint32_t k24Bits = (1u << 24) - 1;

struct WireParameters {
  uint64_t magic;
  uint64_t region_address;
  uint64_t region_bytes;
  uint8_t gid[16];
  uint32_t queue_pair;
  uint32_t packet_number;
  uint32_t slots_key;
  uint32_t control_key;
  uint16_t lid;
  uint8_t link_layer;
  uint8_t mtu;
  uint8_t checksum;
  uint8_t reserved[35];
};
static_assert(sizeof(WireParameters) == VerbsParameters::kWireBytes && std::is_trivially_copyable_v<WireParameters>);
static_assert(offsetof(WireParameters, checksum) == 60);

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer's verbs parameters: ", what));
}

}  // namespace

std::string VerbsParameters::ToWire() const {
  WireParameters wire = {};
  wire.magic = kMagic;
  wire.region_address = region_address;
  wire.region_bytes = region_bytes;
  std::memcpy(wire.gid, gid, sizeof(gid));
  wire.queue_pair = queue_pair;
  wire.packet_number = packet_number;
  wire.slots_key = slots_key;
  wire.control_key = control_key;
  wire.lid = lid;
  wire.link_layer = link_layer;
  wire.mtu = mtu;
  wire.checksum = checksum;
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}

absl::StatusOr<VerbsParameters> VerbsParameters::FromWire(const std::string& bytes) {
  if (bytes.size() != kWireBytes) return Bad(absl::StrCat(bytes.size(), " bytes instead of ", kWireBytes));
  WireParameters wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.magic != kMagic) return Bad("not of this version of the provider");
  if (wire.queue_pair > k24Bits) return Bad(absl::StrCat("queue pair ", wire.queue_pair, " has more than 24 bits"));
  if (wire.packet_number > k24Bits) {
    return Bad(absl::StrCat("packet number ", wire.packet_number, " has more than 24 bits"));
  }
  if (wire.link_layer != IBV_LINK_LAYER_ETHERNET && wire.link_layer != IBV_LINK_LAYER_INFINIBAND) {
    return Bad(absl::StrCat("link layer ", int{wire.link_layer}, " is neither Ethernet nor InfiniBand"));
  }
  if (wire.mtu < IBV_MTU_256 || wire.mtu > IBV_MTU_4096) return Bad(absl::StrCat("MTU code ", int{wire.mtu}));
  if (wire.checksum > 1) return Bad(absl::StrCat("checksum ", int{wire.checksum}, " is neither 0 nor 1"));
  if (wire.region_address % 64 != 0 || wire.region_address + wire.region_bytes < wire.region_address) {
    return Bad(absl::StrCat("region of ", wire.region_bytes, " bytes at ", wire.region_address));
  }
  VerbsParameters parameters;
  std::memcpy(parameters.gid, wire.gid, sizeof(wire.gid));
  parameters.queue_pair = wire.queue_pair;
  parameters.packet_number = wire.packet_number;
  parameters.lid = wire.lid;
  parameters.link_layer = wire.link_layer;
  parameters.mtu = wire.mtu;
  parameters.checksum = wire.checksum;
  parameters.slots_key = wire.slots_key;
  parameters.control_key = wire.control_key;
  parameters.region_address = wire.region_address;
  parameters.region_bytes = wire.region_bytes;
  return parameters;
}

}  // namespace fastdecode
