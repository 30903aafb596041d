// Who waits for whom: a desk for its ring, a parked home for its wake, the pipeline for a home's progress.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/pipeline/pipeline.h"
#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

// With a synchronous S-Part a stage is computed within the turn.
TEST(PipelineWaitTest, NoTokenWaitsForAnotherMicroBatchsStage) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 40);
  Parker desk(engine.desk_word());
  int behind_a_step = 0, unheard = 0;
  engine.spart().OnStage([&](int) {
    if (!engine.pipeline().HasEvents()) return;
    ++behind_a_step;
    unheard += engine.desk_word()->state.load() == Parker::kArmed;
  });
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 60});
  for (int turn = 0; turn < kTurnsMax && engine.unfinished() > 0; ++turn) {
    desk.Arm();
    engine.Turn();
  }
  EXPECT_EQ(engine.unfinished(), 0u);
  EXPECT_GT(behind_a_step, 0);
  EXPECT_EQ(unheard, 0);
}

TEST(PipelineWaitTest, AParkedHomeIsWokenBeforeItsLinkIsFull) {
  SimOptions options = SmallOptions();
  options.link.control_messages_max = 1;
  SimEngine engine(options);
  engine.AddHome(0, 40);
  engine.Park();
  for (int turn = 0; turn < 100; ++turn) engine.Turn();  // it falls asleep
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 5, .fill_tokens = 3});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  engine.CheckNothingLeft();
}

TEST(PipelineWaitTest, AHungHomeIsLostAfterTheTimeoutAndASlowOneIsNot) {
  SimOptions options = SmallOptions();
  options.turn_ns_max = 1000;
  options.hop_timeout_ns = 5'000'000;
  SimEngine engine(options);
  SimLink* hung = engine.AddHome(0, 40);
  SimLink* good = engine.AddHome(1, 40);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 30});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 2; });
  hung->Hang();
  for (int turn = 0; turn < 2000; ++turn) engine.Turn();  // 1 to 4 ms
  EXPECT_FALSE(hung->lost());
  RunUntil(&engine, [&] { return hung->lost(); });
  EXPECT_THAT(hung->lost_cause(), testing::HasSubstr("progress"));
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_FALSE(good->lost());
  engine.CheckNothingLeft();
  const PipelineStatistics& statistics = engine.pipeline().statistics();
  EXPECT_GT(statistics.home_posts[0].value(), statistics.home_hops[0].value());
  EXPECT_EQ(statistics.home_posts[1].value(), statistics.home_hops[1].value());
}

// Over a fabric a home tells of its progress with heartbeats, which may be further apart than the timeout.
TEST(PipelineWaitTest, AHomeThatRepliesMakesProgress) {
  SimOptions options = SmallOptions();
  options.limits.micro_batches = 4;  // one of them always waits
  options.hop_timeout_ns = 5'000'000;
  options.link.tells_progress = false;
  SimEngine engine(options);
  SimLink* const home = engine.AddHome(0, 40);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 100});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_FALSE(home->lost()) << home->lost_cause();
}

// Stopped, or with a machine that was suspended: its homes may have stood still as well.
TEST(PipelineWaitTest, AProcessThatStoodStillLosesNoHome) {
  SimOptions options = SmallOptions();
  options.turn_ns_max = 1'000'000;  // it looks nearly every turn
  options.hop_timeout_ns = 50'000'000;
  SimEngine engine(options);
  SimLink* const home = engine.AddHome(0, 40);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 30});
  for (int pause = 0; pause < 50; ++pause) {
    for (int turn = 0; turn < 20; ++turn) engine.Turn();
    engine.StandStill(10'000'000'000);
  }
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_FALSE(home->lost());
  for (const auto& request : engine.requests()) EXPECT_EQ(request->reason, FinishReason::kLength);
  // But one that hangs is found, however seldom it is looked at.
  engine.Submit(Prompt(10, 9), {.max_tokens = 30});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 2; });
  home->Hang();
  for (int look = 0; look < 8; ++look) {
    engine.StandStill(10'000'000'000);
    engine.Turn();
  }
  EXPECT_TRUE(home->lost());
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
}

}  // namespace
}  // namespace fastdecode
