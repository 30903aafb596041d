// Homes that go and come, and whoever waits for one.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

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
      RunUntil(&engine, [&] { return engine.let_go(0); });
      engine.AddHome(0, 40);
    }
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    uint64_t recoveries = 0;
    for (const auto& request : engine.requests()) {
      EXPECT_EQ(request->reason, FinishReason::kLength);
      engine.CheckTokens(*request);
      recoveries += request->sequence.times.recoveries;
    }
    EXPECT_GT(recoveries, 20u);
    EXPECT_EQ(engine.pipeline().statistics().recoveries.value(), recoveries);
    EXPECT_EQ(engine.losses(0), 30u);
    EXPECT_EQ(engine.losses(1), 0u);
    engine.CheckNothingLeft();
  }
}

// One micro-batch is all at a home that attends within stages, the other at one that replies in the turn after a hop.
TEST(PipelineHomesTest, WhoHasNoHopsLetsOthersLookForTheirs) {
  SimOptions options = SmallOptions();
  options.layers = 8;
  options.link.work_share = 1;
  SimEngine engine(options);
  engine.AddHome(0, 40, 0, /*near=*/true);
  engine.AddHome(1, 40);
  const SimRequest* near = engine.Submit(Prompt(10, 1), {.max_tokens = 60});
  const SimRequest* far = engine.Submit(Prompt(10, 2), {.max_tokens = 60});
  RunUntil(&engine, [&] { return near->announced >= 10; });
  ASSERT_EQ(near->sequence.seat.home, 0);
  ASSERT_EQ(far->sequence.seat.home, 1);
  ASSERT_NE(near->sequence.micro_batch, far->sequence.micro_batch);
  const uint32_t before = far->announced;
  RunUntil(&engine, [&] { return near->announced >= 50; });
  EXPECT_GE(far->announced - before, 10u) << "of 40";
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
  RunUntil(&engine, [&] { return engine.let_go(0); });
  SimRequest* forsaken = engine.Submit(Prompt(10), {});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(forsaken->reason, FinishReason::kNoHome);
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
  EXPECT_EQ(too_long->reason, FinishReason::kNoHome);
  EXPECT_EQ(behind->reason, FinishReason::kLength);
  engine.CheckNothingLeft();
}

TEST(PipelineHomesTest, WhatALostHomeAloneCouldHoldWaitsForItAndThenEnds) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 4);
  engine.AddHome(1, 2);
  for (const uint32_t comes_back_with : {4, 2, 4, 0}) {
    SCOPED_TRACE(comes_back_with);
    SimRequest* runs = engine.Submit(Prompt(60), {.max_tokens = 68});
    SimRequest* next = engine.Submit(Prompt(60), {.max_tokens = 68});
    RunUntil(&engine, [&] { return runs->announced > 2; });
    engine.link(0)->MarkLost("the only one that is large enough");
    SimRequest* behind = engine.Submit(Prompt(6), {.max_tokens = 9});
    for (int turn = 0; turn < 200; ++turn) engine.Turn();  // 10 of the 50 ms
    EXPECT_EQ(behind->reason, FinishReason::kLength) << "it does not wait for what it does not need";
    EXPECT_FALSE(runs->finished);
    EXPECT_FALSE(next->finished);
    if (comes_back_with > 0) engine.AddHome(0, comes_back_with);
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    for (const SimRequest* request : {runs, next}) {
      EXPECT_EQ(request->reason, comes_back_with == 4 ? FinishReason::kLength : FinishReason::kNoHome);
      EXPECT_EQ(request->fail_home, -1);
      engine.CheckTokens(*request);
    }
    EXPECT_EQ(runs->sequence.times.recoveries, 1u);
    EXPECT_EQ(next->sequence.times.recoveries, 0u);
    if (comes_back_with != 2) continue;
    engine.link(0)->MarkLost("too small");
    RunUntil(&engine, [&] { return engine.let_go(0); });
    engine.AddHome(0, 4);
  }
  // The time of the next one begins anew.
  SimRequest* late = engine.Submit(Prompt(60), {.max_tokens = 68});
  for (int turn = 0; turn < 200; ++turn) engine.Turn();
  EXPECT_FALSE(late->finished);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(late->reason, FinishReason::kNoHome);
  engine.CheckNothingLeft();
}

// What makes homes die must not go on to the next one for ever.
TEST(PipelineHomesTest, WhoLosesHomeAfterHomeWithoutATokenEndsAtLast) {
  for (const bool has_tokens : {false, true}) {
    SimEngine engine(SmallOptions());
    engine.AddHome(0, 20);
    SimRequest* const request = engine.Submit(Prompt(200), {.max_tokens = 100});
    constexpr uint32_t kLosses = Recovery::kLossesInVainMax;
    for (uint32_t i = 0; i < kLosses + (has_tokens ? 10 : 0); ++i) {
      const uint32_t announced = request->announced;
      EXPECT_FALSE(request->finished) << i;
      RunUntil(&engine, [&] { return has_tokens ? request->announced > announced : request->sequence.seat.home == 0; });
      engine.link(0)->MarkLost("its rows");
      RunUntil(&engine, [&] { return engine.let_go(0); });
      engine.AddHome(0, 20);
    }
    engine.Turn();  // the last home comes
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    EXPECT_EQ(request->reason, has_tokens ? FinishReason::kLength : FinishReason::kLosesHomes);
    EXPECT_EQ(request->fail_home, has_tokens ? -1 : 0);
    EXPECT_EQ(request->sequence.times.recoveries, has_tokens ? kLosses + 10 : kLosses - 1);
    engine.CheckTokens(*request);
    engine.CheckNothingLeft();
  }
}

// Nothing else happens meanwhile that would have the queue looked at.
TEST(PipelineHomesTest, WhoHasLostTheOnlyHomeWaitsForItAndThenEnds) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 10);
  SimRequest* const request = engine.Submit(Prompt(10), {.max_tokens = 100});
  RunUntil(&engine, [&] { return request->announced > 2; });
  engine.link(0)->MarkLost("cut");
  for (int turn = 0; turn < 200; ++turn) engine.Turn();  // 10 of the 50 ms
  EXPECT_FALSE(request->finished);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(request->reason, FinishReason::kNoHome);
}

// In the middle of a prompt, of an answer, of a recovery; with all homes at once: each answer is what it would have
// been, and nobody else is computed again.
TEST(PipelineHomesTest, SequencesGoOnWhereverTheirHomeWasLost) {
  for (const bool open_pages : {false, true}) {
    for (const int lost_after : {1, 7, 20, 60, 150}) {
      SCOPED_TRACE(testing::Message() << lost_after << " turns, open pages " << open_pages);
      SimOptions options = SmallOptions();
      options.limits.open_pages = open_pages;
      SimEngine engine(options);
      engine.AddHome(0, 60);
      engine.AddHome(1, 60);
      for (uint64_t i = 0; i < 6; ++i) engine.Submit(Prompt(50 + 10 * i, i), {.max_tokens = 40, .prompt_logprobs = 3});
      for (int turn = 0; turn < lost_after; ++turn) engine.Turn();
      engine.link(0)->MarkLost("cut");
      for (int turn = 0; turn < lost_after / 2; ++turn) engine.Turn();
      engine.link(1)->MarkLost("cut");
      RunUntil(&engine, [&] { return engine.let_go(0) && engine.let_go(1); });
      engine.AddHome(1, 60);
      ASSERT_TRUE(engine.RunAll(kTurnsMax));
      for (const auto& request : engine.requests()) {
        EXPECT_EQ(request->reason, FinishReason::kLength);
        EXPECT_LE(request->sequence.times.recoveries, 2u);
        engine.CheckTokens(*request);
      }
      engine.CheckNothingLeft();
      const PipelineStatistics& statistics = engine.pipeline().statistics();
      EXPECT_LE(statistics.recovered.value(), statistics.recoveries.value());
    }
  }
}

TEST(PipelineHomesTest, AHomeThatDrainsKeepsWhatItHasAndGetsNothingNew) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 4);  // room for two of these
  engine.AddHome(1, 40);
  std::vector<SimRequest*> before;
  for (uint64_t i = 0; i < 3; ++i) before.push_back(engine.Submit(Prompt(20, i), {.max_tokens = 40}));
  RunUntil(&engine, [&] { return before.back()->announced > 0; });
  ASSERT_GT(engine.link(1)->home().sequences(), 0u);
  engine.link(1)->Drain();
  engine.Turn();
  std::vector<SimRequest*> after;
  for (uint64_t i = 0; i < 3; ++i) after.push_back(engine.Submit(Prompt(20, 10 + i), {.max_tokens = 40}));
  RunUntil(&engine, [&] {
    for (const SimRequest* request : after) EXPECT_NE(request->sequence.seat.home, 1);
    return engine.let_go(1);
  });
  for (const SimRequest* request : before) {
    EXPECT_EQ(request->sequence.times.recoveries, 0u);
    EXPECT_TRUE(request->finished || request->sequence.seat.home != 1);
  }
  EXPECT_EQ(engine.link(1)->lost_cause(), "the engine has left");
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const auto& request : engine.requests()) {
    EXPECT_EQ(request->reason, FinishReason::kLength);
    engine.CheckTokens(*request);
  }
  EXPECT_EQ(engine.pipeline().statistics().recoveries.value(), 0u);
  engine.CheckNothingLeft();
}

TEST(PipelineHomesTest, AnEmptyHomeThatDrainsIsLeftAtOnce) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 40);
  engine.link(0)->Drain();
  RunUntil(&engine, [&] { return engine.let_go(0); });
  EXPECT_EQ(engine.link(0)->lost_cause(), "the engine has left");
  SimRequest* const waits = engine.Submit(Prompt(20), {.max_tokens = 4});
  for (int turn = 0; turn < 100; ++turn) engine.Turn();  // 5 of the 50 ms
  EXPECT_FALSE(waits->finished);
  engine.AddHome(0, 40);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(waits->reason, FinishReason::kLength);
}

// What it says twice makes no sense, and neither does half of it.
TEST(PipelineHomesTest, AHomeThatDrainsSaysSoOnceAndWholly) {
  for (const bool twice : {false, true}) {
    SimEngine engine(SmallOptions());
    engine.AddHome(0, 40);
    SimRequest* const request = engine.Submit(Prompt(20), {.max_tokens = 40});
    RunUntil(&engine, [&] { return request->announced > 0; });
    const DrainingMessage message;
    engine.link(0)->Say(&message, twice ? sizeof(message) : sizeof(message) / 2);
    if (twice) engine.link(0)->Drain();
    RunUntil(&engine, [&] { return engine.let_go(0); });
    EXPECT_EQ(engine.link(0)->lost_cause(), "a control message that makes no sense to an engine");
    engine.AddHome(0, 40);
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    engine.CheckTokens(*request);
  }
}

TEST(PipelineHomesTest, OnlyTheLostHomesSequencesAreComputedAgain) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 40);
  engine.AddHome(1, 40);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 60});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
  std::vector<bool> at_lost;
  for (const auto& request : engine.requests()) at_lost.push_back(request->sequence.seat.home == 1);
  const auto lost = static_cast<uint64_t>(std::count(at_lost.begin(), at_lost.end(), true));
  ASSERT_GT(lost, 0u);
  ASSERT_LT(lost, 8u);
  const uint64_t lost_ns = engine.now_ns();
  engine.link(1)->MarkLost("cut");
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  uint64_t recovery_ns = 0;
  for (size_t i = 0; i < 8; ++i) {
    const SequenceTimes& times = engine.requests()[i]->sequence.times;
    EXPECT_EQ(times.recoveries, at_lost[i] ? 1u : 0u) << i;
    EXPECT_LE(times.recovery_ns, engine.now_ns() - lost_ns);
    recovery_ns += times.recovery_ns;
    engine.CheckTokens(*engine.requests()[i]);
  }
  EXPECT_EQ(engine.paused(), lost);
  const PipelineStatistics& statistics = engine.pipeline().statistics();
  EXPECT_EQ(statistics.recoveries.value(), lost);
  EXPECT_EQ(statistics.recovered.value(), lost);
  const DurationHistogram::Counts counts = statistics.recovery_ns.Read();
  double counted_ns = 0;
  for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
    counted_ns += static_cast<double>(counts[bucket]) * DurationHistogram::ValueOf(bucket);
  }
  EXPECT_NEAR(static_cast<double>(recovery_ns), counted_ns, 0.07 * counted_ns) << "a bucket is 6.25 % wide";
}

}  // namespace
}  // namespace fastdecode
