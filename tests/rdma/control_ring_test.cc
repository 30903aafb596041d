#include "rdma/shm/control_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "numa/spin.h"
#include "tests/rdma/heap_link.h"

namespace fastdecode {
namespace {

struct Ring {
  explicit Ring(size_t ring_bytes)
      : data(ring_bytes),
        writer(&indices, ShmRingPolicy::Data(data.data()), ring_bytes),
        reader(&indices, ShmRingPolicy::Data(data.data()), ring_bytes),
        buffer(RingMessageBytesMax(ring_bytes)) {}

  RingOutcome Write(const std::vector<uint8_t>& message) { return writer.TryWrite(message.data(), message.size()); }
  RingOutcome Read(std::vector<uint8_t>* message) {
    size_t bytes = 0;
    const RingOutcome outcome = reader.TryRead(buffer.data(), &bytes);
    message->assign(buffer.data(), buffer.data() + bytes);
    return outcome;
  }

  ShmRingIndices indices;
  ExactBuffer data;
  ShmRingWriter writer;
  ShmRingReader reader;
  std::vector<uint8_t> buffer;  // exactly what a message may need: one byte more is AddressSanitizer's
};

std::vector<uint8_t> Message(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> message(bytes);
  for (uint8_t& byte : message) byte = static_cast<uint8_t>(random());
  return message;
}

TEST(ControlRingTest, EverySizeAtEveryOffset) {
  constexpr size_t kRingBytes = 64;
  for (size_t shift = 0; shift < 8; ++shift) {
    for (size_t bytes = 1; bytes <= RingMessageBytesMax(kRingBytes); ++bytes) {
      Ring ring(kRingBytes);
      std::vector<uint8_t> got;
      for (size_t i = 0; i < shift; ++i) {  // moves both indices on by 16
        ASSERT_EQ(ring.Write({1}), RingOutcome::kDone);
        ASSERT_EQ(ring.Read(&got), RingOutcome::kDone);
      }
      const std::vector<uint8_t> sent = Message(bytes, bytes);
      ASSERT_EQ(ring.Write(sent), RingOutcome::kDone);
      ASSERT_EQ(ring.Read(&got), RingOutcome::kDone);
      EXPECT_EQ(got, sent) << shift << " " << bytes;
      EXPECT_EQ(ring.Read(&got), RingOutcome::kNothing);
    }
  }
}

TEST(ControlRingTest, FullAtExactlyItsSize) {
  Ring ring(64);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(ring.Write(Message(8, i)), RingOutcome::kDone);  // 4 * 16 bytes
  EXPECT_EQ(ring.Write({1}), RingOutcome::kNothing);
  std::vector<uint8_t> got;
  ASSERT_EQ(ring.Read(&got), RingOutcome::kDone);
  EXPECT_EQ(got, Message(8, 0));
  EXPECT_EQ(ring.Write(Message(9, 9)), RingOutcome::kNothing) << "24 bytes do not fit into 16";
  EXPECT_EQ(ring.Write(Message(8, 4)), RingOutcome::kDone);
  for (int i = 1; i <= 4; ++i) {
    ASSERT_EQ(ring.Read(&got), RingOutcome::kDone);
    EXPECT_EQ(got, Message(8, i));
  }
  EXPECT_EQ(ring.Read(&got), RingOutcome::kNothing);
}

TEST(ControlRingTest, LargestMessages) {
  EXPECT_EQ(RingMessageBytesMax(4096), 4088u);
  EXPECT_EQ(RingMessageBytesMax(1 << 20), kControlMessageBytesMax);
  Ring ring(1 << 20);
  std::vector<uint8_t> got;
  for (int i = 0; i < 20; ++i) {  // several times around
    ASSERT_EQ(ring.Write(Message(kControlMessageBytesMax, i)), RingOutcome::kDone);
    ASSERT_EQ(ring.Read(&got), RingOutcome::kDone);
    ASSERT_EQ(got, Message(kControlMessageBytesMax, i));
  }
}

TEST(ControlRingTest, SizesOutOfBoundsAreOurOwnMistake) {
  Ring ring(4096);
  std::vector<uint8_t> large(4089);
  EXPECT_DEATH(ring.Write(large), "control message size");
  EXPECT_DEATH(ring.writer.TryWrite(large.data(), 0), "control message size");
}

TEST(ControlRingTest, AReaderBelievesNoIndexOrLengthOutOfBounds) {
  const uint64_t bad_tails[] = {1, 12, 8, 4096 + 8, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{7}};
  std::vector<uint8_t> got;
  for (const uint64_t tail : bad_tails) {
    Ring ring(4096);  // all lengths are zero, which no message has
    ring.indices.tail.store(tail);
    EXPECT_EQ(ring.Read(&got), RingOutcome::kCorrupt) << tail;
  }
  const uint64_t bad_lengths[] = {0, 25, 4089, 1 << 20, uint64_t{1} << 32, ~uint64_t{0}, ~uint64_t{6}};
  for (const uint64_t length : bad_lengths) {
    Ring ring(4096);
    ShmRingPolicy::Data(ring.data.data()).StoreLength(0, length);
    ring.indices.tail.store(32);
    EXPECT_EQ(ring.Read(&got), RingOutcome::kCorrupt) << length;
  }
}

TEST(ControlRingTest, AWriterBelievesNoIndexOutOfBounds) {
  const uint64_t bad_heads[] = {4096 + 8, 5000, uint64_t{1} << 63, ~uint64_t{0}};
  for (const uint64_t head : bad_heads) {
    Ring ring(4096);
    ASSERT_EQ(ring.Write(Message(4088, 1)), RingOutcome::kDone);
    ring.indices.head.store(head);
    EXPECT_EQ(ring.Write({1}), RingOutcome::kCorrupt) << head;
  }
  // Nor one that went back.
  Ring ring(64);
  ASSERT_EQ(ring.Write(Message(56, 1)), RingOutcome::kDone);
  ring.indices.head.store(64);
  ASSERT_EQ(ring.Write(Message(56, 1)), RingOutcome::kDone);
  ring.indices.head.store(0);
  EXPECT_EQ(ring.Write({1}), RingOutcome::kCorrupt);
}

TEST(ControlRingTest, StressBetweenTwoThreads) {
  constexpr int kMessages = 20'000;
  Ring ring(4096);
  auto size_of = [](int i) { return 1 + (static_cast<size_t>(i) * 2654435761u) % 700; };
  std::thread writer([&] {
    PollBackoff backoff(PollMode::kYield);
    std::vector<uint8_t> message;
    for (int i = 0; i < kMessages; ++i) {
      message.assign(size_of(i), static_cast<uint8_t>(i));
      while (ring.Write(message) != RingOutcome::kDone) backoff.Idle();
    }
  });
  PollBackoff backoff(PollMode::kYield);
  std::vector<uint8_t> got;
  int wrong = 0;
  for (int i = 0; i < kMessages; ++i) {
    RingOutcome outcome;
    while ((outcome = ring.Read(&got)) == RingOutcome::kNothing) backoff.Idle();
    wrong += outcome != RingOutcome::kDone || got != std::vector<uint8_t>(size_of(i), static_cast<uint8_t>(i));
  }
  writer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(ring.Read(&got), RingOutcome::kNothing);
}

}  // namespace
}  // namespace fastdecode
