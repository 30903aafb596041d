// Requests of several answers: sequences that begin from one row of logits.
#include <gtest/gtest.h>

#include <vector>

#include "engine/pipeline/pipeline.h"
#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

std::vector<SimAsk> Asks(size_t count, uint32_t max_tokens) {
  std::vector<SimAsk> asks(count, {.max_tokens = max_tokens});
  for (size_t i = 0; i < count; ++i) asks[i].seed = 100 + i;
  return asks;
}

void ExpectWhole(const SimEngine& engine, const std::vector<SimRequest*>& group) {
  for (const SimRequest* request : group) {
    EXPECT_EQ(request->reason, FinishReason::kLength) << "sequence " << request->sequence.id;
    engine.CheckTokens(*request);
  }
}

TEST(PipelineFollowersTest, AnswersAreThoseOfSequencesOfTheirOwnAndThePromptIsComputedOnce) {
  for (const bool open_pages : {false, true}) {
    SCOPED_TRACE(open_pages);
    SimOptions options = SmallOptions();
    options.limits.open_pages = open_pages;
    SimEngine engine(options);
    engine.AddHome(0, 100);
    const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(70), Asks(5, 40));
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    ExpectWhole(engine, group);
    for (size_t i = 1; i < group.size(); ++i) EXPECT_NE(group[i]->generated(), group[0]->generated()) << i;
    // 70 of the prompt, and 39 of each answer: nobody reads what follows the last token.
    EXPECT_EQ(engine.pipeline().statistics().rows.value(), 70 + 5 * 39u);
    EXPECT_EQ(engine.pipeline().batcher().preemptions(), 0u);
    engine.CheckNothingLeft();
  }
}

// Five times two pages of the prompt and one page of the answer would be 15.
TEST(PipelineFollowersTest, PagesOfThePromptAreShared) {
  SimEngine engine(SmallOptions());
  SimLink* const home = engine.AddHome(0, 100);
  const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(64), Asks(5, 30));
  RunUntil(&engine, [&] { return group.back()->announced >= 20; });
  EXPECT_EQ(home->home().pages_used(), 2 + 5u);
  EXPECT_EQ(engine.pipeline().batcher().pages_used(0), 2 + 5u);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  ExpectWhole(engine, group);
  engine.CheckNothingLeft();
}

// Both copy the page that they share in the same step, of which one does not come back.
TEST(PipelineFollowersTest, OneEndsWithTheStepInWhichItCopiesAPage) {
  SimOptions options = SmallOptions();
  options.limits.micro_batches = 1;
  SimEngine engine(options);
  engine.AddHome(0, 100);
  std::vector<SimAsk> asks = Asks(2, 50);
  asks[1].max_tokens = 2;
  const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(40), asks);
  for (int turn = 0; turn < kTurnsMax && engine.unfinished() > 0; ++turn) {
    engine.Turn();
    engine.CheckPages();
  }
  ExpectWhole(engine, group);
  engine.CheckNothingLeft();
}

// Those for whom there is no place beside the first one wait as others do, and are computed from their tokens.
TEST(PipelineFollowersTest, WithoutRoomTheyWait) {
  for (const uint32_t pages : {4u, 100u}) {
    SCOPED_TRACE(pages);
    SimOptions options = SmallOptions();
    options.limits.sequences_max = pages == 4 ? 8 : 2;
    SimEngine engine(options);
    engine.AddHome(0, pages);
    const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(40), Asks(6, 20));
    RunUntil(&engine, [&] { return group.back()->announced == 1; });
    EXPECT_GT(engine.pipeline().batcher().ready_count(), 0u);
    EXPECT_EQ(engine.pipeline().batcher().following_count(), 0u);
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    ExpectWhole(engine, group);
    engine.CheckNothingLeft();
  }
}

// A step has as many rows of logits as rows: the prompt's last row waits for a step that has room for all of them.
TEST(PipelineFollowersTest, AGroupAsLargeAsAStep) {
  SimOptions options = SmallOptions();
  options.limits.sequences_max = 6;
  options.limits.rows_max = 8;
  SimEngine engine(options);
  engine.AddHome(0, 100);
  for (uint64_t i = 0; i < 4; ++i) engine.Submit(Prompt(20, i), {.max_tokens = 60});
  const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(9), Asks(8, 10));
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  ExpectWhole(engine, group);
  engine.CheckNothingLeft();
}

TEST(PipelineFollowersTest, TheFirstOnesEndIsNotTheOthers) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 100);
  std::vector<SimAsk> asks = Asks(3, 20);
  for (int token = 0; token < 50; ++token) asks[0].stop_tokens.push_back(token);  // whatever comes
  asks[1].max_tokens = 1;
  const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(40), asks);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(group[0]->reason, FinishReason::kStopToken);
  EXPECT_EQ(group[0]->announced, 0u);
  EXPECT_EQ(group[1]->announced, 1u);
  EXPECT_EQ(group[2]->announced, 20u);
  for (const SimRequest* request : group) engine.CheckTokens(*request);
  engine.CheckNothingLeft();
}

TEST(PipelineFollowersTest, OneIsCancelledAndTheOthersGoOn) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 100);
  const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(40), Asks(3, 50));
  RunUntil(&engine, [&] { return group.back()->announced >= 5; });
  engine.Cancel(group[0]);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(group[0]->reason, FinishReason::kCancelled);
  EXPECT_LT(group[0]->announced, 50u);
  ExpectWhole(engine, {group[1], group[2]});
  engine.CheckNothingLeft();
}

// Before the first token they end as the first one does, wherever it is: in the queue, or a member.
TEST(PipelineFollowersTest, WhoeverFollowsEndsWithTheFirstOne) {
  for (const bool waits : {true, false}) {
    SCOPED_TRACE(waits);
    SimEngine engine(SmallOptions());
    if (!waits) engine.AddHome(0, 100);
    std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(200), Asks(4, 50));
    RunUntil(&engine, [&] { return engine.pipeline().batcher().following_count() == 3; });
    RunUntil(&engine, [&] { return waits || group[0]->sequence.computed > 0; });
    for (SimRequest* request : group) engine.Cancel(request);
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    for (const SimRequest* request : group) {
      EXPECT_EQ(request->reason, FinishReason::kCancelled);
      EXPECT_EQ(request->announced, 0u);
    }
    EXPECT_EQ(engine.pipeline().batcher().following_count(), 0u);
  }
  SimEngine engine(SmallOptions());
  SimLink* const home = engine.AddHome(0, 100);
  const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(200), Asks(4, 50));
  RunUntil(&engine, [&] { return group[0]->sequence.computed > 0; });
  home->MarkLost("cut");
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const SimRequest* request : group) EXPECT_EQ(request->reason, FinishReason::kNoHome);
}

TEST(PipelineFollowersTest, BadLogitsEndThemAll) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 100);
  engine.spart().SpoilLogits(4, SampleOutcome::kBadLogits);
  const std::vector<SimRequest*> group = engine.SubmitGroup(Prompt(20), Asks(4, 50));
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const SimRequest* request : group) EXPECT_EQ(request->reason, FinishReason::kBadLogits);
  engine.CheckNothingLeft();
}

using SequenceDeathTest = testing::Test;

TEST(SequenceDeathTest, StatesChangeOnlyAsTheyMay) {
  Sequence sequence;
  EXPECT_DEATH(sequence.Enter(SequenceState::kComputes), "changes its state");
  sequence.Enter(SequenceState::kWaits);
  EXPECT_DEATH(sequence.Enter(SequenceState::kFollows), "changes its state");
  EXPECT_DEATH(sequence.Fail(FinishReason::kSPartFailed, 0), "changes its state");
  sequence.Enter(SequenceState::kComputes);
  sequence.Enter(SequenceState::kGivesWay);
  sequence.Fail(FinishReason::kSPartFailed, 3);
  sequence.Fail(FinishReason::kBadRow, 4);
  EXPECT_EQ(sequence.fail_reason, FinishReason::kSPartFailed);
  EXPECT_EQ(sequence.fail_home, 3);
  EXPECT_DEATH(sequence.Enter(SequenceState::kWaits), "changes its state");
  sequence.Enter(SequenceState::kIdle);
}

}  // namespace
}  // namespace fastdecode
