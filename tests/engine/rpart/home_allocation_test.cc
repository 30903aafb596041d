// Replaces operator new for this whole program, to count.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/rpart/home.h"
#include "tests/engine/rpart/test_engine.h"

namespace {
std::atomic<uint64_t> g_allocations{0};
}  // namespace

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // GCC 12 inlines one of the pair and not the other
// NOLINTBEGIN
void* operator new(size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND

namespace fastdecode {
namespace {

// Steps of one roster, which take pages, copy shared ones, cut chains over threads and fail rows: none of it allocates.
TEST(HomeAllocationTest, SteadyHopsAllocateNothing) {
  RPartShape shape = SmallShape(ElementType::kBf16);
  const std::unique_ptr<Home> home = MakeTestHome(3, 16 << 20);
  TestEngine engine(home.get(), shape);
  engine.Fill(1, 2000);
  engine.Fill(2, 30);
  engine.Fork(1, 1990, 3);
  const std::vector<TestEntry> entries = {{1, 2000, 1, 1}, {2, 30, 1, 2}, {3, 1990, 1, 3}, {4, 7, 1, 4}};  // 4 is bad
  engine.SendRoster(0, entries, 1);
  HopHeader hop = engine.WriteRows(0, entries, 0);
  ASSERT_EQ(engine.Stats().sequences, 4u);

  const uint64_t before = g_allocations.load();
  uint32_t bad_rows = 0;
  for (uint64_t step = 1; step <= 200; ++step) {
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      hop.step = step;
      hop.layer = static_cast<uint16_t>(layer);
      engine.link().PostHop(hop);
      ReplyHeader reply;
      ASSERT_TRUE(engine.AwaitReply(&reply));
      bad_rows += reply.status == HopStatus::kBadRow;
    }
  }
  const uint64_t after = g_allocations.load();
  EXPECT_EQ(after, before);
  EXPECT_EQ(bad_rows, 200u);
  const StatsMessage stats = engine.Stats();
  EXPECT_EQ(stats.hops, 400u);
  engine.Fill(5, 1);  // which allocates at the home
  engine.Stats();
  EXPECT_GT(g_allocations.load(), after) << "the count sees nothing";
}

}  // namespace
}  // namespace fastdecode
