#ifndef FASTDECODE_RDMA_LINK_H_
#define FASTDECODE_RDMA_LINK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "rdma/wire.h"

namespace fastdecode {

// A link connects one peer (an engine) with one home. It has two ends, each with its own interface; providers `shm`
// and `verbs` implement both. A link is one-shot: once lost it stays lost, and a new one with a new epoch takes
// over.
//
// Channels:
//   hop     : K slots, one a micro-batch. The engine writes a slot; the reply frees it and is the only credit.
//   control : ordered messages in both directions, bounded by the ring's free space.
//   bulk    : segments from engine to home, in order, as many as the home has freed. For what is large and not urgent:
//             it has a way of its own, so that no hop waits behind a segment.
// Between them there is no order, except that a control message sent before a hop is visible when the hop is.

// Fixed when the link is made; both ends agree on every field.
struct LinkSize {
  int slots = 2;                        // K, at most kMaxSlots
  size_t hop_payload_bytes_max = 0;     // per slot, engine -> home
  size_t reply_payload_bytes_max = 0;   // per slot, home -> engine
  size_t control_ring_bytes = 1 << 20;  // per direction, a power of two
  int bulk_segments = 0;                // engine -> home, at most kBulkSegmentsMax; 0: no bulk channel
  size_t bulk_segment_bytes_max = 0;    // at most kBulkSegmentBytesMax; 0 without a bulk channel
};
// What carries a link, if it is no memory.
struct LinkLine {
  std::string device;     // "mlx5_0 port 1"; empty: memory
  double gbit_per_s = 0;  // the port's rate each way, as the kernel knows it; 0: it does not
};

inline constexpr int kMaxSlots = 16;
inline constexpr size_t kPayloadBytesMax = size_t{1} << 30;
inline constexpr size_t kControlRingBytesMin = 4 << 10;
inline constexpr size_t kControlRingBytesMax = 64 << 20;
inline constexpr int kBulkSegmentsMax = 256;
inline constexpr size_t kBulkSegmentBytesMax = 256 << 10;
// A ring of n bytes takes messages up to the smaller of this and n - 8. A roster of 8192 sequences is one.
inline constexpr size_t kControlMessageBytesMax = 257 << 10;

// InvalidArgument naming the field and its value, if a link of this size cannot be made.
absl::Status CheckLinkSize(const LinkSize& size);

enum class LinkPoll : uint8_t {
  kEmpty,    // nothing arrived
  kMessage,  // *out was filled in; with any other outcome its content means nothing
  kLost,     // the link is lost; nothing will arrive any more
};

// What both ends have: whether the link still lives, and who is at the other end.
// Thread: any.
class LinkEnd {
 public:
  virtual ~LinkEnd() = default;

  virtual bool lost() const = 0;
  // Why, for people; empty while not lost.
  virtual std::string lost_cause() const = 0;
  // Declares the link lost (deadline, protocol error). The first cause stays; the peer is told.
  virtual void MarkLost(const char* cause) = 0;

  virtual uint64_t epoch() const = 0;
  virtual const LinkSize& size() const = 0;
  // For messages: "worker process at unix:/run/a.sock (pid 17)".
  virtual std::string peer_name() const = 0;
  // What this end stands on, for the log: "shared memory", or device, port, GID, MTU and memory.
  virtual std::string Describe() const = 0;

  // Readable when there is news of the peer's process (poll(2) for POLLIN); -1 if the peer is in this process.
  virtual int liveness_fd() const { return -1; }
  // Readable once the peer's process has ended, and for ever then; -1: liveness_fd() alone tells.
  virtual int peer_process_fd() const { return -1; }
  // Control thread, either being readable: marks the link lost if the peer has gone or has given the link up.
  virtual void CheckPeer() {}
  // Whether the peer can still write memory of this end, though the link is lost. What it may still write must stay
  // mapped; false: the end may be destroyed, which stops the peer where its writes go through a device of ours.
  virtual bool PeerMayStillWrite() const { return false; }
};

// The engine's end. Destroying it is the end of the link for the home, too.
// Thread: the pipeline thread alone, except what LinkEnd has, which any thread may call.
class EngineLink : public LinkEnd {
 public:
  // Where the S-Part writes the rows of micro-batch `slot` (64-byte aligned). Free from the reply of the last hop on.
  // This and ReceiveArea are addresses of a GPU's memory, if the link was made so (FabricOptions::gpu).
  virtual std::byte* SendArea(int slot) = 0;
  // Where o of micro-batch `slot` arrives. Valid from the reply until the slot's next PostHop.
  virtual const std::byte* ReceiveArea(int slot) = 0;

  // Whether these are addresses of a GPU's memory.
  virtual bool AreasOnGpu() const { return false; }

  // True: attention is part of the S-Part's stages, since the home is its own device, or its threads attend there. No hop
  // is posted then, no reply comes, and what the receive areas hold is nobody else's business.
  virtual bool AttendsInStage() const { return false; }

  // Posts the hop whose rows lie in SendArea(header.micro_batch). The link fills in the epoch. Posting to a lost link
  // does nothing. REQUIRES: rows > 0, payload_bytes within size(), and the slot's previous hop was replied to.
  virtual void PostHop(const HopHeader& header) = 0;
  // The next reply, in whatever order hops finish. A reply that does not belong to the slot's open hop loses the link.
  virtual LinkPoll PollReply(ReplyHeader* out) = 0;

  // False: no room now (or lost); the caller keeps the message and tries again.
  virtual bool TrySendControl(const void* message, size_t bytes) = 0;
  // Copies the next message to `buffer` (kControlMessageBytesMax) and sets *bytes.
  virtual LinkPoll PollControl(void* buffer, size_t* bytes) = 0;

  // Where the next bulk segment is to be written (64-byte aligned, memory of the host); the same until PostBulk.
  // Null: the home has freed none yet, the link is lost, or it has no bulk channel.
  virtual std::byte* BulkArea() = 0;
  // Sends the first `bytes` of BulkArea(). Does nothing on a lost link. REQUIRES: BulkArea() has given memory since the
  // last PostBulk; 0 < bytes <= size().bulk_segment_bytes_max.
  virtual void PostBulk(size_t bytes) = 0;
  // Segments that the home has freed, of all that were posted: once it has found nothing more to do, that is known
  // here. Loses the link if it claims more.
  virtual uint64_t BulkFreed() = 0;

  // Wakes a home that parked. REQUIRES: called *after* PostHop, TrySendControl or PostBulk, once the first of a busy
  // period is out (rung before, the home could poll in vain and sleep in between). Costs one locked instruction if the
  // home is awake.
  virtual void RingHome() = 0;
  // Finished work items at the home: moves as long as it is alive and working.
  virtual uint64_t Progress() const = 0;
  // Any thread.
  virtual LinkLine line() const { return {}; }
};

// The home's end. Destroying it is the end of the link for the engine, too.
// Thread: the team's leader alone, except what LinkEnd has, and parking: Arm, Disarm and Sleep may be another thread's
// (one at a time) while the leader polls and posts.
class HomeLink : public LinkEnd {
 public:
  // The next hop; *payload points at its rows, which stay unchanged by well-behaved peers until the reply. The header
  // is a private copy whose slot, epoch, rows (> 0) and payload_bytes (<= the agreed maximum) were checked.
  virtual LinkPoll PollHop(HopHeader* out, const std::byte** payload) = 0;
  // Where the team writes o of micro-batch `slot`, between hop and reply (64-byte aligned).
  virtual std::byte* ReplyArea(int slot) = 0;
  // Frees the slot. The link fills in the epoch. Does nothing on a lost link. REQUIRES: the slot's hop is open.
  virtual void PostReply(const ReplyHeader& header) = 0;

  virtual LinkPoll PollControl(void* buffer, size_t* bytes) = 0;
  virtual bool TrySendControl(const void* message, size_t bytes) = 0;

  // The next bulk segment, which stays as it is until it is freed. As many may be held as the link has.
  virtual LinkPoll PollBulk(const std::byte** segment, size_t* bytes) = 0;
  // Gives the oldest segment that is held back to the engine. REQUIRES: one is held, or the link is lost.
  virtual void FreeBulk() = 0;

  // Parking: Arm(), poll all channels once more, then Sleep() (returns on RingHome, on loss, or after timeout_ns) or
  // Disarm().
  virtual void Arm() = 0;
  virtual void Disarm() = 0;
  virtual void Sleep(uint64_t timeout_ns) = 0;

  // Adds to the word that EngineLink::Progress() reads.
  virtual void AddProgress(uint64_t items) = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_LINK_H_
