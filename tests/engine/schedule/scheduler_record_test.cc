// What is recorded of requests: who submitted them when, and who or what ended them.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/record/recorder.h"
#include "tests/engine/schedule/serving.h"

namespace fastdecode {
namespace {

class SchedulerRecordTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Recorder>> recorder = Recorder::Create();
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    recorder_ = *std::move(recorder);
    recorder_->AddReader();
  }

  void Serve(ServingOptions options) {
    options.recorder = recorder_.get();
    serving_ = std::make_unique<Serving>(options);
  }

  // With all threads gone: all that they wrote, of this kind, by request.
  std::map<uint64_t, std::vector<fd_record_event>> Read(Recorder::Ring ring, fd_record_kind kind, EventReader* reader) {
    std::vector<fd_record_event> events(1 << 16);
    uint64_t lost = 0;
    events.resize(reader->Read(events.data(), events.size(), &lost));
    EXPECT_EQ(lost, 0u) << ring;
    std::map<uint64_t, std::vector<fd_record_event>> by_id;
    for (const fd_record_event& event : events) {
      if (event.kind == kind) by_id[event.id].push_back(event);
    }
    return by_id;
  }

  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Serving> serving_;
};

TEST_F(SchedulerRecordTest, AStopStringIsNoCancellation) {
  // The pipeline runs ahead of the scheduler, but not to the end of a request, and has no home until all are cancelled
  // that are to be.
  ServingOptions options = {.homes = 0, .event_capacity = 512};
  options.limits.ready_max = 200;
  Serve(options);
  EventReader reader = recorder_->reader(Recorder::kPipelineRing);
  std::vector<uint64_t> stopped, cancelled, finished;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<int32_t> prompt = Serving::Prompt(8, seed);
    const std::string text = Serving::TextOf(serving_->Expect(prompt, {.max_tokens = 900}).generated);
    stopped.push_back(serving_->MustSubmit(prompt, {.max_tokens = 900, .stops = {text.substr(30, 3)}}));
    finished.push_back(serving_->MustSubmit(prompt, {.max_tokens = 40}));
    cancelled.push_back(serving_->MustSubmit(prompt, {.max_tokens = 900}));
    serving_->scheduler().Cancel(cancelled.back());
  }
  serving_->AddHome(0);
  std::map<uint64_t, uint32_t> delivered;
  for (const uint64_t id : stopped) delivered[id] = serving_->Collect(id).generated_tokens;
  for (const uint64_t id : finished) serving_->Collect(id);
  serving_.reset();
  auto leaves = Read(Recorder::kPipelineRing, FD_RECORD_LEAVE, &reader);
  // Those that were preempted came back.
  for (auto& [id, events] : leaves) {
    std::erase_if(events, [](const fd_record_event& event) { return event.part == FD_LEAVE_PREEMPTED; });
  }
  for (const uint64_t id : stopped) {
    ASSERT_EQ(leaves[id].size(), 1u);
    EXPECT_EQ(leaves[id][0].part, FD_LEAVE_STOPPED);
    // The pipeline went on until it was told.
    EXPECT_GE(leaves[id][0].count, delivered[id]);
  }
  for (const uint64_t id : finished) {
    ASSERT_EQ(leaves[id].size(), 1u);
    EXPECT_EQ(leaves[id][0].part, FD_LEAVE_FINISHED);
  }
  for (const uint64_t id : cancelled) {
    ASSERT_EQ(leaves[id].size(), 1u);
    EXPECT_EQ(leaves[id][0].part, FD_LEAVE_CANCELLED);
  }
}

TEST_F(SchedulerRecordTest, RequestsThatWaitAreKnown) {
  Serve({});
  EventReader reader = recorder_->reader(Recorder::kSchedulerRing);
  std::vector<uint64_t> ids;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    ids.push_back(serving_->MustSubmit(Serving::Prompt(8 + static_cast<uint32_t>(seed), seed), {.max_tokens = 4}));
  }
  for (const uint64_t id : ids) serving_->Collect(id);
  serving_.reset();
  auto submissions = Read(Recorder::kSchedulerRing, FD_RECORD_SUBMIT, &reader);
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(submissions[ids[i]].size(), 1u);
    const fd_record_event& event = submissions[ids[i]][0];
    EXPECT_GT(event.start_ns, 0u);
    EXPECT_GE(event.end_ns, event.start_ns);
    EXPECT_EQ(event.rows, 8 + i);
  }
}

}  // namespace
}  // namespace fastdecode
