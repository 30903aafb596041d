// FAST PATH (docs/FAST_PATH.md)
#include "numa/check.h"
#include "rdma/shm/shm_link.h"
#include "rdma/wire_check.h"

namespace fastdecode {

namespace {

constexpr uint32_t Bit(int slot) { return 1u << slot; }

}  // namespace

std::byte* ShmEngineLink::SendArea(int slot) {
  FD_CHECK(slot >= 0 && slot < size_.slots, "slot out of range");
  return regions_.home.payload(slot);
}

const std::byte* ShmEngineLink::ReceiveArea(int slot) {
  FD_CHECK(slot >= 0 && slot < size_.slots, "slot out of range");
  return regions_.engine.payload(slot);
}

void ShmEngineLink::PostHop(const HopHeader& header) {
  if (lost()) return;
  const int slot = header.micro_batch;
  FD_CHECK(slot < size_.slots, "slot out of range");
  FD_CHECK((open_slots_ & Bit(slot)) == 0, "the slot's previous hop has no reply yet");
  FD_CHECK(header.rows > 0 && header.payload_bytes <= size_.hop_payload_bytes_max, "hop size");
  Slot& state = slots_[slot];
  HopHeader hop = header;
  hop.epoch = epoch_;
  // First of all: the home's clock runs from here, our own books do not.
  regions_.home.line(slot)->Publish(hop, state.hops + 1);
  ++state.hops;
  state.hop = hop;
  open_slots_ |= Bit(slot);
}

LinkPoll ShmEngineLink::PollReply(ReplyHeader* out) {
  if (lost()) return LinkPoll::kLost;
  if (open_slots_ == 0) return LinkPoll::kEmpty;
  int slot = next_slot_;
  for (int i = 0; i < size_.slots; ++i) {
    const int next = slot + 1 == size_.slots ? 0 : slot + 1;
    if ((open_slots_ & Bit(slot)) != 0) {
      const uint64_t sequence = regions_.engine.line(slot)->sequence();
      if (sequence != slots_[slot].hops - 1) {
        next_slot_ = next;
        return TakeReply(slot, sequence, out);
      }
    }
    slot = next;
  }
  return LinkPoll::kEmpty;
}

LinkPoll ShmEngineLink::TakeReply(int slot, uint64_t sequence, ReplyHeader* out) {
  const Slot& state = slots_[slot];
  if (sequence != state.hops) return Lose(slot, "reply out of sequence");
  regions_.engine.line(slot)->CopyHeader(out);
  if (const char* defect = ReplyDefect(*out, state.hop, size_)) return Lose(slot, defect);
  open_slots_ &= ~Bit(slot);
  return LinkPoll::kMessage;
}

bool ShmEngineLink::TrySendControl(const void* message, size_t bytes) {
  if (lost()) return false;
  const RingOutcome outcome = control_out_.TryWrite(message, bytes);
  if (outcome == RingOutcome::kCorrupt) Lose(-1, "control ring index out of bounds");
  return outcome == RingOutcome::kDone;
}

LinkPoll ShmEngineLink::PollControl(void* buffer, size_t* bytes) {
  if (lost()) return LinkPoll::kLost;
  switch (control_in_.TryRead(buffer, bytes)) {
    case RingOutcome::kDone:
      return LinkPoll::kMessage;
    case RingOutcome::kNothing:
      return LinkPoll::kEmpty;
    case RingOutcome::kCorrupt:
      break;
  }
  return Lose(-1, "control message out of bounds");
}

std::byte* ShmEngineLink::BulkArea() {
  const uint64_t segments = static_cast<uint64_t>(size_.bulk_segments);
  if (segments == 0 || lost()) return nullptr;
  if (bulk_written_ - bulk_freed_ == segments) BulkFreed();
  const bool free = bulk_written_ - bulk_freed_ < segments && !lost();
  return free ? regions_.home.segment(bulk_written_ % segments) : nullptr;
}

uint64_t ShmEngineLink::BulkFreed() {
  if (size_.bulk_segments == 0 || lost()) return bulk_freed_;
  // Acquire: pairs with FreeBulk's release; the home has read the segments that are written again now.
  const uint64_t freed = regions_.engine.bulk_freed()->load(std::memory_order_acquire);
  if (freed < bulk_freed_ || freed > bulk_written_) {
    Lose(-1, "bulk credit out of bounds");
  } else {
    bulk_freed_ = freed;
  }
  return bulk_freed_;
}

void ShmEngineLink::PostBulk(size_t bytes) {
  if (lost()) return;
  const uint64_t segments = static_cast<uint64_t>(size_.bulk_segments);
  FD_CHECK(bulk_written_ - bulk_freed_ < segments, "a bulk segment that the home has not freed");
  FD_CHECK(bytes > 0 && bytes <= size_.bulk_segment_bytes_max, "bulk segment size");
  regions_.home.segment_bytes(bulk_written_ % segments)->store(bytes, std::memory_order_relaxed);
  // Release: pairs with the acquire in PollBulk. The home that sees this number sees length and bytes.
  regions_.home.bulk_written()->store(++bulk_written_, std::memory_order_release);
}

// Relaxed: a sign of life, nothing is read on its strength.
uint64_t ShmEngineLink::Progress() const { return regions_.engine.progress()->load(std::memory_order_relaxed); }

LinkPoll ShmHomeLink::PollHop(HopHeader* out, const std::byte** payload) {
  if (lost()) return LinkPoll::kLost;
  int slot = next_slot_;
  for (int i = 0; i < size_.slots; ++i) {
    const int next = slot + 1 == size_.slots ? 0 : slot + 1;
    if ((open_slots_ & Bit(slot)) == 0) {
      const uint64_t sequence = regions_.home.line(slot)->sequence();
      if (sequence != hops_[slot]) {
        next_slot_ = next;
        return TakeHop(slot, sequence, out, payload);
      }
    }
    slot = next;
  }
  return LinkPoll::kEmpty;
}

LinkPoll ShmHomeLink::TakeHop(int slot, uint64_t sequence, HopHeader* out, const std::byte** payload) {
  if (sequence != hops_[slot] + 1) return Lose(slot, "hop out of sequence");
  regions_.home.line(slot)->CopyHeader(out);
  if (const char* defect = HopDefect(*out, slot, epoch_, size_)) return Lose(slot, defect);
  hops_[slot] = sequence;
  open_slots_ |= Bit(slot);
  *payload = regions_.home.payload(slot);
  return LinkPoll::kMessage;
}

std::byte* ShmHomeLink::ReplyArea(int slot) {
  FD_CHECK(slot >= 0 && slot < size_.slots, "slot out of range");
  return regions_.engine.payload(slot);
}

void ShmHomeLink::PostReply(const ReplyHeader& header) {
  if (lost()) return;
  const int slot = header.micro_batch;
  FD_CHECK(slot < size_.slots && (open_slots_ & Bit(slot)) != 0, "reply to a slot without an open hop");
  FD_CHECK(header.payload_bytes <= size_.reply_payload_bytes_max, "reply size");
  ReplyHeader reply = header;
  reply.epoch = epoch_;
  regions_.engine.line(slot)->Publish(reply, hops_[slot]);
  open_slots_ &= ~Bit(slot);
}

LinkPoll ShmHomeLink::PollControl(void* buffer, size_t* bytes) {
  if (lost()) return LinkPoll::kLost;
  switch (control_in_.TryRead(buffer, bytes)) {
    case RingOutcome::kDone:
      return LinkPoll::kMessage;
    case RingOutcome::kNothing:
      return LinkPoll::kEmpty;
    case RingOutcome::kCorrupt:
      break;
  }
  return Lose(-1, "control message out of bounds");
}

bool ShmHomeLink::TrySendControl(const void* message, size_t bytes) {
  if (lost()) return false;
  const RingOutcome outcome = control_out_.TryWrite(message, bytes);
  if (outcome == RingOutcome::kCorrupt) Lose(-1, "control ring index out of bounds");
  return outcome == RingOutcome::kDone;
}

LinkPoll ShmHomeLink::PollBulk(const std::byte** segment, size_t* bytes) {
  if (lost()) return LinkPoll::kLost;
  const uint64_t segments = static_cast<uint64_t>(size_.bulk_segments);
  if (segments == 0) return LinkPoll::kEmpty;
  // Acquire: see PostBulk.
  const uint64_t written = regions_.home.bulk_written()->load(std::memory_order_acquire);
  if (written == bulk_given_) return LinkPoll::kEmpty;
  if (written < bulk_given_ || written - bulk_freed_ > segments) return Lose(-1, "bulk segment out of sequence");
  // Relaxed: ordered by the count.
  const uint64_t length = regions_.home.segment_bytes(bulk_given_ % segments)->load(std::memory_order_relaxed);
  if (length == 0 || length > size_.bulk_segment_bytes_max) return Lose(-1, "bulk segment size");
  *segment = regions_.home.segment(bulk_given_ % segments);
  *bytes = length;
  ++bulk_given_;
  return LinkPoll::kMessage;
}

void ShmHomeLink::FreeBulk() {
  if (lost()) return;
  FD_CHECK(bulk_freed_ < bulk_given_, "no bulk segment is held");
  // Release: our reads of the segment come before; see BulkArea.
  regions_.engine.bulk_freed()->store(++bulk_freed_, std::memory_order_release);
}

void ShmHomeLink::AddProgress(uint64_t items) {
  progress_ += items;
  // Relaxed: see ShmEngineLink::Progress.
  regions_.engine.progress()->store(progress_, std::memory_order_relaxed);
}

}  // namespace fastdecode
