#ifndef FASTDECODE_RDMA_SHM_CONTROL_RING_H_
#define FASTDECODE_RDMA_SHM_CONTROL_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numa/cache_line.h"
#include "numa/check.h"
#include "rdma/link.h"

namespace fastdecode {

// An ordered byte ring of messages from one process to another, in memory that both can write. In the ring a message is
// a word with its length in bytes, then the bytes, padded to 8; it may wrap around the end. Indices count bytes from
// the link's start and never wrap (2^64). Each side keeps its own index privately, publishes it, and believes the
// other's only within bounds: whatever the peer writes, nothing outside the ring and the caller's buffer is touched.
//
// The Policy says what the indices and the bytes are, so that Relacy can run this very code (tests/rdma):
//   Index       an atomic uint64_t
//   Data        a copyable view of the ring's bytes: StoreLength, LoadLength, CopyIn, CopyOut at byte offsets;
//               lengths lie at multiples of 8, copies never pass the end

template <class Policy>
struct ControlRingIndices {
  alignas(kCacheLineBytes) typename Policy::Index tail{0};  // bytes written; the writer's line
  alignas(kCacheLineBytes) typename Policy::Index head{0};  // bytes read; the reader's line
};

enum class RingOutcome : uint8_t {
  kDone,
  kNothing,  // no room to write, nothing to read
  kCorrupt,  // the peer broke the ring's rules; use it no more
};

inline constexpr size_t kRingLengthBytes = 8;

constexpr size_t RingMessageBytesMax(size_t ring_bytes) {
  return std::min(kControlMessageBytesMax, ring_bytes - kRingLengthBytes);
}
constexpr size_t RingBytesTaken(size_t message_bytes) { return kRingLengthBytes + (message_bytes + 7) / 8 * 8; }

// The sender's side.
// Owns: nothing; indices and data must outlive it. Thread: one.
template <class Policy>
class ControlRingWriter {
 public:
  // REQUIRES: ring_bytes is a power of two, at least 16.
  ControlRingWriter(ControlRingIndices<Policy>* indices, typename Policy::Data data, size_t ring_bytes)
      : indices_(indices), data_(data), ring_bytes_(ring_bytes) {}

  // REQUIRES: 1 <= bytes <= RingMessageBytesMax(ring_bytes).
  RingOutcome TryWrite(const void* message, size_t bytes) {
    FD_CHECK(bytes > 0 && bytes <= RingMessageBytesMax(ring_bytes_), "control message size");
    const size_t taken = RingBytesTaken(bytes);
    if (ring_bytes_ - (tail_ - head_seen_) < taken) {
      // Acquire: pairs with the reader's release of head; it has read what we are about to overwrite.
      const uint64_t head = indices_->head.load(std::memory_order_acquire);
      if (tail_ - head > tail_ - head_seen_) return RingOutcome::kCorrupt;  // went back, or past what was written
      head_seen_ = head;
      if (ring_bytes_ - (tail_ - head_seen_) < taken) return RingOutcome::kNothing;
    }
    data_.StoreLength(Offset(tail_), bytes);
    CopyIn(tail_ + kRingLengthBytes, message, bytes);
    tail_ += taken;
    // Release: pairs with the reader's acquire of tail; it sees length and bytes.
    indices_->tail.store(tail_, std::memory_order_release);
    return RingOutcome::kDone;
  }

 private:
  size_t Offset(uint64_t index) const { return index & (ring_bytes_ - 1); }

  void CopyIn(uint64_t index, const void* message, size_t bytes) {
    const size_t offset = Offset(index);
    const size_t before_end = std::min(bytes, ring_bytes_ - offset);
    data_.CopyIn(offset, message, before_end);
    if (before_end < bytes) data_.CopyIn(0, static_cast<const char*>(message) + before_end, bytes - before_end);
  }

  // Constant after construction.
  ControlRingIndices<Policy>* indices_;
  typename Policy::Data data_;
  size_t ring_bytes_;

  uint64_t tail_ = 0;       // ours; the published copy is never read back
  uint64_t head_seen_ = 0;  // the reader's, last seen; <= tail_ <= head_seen_ + ring_bytes_
};

// The receiver's side.
// Owns: nothing. Thread: one.
template <class Policy>
class ControlRingReader {
 public:
  ControlRingReader(ControlRingIndices<Policy>* indices, typename Policy::Data data, size_t ring_bytes)
      : indices_(indices), data_(data), ring_bytes_(ring_bytes) {}

  // Copies the next message to `buffer` (RingMessageBytesMax(ring_bytes) bytes) and sets *bytes.
  RingOutcome TryRead(void* buffer, size_t* bytes) {
    if (head_ == tail_seen_) {
      // Acquire: pairs with the writer's release of tail; length and bytes below it are seen.
      const uint64_t tail = indices_->tail.load(std::memory_order_acquire);
      if (tail == head_) return RingOutcome::kNothing;
      if (tail - head_ > ring_bytes_ || tail % 8 != 0) return RingOutcome::kCorrupt;
      tail_seen_ = tail;
    }
    const uint64_t length = data_.LoadLength(Offset(head_));  // one load: the peer may change it meanwhile
    if (length == 0 || length > RingMessageBytesMax(ring_bytes_) || RingBytesTaken(length) > tail_seen_ - head_) {
      return RingOutcome::kCorrupt;
    }
    CopyOut(head_ + kRingLengthBytes, buffer, length);
    *bytes = length;
    head_ += RingBytesTaken(length);
    // Release: pairs with the writer's acquire of head; it overwrites these bytes only after we have read them.
    indices_->head.store(head_, std::memory_order_release);
    return RingOutcome::kDone;
  }

 private:
  size_t Offset(uint64_t index) const { return index & (ring_bytes_ - 1); }

  void CopyOut(uint64_t index, void* buffer, size_t bytes) const {
    const size_t offset = Offset(index);
    const size_t before_end = std::min(bytes, ring_bytes_ - offset);
    data_.CopyOut(offset, buffer, before_end);
    if (before_end < bytes) data_.CopyOut(0, static_cast<char*>(buffer) + before_end, bytes - before_end);
  }

  // Constant after construction.
  ControlRingIndices<Policy>* indices_;
  typename Policy::Data data_;
  size_t ring_bytes_;

  uint64_t head_ = 0;       // ours; the published copy is never read back
  uint64_t tail_seen_ = 0;  // the writer's, last seen; head_ <= tail_seen_ <= head_ + ring_bytes_
};

// The ring in shared memory.
struct ShmRingPolicy {
  using Index = std::atomic<uint64_t>;

  class Data {
   public:
    explicit Data(std::byte* base) : base_(base) {}

    // Relaxed: the indices order it. Atomic so that one load in the source is one load.
    void StoreLength(size_t offset, uint64_t length) {
      std::atomic_ref<uint64_t>(Word(offset)).store(length, std::memory_order_relaxed);
    }
    uint64_t LoadLength(size_t offset) const {
      return std::atomic_ref<uint64_t>(Word(offset)).load(std::memory_order_relaxed);
    }
    void CopyIn(size_t offset, const void* from, size_t bytes) { std::memcpy(base_ + offset, from, bytes); }
    void CopyOut(size_t offset, void* to, size_t bytes) const { std::memcpy(to, base_ + offset, bytes); }

   private:
    uint64_t& Word(size_t offset) const { return *reinterpret_cast<uint64_t*>(base_ + offset); }

    std::byte* base_;
  };
};
static_assert(sizeof(ControlRingIndices<ShmRingPolicy>) == 2 * kCacheLineBytes);
static_assert(ShmRingPolicy::Index::is_always_lock_free);

using ShmRingIndices = ControlRingIndices<ShmRingPolicy>;
using ShmRingWriter = ControlRingWriter<ShmRingPolicy>;
using ShmRingReader = ControlRingReader<ShmRingPolicy>;

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_CONTROL_RING_H_
