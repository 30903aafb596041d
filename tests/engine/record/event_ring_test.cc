#include "engine/record/event_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace fastdecode {
namespace {

constexpr size_t kCapacity = 64;

class EventRingTest : public testing::Test {
 protected:
  EventRingTest() {
    memory_ = std::make_unique<std::byte[]>(EventRing::Bytes(kCapacity) + kCacheLineBytes);
    void* aligned = memory_.get();
    size_t room = EventRing::Bytes(kCapacity) + kCacheLineBytes;
    std::align(kCacheLineBytes, EventRing::Bytes(kCapacity), aligned, room);
    ring_ = std::make_unique<EventRing>(static_cast<std::byte*>(aligned), kCapacity);
  }

  // Every field says which event it is of.
  static RecordEvent Numbered(uint64_t n) {
    RecordEvent event = {};
    event.start_ns = event.end_ns = event.id = event.bytes = event.polled_ns = event.home_end_ns = n;
    event.step = event.rows = event.count = event.idle_ns = event.prepare_ns = event.append_ns = event.attend_ns =
        event.merge_ns = event.wait_ns = event.post_ns = event.reserved = static_cast<uint32_t>(n);
    event.layer = event.part = static_cast<uint16_t>(n);
    return event;
  }
  static void ExpectWhole(const RecordEvent& event) {
    const RecordEvent whole = Numbered(event.start_ns);
    ASSERT_EQ(event.end_ns, whole.end_ns);
    ASSERT_EQ(event.id, whole.id);
    ASSERT_EQ(event.bytes, whole.bytes);
    ASSERT_EQ(event.step, whole.step);
    ASSERT_EQ(event.layer, whole.layer);
    ASSERT_EQ(event.home_end_ns, whole.home_end_ns);
    ASSERT_EQ(event.post_ns, whole.post_ns);
    ASSERT_EQ(event.reserved, whole.reserved);
  }

  std::unique_ptr<std::byte[]> memory_;
  std::unique_ptr<EventRing> ring_;
};

TEST_F(EventRingTest, IsOnWhileSomebodyReads) {
  EXPECT_FALSE(EventWriter().on());
  const EventWriter writer(*ring_);
  EXPECT_FALSE(writer.on());
  ring_->head->readers.fetch_add(1);
  EXPECT_TRUE(writer.on());
  ring_->head->readers.fetch_sub(1);
  EXPECT_FALSE(writer.on());
}

TEST_F(EventRingTest, GivesWhatWasWrittenSinceTheReaderCame) {
  EventWriter writer(*ring_);
  writer.Write(Numbered(1));
  EventReader reader(*ring_);
  for (uint64_t n = 2; n < 12; ++n) writer.Write(Numbered(n));
  std::vector<RecordEvent> events(kCapacity);
  uint64_t lost = 0;
  ASSERT_EQ(reader.Read(events.data(), 4, &lost), 4u);
  ASSERT_EQ(reader.Read(events.data() + 4, kCapacity - 4, &lost), 6u);
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(events[i].start_ns, i + 2);
    ExpectWhole(events[i]);
  }
  EXPECT_EQ(reader.Read(events.data(), kCapacity, &lost), 0u);
  EXPECT_EQ(lost, 0u);
}

TEST_F(EventRingTest, CountsWhatItOverwrote) {
  EventWriter writer(*ring_);
  EventReader reader(*ring_);
  for (uint64_t n = 0; n < 10 * kCapacity; ++n) writer.Write(Numbered(n));
  std::vector<RecordEvent> events(kCapacity);
  uint64_t lost = 0;
  const size_t count = reader.Read(events.data(), kCapacity, &lost);
  // One place may be in overwriting at any time.
  ASSERT_EQ(count, kCapacity - 1);
  EXPECT_EQ(lost, 9 * kCapacity + 1);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(events[i].start_ns, lost + i);
}

// A writer that does not wait, and a reader that sometimes dawdles: whatever comes is whole and in order, and what does
// not come is counted.
TEST_F(EventRingTest, NeverGivesHalfAnEvent) {
  constexpr uint64_t kEvents = 400'000;
  EventReader reader(*ring_);
  std::atomic<bool> done{false};
  std::thread thread([&] {
    EventWriter writer(*ring_);
    for (uint64_t n = 0; n < kEvents; ++n) {
      writer.Write(Numbered(n));
      if (n % 50 == 0) std::this_thread::yield();
    }
    done.store(true, std::memory_order_release);
  });
  std::vector<RecordEvent> events(kCapacity);
  uint64_t lost = 0, seen = 0, turns = 0;
  for (bool last = false; !last;) {
    last = done.load(std::memory_order_acquire);
    for (;;) {
      const size_t count = reader.Read(events.data(), 1 + turns % kCapacity, &lost);
      if (count == 0) break;
      for (size_t i = 0; i < count; ++i) {
        ASSERT_NO_FATAL_FAILURE(ExpectWhole(events[i]));
        // Those lost in this call lie before its events.
        ASSERT_EQ(events[i].start_ns, seen + lost);
        ++seen;
      }
      if (++turns % 100 == 0) std::this_thread::yield();
    }
  }
  thread.join();
  EXPECT_EQ(seen + lost, kEvents);
  EXPECT_GT(seen, 0u);
}

}  // namespace
}  // namespace fastdecode
