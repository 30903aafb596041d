#include <gtest/gtest.h>

#include <vector>

#include "engine/rpart/home.h"
#include "tests/allocation_count.h"
#include "tests/engine/rpart/stage_rig.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

// A window of so many tokens in the second of two layers; 0: none.
class HomeAllocationTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Windows, HomeAllocationTest, testing::Values(0, 600));

// Steps of one roster, which take pages, copy shared ones, cut chains over threads and fail rows: none of it allocates.
TEST_P(HomeAllocationTest, SteadyHopsAllocateNothing) {
  RPartShape shape = SmallShape(ElementType::kBf16);
  if (GetParam() > 0) {
    shape.sliding_window = GetParam();
    shape.SetWindowed(1);
  }
  const std::unique_ptr<Home> home = MakeTestHome(3, 16 << 20);
  TestEngine engine(home.get(), shape);
  engine.Fill(1, 2000);
  engine.Fill(2, 30);
  engine.Fork(1, 1990, 3);
  const std::vector<TestEntry> entries = {{1, 2000, 1, 1}, {2, 30, 1, 2}, {3, 1990, 1, 3}, {4, 7, 1, 4}};  // 4 is bad
  engine.SendRoster(0, entries, 1);
  HopHeader hop = engine.WriteRows(0, entries, 0);
  ASSERT_EQ(engine.Stats().sequences, 4u);

  const uint64_t before = AllocationCount();
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
  const uint64_t after = AllocationCount();
  EXPECT_EQ(after, before);
  EXPECT_EQ(bad_rows, 200u);
  const StatsMessage stats = engine.Stats();
  EXPECT_EQ(stats.hops, 400u);
  engine.Fill(5, 1);  // which allocates at the home
  engine.Stats();
  EXPECT_GT(AllocationCount(), after) << "the count sees nothing";
}

TEST(HomeAllocationOfSegmentsTest, SegmentsAllocateNothing) {
  const RPartShape shape = SmallShape(ElementType::kBf16);
  const std::unique_ptr<Home> home = MakeTestHome(3, 16 << 20);
  TestEngine engine(home.get(), shape);
  const uint64_t reservation = engine.Reserve(1, 4000);
  std::vector<std::vector<std::byte>> segments;
  for (uint32_t position = 0; position < 4000; position += 40) {
    segments.push_back(engine.SegmentOf({1, position, 40, 1}, position / 40 % 2, reservation));
    segments.push_back(engine.SegmentOf({1, position, 40, 1}, 1 - position / 40 % 2, reservation));
  }
  ASSERT_EQ(engine.Stats().sequences, 1u);
  const uint64_t before = AllocationCount();
  for (const std::vector<std::byte>& segment : segments) ASSERT_TRUE(engine.PushBytes(segment));
  ASSERT_TRUE(engine.AwaitPushed());
  EXPECT_EQ(AllocationCount(), before);
}

// Neither the rosters that bring new sequences nor the steps.
TEST(StageHomeAllocationTest, NothingAllocatesOnThePipelinesThread) {
  const RPartShape shape = SmallShape(ElementType::kBf16);
  StageRig rig(shape, 2, {0, 1});
  std::vector<std::vector<std::byte>> rosters;
  for (uint32_t i = 1; i <= 200; ++i) rosters.push_back(RosterOf(0, i, {{i, 0, 40}}, i));
  size_t bytes = 0;
  std::vector<std::byte> buffer(kControlMessageBytesMax);
  const uint64_t before = AllocationCount();
  for (uint64_t i = 1; i <= 200; ++i) {
    const std::vector<std::byte>& roster = rosters[i - 1];
    ASSERT_TRUE(rig.link().TrySendControl(roster.data(), roster.size()));
    for (int layer = 0; layer < static_cast<int>(shape.layers); ++layer) rig.Layer(0, i, layer, 40);
    if (i > 3) rig.Send(AboutSequence(ControlKind::kRelease, i - 3, 0));
    while (rig.link().PollControl(buffer.data(), &bytes) == LinkPoll::kMessage) continue;
  }
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace fastdecode
