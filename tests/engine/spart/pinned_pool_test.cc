// Blocks are apart and come back; steps are held up by growth alone.
#include "engine/spart/cuda/pinned_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "tests/engine/spart/soft_device.h"

namespace fastdecode {
namespace {

constexpr uint64_t kBoundNs = 60'000'000'000;

TEST(PinnedPoolTest, BlocksAreAlignedAndApart) {
  SoftDevice device({});
  LaunchGate gate(kBoundNs);
  PinnedPool pool(&device, &gate);
  std::mt19937_64 random(1);
  struct Block {
    size_t bytes, alignment;
  };
  std::map<unsigned char*, Block> blocks;
  for (int i = 0; i < 2000; ++i) {
    if (!blocks.empty() && random() % 3 == 0) {
      const auto freed = std::next(blocks.begin(), static_cast<long>(random() % blocks.size()));
      pool.deallocate(freed->first, freed->second.bytes, freed->second.alignment);
      blocks.erase(freed);
      continue;
    }
    const Block block{1 + random() % (size_t{1} << random() % 18), size_t{1} << random() % 9};
    auto* const memory = static_cast<unsigned char*>(pool.allocate(block.bytes, block.alignment));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(memory) % block.alignment, 0u);
    const auto next = blocks.lower_bound(memory);
    ASSERT_TRUE(next == blocks.end() || memory + block.bytes <= next->first);
    ASSERT_TRUE(next == blocks.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= memory);
    std::memset(memory, 0x5a, block.bytes);
    blocks.emplace(memory, block);
  }
}

TEST(PinnedPoolTest, WhatWasFreedIsTakenWithoutHoldingSteps) {
  constexpr size_t kLarge = 256 << 10;
  SoftDevice device({});
  LaunchGate gate(kBoundNs);
  PinnedPool pool(&device, &gate);
  void* const large = pool.allocate(kLarge);
  void* const small = pool.allocate(100);
  ASSERT_TRUE(gate.TryEnter());  // a step runs, and nobody ends it: a hold would last a minute
  std::jthread other([&] {       // and no thread has blocks of its own
    pool.deallocate(large, kLarge);
    pool.deallocate(small, 100);
    EXPECT_EQ(pool.allocate(kLarge - 1), large);
    EXPECT_EQ(pool.allocate(65), small);
  });
  other.join();
  gate.Leave();
}

TEST(PinnedPoolTest, GrowthWaitsForTheStepThatRuns) {
  SoftDevice device({});
  LaunchGate gate(kBoundNs);
  PinnedPool pool(&device, &gate);
  ASSERT_TRUE(gate.TryEnter());
  std::atomic<bool> allocated = false;
  std::jthread other([&] {
    EXPECT_NE(pool.allocate(100), nullptr);
    allocated = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(allocated);
  gate.Leave();
}

TEST(PinnedPoolTest, ThreadsTakeAndFreeAtOnce) {
  SoftDevice device({});
  LaunchGate gate(kBoundNs);
  PinnedPool pool(&device, &gate);
  std::vector<std::jthread> threads;
  for (unsigned char t = 1; t <= 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (size_t i = 0; i < 500; ++i) {
        const size_t bytes = 1 + i * 37 % 5000;
        auto* const memory = static_cast<unsigned char*>(pool.allocate(bytes));
        std::memset(memory, t, bytes);
        std::this_thread::yield();
        for (size_t b = 0; b < bytes; ++b) ASSERT_EQ(memory[b], t);
        pool.deallocate(memory, bytes);
      }
    });
  }
}

TEST(PinnedPoolTest, MoreThanThereIsThrows) {
  SoftDevice device({});
  LaunchGate gate(kBoundNs);
  PinnedPool pool(&device, &gate);
  EXPECT_THROW(static_cast<void>(pool.allocate(size_t{1} << 50)), std::bad_alloc);
}

}  // namespace
}  // namespace fastdecode
