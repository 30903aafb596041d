// What homes say of their pages, and what else they may say.
#include <gtest/gtest.h>

#include <optional>

#include "engine/pipeline/pipeline.h"
#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

std::optional<HomePages::Counts> Read(SimEngine* engine, int home) {
  return engine->pipeline().statistics().home_pages[static_cast<size_t>(home)].Read();
}

// While a home hangs, the one micro-batch waits for it, and nothing moves at the other home either.
TEST(PipelinePagesTest, HomesSayWhatIsUsedAndHeldWhileTheyWork) {
  SimOptions options = SmallOptions();
  options.limits.micro_batches = 1;
  SimEngine engine(options);
  SimLink* const good = engine.AddHome(0, 40);
  SimLink* const hung = engine.AddHome(1, 30);
  good->SetHeld(7);
  hung->SetHeld(5);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(40, i), {.max_tokens = 100});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
  EXPECT_FALSE(Read(&engine, 0).has_value()) << "nothing has been said";
  hung->Hang();
  for (int turn = 0; turn < 50; ++turn) engine.Turn();
  const uint32_t used = good->home().pages_used();
  ASSERT_GT(used, 0u);
  good->SayPages();
  engine.StandStill(1000);
  RunUntil(&engine, [&] { return Read(&engine, 0).has_value(); });
  const HomePages::Counts said = *Read(&engine, 0);
  EXPECT_EQ(said.used, used);
  EXPECT_EQ(said.held, 7u);
  EXPECT_FALSE(Read(&engine, 1).has_value());
  // The last count stays until there is a newer one, with its time.
  engine.StandStill(3'000'000);
  hung->Resume();
  hung->SayPages();
  RunUntil(&engine, [&] { return Read(&engine, 1).has_value(); });
  EXPECT_EQ(Read(&engine, 1)->held, 5u);
  EXPECT_GE(Read(&engine, 1)->said_ns, said.said_ns + 3'000'000);
  EXPECT_EQ(Read(&engine, 0)->said_ns, said.said_ns);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  RunUntil(&engine, [&] { return good->home().pages_used() == 0; });
  good->SayPages();
  RunUntil(&engine, [&] { return Read(&engine, 0)->said_ns != said.said_ns; });
  EXPECT_EQ(Read(&engine, 0)->used, 0u) << "what was released before is free";
  engine.CheckNothingLeft();
}

TEST(PipelinePagesTest, AHomeThatGoesIdleSaysSo) {
  SimEngine engine(SmallOptions());
  SimLink* const home = engine.AddHome(0, 40);
  home->SetHeld(3);
  engine.Park();
  for (int turn = 0; turn < 100; ++turn) engine.Turn();  // it falls asleep
  EXPECT_EQ(home->pages_said(), 1u);
  ASSERT_TRUE(Read(&engine, 0).has_value());
  EXPECT_EQ(Read(&engine, 0)->held, 3u);
  EXPECT_EQ(Read(&engine, 0)->used, 0u);
  const SimRequest* const request = engine.Submit(Prompt(10, 1), {.max_tokens = 5});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(request->reason, FinishReason::kLength);
  engine.CheckNothingLeft();
}

TEST(PipelinePagesTest, WhoTakesALostHomesPlaceHasSaidNothing) {
  SimEngine engine(SmallOptions());
  SimLink* const lost = engine.AddHome(0, 40);
  engine.AddHome(1, 40, /*read_mb_per_s=*/1000, /*near=*/true)->SayPages();
  lost->SayPages();
  RunUntil(&engine, [&] { return Read(&engine, 0).has_value() && Read(&engine, 1).has_value(); });
  lost->MarkLost("cut");
  RunUntil(&engine, [&] { return engine.let_go(0); });
  engine.AddHome(0, 20);
  for (int turn = 0; turn < 100; ++turn) engine.Turn();
  EXPECT_FALSE(Read(&engine, 0).has_value());
  EXPECT_TRUE(Read(&engine, 1).has_value());
}

// The views of the two ends have parted: nothing after it can be right.
TEST(PipelinePagesTest, WhatMakesNoSenseLosesTheHome) {
  struct Case {
    StatsMessage message;
    size_t bytes = sizeof(StatsMessage);
  };
  Case cases[] = {{}, {}, {}, {}, {}};
  cases[0].message.pages_free = 1;  // of none
  cases[1].message.pages_total = cases[1].message.pages_free = uint64_t{1} << 32;
  cases[2].message.pages_held = uint64_t{1} << 32;
  cases[3].message.kind = static_cast<uint32_t>(ControlKind::kRelease);
  cases[4].bytes = sizeof(IdleMessage);
  for (const Case& wrong : cases) {
    SCOPED_TRACE(&wrong - cases);
    SimEngine engine(SmallOptions());
    SimLink* const home = engine.AddHome(0, 40);
    engine.AddHome(1, 40);
    const SimRequest* const request = engine.Submit(Prompt(10, 1), {.max_tokens = 50});
    RunUntil(&engine, [&] { return request->announced >= 5; });
    home->Say(&wrong.message, wrong.bytes);
    RunUntil(&engine, [&] { return home->lost(); });
    EXPECT_EQ(home->lost_cause(), "a control message that makes no sense to an engine");
    EXPECT_FALSE(engine.link(1)->lost());
    engine.RunAll(kTurnsMax);
  }
}

// By another engine of the home, unasked: it is given back.
TEST(PipelinePagesTest, WhatIsHandedOverIsReleased) {
  SimEngine engine(SmallOptions());
  SimLink* const home = engine.AddHome(0, 40);
  SequenceMessage fill;
  fill.kind = static_cast<uint32_t>(ControlKind::kFill);
  fill.tokens = 40;
  fill.sequence = 77;
  ASSERT_EQ(home->home().Apply({reinterpret_cast<const std::byte*>(&fill), sizeof(fill)}), "");
  ASSERT_EQ(home->home().pages_used(), 2u);
  HandedOverMessage given;
  given.sequence = 77;
  home->Say(&given, sizeof(given));
  RunUntil(&engine, [&] { return home->home().pages_used() == 0; });
  EXPECT_FALSE(home->lost());
}

// One that sends without end does not keep the others from being served.
TEST(PipelinePagesTest, AFloodHoldsNothingUp) {
  SimOptions options = SmallOptions();
  options.link.pages_share = 1;
  SimEngine engine(options);
  SimLink* const home = engine.AddHome(0, 40);
  for (int i = 0; i < 10'000; ++i) home->SayPages();
  const SimRequest* const request = engine.Submit(Prompt(10, 1), {.max_tokens = 5});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(request->reason, FinishReason::kLength);
}

}  // namespace
}  // namespace fastdecode
