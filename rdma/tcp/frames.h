#ifndef FASTDECODE_RDMA_TCP_FRAMES_H_
#define FASTDECODE_RDMA_TCP_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "rdma/bootstrap.h"
#include "rdma/wire.h"

namespace fastdecode {

// The frames on the TCP connection of a link over a fabric. Six make the link:
//
//   engine -> worker   HelloFrame        a fresh nonce
//   worker -> engine   HelloFrame        a fresh nonce
//   engine -> worker   ProposalFrame     what is asked for, and the provider's parameters; signed
//   worker -> engine   AcceptanceFrame   the answer, and the provider's parameters; signed
//   engine -> worker   ReadyFrame        the engine's end can receive; signed
//   worker -> engine   ReadyFrame        so can the worker's; signed
//
// In place of any of its own the worker may send a TextFrame that refuses, and close. Afterwards each end sends
// HeartbeatFrames, and at last, or once it gives up waiting for the other to become ready, a TextFrame that says why.
//
// Signed: the frame ends with the HMAC-SHA-256, keyed with the secret, of the sender's label and of every byte of the
// handshake so far in both directions, this frame's up to the HMAC included (Transcript). Both nonces are among them,
// so that no handshake fits twice. The worker looks into no proposal whose HMAC is wrong.
//
// A frame of a kind has one size, as the frames of shm have: nothing on the wire decides how much is read or stored.

inline constexpr uint64_t kFrameMagic = 0x3150435445444346;  // "FCDETCP1" in memory

enum class Side { kEngine, kWorker };

// Refusal and farewell are the same in every protocol version.
enum class FrameKind : uint32_t {
  kHello = 1,
  kProposal = 2,
  kAcceptance = 3,
  kRefusal = 4,
  kReady = 5,
  kHeartbeat = 6,
  kFarewell = 7,
};
// For messages: "hello"; a kind that does not exist: "kind 8".
std::string FrameKindName(FrameKind kind);

// Begins every frame of every protocol version.
struct FramePrefix {
  uint64_t magic = kFrameMagic;
  uint32_t version = kProtocolVersion;
  FrameKind kind = FrameKind::kHello;
  uint32_t bytes = 0;  // of the whole frame
  uint32_t reserved = 0;
};
static_assert(sizeof(FramePrefix) == 24);

using Nonce = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;

struct HelloFrame {
  FramePrefix prefix;
  Nonce nonce = {};
};
static_assert(sizeof(HelloFrame) == 56 && std::is_trivially_copyable_v<HelloFrame>);

struct ProposalFrame {
  FramePrefix prefix;
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
  uint32_t parameters_bytes = 0;
  char shape[kHandshakeBlobBytesMax] = {};
  char parameters[kHandshakeBlobBytesMax] = {};
  Mac mac = {};
};
static_assert(sizeof(ProposalFrame) == 96 + 2 * kHandshakeBlobBytesMax + 32 &&
              std::is_trivially_copyable_v<ProposalFrame>);

struct AcceptanceFrame {
  FramePrefix prefix;
  uint64_t epoch = 0;  // the proposal's
  uint32_t homes = 0;  // that this worker has
  uint32_t answer_bytes = 0;
  uint32_t parameters_bytes = 0;
  uint32_t reserved = 0;
  char answer[kHandshakeBlobBytesMax] = {};
  char parameters[kHandshakeBlobBytesMax] = {};
  Mac mac = {};
};
static_assert(sizeof(AcceptanceFrame) == 48 + 2 * kHandshakeBlobBytesMax + 32 &&
              std::is_trivially_copyable_v<AcceptanceFrame>);

struct ReadyFrame {
  FramePrefix prefix;
  Mac mac = {};
};
static_assert(sizeof(ReadyFrame) == 56 && std::is_trivially_copyable_v<ReadyFrame>);

struct HeartbeatFrame {
  FramePrefix prefix;
  uint64_t progress = 0;  // finished work items of the sender
};
static_assert(sizeof(HeartbeatFrame) == 32 && std::is_trivially_copyable_v<HeartbeatFrame>);

struct TextFrame {
  FramePrefix prefix;
  uint32_t text_bytes = 0;
  char text[kHandshakeBlobBytesMax - 4] = {};
};
static_assert(sizeof(TextFrame) == 24 + kHandshakeBlobBytesMax && std::is_trivially_copyable_v<TextFrame>);

inline constexpr size_t kFrameBytesMax = sizeof(ProposalFrame);
static_assert(kFrameBytesMax >= sizeof(AcceptanceFrame));

// Of every frame of this kind; 0 for a kind that does not exist.
size_t FrameBytes(FrameKind kind);

// What both ends have to say, with the provider's parameters: opaque here, at most kHandshakeBlobBytesMax bytes.
struct LinkOffer {
  LinkProposal proposal;
  std::string parameters;
};
struct LinkAnswer {
  LinkAcceptance acceptance;
  std::string parameters;
};

// ---- Making frames (as bytes; what is to be signed with an empty HMAC) ----

std::string MakeHelloFrame(const Nonce& nonce);
// REQUIRES: blobs within kHandshakeBlobBytesMax, at most kHomesPerWorkerMax homes.
std::string MakeProposalFrame(const LinkOffer& offer);
std::string MakeAcceptanceFrame(uint64_t epoch, const LinkAnswer& answer);
std::string MakeReadyFrame();
std::string MakeHeartbeatFrame(uint64_t progress);
// `text` is cut to what fits.
std::string MakeTextFrame(FrameKind kind, const std::string& text);

// ---- Reading frames. REQUIRES: a whole frame of this kind, as FrameReader gives it ----

FrameKind KindOf(const std::string& frame);
Nonce ParseHelloFrame(const std::string& frame);
// InvalidArgument naming field and value. An offer's size is within CheckLinkSize; shape and parameters are whatever
// the peer wrote.
absl::StatusOr<LinkOffer> ParseProposalFrame(const std::string& frame);
// InvalidArgument naming field and value. `epoch`: the proposal's.
absl::StatusOr<LinkAnswer> ParseAcceptanceFrame(const std::string& frame, uint64_t epoch);
uint64_t ParseHeartbeatFrame(const std::string& frame);
// Printable, never empty.
std::string ParseTextFrame(const std::string& frame);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_TCP_FRAMES_H_
