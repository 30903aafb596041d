#include "rdma/verbs/verbs_parameters.h"

#include <infiniband/verbs.h>

#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace fastdecode {

namespace {

constexpr uint64_t kParametersMagic = 0x3473627265764446;  // "FDverbs4", little-endian as all of it
constexpr uint32_t k24Bits = (1u << 24) - 1;

struct WireRange {
  uint64_t address;
  uint64_t bytes;
  uint32_t key;
  uint32_t reserved;
};
struct WirePair {
  uint32_t number;
  uint32_t packet_number;
};
struct WireParameters {
  uint64_t magic;
  uint8_t gid[16];
  WireRange slots;
  WireRange payload;
  WireRange bulk;
  WirePair hop_pair;
  WirePair bulk_pair;
  uint32_t control_key;
  uint16_t lid;
  uint8_t link_layer;
  uint8_t mtu;
  uint8_t checksum;
  uint8_t reserved[39];
};
static_assert(sizeof(WireParameters) == VerbsParameters::kWireBytes && std::is_trivially_copyable_v<WireParameters>);
static_assert(offsetof(WireParameters, checksum) == 120);

WireRange PutWire(const VerbsParameters::Range& range) { return {range.address, range.bytes, range.key, 0}; }
WirePair PutWire(const VerbsParameters::Pair& pair) { return {pair.number, pair.packet_number}; }
VerbsParameters::Range TakeWire(const WireRange& wire) { return {wire.address, wire.bytes, wire.key}; }
VerbsParameters::Pair TakeWire(const WirePair& wire) { return {wire.number, wire.packet_number}; }

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer's verbs parameters: ", what));
}

absl::Status CheckPair(const char* name, const WirePair& pair) {
  if (pair.number > k24Bits) return Bad(absl::StrCat(name, " queue pair ", pair.number, " has more than 24 bits"));
  if (pair.packet_number <= k24Bits) return absl::OkStatus();
  return Bad(absl::StrCat(name, " packet number ", pair.packet_number, " has more than 24 bits"));
}

absl::Status CheckRange(const char* name, const WireRange& range) {
  if (range.address % 64 == 0 && range.address + range.bytes >= range.address) return absl::OkStatus();
  return Bad(absl::StrCat(name, " region of ", range.bytes, " bytes at ", range.address));
}

}  // namespace

std::string VerbsParameters::ToWire() const {
  WireParameters wire = {};
  wire.magic = kParametersMagic;
  std::memcpy(wire.gid, gid, sizeof(gid));
  wire.slots = PutWire(slots);
  wire.payload = PutWire(payload);
  wire.bulk = PutWire(bulk);
  wire.hop_pair = PutWire(hop_pair);
  wire.bulk_pair = PutWire(bulk_pair);
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
  if (wire.magic != kParametersMagic) return Bad("not of this version of the provider");
  if (wire.link_layer != IBV_LINK_LAYER_ETHERNET && wire.link_layer != IBV_LINK_LAYER_INFINIBAND) {
    return Bad(absl::StrCat("link layer ", int{wire.link_layer}, " is neither Ethernet nor InfiniBand"));
  }
  if (wire.mtu < IBV_MTU_256 || wire.mtu > IBV_MTU_4096) return Bad(absl::StrCat("MTU code ", int{wire.mtu}));
  if (wire.checksum > 1) return Bad(absl::StrCat("checksum ", int{wire.checksum}, " is neither 0 nor 1"));
  absl::Status status = CheckPair("hop", wire.hop_pair);
  if (status.ok()) status = CheckPair("bulk", wire.bulk_pair);
  if (status.ok()) status = CheckRange("slots", wire.slots);
  if (status.ok()) status = CheckRange("payload", wire.payload);
  if (status.ok()) status = CheckRange("bulk", wire.bulk);
  if (!status.ok()) return status;
  VerbsParameters parameters;
  std::memcpy(parameters.gid, wire.gid, sizeof(wire.gid));
  parameters.lid = wire.lid;
  parameters.link_layer = wire.link_layer;
  parameters.mtu = wire.mtu;
  parameters.checksum = wire.checksum;
  parameters.hop_pair = TakeWire(wire.hop_pair);
  parameters.bulk_pair = TakeWire(wire.bulk_pair);
  parameters.slots = TakeWire(wire.slots);
  parameters.control_key = wire.control_key;
  parameters.payload = TakeWire(wire.payload);
  parameters.bulk = TakeWire(wire.bulk);
  return parameters;
}

}  // namespace fastdecode
