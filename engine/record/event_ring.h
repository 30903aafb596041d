#ifndef FASTDECODE_ENGINE_RECORD_EVENT_RING_H_
#define FASTDECODE_ENGINE_RECORD_EVENT_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/record/event.h"
#include "numa/cache_line.h"

namespace fastdecode {

// A ring of events in memory that writer and readers share, perhaps between processes. The writer never waits: it
// overwrites the oldest event, and a reader that is too slow counts what it has missed.
//
//   line 0   on, for how many readers | line 1   written, since the start | events
//
// An event is some words. The writer stores them one by one, then counts it as written; each store releases the count
// before. A reader loads the words, then the count again: an event whose words were overwritten meanwhile shows by it.
// Owns: nothing.
struct EventRing {
  static constexpr size_t kEventBytes = sizeof(RecordEvent);
  static constexpr size_t kEventWords = kEventBytes / sizeof(uint64_t);
  static_assert(kEventBytes % sizeof(uint64_t) == 0);

  struct alignas(kCacheLineBytes) Head {
    std::atomic<uint32_t> readers{0};
    alignas(kCacheLineBytes) std::atomic<uint64_t> written{0};
  };

  // `memory`: Bytes(capacity), zero at first. `capacity`: a power of two.
  EventRing(std::byte* memory, size_t capacity)
      : head(reinterpret_cast<Head*>(memory)),
        words(reinterpret_cast<uint64_t*>(memory + sizeof(Head))),
        mask(capacity - 1) {}
  static constexpr size_t Bytes(size_t capacity) { return sizeof(Head) + capacity * kEventBytes; }

  size_t capacity() const { return mask + 1; }
  std::atomic_ref<uint64_t> Word(uint64_t event, size_t word) const {
    return std::atomic_ref<uint64_t>(words[(event & mask) * kEventWords + word]);
  }

  Head* head;
  uint64_t* words;
  size_t mask;
};

// Thread: one.
class EventWriter {
 public:
  EventWriter() = default;  // is never on
  explicit EventWriter(const EventRing& ring) : ring_(ring) {}

  // Whether somebody reads. One load.
  bool on() const { return ring_.head != nullptr && ring_.head->readers.load(std::memory_order_relaxed) != 0; }

  void Write(const RecordEvent& event) {
    uint64_t from[EventRing::kEventWords];
    std::memcpy(from, &event, sizeof(from));
    // Release, here a plain store: a reader that sees a word of this event sees that all before it was written.
    for (size_t i = 0; i < EventRing::kEventWords; ++i) {
      ring_.Word(written_, i).store(from[i], std::memory_order_release);
    }
    ring_.head->written.store(++written_, std::memory_order_release);
  }

 private:
  EventRing ring_{nullptr, 1};
  uint64_t written_ = 0;
};

// Thread: one at a time.
class EventReader {
 public:
  // From now on.
  explicit EventReader(const EventRing& ring)
      : ring_(ring), next_(ring.head->written.load(std::memory_order_acquire)) {}

  // Takes up to `capacity` events in order; adds those that were overwritten to *lost.
  size_t Read(RecordEvent* out, size_t capacity, uint64_t* lost) {
    const uint64_t written = ring_.head->written.load(std::memory_order_acquire);
    // What is next may be in overwriting; so may be another that the writer has begun since.
    if (written - next_ >= ring_.capacity()) Skip(written - ring_.capacity() + 1, lost);
    const uint64_t count = written - next_ < capacity ? written - next_ : capacity;
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t words[EventRing::kEventWords];
      for (size_t w = 0; w < EventRing::kEventWords; ++w) {
        words[w] = ring_.Word(next_ + i, w).load(std::memory_order_acquire);
      }
      std::memcpy(&out[i], words, sizeof(words));
    }
    const uint64_t now = ring_.head->written.load(std::memory_order_acquire);
    // Event n is overwritten by event n + capacity, which is begun once that many are written.
    uint64_t spoilt = 0;
    if (now >= next_ + ring_.capacity()) spoilt = now - ring_.capacity() + 1 - next_;
    if (spoilt > count) spoilt = count;
    if (spoilt > 0) std::memmove(out, out + spoilt, (count - spoilt) * sizeof(*out));
    *lost += spoilt;
    next_ += count;
    return count - spoilt;
  }

 private:
  void Skip(uint64_t to, uint64_t* lost) {
    *lost += to - next_;
    next_ = to;
  }

  EventRing ring_;
  uint64_t next_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RECORD_EVENT_RING_H_
