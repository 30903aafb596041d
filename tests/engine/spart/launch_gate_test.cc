// Steps and those who hold them up: never both, whoever comes first.
#include "engine/spart/cuda/launch_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "numa/clock.h"

namespace fastdecode {
namespace {

constexpr uint64_t kBoundNs = 10'000'000'000;

TEST(LaunchGateTest, NothingEntersWhileSomebodyHolds) {
  LaunchGate gate(kBoundNs);
  std::shared_ptr<void> first = gate.Hold(), second = gate.Hold();
  EXPECT_FALSE(gate.TryEnter());
  first.reset();
  EXPECT_FALSE(gate.TryEnter());
  second.reset();
  EXPECT_TRUE(gate.TryEnter());
}

TEST(LaunchGateTest, AHoldBeginsWhenAllHaveLeft) {
  LaunchGate gate(kBoundNs);
  ASSERT_TRUE(gate.TryEnter());
  ASSERT_TRUE(gate.TryEnter());
  std::atomic<bool> held = false;
  std::jthread holder([&] {
    const std::shared_ptr<void> hold = gate.Hold();
    held = true;
  });
  gate.Leave();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(held);
  gate.Leave();
  holder.join();
  EXPECT_TRUE(held);
  EXPECT_TRUE(gate.TryEnter());
}

TEST(LaunchGateTest, ALostStepIsWaitedForNoLongerThanItLasts) {
  constexpr uint64_t kShortNs = 5'000'000;
  LaunchGate gate(kShortNs);
  ASSERT_TRUE(gate.TryEnter());
  const uint64_t start_ns = NowNs();
  EXPECT_NE(gate.Hold(), nullptr);
  EXPECT_GE(NowNs() - start_ns, kShortNs);
}

TEST(LaunchGateTest, AStepThatGoesOnIsWaitedForHoweverLongItLasts) {
  constexpr uint64_t kShortNs = 300'000'000;
  LaunchGate gate(kShortNs);
  ASSERT_TRUE(gate.TryEnter());
  std::atomic<bool> left = false;
  std::jthread holder([&] {
    const std::shared_ptr<void> hold = gate.Hold();
    EXPECT_TRUE(left);
  });
  for (const uint64_t start_ns = NowNs(); NowNs() - start_ns < 3 * kShortNs;) {
    gate.GoOn();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  left = true;
  gate.Leave();
}

// Whether it waits already or comes later.
TEST(LaunchGateTest, NobodyEntersOrHoldsWhenItIsShut) {
  LaunchGate gate(kBoundNs);
  ASSERT_TRUE(gate.TryEnter());
  std::atomic<bool> held = false;
  std::jthread holder([&] { held = gate.Hold() != nullptr; });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  gate.Shut();
  gate.Leave();
  holder.join();
  EXPECT_FALSE(held);
  EXPECT_EQ(gate.Hold(), nullptr);
  EXPECT_FALSE(gate.TryEnter());
  EXPECT_FALSE(gate.AnyIn());
}

TEST(LaunchGateTest, StepsAndHoldersExcludeEachOther) {
  constexpr int kHolds = 200;
  LaunchGate gate(kBoundNs);
  std::atomic<int> steps = 0, holders = 0, both = 0, left = 3;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kHolds; ++i) {
        const std::shared_ptr<void> hold = gate.Hold();
        ++holders;
        both += steps != 0;
        std::this_thread::yield();
        both += steps != 0;
        --holders;
      }
      --left;
    });
  }
  while (left != 0) {
    if (!gate.TryEnter()) {
      std::this_thread::yield();
      continue;
    }
    ++steps;
    both += holders != 0;
    --steps;
    gate.Leave();
  }
  EXPECT_EQ(both, 0);
}

}  // namespace
}  // namespace fastdecode
