#ifndef FASTDECODE_RDMA_SHM_HANDSHAKE_H_
#define FASTDECODE_RDMA_SHM_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "rdma/bootstrap.h"
#include "rdma/link.h"
#include "rdma/wire.h"

namespace fastdecode {

// The packets on the unix socket of an shm link. One each way makes the link:
//
//   engine -> worker   ProposalPacket, with the engine region's memfd
//   worker -> engine   AcceptancePacket, with the home region's memfd; or a TextPacket that refuses
//
// After that the socket is silent until one end gives the link up (TextPacket) or closes it.

inline constexpr uint64_t kHandshakeMagic = 0x314b4e4c45444346;  // "FCDELNK1" in memory

enum class PacketKind : uint32_t { kProposal = 1, kAcceptance = 2, kRefusal = 3, kFarewell = 4 };

// Begins every packet of every protocol version.
struct PacketPrefix {
  uint64_t magic = kHandshakeMagic;
  uint32_t version = kProtocolVersion;
  PacketKind kind = PacketKind::kProposal;
  uint32_t bytes = 0;  // of the whole packet
  uint32_t reserved = 0;
};
static_assert(sizeof(PacketPrefix) == 24);

struct ProposalPacket {
  PacketPrefix prefix;
  uint64_t epoch = 0;
  uint64_t engine_id = 0;
  uint32_t role = 0;
  uint32_t home_index = 0;
  uint64_t hop_payload_bytes_max = 0;
  uint64_t reply_payload_bytes_max = 0;
  uint64_t control_ring_bytes = 0;
  uint32_t slots = 0;
  uint32_t bulk_segments = 0;
  uint32_t bulk_segment_bytes_max = 0;
  uint16_t hop_header_bytes = sizeof(HopHeader);
  uint16_t reply_header_bytes = sizeof(ReplyHeader);
  uint32_t shape_bytes = 0;
  uint32_t reserved = 0;
  char shape[kHandshakeBlobBytesMax] = {};
};
static_assert(sizeof(ProposalPacket) == 96 + kHandshakeBlobBytesMax && std::is_trivially_copyable_v<ProposalPacket>);

struct AcceptancePacket {
  PacketPrefix prefix;
  uint64_t epoch = 0;  // the proposal's
  uint32_t homes = 0;  // that this worker has
  uint32_t answer_bytes = 0;
  char answer[kHandshakeBlobBytesMax] = {};
};
static_assert(sizeof(AcceptancePacket) == 40 + kHandshakeBlobBytesMax &&
              std::is_trivially_copyable_v<AcceptancePacket>);

// Refusal and farewell: why. The same in every protocol version.
struct TextPacket {
  PacketPrefix prefix;
  uint32_t text_bytes = 0;
  char text[kHandshakeBlobBytesMax - 4] = {};
};
static_assert(sizeof(TextPacket) == 24 + kHandshakeBlobBytesMax && std::is_trivially_copyable_v<TextPacket>);

// `text` is cut to what fits.
TextPacket MakeTextPacket(PacketKind kind, const std::string& text);

// The text of a packet that was received, with what cannot be printed replaced; empty if `packet` is no text packet of
// this kind. `packet`: `bytes` bytes.
std::string ReadTextPacket(const void* packet, size_t bytes, PacketKind kind);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_HANDSHAKE_H_
