// What homes say of their pages, when somebody asks.
#include <gtest/gtest.h>

#include <optional>

#include "engine/pipeline/pipeline.h"
#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

void Ask(SimEngine* engine) {
  PipelineCommand command;
  command.kind = PipelineCommand::Kind::kAskHomes;
  ASSERT_TRUE(engine->pipeline().TryCommand(command));
}

int Due(SimEngine* engine) { return engine->pipeline().statistics().answers_due.load(); }

// Asks, and waits until no answer is due.
void AskAndAwait(SimEngine* engine) {
  const uint64_t asks = engine->pipeline().statistics().asks.load();
  Ask(engine);
  RunUntil(engine, [&] { return engine->pipeline().statistics().asks.load() > asks && Due(engine) == 0; });
}

std::optional<HomePages::Counts> Read(SimEngine* engine, int home, uint64_t ask) {
  return engine->pipeline().statistics().home_pages[static_cast<size_t>(home)].Read(ask);
}

// While a home hangs, the one micro-batch waits for it, and nothing moves at the other home either.
TEST(PipelinePagesTest, HomesSayWhatIsUsedAndHeld) {
  SimOptions options = SmallOptions();
  options.limits.micro_batches = 1;
  SimEngine engine(options);
  SimLink* const good = engine.AddHome(0, 40);
  SimLink* const hung = engine.AddHome(1, 30);
  good->SetHeld(7);
  hung->SetHeld(5);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(40, i), {.max_tokens = 100});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
  hung->Hang();
  for (int turn = 0; turn < 50; ++turn) engine.Turn();
  const uint32_t used = good->home().pages_used();
  ASSERT_GT(used, 0u);
  Ask(&engine);
  RunUntil(&engine, [&] { return good->answers() == 1 && Due(&engine) == 1; });
  const std::optional<HomePages::Counts> said = Read(&engine, 0, 1);
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(said->used, used);
  EXPECT_EQ(said->held, 7u);
  EXPECT_FALSE(Read(&engine, 0, 2).has_value()) << "that has not been asked";
  EXPECT_FALSE(Read(&engine, 1, 1).has_value());
  hung->Resume();
  RunUntil(&engine, [&] { return Due(&engine) == 0; });
  ASSERT_TRUE(Read(&engine, 1, 1).has_value());
  EXPECT_EQ(Read(&engine, 1, 1)->held, 5u);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  // What was released before the ask is free.
  AskAndAwait(&engine);
  for (int home = 0; home < 2; ++home) {
    ASSERT_TRUE(Read(&engine, home, 2).has_value());
    EXPECT_EQ(Read(&engine, home, 2)->used, 0u);
  }
  engine.CheckNothingLeft();
}

TEST(PipelinePagesTest, AParkedHomeIsWokenAndStaysIdle) {
  SimEngine engine(SmallOptions());
  SimLink* const home = engine.AddHome(0, 40);
  engine.Park();
  for (int turn = 0; turn < 100; ++turn) engine.Turn();  // it falls asleep
  for (uint64_t ask = 1; ask <= 2; ++ask) {
    home->SetHeld(ask);
    AskAndAwait(&engine);
    ASSERT_TRUE(Read(&engine, 0, ask).has_value());
    EXPECT_EQ(Read(&engine, 0, ask)->held, ask);
    for (int turn = 0; turn < 100; ++turn) engine.Turn();
  }
  // It sleeps again, and the next roster knows.
  const SimRequest* const request = engine.Submit(Prompt(10, 1), {.max_tokens = 5});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(request->reason, FinishReason::kLength);
  engine.CheckNothingLeft();
}

TEST(PipelinePagesTest, AHomeThatDoesNotAnswerIsGivenUp) {
  SimEngine engine(SmallOptions());
  SimLink* const home = engine.AddHome(0, 40);
  home->SetHeld(3);
  home->Hang();
  Ask(&engine);
  RunUntil(&engine, [&] { return Due(&engine) == 1; });
  for (int turn = 0; turn < 100; ++turn) engine.Turn();
  EXPECT_EQ(Due(&engine), 1);
  engine.StandStill(2'000'000'000);
  RunUntil(&engine, [&] { return Due(&engine) == 0; });
  EXPECT_FALSE(home->lost());
  // Its answer comes late, and is none to the next ask.
  home->Resume();
  RunUntil(&engine, [&] { return home->answers() == 1; });
  home->SetHeld(9);
  AskAndAwait(&engine);
  EXPECT_EQ(home->answers(), 2u);
  ASSERT_TRUE(Read(&engine, 0, 2).has_value());
  EXPECT_EQ(Read(&engine, 0, 2)->held, 9u);
}

// However often it is asked: one message, and when that is answered, one for the last ask.
TEST(PipelinePagesTest, AHomeThatDoesNotAnswerHasOneMessageInItsRing) {
  SimEngine engine(SmallOptions());
  SimLink* const home = engine.AddHome(0, 40);
  home->SetHeld(3);
  home->Hang();
  const uint64_t before = home->control_messages();
  constexpr uint64_t kAsks = 20;
  for (uint64_t ask = 1; ask <= kAsks; ++ask) {
    Ask(&engine);
    RunUntil(&engine, [&] { return engine.pipeline().statistics().asks.load() == ask; });
    engine.StandStill(2'000'000'000);
    RunUntil(&engine, [&] { return Due(&engine) == 0; });
  }
  EXPECT_EQ(home->control_messages(), before + 1);
  // Asked once more before it has answered the first one.
  Ask(&engine);
  RunUntil(&engine, [&] { return Due(&engine) == 1; });
  home->Resume();
  RunUntil(&engine, [&] { return home->answers() == 1; });
  home->Hang();
  for (int turn = 0; turn < 100; ++turn) engine.Turn();
  EXPECT_EQ(home->control_messages(), before + 2);
  EXPECT_EQ(Due(&engine), 1);
  EXPECT_TRUE(Read(&engine, 0, 1).has_value());
  EXPECT_FALSE(Read(&engine, 0, 2).has_value()) << "the answer is one to the first ask";
  home->SetHeld(5);
  home->Resume();
  RunUntil(&engine, [&] { return Due(&engine) == 0; });
  ASSERT_TRUE(Read(&engine, 0, kAsks + 1).has_value());
  EXPECT_EQ(Read(&engine, 0, kAsks + 1)->held, 5u);
  EXPECT_EQ(home->answers(), 2u);
}

TEST(PipelinePagesTest, NobodyWaitsForWhoCannotAnswer) {
  SimEngine engine(SmallOptions());
  SimLink* const lost = engine.AddHome(0, 40);
  SimLink* const full = engine.AddHome(1, 40);
  engine.AddHome(2, 40, /*read_mb_per_s=*/1000, /*near=*/true);
  engine.AddHome(3, 40);
  full->RefuseControl(true);
  lost->Hang();
  Ask(&engine);
  RunUntil(&engine, [&] { return engine.pipeline().statistics().asks.load() == 1 && Due(&engine) == 1; });
  lost->MarkLost("cut");
  RunUntil(&engine, [&] { return Due(&engine) == 0; });
  for (int home = 0; home < 3; ++home) EXPECT_FALSE(Read(&engine, home, 1).has_value()) << home;
  EXPECT_TRUE(Read(&engine, 3, 1).has_value());
  // One that takes its place owes nothing.
  RunUntil(&engine, [&] { return engine.drained(0); });
  engine.AddHome(0, 20);
  full->RefuseControl(false);
  AskAndAwait(&engine);
  for (int home = 0; home < 4; ++home) EXPECT_EQ(Read(&engine, home, 2).has_value(), home != 2) << home;
  ASSERT_TRUE(Read(&engine, 0, 2).has_value());
}

}  // namespace
}  // namespace fastdecode
