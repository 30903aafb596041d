// What is recorded of requests: who submitted them when, and who or what ended them.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/record/recorder.h"
#include "tests/engine/request/serving.h"

namespace fastdecode {
namespace {

class RequestDeskRecordTest : public testing::Test {
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
  std::map<uint64_t, std::vector<RecordEvent>> Read(Recorder::Ring ring, RecordKind kind, EventReader* reader) {
    std::vector<RecordEvent> events(1 << 16);
    uint64_t lost = 0;
    events.resize(reader->Read(events.data(), events.size(), &lost));
    EXPECT_EQ(lost, 0u) << ring;
    std::map<uint64_t, std::vector<RecordEvent>> by_id;
    for (const RecordEvent& event : events) {
      if (event.kind == kind) by_id[event.id].push_back(event);
    }
    return by_id;
  }

  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Serving> serving_;
};

TEST_F(RequestDeskRecordTest, AStopStringIsNoCancellation) {
  // The pipeline runs ahead of the desk, but not to the end of a request, and has no home until all are cancelled
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
    serving_->desk().Cancel(cancelled.back());
  }
  serving_->AddHome(0);
  std::map<uint64_t, uint32_t> delivered;
  for (const uint64_t id : stopped) delivered[id] = serving_->Collect(id).generated_tokens;
  for (const uint64_t id : finished) serving_->Collect(id);
  serving_.reset();
  auto leaves = Read(Recorder::kPipelineRing, kRecordLeave, &reader);
  // Those that were preempted came back.
  for (auto& [id, events] : leaves) {
    std::erase_if(events, [](const RecordEvent& event) { return event.part == kLeavePreempted; });
  }
  for (const uint64_t id : stopped) {
    ASSERT_EQ(leaves[id].size(), 1u);
    EXPECT_EQ(leaves[id][0].part, kLeaveStopped);
    // The pipeline went on until it was told.
    EXPECT_GE(leaves[id][0].count, delivered[id]);
  }
  for (const uint64_t id : finished) {
    ASSERT_EQ(leaves[id].size(), 1u);
    EXPECT_EQ(leaves[id][0].part, kLeaveFinished);
  }
  for (const uint64_t id : cancelled) {
    ASSERT_EQ(leaves[id].size(), 1u);
    EXPECT_EQ(leaves[id][0].part, kLeaveCancelled);
  }
}

TEST_F(RequestDeskRecordTest, RequestsThatWaitAreKnown) {
  Serve({});
  EventReader reader = recorder_->reader(Recorder::kDeskRing);
  std::vector<uint64_t> ids;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    ids.push_back(serving_->MustSubmit(Serving::Prompt(8 + static_cast<uint32_t>(seed), seed), {.max_tokens = 4}));
  }
  for (const uint64_t id : ids) serving_->Collect(id);
  serving_.reset();
  auto submissions = Read(Recorder::kDeskRing, kRecordSubmit, &reader);
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(submissions[ids[i]].size(), 1u);
    const RecordEvent& event = submissions[ids[i]][0];
    EXPECT_GT(event.start_ns, 0u);
    EXPECT_GE(event.end_ns, event.start_ns);
    EXPECT_EQ(event.rows, 8 + i);
  }
}

}  // namespace
}  // namespace fastdecode
