// An engine whose GPU is a home, on the software GPU: what it cannot be asked for, and that no answer depends on how
// much memory or company there is.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/golden.h"

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

  std::vector<GenerateRequest> Requests() const {
    std::mt19937_64 random(11);
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 10; ++i) {
      requests.push_back(RandomRequest(random, 128, 1 + static_cast<uint32_t>(random() % 20), 100));
    }
    return requests;
  }

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
  const auto roomy = MakeEngine(Options("gpu", 100));
  const std::vector<Answer> together = RunAll(*roomy, requests, false);
  EXPECT_EQ(Statistic(*roomy, "preemptions"), 0);
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectSameAnswers(RunAll(*roomy, {requests[i]}, false), {together[i]});
  }
  const auto tight = MakeEngine(Options("gpu", 7));
  ExpectSameAnswers(RunAll(*tight, requests, false), together);
  EXPECT_GT(Statistic(*tight, "preemptions"), 0) << "memory was never short";
  EXPECT_EQ(HopsOfHome(*tight, "gpu"), 0) << "there is no way to it";
}

// Steps with rows here and there: the GPU waits for the other home, and nobody for the GPU's.
TEST_F(GpuHomeEngineTest, SharesStepsWithOtherHomes) {
  const auto engine = MakeEngine(Options("gpu,local:1", 20));
  std::mt19937_64 random(3);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(GreedyRequest(RandomPrompt(random, 128, 40), 30));
  const std::vector<Answer> mixed = RunAll(*engine, requests, false);
  EXPECT_GT(HopsOfHome(*engine, "local"), 0);
  EXPECT_EQ(CountHomes(*engine).up, 2);
  const auto alone = MakeEngine(Options("local:1", 0) + OptionList{{"gpu-kv-gib", "0"}});
  ExpectSameAnswers(mixed, RunAll(*alone, requests, false));
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
