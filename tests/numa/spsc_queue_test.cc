#include "numa/spsc_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "numa/spin.h"

namespace fastdecode {
namespace {

TEST(SpscQueueTest, RefusesWhenFullAndWhenEmpty) {
  SpscQueue<int> queue(4);
  int value = -1;
  EXPECT_FALSE(queue.TryPop(&value));
  EXPECT_EQ(value, -1);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(queue.TryPush(i));
  EXPECT_FALSE(queue.TryPush(4));
  EXPECT_EQ(queue.SizeApprox(), 4u);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(queue.TryPop(&value));
    EXPECT_EQ(value, i);
  }
  EXPECT_FALSE(queue.TryPop(&value));
  EXPECT_EQ(queue.SizeApprox(), 0u);
}

TEST(SpscQueueTest, KeepsOrderAroundTheEnd) {
  SpscQueue<int> queue(2);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(queue.TryPush(i));
    int value = -1;
    ASSERT_TRUE(queue.TryPop(&value));
    ASSERT_EQ(value, i);
  }
}

TEST(SpscQueueTest, MovesOnlyWhatItTakes) {
  SpscQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto refused = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(refused)));
  ASSERT_NE(refused, nullptr);
  std::unique_ptr<int> out;
  ASSERT_TRUE(queue.TryPop(&out));
  EXPECT_EQ(*out, 1);
}

TEST(SpscQueueTest, CapacityIsAPowerOfTwo) {
  EXPECT_DEATH(SpscQueue<int>(3), "power of two");
  EXPECT_DEATH(SpscQueue<int>(0), "power of two");
}

TEST(SpscQueueTest, TwoThreadsLoseAndReorderNothing) {
  struct Message {
    uint64_t number = 0;
    uint64_t check = 0;
  };
  // Fewer where every message needs the other thread to get a core first.
  for (const auto& [capacity, messages] : {std::pair<size_t, uint64_t>(1, 3000), {4, 10'000}, {256, 200'000}}) {
    SpscQueue<Message> queue(capacity);
    std::thread producer([&queue, messages = messages] {
      PollBackoff backoff(PollMode::kYield);
      for (uint64_t i = 0; i < messages; ++i) {
        while (!queue.TryPush(Message{i, ~i})) backoff.Idle();
        backoff.Reset();
      }
    });
    PollBackoff backoff(PollMode::kYield);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < messages; ++i) {
      Message message;
      while (!queue.TryPop(&message)) backoff.Idle();
      backoff.Reset();
      if (message.number != i || message.check != ~i || queue.SizeApprox() > capacity) ++wrong;
    }
    producer.join();
    EXPECT_EQ(wrong, 0u) << "capacity " << capacity;
  }
}

}  // namespace
}  // namespace fastdecode
