// What the pipeline records of its steps, read back.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "engine/record/recorder.h"
#include "tests/engine/pipeline/sim_engine.h"
#include "tests/engine/pipeline/small_engine.h"

namespace fastdecode {
namespace {

class StepRecorderTest : public testing::Test {
 protected:
  using StepKey = std::pair<int, uint32_t>;  // micro-batch, step

  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Recorder>> recorder = Recorder::Create();
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    recorder_ = *std::move(recorder);
    options_.limits = {.micro_batches = 2, .rows_max = 40, .sequences_max = 8, .chunk_tokens_max = 32, .ready_max = 64};
    options_.layers = 3;
    options_.link.late_reply_share = 0.3;
    options_.record = recorder_->writer(Recorder::kPipelineRing);
  }

  void Run(SimEngine* engine) {
    EventReader reader = recorder_->reader(Recorder::kPipelineRing);
    recorder_->AddReader();
    ASSERT_TRUE(engine->RunAll(4 * kTurnsMax));
    recorder_->RemoveReader();
    ReadAll(&reader);
    for (const RecordEvent& event : events_) {
      ASSERT_LE(event.start_ns, event.end_ns);
      if (event.kind == kRecordIdle || event.kind == kRecordJoin || event.kind == kRecordLeave) continue;
      steps_[{event.micro_batch, event.step}].push_back(event);
    }
  }

  void ReadAll(EventReader* reader) {
    events_.resize(1 << 17);
    uint64_t lost = 0;
    events_.resize(reader->Read(events_.data(), events_.size(), &lost));
    ASSERT_EQ(lost, 0u);
  }

  std::vector<RecordEvent> OfKind(const std::vector<RecordEvent>& events, int kind) const {
    std::vector<RecordEvent> out;
    std::copy_if(events.begin(), events.end(), std::back_inserter(out), [&](const auto& e) { return e.kind == kind; });
    return out;
  }

  SimOptions options_;
  std::unique_ptr<Recorder> recorder_;
  std::vector<RecordEvent> events_;
  std::map<StepKey, std::vector<RecordEvent>> steps_;
};

// Who loses its home leaves it once, from the moment of the loss on, and joins another one.
TEST_F(StepRecorderTest, ALossHasItsMomentAndItsLeavers) {
  SimEngine engine(options_);
  engine.AddHome(0, 40);
  engine.AddHome(1, 40);
  for (uint64_t i = 0; i < 6; ++i) engine.Submit(SimEngine::Prompt(10, i, 50), {.max_tokens = 60});
  RunUntil(&engine, [&] { return engine.requests().back()->announced >= 5; });
  const uint64_t cut_ns = engine.now_ns();
  engine.link(1)->MarkLost("cut");
  Run(&engine);
  std::vector<RecordEvent> lost = OfKind(events_, kRecordLeave);
  std::erase_if(lost, [](const RecordEvent& event) { return event.part != kLeaveHomeLost; });
  ASSERT_EQ(lost.size(), engine.pipeline().statistics().recoveries.value());
  ASSERT_GT(lost.size(), 0u);
  for (const RecordEvent& leave : lost) {
    EXPECT_EQ(leave.home, 1);
    EXPECT_GE(leave.start_ns, cut_ns);
    EXPECT_EQ(leave.start_ns, lost[0].start_ns);
    EXPECT_GT(leave.end_ns, leave.start_ns);
    EXPECT_EQ(std::count_if(events_.begin(), events_.end(),
                            [&leave](const RecordEvent& event) {
                              return event.kind == kRecordJoin && event.id == leave.id && event.part == 1 &&
                                     event.home == 0 && event.start_ns == leave.end_ns;
                            }),
              1);
  }
}

TEST_F(StepRecorderTest, EveryStepIsWhole) {
  SimEngine engine(options_);
  engine.AddHome(0, 40);
  engine.AddHome(5, 40);
  uint32_t tokens = 0;
  for (uint32_t i = 0; i < 20; ++i) {
    engine.Submit(SimEngine::Prompt(1 + i * 7, i, 50), {.max_tokens = 1 + i * 2});
    tokens += 1 + i * 2;
  }
  Run(&engine);
  ASSERT_GT(steps_.size(), 20u);
  std::map<int, uint64_t> last_end;  // by micro-batch
  size_t finished_tokens = 0;
  for (const auto& [key, step] : steps_) {
    const auto compose = OfKind(step, kRecordCompose), rosters = OfKind(step, kRecordRosters),
               shares = OfKind(step, kRecordShare), stages = OfKind(step, kRecordStage),
               posts = OfKind(step, kRecordPost), hops = OfKind(step, kRecordHop), finish = OfKind(step, kRecordFinish);
    ASSERT_EQ(compose.size(), 1u);
    ASSERT_EQ(rosters.size(), 1u);
    ASSERT_EQ(finish.size(), 1u);
    ASSERT_EQ(stages.size(), options_.layers + 1);
    ASSERT_EQ(posts.size(), options_.layers);
    ASSERT_EQ(hops.size(), options_.layers * shares.size());
    EXPECT_GE(compose[0].start_ns, last_end[key.first]);
    EXPECT_EQ(rosters[0].start_ns, compose[0].end_ns);
    EXPECT_EQ(stages[0].start_ns, rosters[0].end_ns);
    uint32_t rows = 0;
    std::map<int, uint32_t> home_rows;
    for (const RecordEvent& share : shares) {
      rows += share.rows;
      home_rows[share.home] = share.rows;
      EXPECT_GE(share.count, share.rows);
      EXPECT_GT(share.bytes, 0u);
    }
    EXPECT_EQ(rows, compose[0].rows);
    for (uint32_t l = 0; l < options_.layers; ++l) {
      EXPECT_EQ(stages[l].layer, l);
      EXPECT_EQ(posts[l].layer, l);
      EXPECT_EQ(posts[l].start_ns, stages[l].end_ns);
      EXPECT_EQ(posts[l].count, shares.size());
      uint64_t last_reply_ns = 0;
      for (const RecordEvent& hop : hops) {
        if (hop.layer != l) continue;
        EXPECT_EQ(hop.rows, home_rows[hop.home]);
        EXPECT_GE(hop.start_ns, posts[l].start_ns);
        EXPECT_LE(hop.start_ns, posts[l].end_ns);
        if (hop.polled_ns != 0) {
          EXPECT_GT(hop.polled_ns, hop.start_ns);
        }
        EXPECT_LE(hop.polled_ns, hop.end_ns);
        last_reply_ns = std::max(last_reply_ns, hop.end_ns);
      }
      EXPECT_GE(stages[l + 1].start_ns, last_reply_ns);
    }
    EXPECT_EQ(finish[0].start_ns, stages.back().end_ns);
    EXPECT_EQ(finish[0].count, OfKind(step, kRecordToken).size());
    finished_tokens += finish[0].count;
    last_end[key.first] = finish[0].end_ns;
  }
  EXPECT_EQ(finished_tokens, tokens);
}

TEST_F(StepRecorderTest, EverySequenceComesAndGoes) {
  SimEngine engine(options_);
  engine.AddHome(0, 9);  // so few pages that some are preempted
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(SimEngine::Prompt(10, i, 50), {.max_tokens = 200});
  Run(&engine);
  std::map<uint64_t, uint32_t> tokens;
  std::map<uint64_t, int> inside;
  int preempted = 0, joined_again = 0;
  for (const RecordEvent& event : events_) {
    switch (event.kind) {
      case kRecordJoin:
        EXPECT_EQ(++inside[event.id], 1);
        EXPECT_EQ(event.home, 0);
        EXPECT_EQ(event.rows, 10u);
        joined_again += event.part;
        break;
      case kRecordToken:
        EXPECT_EQ(event.count, tokens[event.id]++);
        break;
      case kRecordLeave:
        EXPECT_EQ(--inside[event.id], 0);
        EXPECT_EQ(event.count, tokens[event.id]);
        if (event.part == kLeavePreempted) {
          ++preempted;
        } else {
          EXPECT_EQ(event.part, kLeaveFinished);
          EXPECT_EQ(event.count, 200u);
        }
        break;
      default:
        break;
    }
  }
  EXPECT_EQ(tokens.size(), 8u);
  EXPECT_GT(preempted, 0);
  EXPECT_EQ(joined_again, preempted);
}

// When near ones come, a slow one makes room for them: it leaves and joins at the same moment, at the home where it is.
TEST_F(StepRecorderTest, OneThatMovesLeavesAndJoins) {
  options_.limits.weight_bytes = 1000;
  options_.limits.page_bytes = 1000;
  SimEngine engine(options_);
  engine.AddHome(0, 8, /*read_mb_per_s=*/1000, /*near=*/true);
  engine.AddHome(1, 100, /*read_mb_per_s=*/10);
  engine.Submit(SimEngine::Prompt(100, 1, 50), {.max_tokens = 300});  // too long for the near home
  for (uint64_t i = 2; i <= 5; ++i) engine.Submit(SimEngine::Prompt(20, i, 50), {.max_tokens = 100});
  Run(&engine);
  std::map<uint64_t, int> inside;  // micro-batch of a sequence
  int moves = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    const RecordEvent& event = events_[i];
    if (event.kind == kRecordJoin) {
      EXPECT_TRUE(inside.emplace(event.id, event.micro_batch).second);
    } else if (event.kind == kRecordToken) {
      EXPECT_EQ(inside.at(event.id), event.micro_batch);
    } else if (event.kind == kRecordLeave) {
      EXPECT_EQ(inside.at(event.id), event.micro_batch);
      inside.erase(event.id);
      if (event.part != kLeaveMoved) continue;
      ++moves;
      const RecordEvent& join = events_[i + 1];
      EXPECT_EQ(join.kind, kRecordJoin);
      EXPECT_EQ(join.id, event.id);
      EXPECT_EQ(join.part, 2);
      EXPECT_EQ(join.home, event.home);
      EXPECT_EQ(join.start_ns, event.start_ns);
      EXPECT_NE(join.micro_batch, event.micro_batch);
    }
  }
  EXPECT_TRUE(inside.empty());
  EXPECT_GE(moves, 1);
  EXPECT_EQ(static_cast<uint64_t>(moves), engine.pipeline().batcher().moves());
}

// One of two micro-batches has no sequence all along: that makes nobody idle.
TEST_F(StepRecorderTest, ABoundaryIsNotIdle) {
  SimEngine engine(options_);
  engine.AddHome(0, 40);
  engine.Submit(SimEngine::Prompt(10, 1, 50), {.max_tokens = 50});
  Run(&engine);
  EXPECT_TRUE(OfKind(events_, kRecordIdle).empty());
  EXPECT_TRUE(OfKind(events_, kRecordHeld).empty());
}

TEST_F(StepRecorderTest, TimeWithoutRequestsIsIdleOnce) {
  SimEngine engine(options_);
  engine.AddHome(0, 40);
  EventReader reader = recorder_->reader(Recorder::kPipelineRing);
  recorder_->AddReader();
  engine.Submit(SimEngine::Prompt(10, 1, 50), {.max_tokens = 5});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  for (int turn = 0; turn < 100; ++turn) engine.Turn();
  engine.Submit(SimEngine::Prompt(10, 2, 50), {.max_tokens = 5});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  recorder_->RemoveReader();
  ReadAll(&reader);
  const auto idle = OfKind(events_, kRecordIdle), finish = OfKind(events_, kRecordFinish),
             compose = OfKind(events_, kRecordCompose);
  ASSERT_EQ(idle.size(), 1u);
  // It begins where the last step of the first request ends, and ends where the next one is put together.
  size_t before = 0;
  while (before + 1 < finish.size() && finish[before + 1].end_ns <= idle[0].start_ns) ++before;
  EXPECT_EQ(idle[0].start_ns, finish[before].end_ns);
  EXPECT_EQ(idle[0].end_ns, compose[before + 1].start_ns);
}

// A desk that takes no events: both micro-batches are held, from when they could have begun until it takes them.
TEST_F(StepRecorderTest, EventsThatNobodyTakesHoldSteps) {
  options_.event_capacity = 512;
  SimEngine engine(options_);
  engine.AddHome(0, 100);
  EventReader reader = recorder_->reader(Recorder::kPipelineRing);
  recorder_->AddReader();
  for (uint64_t i = 0; i < 6; ++i) engine.Submit(SimEngine::Prompt(10, i, 50), {.max_tokens = 200});
  engine.HoldEvents(true);
  for (int turn = 0; turn < kTurnsMax; ++turn) engine.Turn();  // long after the queue is full
  const uint64_t steps = engine.pipeline().statistics().steps.value();
  for (int turn = 0; turn < 100; ++turn) engine.Turn();
  ASSERT_EQ(engine.pipeline().statistics().steps.value(), steps) << "it is held";
  engine.HoldEvents(false);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  recorder_->RemoveReader();
  ReadAll(&reader);
  const auto held = OfKind(events_, kRecordHeld), finish = OfKind(events_, kRecordFinish);
  ASSERT_EQ(held.size(), 2u);
  EXPECT_NE(held[0].micro_batch, held[1].micro_batch);
  for (const RecordEvent& event : held) {
    EXPECT_GT(event.end_ns - event.start_ns, 1'000'000u);
    for (const RecordEvent& step : finish) {
      if (step.micro_batch != event.micro_batch) continue;
      EXPECT_TRUE(step.end_ns <= event.start_ns || step.start_ns >= event.end_ns) << "a step while it was held";
    }
  }
  EXPECT_TRUE(OfKind(events_, kRecordIdle).empty()) << "held is not idle";
}

TEST_F(StepRecorderTest, NothingIsWrittenWhileNobodyReads) {
  SimEngine engine(options_);
  engine.AddHome(0, 40);
  engine.Submit(SimEngine::Prompt(10, 1, 50), {.max_tokens = 20});
  EventReader reader = recorder_->reader(Recorder::kPipelineRing);
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  RecordEvent event;
  uint64_t lost = 0;
  EXPECT_EQ(reader.Read(&event, 1, &lost), 0u);
}

}  // namespace
}  // namespace fastdecode
