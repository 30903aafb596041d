#ifndef FASTDECODE_RDMA_VERBS_VERBS_PARAMETERS_H_
#define FASTDECODE_RDMA_VERBS_VERBS_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace fastdecode {

// What the other end must know of one end to connect to it. Crosses the bootstrap as VerbsParameters::kWireBytes bytes,
// whose meaning only this provider knows.
struct VerbsParameters {
  static constexpr size_t kWireBytes = 96;

  uint8_t gid[16] = {};
  uint32_t queue_pair = 0;      // 24 bits
  uint32_t packet_number = 0;   // 24 bits, random: the first that this end sends
  uint16_t lid = 0;             // 0 on Ethernet
  uint8_t link_layer = 0;       // IBV_LINK_LAYER_*
  uint8_t mtu = 0;              // ibv_mtu: the largest that this end takes
  uint8_t checksum = 0;         // 1: every message carries one
  uint32_t slots_key = 0;       // rkey of the slots
  uint32_t control_key = 0;     // rkey of control ring and credit line
  uint64_t region_address = 0;  // of this end's `in` region
  uint64_t region_bytes = 0;

  std::string ToWire() const;
  // Errors: InvalidArgument naming what is wrong with the bytes.
  static absl::StatusOr<VerbsParameters> FromWire(const std::string& bytes);

  friend bool operator==(const VerbsParameters&, const VerbsParameters&) = default;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_PARAMETERS_H_
