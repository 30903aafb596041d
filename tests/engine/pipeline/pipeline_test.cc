#include "engine/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

TEST(PipelineTest, RunsRequestsSideBySide) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 40);
  engine.AddHome(5, 40);
  for (uint32_t i = 0; i < 20; ++i) {
    engine.Submit(Prompt(1 + i * 7, i), {.max_tokens = 1 + i * 2, .prompt_logits = i % 3 == 0});
  }
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const auto& request : engine.requests()) {
    EXPECT_EQ(request->reason, FinishReason::kLength);
    engine.CheckTokens(*request);
  }
  engine.CheckNothingLeft();
}

TEST(PipelineTest, SteadyDecodeSendsNoControlMessages) {
  SimEngine engine(SmallOptions());
  SimLink* home = engine.AddHome(0, 100);
  for (uint64_t i = 0; i < 6; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 300});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 3; });
  const uint64_t messages = home->control_messages();
  RunUntil(&engine, [&] { return engine.requests().front()->announced >= 250; });
  EXPECT_EQ(home->control_messages(), messages);
}

TEST(PipelineTest, PreemptionIsNotSeen) {
  SimOptions options = SmallOptions();
  SimEngine engine(options);
  engine.AddHome(0, 9);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 200});
  ASSERT_TRUE(engine.RunAll(4 * kTurnsMax));
  EXPECT_GT(engine.pipeline().batcher().preemptions(), 5u);
  EXPECT_EQ(engine.pipeline().statistics().preemptions.value(), engine.pipeline().batcher().preemptions());
  for (const auto& request : engine.requests()) {
    EXPECT_EQ(request->reason, FinishReason::kLength);
    engine.CheckTokens(*request);
  }
  engine.CheckNothingLeft();
}

// A prompt of 40 tokens in chunks of 32 and 8, and 7 steps of one row more, each of 2 layers.
TEST(PipelineTest, EverythingIsCountedOnce) {
  SimEngine engine(SmallOptions());
  engine.AddHome(3, 40);
  engine.Submit(Prompt(40), {.max_tokens = 8});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  const auto observations = [](const DurationHistogram& durations) {
    const DurationHistogram::Counts counts = durations.Read();
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  const PipelineStatistics& statistics = engine.pipeline().statistics();
  EXPECT_EQ(statistics.steps.value(), 9u);
  EXPECT_EQ(observations(statistics.step_ns), 9u);
  EXPECT_EQ(observations(statistics.stage_ns), 27u);
  EXPECT_EQ(statistics.rows.value(), 47u);
  EXPECT_EQ(statistics.sampled_tokens.value(), 8u);
  EXPECT_EQ(statistics.hops.value(), 18u);
  EXPECT_EQ(observations(statistics.hop_ns), 18u);
  EXPECT_EQ(statistics.home_posts[3].value(), 18u);
  EXPECT_EQ(statistics.home_hops[3].value(), 18u);
  EXPECT_EQ(statistics.r_busy_ns[3].value(), 18u) << "1 ns in each reply";
  EXPECT_GT(statistics.home_last_reply_ns[3].load(), 0u);
  EXPECT_LT(statistics.home_last_reply_ns[3].load(), statistics.last_step_ns.load()) << "the S-Part has the last word";
  EXPECT_EQ(statistics.home_last_reply_ns[2].load(), 0u) << "there is none";
  EXPECT_EQ(observations(statistics.home_work_ns[3]), 18u);
  // Behind each step's rows, K and V of 16 floats in each layer for every token.
  const uint64_t tokens = 32 + 40 + (41 + 47) * 7 / 2;
  EXPECT_EQ(statistics.kv_bytes_attended.value(), tokens * 2 * 2 * 16 * sizeof(float));
  EXPECT_EQ(statistics.preemptions.value(), 0u);
}

// A caller may have been told that its request has ended, and have freed where they went.
TEST(PipelineTest, PromptLogitsAreLeftAloneAfterTheFirstToken) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 9);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 200, .prompt_logits = true});
  std::vector<std::vector<float>> complete(engine.requests().size());
  for (int turn = 0; turn < 4 * kTurnsMax && engine.unfinished() > 0; ++turn) {
    engine.Turn();
    for (size_t i = 0; i < complete.size(); ++i) {
      SimRequest& request = *engine.requests()[i];
      if (request.announced == 0 || !complete[i].empty()) continue;
      complete[i] = request.prompt_logits;
      request.prompt_logits.assign(request.prompt_logits.size(), -1.0f);
    }
  }
  ASSERT_EQ(engine.unfinished(), 0u);
  EXPECT_GT(engine.pipeline().batcher().preemptions(), 5u);
  for (size_t i = 0; i < complete.size(); ++i) {
    SimRequest& request = *engine.requests()[i];
    EXPECT_THAT(request.prompt_logits, testing::Each(-1.0f)) << i;
    request.prompt_logits = complete[i];
    engine.CheckTokens(request);
  }
}

// ---- replies that are wrong: the home's requests go on at the other home, the others do not notice

struct WrongReply {
  const char* name;
  void (*change)(ReplyHeader* reply);
};

class WrongReplyTest : public testing::TestWithParam<WrongReply> {};

TEST_P(WrongReplyTest, LosesTheLinkOnly) {
  SimEngine engine(SmallOptions());
  SimLink* good = engine.AddHome(0, 40);
  SimLink* bad = engine.AddHome(1, 40);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 60});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
  std::vector<bool> at_bad;
  for (const auto& request : engine.requests()) at_bad.push_back(request->sequence.seat.home == 1);
  ASSERT_THAT(at_bad, testing::Contains(true));
  ASSERT_THAT(at_bad, testing::Contains(false));
  bad->ChangeNextReply(GetParam().change);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_TRUE(bad->lost());
  EXPECT_FALSE(good->lost()) << good->lost_cause();
  for (size_t i = 0; i < at_bad.size(); ++i) {
    const SimRequest& request = *engine.requests()[i];
    EXPECT_EQ(request.reason, FinishReason::kLength) << i;
    EXPECT_EQ(request.sequence.times.recoveries, at_bad[i] ? 1u : 0u) << i;
    engine.CheckTokens(request);
  }
  engine.CheckNothingLeft();
  EXPECT_EQ(engine.losses(1), 1u);
}

INSTANTIATE_TEST_SUITE_P(Replies, WrongReplyTest,
                         testing::Values(WrongReply{"Step", [](ReplyHeader* reply) { ++reply->step; }},
                                         WrongReply{"OldStep", [](ReplyHeader* reply) { --reply->step; }},
                                         WrongReply{"Layer", [](ReplyHeader* reply) { reply->layer ^= 1; }},
                                         WrongReply{"Slot", [](ReplyHeader* reply) { reply->micro_batch ^= 1; }},
                                         WrongReply{"NoSlot", [](ReplyHeader* reply) { reply->micro_batch = 255; }},
                                         WrongReply{"Bytes", [](ReplyHeader* reply) { reply->payload_bytes -= 4; }},
                                         WrongReply{"NoBytes", [](ReplyHeader* reply) { reply->payload_bytes = 0; }},
                                         WrongReply{"BadHop",
                                                    [](ReplyHeader* reply) { reply->status = HopStatus::kBadHop; }},
                                         WrongReply{"BadRowOfNobody",
                                                    [](ReplyHeader* reply) {
                                                      reply->status = HopStatus::kBadRow;
                                                      reply->failing_row = 1000;
                                                    }}),
                         [](const auto& info) { return info.param.name; });

// While the step still waits for another home, which the second one must not stand for.
TEST(PipelineTest, AReplyThatComesTwiceLosesTheLink) {
  SimEngine engine(SmallOptions());
  SimLink* good = engine.AddHome(0, 40);
  SimLink* bad = engine.AddHome(1, 40);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 60});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
  good->Hang();
  for (int turn = 0; turn < 50; ++turn) engine.Turn();  // all wait for it
  good->Resume();
  RunUntil(&engine, [&] { return bad->has_open_hop(); });
  good->Hang();
  bad->RepeatNextReply();
  RunUntil(&engine, [&] { return bad->lost(); });
  good->Resume();
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_FALSE(good->lost()) << good->lost_cause();
  for (const auto& request : engine.requests()) engine.CheckTokens(*request);
  engine.CheckNothingLeft();
}

TEST(PipelineTest, ABadRowEndsOneRequest) {
  SimEngine engine(SmallOptions());
  SimLink* home = engine.AddHome(0, 60);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 60});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
  home->home().SpoilRow(engine.requests()[3]->sequence.id);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(engine.requests()[i]->reason, i == 3 ? FinishReason::kBadRow : FinishReason::kLength) << i;
    engine.CheckTokens(*engine.requests()[i]);
  }
  EXPECT_EQ(engine.requests()[3]->fail_home, 0);
  engine.CheckNothingLeft();
}

TEST(PipelineTest, BadLogitsEndOneRequest) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 60);
  for (uint64_t i = 0; i < 4; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 60});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
  engine.spart().SpoilLogits(1);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  int bad = 0;
  for (const auto& request : engine.requests()) {
    bad += request->reason == FinishReason::kBadLogits;
    engine.CheckTokens(*request);
  }
  EXPECT_EQ(bad, 1);
  engine.CheckNothingLeft();
}

TEST(PipelineTest, AFailedStageEndsTheRequestsOfItsMicroBatch) {
  for (int after = 0; after < 20; ++after) {  // turns: other stages, too
    SimEngine engine(SmallOptions());
    SimLink* const homes[] = {engine.AddHome(0, 60), engine.AddHome(1, 60)};
    for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 60});
    RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
    for (int turn = 0; turn < after; ++turn) engine.Turn();
    for (SimLink* home : homes) home->home().ExpectDeadRows(1000);
    std::vector<int> micro_batch;
    for (const auto& request : engine.requests()) micro_batch.push_back(request->sequence.micro_batch);
    engine.spart().FailStages(1);
    RunUntil(&engine, [&] {
      return std::any_of(engine.requests().begin(), engine.requests().end(), [](const auto& r) { return r->finished; });
    });
    engine.Submit(Prompt(10, 9), {.max_tokens = 60});  // the micro-batch goes on with others
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    int failed_batch = -1;
    for (size_t i = 0; i < micro_batch.size(); ++i) {
      const SimRequest& request = *engine.requests()[i];
      if (request.reason == FinishReason::kSPartFailed) failed_batch = micro_batch[i];
      engine.CheckTokens(request);
    }
    ASSERT_GE(failed_batch, 0);
    for (size_t i = 0; i < micro_batch.size(); ++i) {
      EXPECT_EQ(engine.requests()[i]->reason,
                micro_batch[i] == failed_batch ? FinishReason::kSPartFailed : FinishReason::kLength);
    }
    EXPECT_EQ(engine.requests().back()->reason, FinishReason::kLength);
    engine.CheckNothingLeft();
  }
}

TEST(PipelineTest, WhoSitsAStepOutDoesNotFailWithIt) {
  SimOptions options = SmallOptions();
  options.limits.micro_batches = 1;
  SimEngine engine(options);
  engine.AddHome(0, 60)->home().ExpectDeadRows(1000);
  SimRequest* first = engine.Submit(Prompt(60, 1), {});  // its chunk is the whole step
  SimRequest* second = engine.Submit(Prompt(60, 2), {});
  engine.spart().FailStages(1);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(first->reason, FinishReason::kSPartFailed);
  EXPECT_EQ(second->reason, FinishReason::kLength);
  engine.CheckTokens(*second);
  engine.CheckNothingLeft();
}

// ---- a home that attends within stages, beside others

TEST(PipelineTest, NearSequencesDoNotWaitForAFarHome) {
  SimOptions options = SmallOptions();
  options.limits.weight_bytes = 1000;
  options.limits.page_bytes = 1000;
  SimEngine engine(options);
  engine.AddHome(0, 8, /*read_mb_per_s=*/1000, /*near=*/true);
  SimLink* const far = engine.AddHome(1, 100, /*read_mb_per_s=*/10);
  far->home().SetWork(100'000);  // about what that rate means for so many pages: steps do not teach otherwise
  SimRequest* const slow = engine.Submit(Prompt(100, 1), {.max_tokens = 300});  // too long for the near home
  RunUntil(&engine, [&] { return slow->announced >= 2; });
  SimRequest* const near = engine.Submit(Prompt(20, 2), {.max_tokens = 200});
  RunUntil(&engine, [&] { return near->announced >= 2 && slow->announced >= 20; });
  EXPECT_EQ(near->sequence.micro_batch, 0);
  EXPECT_EQ(slow->sequence.micro_batch, 1) << "it made room";
  far->Hang();
  const uint32_t near_before = near->announced, slow_before = slow->announced;
  RunUntil(&engine, [&] { return near->announced >= near_before + 100; });
  EXPECT_LE(slow->announced, slow_before + 1);
  far->Resume();
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const auto& request : engine.requests()) engine.CheckTokens(*request);
  engine.CheckNothingLeft();
}

TEST(PipelineTest, KvThatIsAttendedToInStagesIsCountedApart) {
  SimEngine engine(SmallOptions());
  const PipelineStatistics& statistics = engine.pipeline().statistics();
  engine.AddHome(0, 2, /*read_mb_per_s=*/0, /*near=*/true);
  engine.Submit(Prompt(20, 1), {});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  const uint64_t near_bytes = statistics.kv_bytes_attended.value();
  EXPECT_GT(near_bytes, 0u);
  EXPECT_EQ(statistics.kv_bytes_hopped.value(), 0u);
  engine.AddHome(1, 40);
  engine.Submit(Prompt(100, 2), {});  // too long for the near home
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_GT(statistics.kv_bytes_hopped.value(), 0u);
  EXPECT_EQ(statistics.kv_bytes_hopped.value(), statistics.kv_bytes_attended.value() - near_bytes);
  engine.CheckNothingLeft();
}

// ---- control

// A sequence that decodes on with its old roster takes the page that another one gave back, at a home that looks at
// control messages only when a roster makes it.
TEST(PipelineTest, APageIsReleasedBeforeItIsTaken) {
  SimOptions options = SmallOptions();
  options.link.control_share = 0;
  SimEngine engine(options);
  SimLink* home = engine.AddHome(0, 3);
  SimRequest* old = engine.Submit(Prompt(20, 1), {.max_tokens = 70});
  SimRequest* young = engine.Submit(Prompt(10, 2), {.max_tokens = 12});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_FALSE(home->lost()) << home->lost_cause();
  EXPECT_EQ(old->reason, FinishReason::kLength);
  EXPECT_EQ(young->reason, FinishReason::kLength);
}

TEST(PipelineTest, AMicroBatchWithoutControlCreditWaitsAndTheOthersGoOn) {
  SimEngine engine(SmallOptions());
  SimLink* full = engine.AddHome(0, 100);
  SimRequest* first = engine.Submit(Prompt(4, 1), {.max_tokens = 400});
  RunUntil(&engine, [&] { return first->announced >= 2; });
  full->RefuseControl(true);
  SimRequest* second = engine.Submit(Prompt(4, 2), {.max_tokens = 10});
  const uint32_t before = first->announced;
  RunUntil(&engine, [&] { return first->announced >= before + 100; });
  EXPECT_EQ(second->announced, 0u);
  full->RefuseControl(false);
  RunUntil(&engine, [&] { return second->finished; });
  engine.CheckTokens(*second);
}

// ---- cancelling

TEST(PipelineTest, OneCancelledBeforeItArrivesEndsAtOnce) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 4);
  SimRequest* running = engine.Submit(Prompt(100, 1), {.max_tokens = 20});
  SimRequest* waiting = engine.Submit(Prompt(100, 2), {.max_tokens = 20});
  RunUntil(&engine, [&] { return running->announced > 0; });
  // The flag is set and told of, and the pipeline has looked, before the command comes.
  SimRequest early;
  early.sequence.id = 99;
  early.sequence.prompt_tokens = early.sequence.length = 100;
  early.sequence.length_max = 120;
  early.sequence.log.tokens.resize(120);
  early.sequence.owner = &early;
  early.sequence.cancelled.store(true);
  engine.pipeline().NoteCancel();
  for (int turn = 0; turn < 20; ++turn) engine.Turn();
  PipelineCommand command;
  command.sequence = &early.sequence;
  ASSERT_TRUE(engine.pipeline().TryCommand(command));
  for (int turn = 0; turn < 20; ++turn) engine.Turn();
  ASSERT_FALSE(running->finished);
  EXPECT_FALSE(waiting->finished);
  EXPECT_TRUE(early.finished);
  EXPECT_EQ(early.reason, FinishReason::kCancelled);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
}

TEST(PipelineTest, CancelledOnesEndWhereverTheyAre) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 5);
  SimRequest* running = engine.Submit(Prompt(100, 1), {.max_tokens = 50});
  SimRequest* waiting = engine.Submit(Prompt(100, 2), {.max_tokens = 50});
  SimRequest* last = engine.Submit(Prompt(100, 3), {.max_tokens = 50});
  RunUntil(&engine, [&] { return running->announced > 0; });
  engine.Cancel(waiting);
  RunUntil(&engine, [&] { return waiting->finished; });
  EXPECT_FALSE(running->finished);
  engine.Cancel(running);
  RunUntil(&engine, [&] { return running->finished; });
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(running->reason, FinishReason::kCancelled);
  EXPECT_EQ(waiting->reason, FinishReason::kCancelled);
  EXPECT_EQ(last->reason, FinishReason::kLength);
  engine.CheckTokens(*running);
  engine.CheckNothingLeft();
}

// ---- a desk that does not take its events

TEST(PipelineTest, AFullEventQueueStopsStepsAndLosesNothing) {
  SimOptions options = SmallOptions();
  options.event_capacity = 512;
  SimEngine engine(options);
  engine.AddHome(0, 100);
  for (uint64_t i = 0; i < 16; ++i) engine.Submit(Prompt(4, i), {.max_tokens = 100});
  engine.HoldEvents(true);
  for (int turn = 0; turn < 2000; ++turn) engine.Turn();
  const uint64_t steps = engine.pipeline().statistics().steps.value();
  for (int turn = 0; turn < 500; ++turn) engine.Turn();
  EXPECT_EQ(engine.pipeline().statistics().steps.value(), steps);
  engine.HoldEvents(false);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const auto& request : engine.requests()) {
    EXPECT_EQ(request->reason, FinishReason::kLength);
    engine.CheckTokens(*request);
  }
}

// More waiting ones are cancelled than the event queue has room for.
TEST(PipelineTest, ASweepOfManyFindsTheEventQueueNearlyFull) {
  SimOptions options = SmallOptions();
  options.limits.ready_max = 150;
  options.event_capacity = 512;
  SimEngine engine(options);
  engine.AddHome(0, 100);
  for (uint64_t i = 0; i < 16; ++i) engine.Submit(Prompt(4, i), {.max_tokens = 100});
  for (int turn = 0; turn < 20; ++turn) engine.Turn();
  for (uint64_t i = 0; i < 150; ++i) engine.Submit(Prompt(4, i), {.max_tokens = 100});
  engine.HoldEvents(true);
  for (int turn = 0; turn < 2000; ++turn) engine.Turn();  // until no step starts any more
  for (const auto& request : engine.requests()) engine.Cancel(request.get());
  for (int turn = 0; turn < 200; ++turn) engine.Turn();
  engine.HoldEvents(false);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (const auto& request : engine.requests()) EXPECT_EQ(request->reason, FinishReason::kCancelled);
  engine.CheckNothingLeft();
}

TEST(PipelineTest, ASweepOfMoreThanTheEventQueueHasRoomFor) {
  SimOptions options = SmallOptions();
  options.limits = {.micro_batches = 1, .rows_max = 4, .sequences_max = 2, .chunk_tokens_max = 4, .ready_max = 200};
  options.event_capacity = 512;
  SimEngine engine(options);
  SimLink* home = engine.AddHome(0, 8);
  // Steps stop when less than 3 * 2 + 64 are free; 440 tokens come close to that.
  engine.Submit(Prompt(1, 1), {.max_tokens = 200});
  engine.Submit(Prompt(1, 2), {.max_tokens = 180});
  for (uint64_t i = 0; i < 180; ++i) engine.Submit(Prompt(200, i), {.max_tokens = 50});
  engine.HoldEvents(true);
  RunUntil(&engine, [&] { return engine.pipeline().statistics().sampled_tokens.value() >= 370; });
  ASSERT_GT(engine.pipeline().batcher().ready_count(), 160u);
  for (const auto& request : engine.requests()) engine.Cancel(request.get());
  for (int turn = 0; turn < 200; ++turn) engine.Turn();
  engine.HoldEvents(false);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_FALSE(home->lost());
  engine.CheckNothingLeft();
}

}  // namespace
}  // namespace fastdecode
