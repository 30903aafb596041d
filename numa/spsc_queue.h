#ifndef FASTDECODE_NUMA_SPSC_QUEUE_H_
#define FASTDECODE_NUMA_SPSC_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "numa/atomics.h"
#include "numa/cache_line.h"
#include "numa/check.h"

namespace fastdecode {

// A bounded first-in first-out queue from one thread to one other.
// Owns: its slots, allocated by the constructor and never again. A popped slot keeps a moved-from T until overwritten.
// Thread: one producer (TryPush), one consumer (TryPop); anyone may ask for SizeApprox. Wait-free.
// Bounded: by `capacity`; a full queue refuses.
// T: default constructible and move assignable; where assigning T neither throws nor allocates, nor do these.
template <class T, class Atomics = StdAtomics>
class SpscQueue {
 public:
  // REQUIRES: capacity_power_of_two is a power of two, at least 1.
  explicit SpscQueue(size_t capacity_power_of_two)
      : mask_(capacity_power_of_two - 1), slots_(std::make_unique<Slot[]>(capacity_power_of_two)) {
    FD_CHECK(capacity_power_of_two != 0 && (capacity_power_of_two & mask_) == 0, "capacity must be a power of two");
  }

  SpscQueue(const SpscQueue&) = delete;
  SpscQueue& operator=(const SpscQueue&) = delete;

  // Producer. False if full; `value` is then untouched.
  bool TryPush(T&& value) { return Push(std::move(value)); }
  bool TryPush(const T& value) { return Push(value); }

  // Consumer. False if empty; `*out` is then untouched.
  bool TryPop(T* out) {
    // Relaxed: only this thread writes head_.
    const size_t head = consumer_.head.load(std::memory_order_relaxed);
    if (head == consumer_.cached_tail) {
      // Acquire: pairs with the producer's release store of tail_; the slots below it are seen as written.
      consumer_.cached_tail = producer_.tail.load(std::memory_order_acquire);
      if (head == consumer_.cached_tail) return false;
    }
    slots_[head & mask_].TakeInto(out);
    // Release: pairs with the producer's acquire load of head_; it overwrites the slot only after our read.
    consumer_.head.store(head + 1, std::memory_order_release);
    return true;
  }

  // Any thread. Exact if neither end moves meanwhile; never more than the capacity.
  size_t SizeApprox() const {
    // Acquire, head first: a tail read later is not older than the head, so that the difference is not negative.
    const size_t head = consumer_.head.load(std::memory_order_acquire);
    const size_t tail = producer_.tail.load(std::memory_order_acquire);
    return tail - head < capacity() ? tail - head : capacity();
  }

  size_t capacity() const { return mask_ + 1; }

 private:
  using Slot = typename Atomics::template Cell<T>;
  using Index = typename Atomics::template Atomic<size_t>;

  // Each side's line: the index that it publishes, and what it last saw of the other's, so that the remote line is read
  // only when the queue looks full or empty. Indices count pushes and pops and wrap around at 2^64.
  struct alignas(kCacheLineBytes) Producer {
    Index tail{0};
    size_t cached_head = 0;
  };
  struct alignas(kCacheLineBytes) Consumer {
    Index head{0};
    size_t cached_tail = 0;
  };

  template <class U>
  bool Push(U&& value) {
    // Relaxed: only this thread writes tail_.
    const size_t tail = producer_.tail.load(std::memory_order_relaxed);
    if (tail - producer_.cached_head > mask_) {
      // Acquire: pairs with the consumer's release store of head_; the slots below it have been read.
      producer_.cached_head = consumer_.head.load(std::memory_order_acquire);
      if (tail - producer_.cached_head > mask_) return false;
    }
    slots_[tail & mask_].Put(std::forward<U>(value));
    // Release: pairs with the consumer's acquire load of tail_; it sees the slot as written.
    producer_.tail.store(tail + 1, std::memory_order_release);
    return true;
  }

  // Constant after construction.
  const size_t mask_;
  const std::unique_ptr<Slot[]> slots_;

  Producer producer_;  // cached_head: producer only
  Consumer consumer_;  // cached_tail: consumer only
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_SPSC_QUEUE_H_
