// Where the time of a sequence went, to the nanosecond: the clock moves only where a test says so.
#include "engine/pipeline/step_times.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/engine/pipeline/sim_engine.h"
#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

constexpr uint64_t kStageNs = 100, kLastStageNs = 120;

// Of one micro-batch and stages 0 to 2, of which the last one has the head.
SimOptions StillOptions() {
  SimOptions options = SmallOptions();
  options.limits.micro_batches = 1;
  options.layers = 2;
  options.turn_ns_max = options.look_ns = 0;
  options.link.work_share = 1;
  return options;
}

// Stages take their time, and `meanwhile` happens.
void TakeTimeInStages(
    SimEngine* engine, int layers, std::function<void()> meanwhile = [] {}) {
  engine->spart().OnStage([engine, layers, meanwhile](int stage) {
    engine->StandStill(stage == layers ? kLastStageNs : kStageNs);
    meanwhile();
  });
}

// The open hop is done now, and says that it worked so long.
void Reply(SimLink* link, uint32_t work_ns) {
  link->home().SetWork(work_ns);
  link->Turn();
}

class StepTimesTest : public testing::Test {
 protected:
  explicit StepTimesTest(const SimOptions& options = StillOptions()) : engine_(options), link_(engine_.AddHome(0, 40)) {
    TakeTimeInStages(&engine_, static_cast<int>(options.layers));
  }

  void Turn() {
    engine_.pipeline().TurnOnce();
    engine_.TakeEvents();
  }
  // A step from its first stage on, whose hops take no time beside the home's work.
  void RunStep(uint32_t work_ns) {
    Turn();
    for (int layer = 0; layer < 2; ++layer) {
      engine_.StandStill(work_ns);
      Reply(link_, work_ns);
      Turn();
    }
  }

  SimEngine engine_;
  SimLink* const link_;
};

TEST_F(StepTimesTest, EveryPlaceHasItsTime) {
  SimRequest* const request = engine_.Submit(Prompt(10), {.max_tokens = 3});
  const SequenceTimes& times = request->sequence.times;
  engine_.StandStill(1000);  // in the queue
  Turn();
  EXPECT_EQ(request->sequence.times_so_far.Load().queue_ns, 1000u);
  // The pipeline has looked for the reply when the hop was posted, and then again when it had long been there.
  engine_.StandStill(300);
  Reply(link_, 250);
  engine_.StandStill(50);
  Turn();
  // This one had not come 200 ns after it was posted, 50 more than the home worked.
  engine_.StandStill(200);
  Turn();
  Turn();
  engine_.StandStill(30);
  Reply(link_, 150);
  Turn();
  EXPECT_EQ(request->announced, 1u);
  const StepTimes prefill = {.steps = 1,
                             .total_ns = 900,
                             .s_ns = 2 * kStageNs,
                             .wait_ns = 100 + 30,
                             .home_ns = 250 + 150,
                             .wire_ns = 50,
                             .boundary_ns = 0,
                             .sampling_ns = kLastStageNs};
  EXPECT_EQ(times, (SequenceTimes{.prefill = prefill, .decode = {}, .queue_ns = 1000}));
  EXPECT_EQ(request->sequence.times_so_far.Load(), times);

  engine_.StandStill(70);  // until it looks again
  link_->RefuseControl(true);
  Turn();
  engine_.StandStill(400);  // its roster does not go out
  link_->RefuseControl(false);
  RunStep(25);
  EXPECT_EQ(request->announced, 2u);
  StepTimes decode = {.steps = 1,
                      .total_ns = 70 + 400 + 2 * 25 + 2 * kStageNs + kLastStageNs,
                      .s_ns = 2 * kStageNs,
                      .wait_ns = 70,
                      .home_ns = 2 * 25,
                      .wire_ns = 0,
                      .boundary_ns = 400,
                      .sampling_ns = kLastStageNs};
  EXPECT_EQ(times, (SequenceTimes{.prefill = prefill, .decode = decode, .queue_ns = 1000}));

  RunStep(30);
  EXPECT_TRUE(request->finished);
  decode.Add({.steps = 1,
              .total_ns = 2 * 30 + 2 * kStageNs + kLastStageNs,
              .s_ns = 2 * kStageNs,
              .home_ns = 2 * 30,
              .sampling_ns = kLastStageNs});
  EXPECT_EQ(times, (SequenceTimes{.prefill = prefill, .decode = decode, .queue_ns = 1000}));
  EXPECT_EQ(request->sequence.times_so_far.Load(), times);
}

// Of a prompt in three chunks, the second of which waits for another's in the first step.
TEST_F(StepTimesTest, StepsThatComputeAPromptAreApart) {
  SimRequest* const first = engine_.Submit(Prompt(70, 1), {.max_tokens = 2});
  for (int step = 0; step < 4; ++step) RunStep(10);
  EXPECT_TRUE(first->finished);
  const uint64_t step_ns = 2 * kStageNs + kLastStageNs + 2 * 10;
  EXPECT_EQ(first->sequence.times.prefill.steps, 3u);
  EXPECT_EQ(first->sequence.times.prefill.total_ns, 3 * step_ns);
  EXPECT_EQ(first->sequence.times.decode.steps, 1u);
  EXPECT_EQ(first->sequence.times.decode.total_ns, step_ns);

  // A prompt of one token is a prompt, too.
  SimRequest* const one = engine_.Submit(Prompt(1, 2), {.max_tokens = 2});
  for (int step = 0; step < 2; ++step) RunStep(10);
  EXPECT_EQ(one->sequence.times.prefill.steps, 1u);
  EXPECT_EQ(one->sequence.times.decode.steps, 1u);
}

TEST_F(StepTimesTest, AStepThatASequenceSitsOutIsWaitedFor) {
  engine_.Submit(Prompt(32, 1), {.max_tokens = 1});  // its chunk is the whole step
  SimRequest* const second = engine_.Submit(Prompt(10, 2), {.max_tokens = 1});
  for (int step = 0; step < 2; ++step) RunStep(10);
  EXPECT_TRUE(second->finished);
  const uint64_t step_ns = 2 * kStageNs + kLastStageNs + 2 * 10;
  EXPECT_EQ(second->sequence.times.queue_ns, 0u);
  EXPECT_EQ(second->sequence.times.prefill.steps, 1u);
  EXPECT_EQ(second->sequence.times.prefill.wait_ns, step_ns);
  EXPECT_EQ(second->sequence.times.prefill.total_ns, 2 * step_ns);
}

class StepTimesLookTest : public StepTimesTest {
 protected:
  static SimOptions Options() {
    SimOptions options = StillOptions();
    options.look_ns = 1;
    return options;
  }
  StepTimesLookTest() : StepTimesTest(Options()) {
    engine_.spart().OnStage([](int) {});
  }
};

// A look at the clock takes a nanosecond, and nothing else any time: so this says when and how often it is looked at.
TEST_F(StepTimesLookTest, AStepOfTwoLayersLooksAtTheClockFifteenTimes) {
  SimRequest* const request = engine_.Submit(Prompt(10), {.max_tokens = 4});
  RunStep(0);
  RunStep(0);
  StepTimes expected = request->sequence.times.decode;
  ASSERT_EQ(expected.steps, 1u);
  const uint64_t begin_ns = engine_.now_ns();
  RunStep(0);
  EXPECT_EQ(engine_.now_ns() - begin_ns, 15u);
  // Each of the two hops is over three looks later: at the turn's end, with the reply, which says that the home took no
  // time, and when the next stage starts. Between two steps it waits for the turn's end, and for the next step to
  // begin.
  expected.Add({.steps = 1,
                .total_ns = 15,
                .s_ns = 2,
                .wait_ns = 2 * 3 + 2,
                .boundary_ns = 4,  // judged, composed, rosters sent, and that the last stage is over
                .sampling_ns = 1});
  EXPECT_EQ(request->sequence.times.decode, expected);
}

TEST_F(StepTimesLookTest, ATurnWithNothingToDoLooksAtTheClockOnce) {
  engine_.Submit(Prompt(10), {.max_tokens = 1});
  RunStep(0);
  Turn();
  const uint64_t begin_ns = engine_.now_ns();
  for (int turn = 0; turn < 100; ++turn) Turn();
  EXPECT_EQ(engine_.now_ns() - begin_ns, 100u);
}

// ---- several micro-batches

TEST(StepTimesOfTwoTest, WhileTheOtherOneHasTheSPart) {
  SimOptions options = StillOptions();
  options.limits.micro_batches = 2;
  options.layers = 1;
  SimEngine engine(options);
  SimLink* const link = engine.AddHome(0, 40);
  link->home().SetWork(40);
  // Replies come while the other micro-batch is in a stage.
  TakeTimeInStages(&engine, 1, [link] { link->Turn(); });
  SimRequest* const first = engine.Submit(Prompt(10, 1), {.max_tokens = 1});
  engine.pipeline().TurnOnce();
  SimRequest* const second = engine.Submit(Prompt(10, 2), {.max_tokens = 1});
  for (int turn = 0; turn < 2; ++turn) engine.pipeline().TurnOnce();
  engine.TakeEvents();
  ASSERT_TRUE(first->finished);
  ASSERT_TRUE(second->finished);
  // Its reply came in the other's first stage.
  EXPECT_EQ(first->sequence.times.prefill, (StepTimes{.steps = 1,
                                                      .total_ns = 320,
                                                      .s_ns = kStageNs,
                                                      .wait_ns = kStageNs - 40,
                                                      .home_ns = 40,
                                                      .sampling_ns = kLastStageNs}));
  EXPECT_EQ(second->sequence.times.prefill, (StepTimes{.steps = 1,
                                                       .total_ns = 340,
                                                       .s_ns = kStageNs,
                                                       .wait_ns = kLastStageNs - 40,
                                                       .home_ns = 40,
                                                       .sampling_ns = kLastStageNs}));
}

// The same, and the first micro-batch is a stage ahead when the second one's reply is seen.
TEST(StepTimesOfTwoTest, UntilItsNextStageStarts) {
  SimOptions options = StillOptions();
  options.limits.micro_batches = 2;
  options.layers = 1;
  SimEngine engine(options);
  SimLink* const link = engine.AddHome(0, 40);
  link->home().SetWork(40);
  TakeTimeInStages(&engine, 1, [link] { link->Turn(); });
  engine.Submit(Prompt(10, 1), {.max_tokens = 10});
  engine.pipeline().TurnOnce();
  SimRequest* const second = engine.Submit(Prompt(10, 2), {.max_tokens = 1});
  for (int turn = 0; turn < 2; ++turn) engine.pipeline().TurnOnce();
  engine.TakeEvents();
  ASSERT_TRUE(second->finished);
  EXPECT_EQ(second->sequence.times.prefill.wait_ns, kLastStageNs + kStageNs - 40);
  EXPECT_EQ(second->sequence.times.prefill.total_ns, 440u);
  EXPECT_TRUE(engine.RunAll(kTurnsMax));
}

TEST(StepTimesOfTwoTest, MovesAndPreemptionsAreCounted) {
  SimOptions options = SmallOptions();
  options.limits.weight_bytes = 1000;
  options.limits.page_bytes = 1000;
  SimEngine engine(options);
  engine.AddHome(0, 8, /*read_mb_per_s=*/1000, /*near=*/true);
  engine.AddHome(1, 14, /*read_mb_per_s=*/10);
  engine.Submit(Prompt(100, 1), {.max_tokens = 300});  // too long for the near home
  for (uint64_t i = 2; i <= 7; ++i) engine.Submit(Prompt(20, i), {.max_tokens = 100});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  uint64_t moves = 0, preemptions = 0;
  for (const auto& request : engine.requests()) {
    const SequenceTimes& times = request->sequence.times;
    moves += times.moves;
    preemptions += times.preemptions;
    EXPECT_GE(times.prefill.steps, times.preemptions + 1u) << "what it had is computed again";
  }
  EXPECT_GT(moves, 0u);
  EXPECT_EQ(moves, engine.pipeline().batcher().moves());
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(preemptions, engine.pipeline().batcher().preemptions());
}

// ---- waiting again

TEST_F(StepTimesTest, OneThatIsPreemptedWaitsFromItsLastStepOn) {
  engine_.link(0)->MarkLost("another one, with fewer pages");
  Turn();
  SimLink* const small = engine_.AddHome(1, 4);
  SimRequest* const old = engine_.Submit(Prompt(30, 1), {.max_tokens = 40});
  SimRequest* const young = engine_.Submit(Prompt(30, 2), {.max_tokens = 40});
  const auto step = [&] {
    Turn();
    for (int layer = 0; layer < 2; ++layer) {
      Reply(small, 0);
      Turn();
    }
  };
  while (young->sequence.times.preemptions == 0) {
    step();
    ASSERT_FALSE(old->finished);
  }
  const uint64_t left_ns = young->sequence.timed_until_ns, decode_steps = young->sequence.times.decode.steps,
                 queue_ns = young->sequence.times.queue_ns;
  while (!old->finished) step();
  engine_.StandStill(500);
  const uint64_t joined_ns = engine_.now_ns();
  step();
  EXPECT_EQ(young->sequence.times.queue_ns, queue_ns + joined_ns - left_ns);
  EXPECT_EQ(young->sequence.times.preemptions, 1u);
  EXPECT_EQ(old->sequence.times.preemptions, 0u);
  while (!young->finished) step();
  // The prompt in two steps, since the old one's took most of the first chunk; then in one, and 35 tokens in two.
  EXPECT_EQ(young->sequence.times.prefill.steps, 2u + 3u);
  EXPECT_EQ(young->sequence.times.decode.steps, 40u - 1 - 1) << "one token came of computing others again";
  EXPECT_GT(decode_steps, 0u);
}

TEST_F(StepTimesTest, OneThatEndsInTheQueueHasWaitedUntilThen) {
  engine_.Submit(Prompt(200, 1), {.max_tokens = 300});
  for (uint64_t i = 2; i <= 9; ++i) engine_.Submit(Prompt(10, i), {.max_tokens = 100});
  SimRequest* const last = engine_.requests().back().get();
  for (int step = 0; step < 3; ++step) RunStep(10);
  ASSERT_EQ(last->sequence.micro_batch, -1) << "eight have a place";
  engine_.StandStill(1'000'000);
  engine_.Cancel(last);
  Turn();
  Turn();
  ASSERT_TRUE(last->finished);
  EXPECT_EQ(last->sequence.times,
            (SequenceTimes{.prefill = {}, .decode = {}, .queue_ns = engine_.now_ns() - last->sequence.submit_ns}));
}

// ---- several homes, none, and those that fail

TEST_F(StepTimesTest, AHopIsThatOfTheHomeWhoseReplyIsTheLast) {
  SimLink* const other = engine_.AddHome(1, 40);
  SimRequest* const request = engine_.Submit(Prompt(10, 1), {.max_tokens = 1});
  engine_.Submit(Prompt(10, 2), {.max_tokens = 1});
  Turn();
  ASSERT_NE(engine_.requests()[0]->sequence.seat.home, engine_.requests()[1]->sequence.seat.home);
  // One works long and its reply is seen; the other one's comes later, over a slow wire.
  engine_.StandStill(300);
  Reply(link_, 300);
  Turn();
  engine_.StandStill(200);
  Turn();
  Turn();
  Reply(other, 20);
  Turn();
  // Both are seen at once, behind a look in vain: the longer work made the hop.
  engine_.StandStill(90);
  Turn();
  Turn();
  Reply(link_, 50);
  Reply(other, 80);
  Turn();
  ASSERT_TRUE(request->finished);
  EXPECT_EQ(request->sequence.times.prefill, (StepTimes{.steps = 1,
                                                        .total_ns = 910,
                                                        .s_ns = 2 * kStageNs,
                                                        .wait_ns = 0,
                                                        .home_ns = 20 + 80,
                                                        .wire_ns = 500 - 20 + 90 - 80,
                                                        .sampling_ns = kLastStageNs}));
}

TEST_F(StepTimesTest, AHopThatALostHomeNeverAnsweredIsWire) {
  SimRequest* const request = engine_.Submit(Prompt(10), {.max_tokens = 5});
  Turn();
  engine_.StandStill(700);
  link_->MarkLost("cut");
  Turn();
  Turn();
  Turn();
  EXPECT_EQ(request->sequence.state, SequenceState::kWaits);
  EXPECT_EQ(request->sequence.times.prefill, (StepTimes{.steps = 1,
                                                        .total_ns = 700 + 2 * kStageNs + kLastStageNs,
                                                        .s_ns = 2 * kStageNs,
                                                        .wire_ns = 700,
                                                        .sampling_ns = kLastStageNs}));
}

TEST_F(StepTimesTest, AStepThatFailsIsAStep) {
  link_->home().ExpectDeadRows(1000);
  SimRequest* const request = engine_.Submit(Prompt(10), {.max_tokens = 5});
  engine_.spart().FailStages(1);
  RunStep(40);  // its hops go out all the same, without stages
  Turn();
  ASSERT_TRUE(request->finished);
  EXPECT_EQ(request->reason, FinishReason::kSPartFailed);
  EXPECT_EQ(request->sequence.times.prefill,
            (StepTimes{.steps = 1, .total_ns = kStageNs + 2 * 40, .s_ns = kStageNs, .home_ns = 2 * 40}));
}

TEST(StepTimesNearTest, AHomeThatAttendsInStagesHasNoHops) {
  SimEngine engine(StillOptions());
  engine.AddHome(0, 40, /*read_mb_per_s=*/0, /*near=*/true);
  TakeTimeInStages(&engine, 2);
  SimRequest* const request = engine.Submit(Prompt(10), {.max_tokens = 1});
  engine.pipeline().TurnOnce();
  engine.TakeEvents();
  ASSERT_TRUE(request->finished);
  EXPECT_EQ(
      request->sequence.times.prefill,
      (StepTimes{
          .steps = 1, .total_ns = 2 * kStageNs + kLastStageNs, .s_ns = 2 * kStageNs, .sampling_ns = kLastStageNs}));
}

// ---- read by another thread

TEST(SharedTimesTest, AReaderSeesOneMoment) {
  SharedTimes shared;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    SequenceTimes times;
    while (!stop.load(std::memory_order_relaxed)) {
      ++times.prefill.steps;
      ++times.decode.sampling_ns;
      ++times.queue_ns;
      ++times.preemptions;
      shared.Store(times);
    }
  });
  uint64_t last = 0;
  for (int seen = 0; seen < 1'000 && !HasFailure();) {
    const SequenceTimes times = shared.Load();
    EXPECT_EQ(times.decode.sampling_ns, times.prefill.steps);
    EXPECT_EQ(times.queue_ns, times.prefill.steps);
    EXPECT_EQ(times.preemptions, static_cast<uint32_t>(times.prefill.steps));
    EXPECT_GE(times.prefill.steps, last);
    seen += times.prefill.steps > last;
    last = times.prefill.steps;
  }
  stop.store(true, std::memory_order_relaxed);
  writer.join();
}

}  // namespace
}  // namespace fastdecode
