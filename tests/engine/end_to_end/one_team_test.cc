// One team for the S-Part and the homes of the process (--core-plan shared): whatever it is beside, and whatever is
// lost around it, no answer is another than that of separate teams.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/golden.h"
#include "tests/engine/end_to_end/golden_checks.h"
#include "tests/engine/end_to_end/worker_program.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

const OptionList kShared = {{"core-plan", "shared"}, {"poll", "yield"}};
const OptionList kSplit = {{"core-plan", "split"}, {"poll", "yield"}};

OptionList GoldenOptions(const Golden& golden, const std::string& chunk) {
  return {{"model", golden.folder}, {"compute", "f32"}, {"prefill-chunk", chunk}, {"max-sequences", "12"}};
}

// A worker with two threads.
class OneTeamTest : public testing::Test {
 protected:
  std::string StartWorker() {
    const std::string path = dir_.File("worker");
    worker_ = std::make_unique<WorkerProgram>(
        path + ".log", std::vector<std::string>{"--listen", "unix:" + path, "--kv-gib", "0.05", "--poll", "yield",
                                                "--r-threads", "2"});
    EXPECT_TRUE(worker_->WaitUntilListening()) << worker_->Messages();
    return "unix:" + path;
  }

  const ScratchDir dir_;
  std::unique_ptr<WorkerProgram> worker_;
};

class OneTeamGoldenTest : public OneTeamTest, public testing::WithParamInterface<std::string> {};

TEST_P(OneTeamGoldenTest, AloneItGivesTheLogitsAndTokensOfTransformers) {
  const Golden golden(GetParam());
  for (const char* homes : {"local:1", "local:3"}) {
    SCOPED_TRACE(homes);
    const auto engine =
        MakeEngine(GoldenOptions(golden, "37") + kShared + OptionList{{"homes", homes}, {"s-threads", "3"}});
    ExpectLogitsAndTokens(golden, *engine);
    EXPECT_EQ(engine->Statistics().hops, 0u);
  }
}

TEST_P(OneTeamGoldenTest, BesideAWorkerToo) {
  const Golden golden(GetParam());
  const std::string worker = StartWorker();
  for (const char* micro_batches : {"1", "2"}) {
    SCOPED_TRACE(micro_batches);
    const auto engine = MakeEngine(GoldenOptions(golden, "7") + kShared +
                                   OptionList{{"homes", "local:1," + worker}, {"micro-batches", micro_batches}});
    ExpectLogitsAndTokens(golden, *engine);
    EXPECT_GT(engine->Statistics().hops, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, OneTeamGoldenTest, testing::ValuesIn(GoldenNames()),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

std::vector<GenerateRequest> Requests(int vocab, uint32_t max_tokens) {
  std::mt19937_64 random(11);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 10; ++i) requests.push_back(RandomRequest(random, vocab, 1 + i * i % 40, max_tokens));
  return requests;
}

void ExpectSameAnswers(const std::vector<Answer>& got, const std::vector<Answer>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].ended) << i;
    EXPECT_EQ(got[i].error, "") << i;
    EXPECT_EQ(got[i].tokens, expected[i].tokens) << i;
    EXPECT_TRUE(got[i].prompt_logits == expected[i].prompt_logits) << i;
  }
}

// Sampled tokens would differ by any bit of a logit now and then, and the prompts' logits are compared bit for bit.
TEST_F(OneTeamTest, EveryKvTypeHasTheBitsOfSeparateTeams) {
  for (const char* name : {"gqa", "sliding_window", "gemma2", "head_80"}) {
    const Golden golden(name);
    for (const char* kv_type : {"f32", "bf16", "fp16", "int8", "int4"}) {
      SCOPED_TRACE(std::string(name) + ", " + kv_type);
      const OptionList options = GoldenOptions(golden, "17") +
                                 OptionList{{"kv-type", kv_type}, {"homes", "local:2"}, {"batch-invariant", "true"}};
      const std::vector<GenerateRequest> requests = Requests(static_cast<int>(golden.vocab), 60);
      const auto shared = MakeEngine(options + kShared), split = MakeEngine(options + kSplit);
      ExpectSameAnswers(RunAll(*shared, requests, true), RunAll(*split, requests, true));
    }
  }
}

TEST_F(OneTeamTest, PreemptionChangesNoToken) {
  const Golden golden("gqa");
  // f32: 2 layers, 2 KV heads of 32 elements, k and v of 32 tokens.
  const double page_gib = 2 * 2 * 32 * 2 * 32 * 4 * 0x1p-30;
  const OptionList options =
      GoldenOptions(golden, "17") + kShared + OptionList{{"homes", "local:1"}, {"max-context", "128"}};
  const std::vector<GenerateRequest> requests = Requests(static_cast<int>(golden.vocab), 80);
  const auto roomy = MakeEngine(options),
             tight = MakeEngine(options + OptionList{{"kv-gib", std::to_string(9.5 * page_gib)}});
  ExpectSameAnswers(RunAll(*tight, requests, false), RunAll(*roomy, requests, false));
  EXPECT_GT(Statistic(*tight, "preemptions"), 0);
  EXPECT_EQ(Statistic(*roomy, "preemptions"), 0);
}

// Sequences of the worker's are computed again, here or there, while others go on.
TEST_F(OneTeamTest, LinksThatAreCutAroundItChangeNoToken) {
  const Golden golden("gqa");
  const OptionList options = GoldenOptions(golden, "17") + kShared;
  const std::vector<GenerateRequest> requests = Requests(static_cast<int>(golden.vocab), 80);
  const std::vector<Answer> expected = RunAll(*MakeEngine(options + OptionList{{"homes", "local:1"}}), requests, false);
  const std::string worker = StartWorker();
  for (const char* micro_batches : {"1", "2"}) {
    SCOPED_TRACE(micro_batches);
    const auto engine = MakeEngine(
        options + OptionList{{"homes", "local:1," + worker}, {"micro-batches", micro_batches}, {"fault", "cut=60"}});
    ExpectSameAnswers(RunAll(*engine, requests, false), expected);
    EXPECT_GT(Statistic(*engine, "recoveries"), 0);
  }
}

// It sleeps when nothing is to do, and wakes.
TEST_F(OneTeamTest, GoesOnAfterASleep) {
  const Golden golden("gqa");
  const auto engine =
      MakeEngine(GoldenOptions(golden, "17") +
                 OptionList{{"core-plan", "shared"}, {"homes", "local:1"}, {"prefix-cache", "off"}});
  const std::vector<GenerateRequest> requests = Requests(static_cast<int>(golden.vocab), 20);
  const std::vector<Answer> expected = RunAll(*engine, requests, false);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ExpectSameAnswers(RunAll(*engine, requests, false), expected);
  }
  const std::optional<HomesPages> pages =
      AwaitPages(*engine, 0, [](const HomesPages& counted) { return counted.free == counted.all; });
  EXPECT_TRUE(pages.has_value()) << "whatever was taken is given back";
}

TEST_F(OneTeamTest, AFaultNeedsALink) {
  const Golden golden("gqa");
  const OptionList options = GoldenOptions(golden, "17") + OptionList{{"homes", "local:1"}, {"fault", "cut=60"}};
  EXPECT_NE(std::string(EngineError(options + kShared).what()).find("--fault"), std::string::npos);
  EXPECT_GT(RunAll(*MakeEngine(options), Requests(static_cast<int>(golden.vocab), 5), false).size(), 0u);
}

}  // namespace
}  // namespace fastdecode
