// A load in one process with an engine that plays what prompts say.
#include "tools/load/engine_load.h"

#include <chrono>
#include <fastdecode/fastdecode.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode::load {

namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kMs = 1'000'000;

// These prompts, one after the other, at these times.
class Prompts : public RequestSource {
 public:
  explicit Prompts(std::vector<std::pair<double, std::string>> prompts) : prompts_(std::move(prompts)) {}
  bool Next(double* arrival_s) override {
    if (next_ == prompts_.size()) return false;
    *arrival_s = prompts_[next_++].first;
    return true;
  }
  void Make(GenerateRequest* request) override {
    ++made_;
    *request = GenerateRequest(prompts_[next_ - 1].second);
    request->fields.max_tokens = 100;
  }
  size_t made() const { return made_; }

 private:
  const std::vector<std::pair<double, std::string>> prompts_;
  size_t next_ = 0, made_ = 0;
};

class EngineLoadTest : public testing::Test {
 protected:
  std::unique_ptr<InferenceEngine> MakeEngine(const std::vector<std::pair<std::string, std::string>>& more = {}) {
    EngineOptions options;
    options.Set("model", ".");
    for (const auto& [name, value] : more) options.Set(name, value);
    return std::make_unique<InferenceEngine>(options);
  }
  EngineLoadOptions Open() {
    EngineLoadOptions options;
    options.open = true;
    options.concurrency = 0;
    return options;
  }
};

TEST_F(EngineLoadTest, OpenLoopStartsEachAtItsTime) {
  const auto engine = MakeEngine();
  Prompts prompts({{0, "{every:5} a b c"}, {0.05, "a b"}, {0.05, "a"}});
  const LoadRun run = EngineLoad(*engine, prompts, Open(), {}).Run();
  ASSERT_EQ(run.results.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(run.results[i].succeeded()) << run.results[i].error;
    EXPECT_EQ(run.results[i].intended_ns, run.start_ns + (i == 0 ? 0 : 50 * kMs));
    EXPECT_GE(run.results[i].start_ns, run.results[i].intended_ns);
  }
  EXPECT_EQ(run.results[0].output_tokens, 3);
  EXPECT_EQ(run.results[0].itl_ns.size(), 2u);
  EXPECT_GE(run.results[0].latency_ns, 10 * kMs);
  EXPECT_EQ(run.results[0].ttft_ns + run.results[0].itl_ns[0] + run.results[0].itl_ns[1], run.results[0].latency_ns);
}

TEST_F(EngineLoadTest, WaitsCountFromTheIntendedStart) {
  // One place: the second waits until the first is through.
  const auto engine = MakeEngine();
  EngineLoadOptions options = Open();
  options.concurrency = 1;
  Prompts prompts({{0, "{ms:80} a"}, {0.001, "a"}});
  const LoadRun run = EngineLoad(*engine, prompts, options, {}).Run();
  EXPECT_GE(run.results[1].start_ns, run.results[0].end_ns);
  EXPECT_GE(run.results[1].ttft_ns, 78 * kMs);
}

TEST_F(EngineLoadTest, ClosedLoopKeepsItsNumberInFlight) {
  const auto engine = MakeEngine();
  EngineLoadOptions options;
  options.concurrency = 2;
  Prompts prompts(std::vector<std::pair<double, std::string>>(6, {0, "{ms:10} a b"}));
  const LoadRun run = EngineLoad(*engine, prompts, options, {}).Run();
  ASSERT_EQ(run.results.size(), 6u);
  for (const RequestResult& result : run.results) {
    EXPECT_EQ(result.intended_ns, result.start_ns);
    size_t in_flight = 0;
    for (const RequestResult& other : run.results) {
      in_flight += other.start_ns <= result.start_ns && result.start_ns < other.end_ns ? 1 : 0;
    }
    EXPECT_LE(in_flight, 2u);
  }
}

TEST_F(EngineLoadTest, FailuresAndRefusalsAreCountedWithTheirReason) {
  const auto engine = MakeEngine({{"max-queue", "2"}});
  // The first would never end, so that there is one place for the others, and none while the second has it.
  Prompts prompts({{0, "{wait}"}, {0, "{wait}"}, {0.001, "b"}});
  RunHooks hooks;
  hooks.goes_on = [](const RequestResult&) { return false; };
  const LoadRun run = EngineLoad(*engine, prompts, Open(), hooks).Run();
  ASSERT_EQ(run.results.size(), 3u);
  EXPECT_THAT(run.results[2].error, HasSubstr("queue is full"));
  // The first engine may still have what was cancelled.
  const auto other = MakeEngine();
  Prompts failing({{0, "{error:the home has gone}"}});
  EXPECT_THAT(EngineLoad(*other, failing, Open(), {}).Run().results.at(0).error, HasSubstr("the home has gone"));
}

TEST_F(EngineLoadTest, InTheBackgroundARefusalIsTriedAgain) {
  const auto engine = MakeEngine({{"max-queue", "1"}});
  EngineLoadOptions options = Open();
  options.is_background = true;
  Prompts prompts({{0, "{ms:100} a"}, {0.01, "b"}});
  const LoadRun run = EngineLoad(*engine, prompts, options, {}).Run();
  ASSERT_EQ(run.results.size(), 2u);
  EXPECT_THAT(run.results[1].error, IsEmpty());
  EXPECT_GE(run.results[1].latency_ns, 85 * kMs);  // from when it was to start
}

TEST_F(EngineLoadTest, WhatNeverStartsIsNotMade) {
  const auto engine = MakeEngine();
  EngineLoadOptions options = Open();
  options.concurrency = 1;
  int asked = 0;
  RunHooks hooks;
  hooks.is_interrupted = [&] { return ++asked > 3; };
  // The first has the only place and never ends.
  Prompts prompts(std::vector<std::pair<double, std::string>>(1000, {0, "{wait}"}));
  const LoadRun run = EngineLoad(*engine, prompts, options, hooks).Run();
  EXPECT_EQ(run.results.size(), 1000u);
  EXPECT_EQ(prompts.made(), 2u) << "the one that runs, and the next";
}

TEST_F(EngineLoadTest, InTheBackgroundAFailureEndsIt) {
  const auto engine = MakeEngine();
  EngineLoadOptions options = Open();
  options.is_background = true;
  Prompts prompts({{0, "{error:the home has gone}"}, {60, "a"}});
  try {
    EngineLoad(*engine, prompts, options, {}).Run();
    ADD_FAILURE() << "it went on";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the home has gone"));
  }
}

TEST_F(EngineLoadTest, AHookEndsItAfterAnAnswer) {
  const auto engine = MakeEngine();
  RunHooks hooks;
  hooks.goes_on = [](const RequestResult&) { return false; };
  // The second would never end, and the last is not due for a day.
  Prompts prompts({{0, "a"}, {0, "{wait}"}, {86400, "a"}});
  const LoadRun run = EngineLoad(*engine, prompts, Open(), hooks).Run();
  ASSERT_EQ(run.results.size(), 2u);
  EXPECT_TRUE(run.results[0].ended());
  EXPECT_FALSE(run.results[1].ended());
  EXPECT_NE(run.results[1].start_ns, 0);
}

TEST_F(EngineLoadTest, AnInterruptEndsItAndNamesWhatNeverStarted) {
  const auto engine = MakeEngine({{"max-queue", "2"}});
  EngineLoadOptions options = Open();
  options.is_background = true;
  int asked = 0;
  RunHooks hooks;
  hooks.is_interrupted = [&] { return ++asked > 5; };
  // Two that never end leave no place for the third, and the last is not due for a day.
  Prompts prompts({{0, "{wait}"}, {0, "{wait}"}, {0.001, "a"}, {86400, "a"}});
  const LoadRun run = EngineLoad(*engine, prompts, options, hooks).Run();
  ASSERT_EQ(run.results.size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(run.results[i].ended());
    EXPECT_NE(run.results[i].start_ns, 0);
  }
  EXPECT_EQ(run.results[2].start_ns, 0);
  EXPECT_EQ(run.results[2].intended_ns, run.start_ns + kMs);
}

}  // namespace

}  // namespace fastdecode::load
