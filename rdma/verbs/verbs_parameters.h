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
  static constexpr size_t kWireBytes = 160;

  // Memory that the peer may write.
  struct Range {
    uint64_t address = 0;
    uint64_t bytes = 0;  // 0: there is none
    uint32_t key = 0;    // rkey

    friend bool operator==(const Range&, const Range&) = default;
  };
  // One queue pair; both have 24 bits.
  struct Pair {
    uint32_t number = 0;
    uint32_t packet_number = 0;  // random: the first that this end sends

    friend bool operator==(const Pair&, const Pair&) = default;
  };

  uint8_t gid[16] = {};
  uint16_t lid = 0;        // 0 on Ethernet
  uint8_t link_layer = 0;  // IBV_LINK_LAYER_*
  uint8_t mtu = 0;         // ibv_mtu: the largest that this end takes
  uint8_t checksum = 0;    // 1: every message carries one
  Pair hop_pair;
  Pair bulk_pair;            // all 0 without a bulk channel
  Range slots;               // this end's `in` region, the key being that of the slots alone
  uint32_t control_key = 0;  // of control ring and credit line, in the same region
  Range payload;             // where the payload lies apart from the slots
  Range bulk;                // this end's bulk segments

  std::string ToWire() const;
  // Errors: InvalidArgument naming what is wrong with the bytes.
  static absl::StatusOr<VerbsParameters> FromWire(const std::string& bytes);

  friend bool operator==(const VerbsParameters&, const VerbsParameters&) = default;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_PARAMETERS_H_
