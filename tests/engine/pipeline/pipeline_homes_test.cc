// Homes that go and come, and whoever waits for one.
#include <gtest/gtest.h>

#include "engine/pipeline/pipeline.h"
#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

TEST(PipelineHomesTest, ALostHomeCountsAsInAndComesBack) {
  for (const int stage_polls_max : {0, 3}) {
    SimOptions options = SmallOptions();
    options.stage_polls_max = stage_polls_max;
    SimEngine engine(options);
    engine.AddHome(0, 40);
    engine.AddHome(1, 40);
    for (int round = 0; round < 30; ++round) {
      for (uint64_t i = 0; i < 4; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 20});
      for (int turn = 0; turn < 20 + round; ++turn) engine.Turn();
      engine.link(0)->MarkLost("cut");
      RunUntil(&engine, [&] { return engine.drained(0); });
      engine.AddHome(0, 40);
    }
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    for (const auto& request : engine.requests()) {
      engine.CheckTokens(*request);
      if (request->reason == FinishReason::kHomeLost) {
        EXPECT_EQ(request->fail_home, 0);
      }
    }
    EXPECT_EQ(engine.losses(0), 30u);
    EXPECT_EQ(engine.losses(1), 0u);
    engine.CheckNothingLeft();
  }
}

TEST(PipelineHomesTest, WithoutAHomeRequestsWaitForOneAndThenEnd) {
  SimOptions options = SmallOptions();
  SimEngine engine(options);
  SimRequest* patient = engine.Submit(Prompt(10), {});
  for (int turn = 0; turn < 100; ++turn) engine.Turn();  // 5 of the 50 ms
  EXPECT_FALSE(patient->finished);
  engine.AddHome(0, 10);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(patient->reason, FinishReason::kLength);

  engine.link(0)->MarkLost("gone for good");
  RunUntil(&engine, [&] { return engine.drained(0); });
  SimRequest* forsaken = engine.Submit(Prompt(10), {});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(forsaken->reason, FinishReason::kHomeLost);
  EXPECT_EQ(forsaken->fail_home, -1);
}

TEST(PipelineHomesTest, WhatNoLivingHomeCanHoldEndsAtOnce) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 4);
  engine.AddHome(1, 2);
  SimRequest* fits = engine.Submit(Prompt(60), {.max_tokens = 68});
  SimRequest* too_long = engine.Submit(Prompt(60), {.max_tokens = 69});
  SimRequest* behind = engine.Submit(Prompt(6), {.max_tokens = 9});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(fits->reason, FinishReason::kLength);
  EXPECT_EQ(too_long->reason, FinishReason::kHomeLost);
  EXPECT_EQ(behind->reason, FinishReason::kLength);
  engine.CheckNothingLeft();
}

TEST(PipelineHomesTest, WhatALostHomeAloneCouldHoldWaitsForItAndThenEnds) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 4);
  engine.AddHome(1, 2);
  for (const uint32_t comes_back_with : {4, 2, 4, 0}) {
    SimRequest* runs = engine.Submit(Prompt(60), {.max_tokens = 68});
    SimRequest* next = engine.Submit(Prompt(60), {.max_tokens = 68});
    RunUntil(&engine, [&] { return runs->announced > 2 || runs->finished; });
    engine.link(0)->MarkLost("the only one that is large enough");
    SimRequest* behind = engine.Submit(Prompt(6), {.max_tokens = 9});
    for (int turn = 0; turn < 200; ++turn) engine.Turn();  // 10 of the 50 ms
    EXPECT_EQ(behind->reason, FinishReason::kLength) << "it does not wait for what it does not need";
    EXPECT_EQ(runs->fail_home, 0);
    EXPECT_FALSE(next->finished);
    if (comes_back_with > 0) engine.AddHome(0, comes_back_with);
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    EXPECT_EQ(next->reason, comes_back_with == 4 ? FinishReason::kLength : FinishReason::kHomeLost);
    if (comes_back_with != 2) continue;
    engine.link(0)->MarkLost("too small");
    RunUntil(&engine, [&] { return engine.drained(0); });
    engine.AddHome(0, 4);
  }
  // It is not waited for any more.
  SimRequest* late = engine.Submit(Prompt(60), {.max_tokens = 68});
  for (int turn = 0; turn < 100; ++turn) engine.Turn();
  EXPECT_EQ(late->reason, FinishReason::kHomeLost);
  engine.CheckNothingLeft();
}

}  // namespace
}  // namespace fastdecode
