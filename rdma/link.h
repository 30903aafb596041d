#ifndef FASTDECODE_RDMA_LINK_H_
#define FASTDECODE_RDMA_LINK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "rdma/wire.h"

namespace fastdecode {

// A link connects one peer (an engine) with one home. It has two ends, each with its own interface; provider `shm` (and
// later `verbs`) implements both. A link is one-shot: once lost it stays lost, and a new one with a new epoch takes over.
//
// Channels:
//   hop     : K slots, one a micro-batch. The engine writes a slot; the reply frees it and is the only credit.
//   control : ordered messages in both directions, bounded by the ring's free space.
// Between the two there is no order, except that a control message sent before a hop is visible when the hop is.

// Fixed when the link is made; both ends agree on every field.
struct LinkSize {
  int slots = 2;                          // K, at most kMaxSlots
  size_t hop_payload_bytes_max = 0;       // per slot, engine -> home
  size_t reply_payload_bytes_max = 0;     // per slot, home -> engine
  size_t control_ring_bytes = 1 << 20;    // per direction, a power of two
};
inline constexpr int kMaxSlots = 16;
inline constexpr size_t kControlMessageBytesMax = 256 << 10;

enum class LinkPoll : uint8_t {
  kEmpty,     // nothing arrived
  kMessage,   // *out was filled in
  kLost,      // the link is lost; nothing will arrive any more
};

// The engine's end.
// Thread: the pipeline thread alone, except lost(), lost_cause() and MarkLost(), which any thread may call.
class EngineLink {
 public:
  virtual ~EngineLink() = default;

  // Where the S-Part writes the rows of micro-batch `slot` (64-byte aligned). Free from the reply of the last hop on.
  virtual std::byte* SendArea(int slot) = 0;
  // Where o of micro-batch `slot` arrives. Valid from the reply until the slot's next PostHop.
  virtual const std::byte* ReceiveArea(int slot) = 0;

  // Posts the hop whose rows lie in SendArea(header.micro_batch). The link fills in the epoch. Posting to a lost link
  // does nothing. REQUIRES: the slot's previous hop was replied to.
  virtual void PostHop(const HopHeader& header) = 0;
  // The next reply, in whatever order hops finish. A reply that does not belong to the slot's open hop loses the link.
  virtual LinkPoll PollReply(ReplyHeader* out) = 0;

  // False: no room now (or lost); the caller keeps the message and tries again.
  virtual bool TrySendControl(const void* message, size_t bytes) = 0;
  // Copies the next message to `buffer` (kControlMessageBytesMax) and sets *bytes.
  virtual LinkPoll PollControl(void* buffer, size_t* bytes) = 0;

  // Wakes a home that parked. Before the first hop of a busy period; costs one load if the home is awake.
  virtual void RingHome() = 0;
  // Finished work items at the home: moves as long as it is alive and working.
  virtual uint64_t Progress() const = 0;

  virtual bool lost() const = 0;
  // Why, for people; empty while not lost.
  virtual std::string lost_cause() const = 0;
  // Declares the link lost (deadline, protocol error). The first cause stays.
  virtual void MarkLost(const char* cause) = 0;
  virtual uint64_t epoch() const = 0;
};

// The home's end.
// Thread: the team's leader alone, except lost() and MarkLost().
class HomeLink {
 public:
  virtual ~HomeLink() = default;

  // The next hop; *payload points at its rows, which stay unchanged by well-behaved peers until the reply. The header is
  // a private copy whose slot, epoch and payload_bytes (<= the agreed maximum) were checked.
  virtual LinkPoll PollHop(HopHeader* out, const std::byte** payload) = 0;
  // Where the team writes o of micro-batch `slot`, between hop and reply (64-byte aligned).
  virtual std::byte* ReplyArea(int slot) = 0;
  virtual void PostReply(const ReplyHeader& header) = 0;

  virtual LinkPoll PollControl(void* buffer, size_t* bytes) = 0;
  virtual bool TrySendControl(const void* message, size_t bytes) = 0;

  // Parking: Arm(), poll both channels once more, then Sleep() (returns on RingHome, on loss, or after timeout_ns) or
  // Disarm().
  virtual void Arm() = 0;
  virtual void Disarm() = 0;
  virtual void Sleep(uint64_t timeout_ns) = 0;

  // Adds to the word that EngineLink::Progress() reads.
  virtual void AddProgress(uint64_t items) = 0;

  virtual bool lost() const = 0;
  virtual std::string lost_cause() const = 0;
  virtual void MarkLost(const char* cause) = 0;
  virtual uint64_t epoch() const = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_LINK_H_
