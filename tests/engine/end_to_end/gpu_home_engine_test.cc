// An engine whose GPU is a home, on the software GPU: what it cannot be asked for, and that no answer depends on how
// much memory or company there is.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/golden.h"
#include "tests/engine/end_to_end/worker_program.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

class GpuHomeEngineTest : public testing::Test {
 protected:
  OptionList Options(const std::string& homes, int pages) const {
    // f32: 2 layers, 2 KV heads of 32 elements, k and v of 32 tokens.
    const double page_gib = 2 * 2 * 32 * 2 * 32 * 4 * 0x1p-30;
    return {{"model", golden_.folder}, {"spart", "cuda"},      {"cuda-module", SOFT_GPU_MODULE},
            {"compute", "f32"},        {"homes", homes},       {"gpu-kv-gib", std::to_string((pages + 0.5) * page_gib)},
            {"kv-gib", "0.01"},        {"max-context", "128"}, {"max-sequences", "8"},
            {"prefill-chunk", "17"},   {"poll", "yield"}};
  }

  void PushManyAndForget(const OptionList& more);

  std::vector<GenerateRequest> Requests() const {
    std::mt19937_64 random(11);
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 10; ++i) {
      requests.push_back(RandomRequest(random, 128, 1 + static_cast<uint32_t>(random() % 20), 100));
    }
    return requests;
  }

  // The software GPU that says how fast it reads: steps are planned.
  const OptionList with_rate_ = {{"gpu", "1"}};
  // An engine beside one that is tested: a GPU of its own, which is no home.
  const OptionList alone_ = {{"gpu", "2"}, {"gpu-kv-gib", "0"}};

  const Golden golden_{"gqa"};
};

void ExpectSameAnswers(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].ended) << i;
    EXPECT_EQ(got[i].error, "") << i;
    EXPECT_EQ(got[i].finish, expected[i].finish) << i;
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
  }
}

// Sampled tokens would differ by any bit of a logit now and then.
TEST_F(GpuHomeEngineTest, PreemptionAndCompanyChangeNoToken) {
  const std::vector<GenerateRequest> requests = Requests();
  auto roomy = MakeEngine(Options("gpu", 100));
  const std::vector<Answer> together = RunAll(*roomy, requests, false);
  EXPECT_EQ(Statistic(*roomy, "preemptions"), 0);
  EXPECT_LE(Statistic(*roomy, "s_busy"), 1) << "stages of two micro-batches overlap";
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectSameAnswers(RunAll(*roomy, {requests[i]}, false), {together[i]});
  }
  roomy.reset();
  const auto tight = MakeEngine(Options("gpu", 7));
  ExpectSameAnswers(RunAll(*tight, requests, false), together);
  EXPECT_GT(Statistic(*tight, "preemptions"), 0) << "memory was never short";
  EXPECT_EQ(HopsOfHome(*tight, "gpu"), 0) << "there is no way to it";
  EXPECT_GT(Statistic(*tight, "kv_bytes"), 0);
  EXPECT_EQ(Statistic(*tight, "kv_gb_per_s"), 0);
}

// Steps with rows here and there, as there is one micro-batch: the GPU waits for the other home, and nobody for the
// GPU's. It has no room for the longer ones.
TEST_F(GpuHomeEngineTest, SharesStepsWithOtherHomes) {
  const auto engine = MakeEngine(Options("gpu,local:1", 3) + OptionList{{"micro-batches", "1"}});
  std::mt19937_64 random(3);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(GreedyRequest(RandomPrompt(random, 128, 40), i % 2 == 0 ? 30 : 70));
  const std::vector<Answer> mixed = RunAll(*engine, requests, false);
  EXPECT_GT(HopsOfHome(*engine, "local"), 0);
  EXPECT_EQ(CountHomes(*engine).up, 2);
  const auto alone = MakeEngine(Options("local:1", 0) + alone_);
  ExpectSameAnswers(mixed, RunAll(*alone, requests, false));
}

// The GPU has no room for a whole sequence, but for any prompt: all live at the other home, and all prompts of more
// than a page are computed on the GPU and pushed there.
TEST_F(GpuHomeEngineTest, PushesPromptsToTheirHomes) {
  const auto engine = MakeEngine(Options("gpu,local:1", 3));
  const auto alone = MakeEngine(Options("local:1", 0) + alone_);
  std::mt19937_64 random(7);
  double expected = 0;
  const double row_bytes = 2 * 2 * 32 * 4, layers = 2;
  std::vector<GenerateRequest> requests;
  for (const uint32_t tokens : {1u, 20u, 32u, 33u, 34u, 35u, 51u, 52u, 64u, 85u, 95u, 96u}) {
    const uint32_t rest = 128 - tokens;
    requests.push_back(GreedyRequest(RandomPrompt(random, 128, tokens), rest));
    const std::vector<Answer> got = RunAll(*engine, {requests.back()}, false);
    ExpectSameAnswers(got, RunAll(*alone, {requests.back()}, false));
    // In chunks of 17; if one token is left, it is the first of the steps at its home.
    if (tokens > 32) expected += layers * row_bytes * (tokens % 17 == 1 ? tokens - 1 : tokens);
    EXPECT_EQ(Statistic(*engine, "pushed_bytes"), expected) << tokens;
  }
  // What the GPU attended to is not among what the other home read while it was busy.
  const auto read_while_busy = [](const InferenceEngine& of) {
    return Statistic(of, "kv_gb_per_s") * Statistic(of, "r_busy_ns");
  };
  EXPECT_LT(read_while_busy(*engine), Statistic(*engine, "kv_bytes") - 1);
  EXPECT_NEAR(read_while_busy(*alone), Statistic(*alone, "kv_bytes"), 1);
  // Of one token alone, nothing is to be kept.
  const GenerateRequest one = GreedyRequest(RandomPrompt(random, 128, 70), 1);
  ExpectSameAnswers(RunAll(*engine, {one}, false), RunAll(*alone, {one}, false));
  EXPECT_EQ(Statistic(*engine, "pushed_bytes"), expected);
  EXPECT_EQ(Statistic(*engine, "preemptions"), 0);
  EXPECT_EQ(Statistic(*alone, "pushed_bytes"), 0);
  // All at once: some prompts find no room on the GPU, and come as hops.
  ExpectSameAnswers(RunAll(*engine, requests, false), RunAll(*alone, requests, false));
  EXPECT_EQ(CountHomes(*engine).up, 2);
}

// Many long ones at the other home, few short ones on the GPU, which compute the long ones' prompts: by the rates that
// were measured they step apart, and each moves once its KV is at its home. Whatever the rates, no token shows it.
TEST_F(GpuHomeEngineTest, CompanyInOtherMicroBatchesChangesNoToken) {
  const OptionList many = {{"max-sequences", "40"}, {"micro-batches", "3"}};
  const auto engine = MakeEngine(Options("gpu,local:1", 3) + many + with_rate_);
  const auto alone = MakeEngine(Options("local:1", 0) + many + alone_);
  std::mt19937_64 random(31);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 60; ++i) {
    const bool is_short = i % 3 == 0;
    const auto prompt = static_cast<uint32_t>(is_short ? 1 + random() % 20 : 33 + random() % 60);
    requests.push_back(RandomRequest(random, 128, prompt, is_short ? 12 : 128 - prompt));
  }
  const std::vector<Answer> answers = RunAll(*alone, requests, false);
  for (int round = 0; round < 2; ++round) ExpectSameAnswers(RunAll(*engine, requests, false), answers);
  EXPECT_GT(HopsOfHome(*engine, "local"), 0);
  EXPECT_EQ(CountHomes(*engine).up, 2);
}

// Little memory at both homes, sequences that are cancelled at any moment: none is lost, none gets another's tokens,
// and in the end all pages are free (a home that has fewer than it was asked for ends its link).
TEST_F(GpuHomeEngineTest, PushesManyAndForgetsThoseThatGo) { PushManyAndForget({}); }
TEST_F(GpuHomeEngineTest, PushesManyWhereStepsArePlanned) { PushManyAndForget(with_rate_); }

void GpuHomeEngineTest::PushManyAndForget(const OptionList& more) {
  const OptionList tight = {{"kv-gib", "0.0006"}, {"max-sequences", "40"}};
  const auto engine = MakeEngine(Options("gpu,local:1", 3) + tight + more);
  const auto alone = MakeEngine(Options("local:1", 0) + alone_);
  std::mt19937_64 random(23);
  // What is cancelled when decides whether all of it is seen soon.
  const auto all_seen = [&] { return Statistic(*engine, "preemptions") > 0 && Statistic(*engine, "pushed_bytes") > 0; };
  for (int round = 0; round < 2 || (!all_seen() && round < 20); ++round) {
    std::vector<GenerateRequest> requests;
    std::vector<TokenStream> streams;
    std::vector<bool> cancelled;
    for (int i = 0; i < 40; ++i) {
      requests.push_back(GreedyRequest(RandomPrompt(random, 128, 1 + static_cast<uint32_t>(random() % 60)),
                                       1 + static_cast<uint32_t>(random() % 68)));
      streams.push_back(engine->Submit(requests.back()));
      cancelled.push_back(random() % 4 == 0);
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      if (!cancelled[i]) continue;
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      streams[i].Cancel();
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      Answer answer;
      ReadToEnd(streams[i], &answer);
      ASSERT_TRUE(answer.ended);
      EXPECT_EQ(answer.error, "");
      if (answer.finish == FD_FINISH_CANCELLED) continue;
      ExpectSameAnswers({answer}, RunAll(*alone, {requests[i]}, false));
    }
  }
  EXPECT_GT(Statistic(*engine, "preemptions"), 0);
  const double pushed = Statistic(*engine, "pushed_bytes");
  EXPECT_GT(pushed, 0);
  // One that takes all of the GPU's pages.
  const GenerateRequest last = GreedyRequest(RandomPrompt(random, 128, 96), 32);
  ExpectSameAnswers(RunAll(*engine, {last}, false), RunAll(*alone, {last}, false));
  EXPECT_GT(Statistic(*engine, "pushed_bytes"), pushed);
  EXPECT_EQ(CountHomes(*engine).up, 2);
}

class PushToWorkerTest : public GpuHomeEngineTest {
 protected:
  std::unique_ptr<WorkerProgram> NewWorker() {
    auto worker = std::make_unique<WorkerProgram>(
        dir_.File("log" + std::to_string(workers_++)),
        std::vector<std::string>{"--listen", "unix:" + dir_.File("worker"), "--kv-gib", "0.01", "--poll", "yield"});
    EXPECT_TRUE(worker->WaitUntilListening()) << worker->Messages();
    return worker;
  }
  OptionList WorkerOptions() const { return Options("gpu,unix:" + dir_.File("worker"), 3); }

  const ScratchDir dir_;
  int workers_ = 0;
};

// What a lost worker's prompts held on the GPU is free again: the next ones find room there.
TEST_F(PushToWorkerTest, AWorkerMayDieWhilePromptsArePushed) {
  auto worker = NewWorker();
  const auto engine = MakeEngine(WorkerOptions());
  const auto alone = MakeEngine(Options("local:1", 0) + alone_);
  std::mt19937_64 random(5);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) {
    const uint32_t tokens = i == 0 ? 96 : 60 + static_cast<uint32_t>(random() % 37);  // the first takes all pages there
    requests.push_back(GreedyRequest(RandomPrompt(random, 128, tokens), 30));
  }
  const std::vector<Answer> right = RunAll(*alone, requests, false);
  for (int round = 0; round < 5; ++round) {
    std::vector<TokenStream> streams;
    for (const GenerateRequest& request : requests) streams.push_back(engine->Submit(request));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 150));
    worker->Signal(SIGKILL);
    worker->Wait();
    worker = NewWorker();  // those that only it can hold wait for it
    for (size_t i = 0; i < streams.size(); ++i) {
      Answer answer;
      ReadToEnd(streams[i], &answer);
      ASSERT_TRUE(answer.ended);
      ExpectSameAnswers({answer}, {right[i]});
    }
    ASSERT_TRUE(WaitForAllHomes(*engine));
    const double pushed = Statistic(*engine, "pushed_bytes");
    GenerateRequest first = requests[0];
    first.fields.no_prefix_cache = 1;  // what is there already is not pushed
    ExpectSameAnswers(RunAll(*engine, {first}, false), {right[0]});
    EXPECT_GT(Statistic(*engine, "pushed_bytes"), pushed);
  }
  EXPECT_GT(Statistic(*engine, "recoveries"), 0);
}

// Of so many chunks the link takes a few; then the prompt waits, and no row of it is lost.
TEST_F(PushToWorkerTest, AWorkerMayBeSlow) {
  const auto worker = NewWorker();
  const auto engine = MakeEngine(WorkerOptions() + OptionList{{"prefill-chunk", "3"}});
  const auto alone = MakeEngine(Options("local:1", 0) + alone_);
  std::mt19937_64 random(6);
  const GenerateRequest request = GreedyRequest(RandomPrompt(random, 128, 96), 32);
  worker->Signal(SIGSTOP);
  TokenStream stream = engine->Submit(request);
  const double row_bytes = 2 * 2 * 32 * 4, segments = 16;
  ExpectSoon(*engine, "pushed_bytes", segments * 3 * row_bytes);
  worker->Signal(SIGCONT);
  Answer answer;
  ReadToEnd(stream, &answer);
  ExpectSameAnswers({answer}, RunAll(*alone, {request}, false));
  EXPECT_EQ(Statistic(*engine, "pushed_bytes"), 2 * 96 * row_bytes);
}

// No hop is open, and yet its time runs out; and that of what only it could hold.
TEST_F(PushToWorkerTest, AWorkerThatStoresNothingIsLost) {
  const auto worker = NewWorker();
  const auto engine = MakeEngine(WorkerOptions() + OptionList{{"hop-timeout-ms", "500"}, {"recover-ms", "500"}});
  worker->Signal(SIGSTOP);
  std::mt19937_64 random(5);
  const std::vector<Answer> answers = RunAll(*engine, {GreedyRequest(RandomPrompt(random, 128, 90), 30)}, false);
  ASSERT_TRUE(answers[0].ended);
  EXPECT_EQ(answers[0].finish, FD_FINISH_ERROR);
  EXPECT_NE(answers[0].error.find("no progress within the hop timeout"), std::string::npos) << answers[0].error;
  worker->Signal(SIGCONT);
}

// Two would wait for each other (decision 16).
TEST_F(GpuHomeEngineTest, AGpuIsOneEnginesOfAProcessAtATime) {
  auto first = MakeEngine(Options("gpu", 7));
  const Error second = EngineError(Options("gpu", 7));
  EXPECT_EQ(second.code(), FD_ALREADY_EXISTS) << second.what();
  EXPECT_STREQ(second.what(), "--gpu: GPU 0 is used by another engine of this process, or was given up by one");
  EXPECT_EQ(EngineError(Options("gpu", 7) + with_rate_).code(), FD_OK) << "it has another one";
  const auto automatic = MakeEngine(Options("local:1", 0) + OptionList{{"gpu-kv-gib", "0"}, {"spart", "auto"}});
  EXPECT_EQ(automatic->Describe().find("software GPU"), std::string::npos) << automatic->Describe();
  first.reset();
  EXPECT_EQ(EngineError(Options("gpu", 0)).code(), FD_RESOURCE_EXHAUSTED) << "a start that fails";
  EXPECT_EQ(EngineError(Options("gpu", 7)).code(), FD_OK);
}

TEST_F(GpuHomeEngineTest, ErrorsNameOptionAndValue) {
  const auto expect = [](const OptionList& options, fd_code code, const std::string& text) {
    const Error error = EngineError(options);
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  };
  expect(Options("gpu", 0), FD_RESOURCE_EXHAUSTED, "--gpu-kv-gib: ");
  expect(Options("gpu", 2), FD_RESOURCE_EXHAUSTED, "--gpu-kv-gib: the largest home holds 64 tokens");
  expect(Options("gpu", 10) + OptionList{{"gpu-kv-gib", "500"}}, FD_RESOURCE_EXHAUSTED,
         "--gpu-kv-gib: 500.00 GiB of KV");
  expect(Options("gpu", 10) + OptionList{{"kv-type", "int4"}}, FD_INVALID_ARGUMENT, "--kv-type: 'int4'");
  expect(Options("gpu,local:1,gpu", 10), FD_INVALID_ARGUMENT, "--homes: 'gpu': names the same homes twice");
  expect(Options("local:1", 10), FD_INVALID_ARGUMENT, "--gpu-kv-gib: ");
  expect(Options("local:1,gpu", 10) + OptionList{{"spart", "cpu"}}, FD_INVALID_ARGUMENT, "--homes: 'local:1,gpu'");
}

}  // namespace
}  // namespace fastdecode
