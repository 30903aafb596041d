// Workers that die, hang, come back, or must not be talked to.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/worker_program.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

constexpr int kContext = 1024;
constexpr uint32_t kFewTokens = 30;
constexpr double kPauseSeconds = 60;  // a second or so it is; a busy machine may stand still for some
// For a worker that hangs. The local home beside it, whose threads may stand still for 10 seconds, is not lost by it.
constexpr int kHopTimeoutMs = 15000;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class WorkerDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    model_ = WriteTinyModel(dir_.path(), "model", kContext, /*seed=*/3);
    path_ = dir_.File("worker");
    std::mt19937_64 random(4);
    for (uint32_t i = 0; i < 12; ++i) {
      requests_.push_back(GreedyRequest(RandomPrompt(random, 256, 20 + i), 900));
      requests_.back().fields.pause_events = 1;
    }
  }

  std::unique_ptr<WorkerProgram> NewWorker(const std::string& log, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"--listen", "unix:" + path_, "--kv-gib", "0.02", "--poll", "yield"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<WorkerProgram>(dir_.File(log), arguments);
  }

  OptionList Options(const std::string& homes) const {
    return {{"model", model_},  {"compute", "f32"},      {"homes", homes},           {"poll", "yield"},
            {"kv-gib", "0.02"}, {"max-sequences", "16"}, {"batch-invariant", "true"}};
  }
  std::string Both() const { return "local:1,unix:" + path_; }
  // Of engines that need two seconds for `requests_` on any machine.
  OptionList SlowOptions() const { return Options(Both()) + OptionList{{"fault", "delay=1:1ms"}}; }

  // The requests, each behind its first token.
  struct Running {
    std::vector<TokenStream> streams;
    std::vector<Answer> answers;
  };
  Running StartAll(InferenceEngine& engine) {
    Running running;
    running.answers.resize(requests_.size());
    for (const GenerateRequest& request : requests_) running.streams.push_back(engine.Submit(request));
    for (size_t i = 0; i < requests_.size(); ++i) {
      const std::optional<TokenEvent> event = running.streams[i].Next(kAnswerTimeoutNs);
      EXPECT_TRUE(event.has_value());
      if (event) Record(*event, &running.answers[i]);
    }
    return running;
  }

  // All of them to their ends, with the right tokens: those that were at the worker are computed again elsewhere. That
  // takes no longer than kPauseSeconds from `since` on.
  void ExpectAllToGoOn(InferenceEngine& engine, Running* running, Clock::time_point since) {
    const std::vector<Answer>& right = RightAnswers();
    for (size_t i = 0; i < requests_.size(); ++i) {
      Answer& answer = running->answers[i];
      ReadToEnd(running->streams[i], &answer);
      EXPECT_EQ(answer.finish, FD_FINISH_LENGTH) << answer.error;
      EXPECT_EQ(answer.tokens, right[i].tokens) << i;
      EXPECT_EQ(answer.pauses, std::vector<int32_t>(answer.times.recoveries, 1)) << "it was at home 1";
      EXPECT_EQ(answer.times.recovery_ns > 0, answer.times.recoveries > 0);
    }
    const double recoveries = Statistic(engine, "recoveries");
    EXPECT_GT(recoveries, 0);
    EXPECT_LT(recoveries, static_cast<double>(requests_.size()));
    EXPECT_EQ(Statistic(engine, "recovered"), recoveries);
    const fd_stats stats = engine.Statistics();
    EXPECT_EQ(static_cast<double>(stats.recoveries), recoveries);
    EXPECT_EQ(stats.recovered, stats.recoveries);
    ExpectDurations(engine, running->answers);
    EXPECT_LT(SecondsSince(since), kPauseSeconds);
  }

  // What there is of all recoveries together is what each request says of its own.
  static void ExpectDurations(const InferenceEngine& engine, const std::vector<Answer>& answers) {
    uint64_t count = 0, sum_ns = 0;
    for (const Answer& answer : answers) {
      count += answer.times.recoveries;
      sum_ns += answer.times.recovery_ns;
    }
    const std::vector<uint64_t> bounds_ns = {1, sum_ns / 2, 2 * sum_ns};
    std::vector<uint64_t> at_most(bounds_ns.size());
    uint64_t counted_ns = 0;
    const auto durations = [&](int duration) {
      return fd_engine_durations(engine.get(), duration, bounds_ns.data(), bounds_ns.size(), at_most.data(),
                                 &counted_ns);
    };
    EXPECT_EQ(durations(FD_DURATION_RECOVERY), count);
    EXPECT_NEAR(static_cast<double>(counted_ns), static_cast<double>(sum_ns), 0.07 * static_cast<double>(sum_ns));
    EXPECT_EQ(at_most.front(), 0u);
    EXPECT_LE(at_most[1], at_most[2]);
    EXPECT_EQ(at_most.back(), count);
    EXPECT_EQ(durations(FD_DURATION_RECOVERY_QUEUE), count);
    EXPECT_LE(counted_ns, 2 * sum_ns);
    EXPECT_LE(durations(FD_DURATION_LOSS_DETECTION), 1u);
    EXPECT_EQ(durations(99), 0u);
    EXPECT_EQ(counted_ns, 0u);
    EXPECT_EQ(at_most, std::vector<uint64_t>(3, 0));
  }

  // What `requests_` give without any worker.
  const std::vector<Answer>& RightAnswers() {
    if (right_.empty()) right_ = RunAll(*MakeEngine(Options("local:1")), requests_, /*with_logits=*/false);
    return right_;
  }

  // All homes serve, and are right.
  void ExpectWorkerIsUsedAgain(InferenceEngine& engine) {
    ASSERT_TRUE(WaitForAllHomes(engine)) << engine.Describe();
    engine.ResetStatistics();
    std::vector<GenerateRequest> requests = requests_;
    for (GenerateRequest& request : requests) request.fields.max_tokens = kFewTokens;
    const std::vector<Answer> answers = RunAll(engine, requests, /*with_logits=*/false);
    for (size_t i = 0; i < answers.size(); ++i) ExpectFewRightTokens(answers[i], i);
    EXPECT_GT(HopsOfHome(engine, "unix:" + path_), 0);
    EXPECT_GT(HopsOfHome(engine, "local"), 0);
  }

  // `answer` is the beginning of the right answer to requests_[i].
  void ExpectFewRightTokens(const Answer& answer, size_t i) {
    const std::vector<int32_t>& right = RightAnswers()[i].tokens;
    EXPECT_EQ(answer.finish, FD_FINISH_LENGTH) << answer.error;
    EXPECT_EQ(answer.tokens, std::vector<int32_t>(right.begin(), right.begin() + kFewTokens));
  }

  ScratchDir dir_;
  std::string model_;
  std::string path_;
  std::vector<GenerateRequest> requests_;  // they run for a while
  std::vector<Answer> right_;
  const GenerateRequest small_ = GreedyRequest({1, 2, 3}, kFewTokens);
};

TEST_F(WorkerDeathTest, KilledWorkersRequestsGoOnElsewhereAndItIsTakenBack) {
  auto worker = NewWorker("first.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  const auto engine = MakeEngine(SlowOptions());
  Running running = StartAll(*engine);
  const Clock::time_point killed = Clock::now();
  worker->Signal(SIGKILL);
  ExpectAllToGoOn(*engine, &running, killed);
  EXPECT_EQ(worker->Wait(), 128 + SIGKILL);
  const HomeCounts homes = CountHomes(*engine);
  EXPECT_LT(homes.up, homes.all);
  const fd_home_stats lost = engine->Homes().at(1);
  EXPECT_EQ(lost.name, "unix:" + path_ + ", home 0");
  EXPECT_EQ(lost.up, 0u);
  EXPECT_EQ(lost.kv_pages, 0u);
  EXPECT_GT(lost.hops, 0u);

  worker = NewWorker("second.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  ExpectWorkerIsUsedAgain(*engine);
  const fd_home_stats back = engine->Homes().at(1);
  EXPECT_EQ(back.up, 1u);
  EXPECT_GE(back.losses, 1u);
  EXPECT_GT(back.kv_pages, 0u);
  EXPECT_GT(back.hops, lost.hops) << "they go on from those over the first link";
  EXPECT_GT(back.last_reply_ns, lost.last_reply_ns);
  EXPECT_EQ(engine->Homes().at(0).losses, 0u);
}

TEST_F(WorkerDeathTest, EngineGoesOnWithoutItsWorker) {
  auto worker = NewWorker("worker.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  const auto engine = MakeEngine(Options(Both()));
  worker->Signal(SIGKILL);
  worker->Wait();
  // Not before the loss is known.
  const Clock::time_point killed = Clock::now();
  while (CountHomes(*engine).up == CountHomes(*engine).all) ASSERT_LT(SecondsSince(killed), 60);
  for (const Answer& answer : RunAll(*engine, {small_, small_, small_}, /*with_logits=*/false)) {
    EXPECT_EQ(answer.finish, FD_FINISH_LENGTH) << answer.error;
  }
}

TEST_F(WorkerDeathTest, OnlyWorkerGoneIsAnErrorAndNotForEver) {
  auto worker = NewWorker("worker.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  const auto engine = MakeEngine(Options("unix:" + path_) + OptionList{{"recover-ms", "500"}});
  worker->Signal(SIGKILL);
  worker->Wait();
  for (const Answer& answer : RunAll(*engine, requests_, /*with_logits=*/false)) {
    EXPECT_EQ(answer.finish, FD_FINISH_ERROR);
    EXPECT_NE(answer.error, "");
  }
}

TEST_F(WorkerDeathTest, HungWorkerIsLostAtTheTimeoutAndTakenBack) {
  auto worker = NewWorker("worker.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  const auto engine = MakeEngine(SlowOptions() + OptionList{{"hop-timeout-ms", std::to_string(kHopTimeoutMs)}});
  Running running = StartAll(*engine);
  const Clock::time_point stopped = Clock::now();
  worker->Signal(SIGSTOP);
  ExpectAllToGoOn(*engine, &running, stopped + std::chrono::milliseconds(kHopTimeoutMs));
  worker->Signal(SIGCONT);
  ExpectWorkerIsUsedAgain(*engine);
}

TEST_F(WorkerDeathTest, WhatAHungWorkerSaidOfItsPagesGrowsOld) {
  auto worker = NewWorker("worker.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  const auto engine = MakeEngine(Options(Both()));
  EXPECT_TRUE(AwaitPages(*engine, 0).has_value());
  EXPECT_TRUE(AwaitPages(*engine, 1).has_value());
  worker->Signal(SIGSTOP);
  // Three times the worker's period. The engine may yet read what the worker said just before.
  const auto is_old = [](const HomesPages& pages) { return pages.age_ns >= 300'000'000u; };
  EXPECT_TRUE(AwaitPages(*engine, 1, is_old).has_value());
  const Clock::time_point resumed = Clock::now();
  worker->Signal(SIGCONT);
  ExpectWorkerIsUsedAgain(*engine);
  const auto is_new = [&](const HomesPages& pages) {
    return static_cast<double>(pages.age_ns) < SecondsSince(resumed) * 1e9;
  };
  EXPECT_TRUE(AwaitPages(*engine, 1, is_new).has_value());
}

TEST_F(WorkerDeathTest, EngineWhoseWorkerHangsCanBeDestroyed) {
  auto worker = NewWorker("worker.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  auto engine = MakeEngine(Options(Both()) + OptionList{{"hop-timeout-ms", "300"}});
  Running running = StartAll(*engine);
  worker->Signal(SIGSTOP);
  running.streams.clear();
  const Clock::time_point start = Clock::now();
  engine.reset();
  EXPECT_LT(SecondsSince(start), 60);
  RecordProperty("destroy_seconds", std::to_string(SecondsSince(start)));
  worker->Signal(SIGCONT);
  // And the worker is free for the next one.
  const auto next = MakeEngine(Options("unix:" + path_));
  EXPECT_EQ(RunAll(*next, {small_}, /*with_logits=*/false)[0].finish, FD_FINISH_LENGTH);
}

TEST_F(WorkerDeathTest, WorkerWithoutGraceEndsAtOnceOnSigterm) {
  auto worker = NewWorker("worker.log", {"--grace-s", "0"});
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  const auto engine = MakeEngine(SlowOptions());
  Running running = StartAll(*engine);
  const Clock::time_point told = Clock::now();
  worker->Signal(SIGTERM);
  ExpectAllToGoOn(*engine, &running, told);
  EXPECT_EQ(worker->Wait(), 0) << worker->Messages();
}

// Each of two workers is told to end while requests run, and another one takes its place.
TEST_F(WorkerDeathTest, WorkersAreReplacedUnderLoadAndNothingIsComputedAgain) {
  const std::vector<std::string> paths = {dir_.File("a"), dir_.File("b")};
  const auto start = [&](size_t i, const std::string& log) {
    auto worker = std::make_unique<WorkerProgram>(
        dir_.File(log),
        std::vector<std::string>{"--listen", "unix:" + paths[i], "--kv-gib", "0.02", "--poll", "yield"});
    EXPECT_TRUE(worker->WaitUntilListening()) << worker->Messages();
    return worker;
  };
  std::vector<std::unique_ptr<WorkerProgram>> workers;
  for (size_t i = 0; i < paths.size(); ++i) workers.push_back(start(i, "first" + std::to_string(i)));
  const auto engine =
      MakeEngine(Options("unix:" + paths[0] + ",unix:" + paths[1]) + OptionList{{"fault", "delay=1:200us"}});
  for (size_t i = 0; i < paths.size(); ++i) {
    Running running = StartAll(*engine);
    workers[i]->Signal(SIGTERM);
    std::vector<TokenStream> later;
    for (size_t k = 0; k < 4; ++k) later.push_back(engine->Submit(small_));
    for (size_t k = 0; k < requests_.size(); ++k) {
      ReadToEnd(running.streams[k], &running.answers[k]);
      EXPECT_EQ(running.answers[k].finish, FD_FINISH_LENGTH) << running.answers[k].error;
      EXPECT_EQ(running.answers[k].tokens, RightAnswers()[k].tokens) << k;
    }
    for (TokenStream& stream : later) {
      Answer answer;
      ReadToEnd(stream, &answer);
      EXPECT_EQ(answer.finish, FD_FINISH_LENGTH) << answer.error;
    }
    EXPECT_EQ(workers[i]->Wait(), 0) << workers[i]->Messages();
    EXPECT_NE(workers[i]->Messages().find("the home drains, and the engine has left it"), std::string::npos)
        << workers[i]->Messages();
    workers[i] = start(i, "second" + std::to_string(i));
    ASSERT_TRUE(WaitForAllHomes(*engine)) << engine->Describe();
  }
  EXPECT_EQ(Statistic(*engine, "recoveries"), 0);
  for (const fd_home_stats& home : engine->Homes()) {
    EXPECT_EQ(home.losses, 0u) << home.name;
    EXPECT_GT(home.hops, 0u) << home.name;
  }
}

TEST_F(WorkerDeathTest, WorkerOfAnotherModelRefuses) {
  auto worker = NewWorker("worker.log", {"--model", std::string(FASTDECODE_TESTS_DIR) + "/golden/transformers/mqa"});
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  const Error error = EngineError(Options("unix:" + path_));
  EXPECT_EQ(error.code(), FD_FAILED_PRECONDITION) << error.what();
  EXPECT_NE(std::string(error.what()).find("unix:" + path_), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("kv_heads"), std::string::npos) << error.what();
  // Its own model it serves.
  const auto engine = MakeEngine(Options("unix:" + path_) +
                                 OptionList{{"model", std::string(FASTDECODE_TESTS_DIR) + "/golden/transformers/mqa"}});
  EXPECT_EQ(RunAll(*engine, {GreedyRequest({1, 2, 3}, 4)}, false)[0].finish, FD_FINISH_LENGTH);
}

TEST_F(WorkerDeathTest, BusyWorkerRefusesTheSecondEngineUntilTheFirstHasGone) {
  auto worker = NewWorker("worker.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  auto first = MakeEngine(Options("unix:" + path_));
  const Error error = EngineError(Options("unix:" + path_));
  EXPECT_EQ(error.code(), FD_FAILED_PRECONDITION) << error.what();
  EXPECT_NE(std::string(error.what()).find("unix:" + path_), std::string::npos) << error.what();
  EXPECT_NE(std::string(error.what()).find("already serves"), std::string::npos) << error.what();
  EXPECT_EQ(RunAll(*first, {small_}, false)[0].finish, FD_FINISH_LENGTH);
  first.reset();
  const auto second = MakeEngine(Options("unix:" + path_));
  EXPECT_EQ(RunAll(*second, {small_}, false)[0].finish, FD_FINISH_LENGTH);
}

TEST_F(WorkerDeathTest, SocketPathInUseIsRefused) {
  auto worker = NewWorker("first.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  auto second = NewWorker("second.log");
  EXPECT_FALSE(second->WaitUntilListening());
  EXPECT_EQ(second->Wait(), 1);
  EXPECT_NE(second->Messages().find(path_), std::string::npos) << second->Messages();
  EXPECT_NE(second->Messages().find("in use"), std::string::npos) << second->Messages();
  // The first one is not disturbed.
  const auto engine = MakeEngine(Options("unix:" + path_));
  EXPECT_EQ(RunAll(*engine, {small_}, false)[0].finish, FD_FINISH_LENGTH);
}

TEST_F(WorkerDeathTest, NobodyListening) {
  const Error error = EngineError(Options("unix:" + path_));
  EXPECT_TRUE(error.code() == FD_NOT_FOUND || error.code() == FD_UNAVAILABLE) << error.code() << " " << error.what();
  EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
}

TEST_F(WorkerDeathTest, EngineStartsWithoutAWorkerThatComesLater) {
  auto worker = NewWorker("worker.log");
  ASSERT_TRUE(worker->WaitUntilListening()) << worker->Messages();
  const std::string late_path = dir_.File("late");
  const OptionList options = Options("unix:" + path_ + ",unix:" + late_path);
  EXPECT_NE(std::string(EngineError(options).what()).find(late_path), std::string::npos) << "all must be there";
  const auto engine = MakeEngine(options + OptionList{{"homes-min", "1"}});
  EXPECT_EQ(engine->Statistics().homes_up, 1u);
  EXPECT_EQ(engine->Homes().at(1).name, "unix:" + late_path);
  EXPECT_EQ(engine->Homes().at(1).up, 0u);
  Running running = StartAll(*engine);  // while it comes
  const WorkerProgram late(dir_.File("late.log"),
                           {"--listen", "unix:" + late_path, "--kv-gib", "0.02", "--poll", "yield"});
  for (size_t i = 0; i < requests_.size(); ++i) {
    ReadToEnd(running.streams[i], &running.answers[i]);
    EXPECT_EQ(running.answers[i].tokens, RightAnswers()[i].tokens) << i << ": " << running.answers[i].error;
  }
  ASSERT_TRUE(WaitForAllHomes(*engine)) << engine->Describe();
  EXPECT_EQ(engine->Homes().at(1).name, "unix:" + late_path + ", home 0");
  const std::vector<Answer> answers = RunAll(*engine, requests_, /*with_logits=*/false);
  for (size_t i = 0; i < requests_.size(); ++i) EXPECT_EQ(answers[i].tokens, RightAnswers()[i].tokens) << i;
  EXPECT_GT(HopsOfHome(*engine, "unix:" + late_path), 0);
  EXPECT_EQ(Statistic(*engine, "recoveries"), 0);
}

// The worker of the library, in this process, which is what embedders use.
TEST_F(WorkerDeathTest, WorkerServerInAThread) {
  EngineOptions options;
  options.Set("listen", "unix:" + path_);
  options.Set("kv-gib", "0.02");
  options.Set("poll", "yield");
  WorkerServer worker(options);
  EXPECT_THROW(WorkerServer{options}, Error);
  std::thread serving([&worker] { worker.Run(); });
  {
    const auto engine = MakeEngine(Options("unix:" + path_));
    EXPECT_EQ(RunAll(*engine, {small_}, false)[0].tokens,
              RunAll(*MakeEngine(Options("local:1")), {small_}, false)[0].tokens);
  }
  worker.Stop();
  serving.join();
}

}  // namespace
}  // namespace fastdecode
