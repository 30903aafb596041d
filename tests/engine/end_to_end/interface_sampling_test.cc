// Sampling over a model whose logits are all 0: what is drawn follows from the request alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/interface_fixture.h"

namespace fastdecode {
namespace {

// The most likely tokens of biased requests, in this order.
constexpr int32_t kA = 10, kB = 20, kC = 30;

class InterfaceSamplingTest : public InterfaceTest {
 protected:
  void SetUp() override {
    InterfaceTest::SetUp();
    ZeroWeights();
  }

  static GenerateRequest Biased(std::vector<int32_t> prompt, uint32_t max_tokens, float a, float b, float c) {
    GenerateRequest request = GreedyRequest(std::move(prompt), max_tokens);
    request.logit_bias = {{kA, a}, {kB, b}, {kC, c}};
    return request;
  }

 private:
  void ZeroWeights() const {
    const std::string path = model_ + "/model.safetensors";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header_bytes = 0;
    ASSERT_TRUE(file.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes))) << path;
    const uint64_t begin = sizeof(header_bytes) + header_bytes;
    file.seekp(static_cast<std::streamoff>(begin));
    const std::string zeros(std::filesystem::file_size(path) - begin, '\0');
    ASSERT_TRUE(file.write(zeros.data(), static_cast<std::streamsize>(zeros.size()))) << path;
  }
};

// Frequency and presence are those in what was generated; the repetition penalty knows the prompt, too.
TEST_F(InterfaceSamplingTest, PenaltiesCountWhatWasGenerated) {
  const auto engine = MakeEngine(Options());
  GenerateRequest frequency = Biased({kA, kB, kA}, 10, 8, 5.5f, 0);
  frequency.fields.frequency_penalty = 1;  // A at 8, 7, 6, then B at 5.5; A at 5, B at 4.5, ...
  GenerateRequest presence = Biased({kA, kB, kA}, 5, 8, 7, 6.5f);
  presence.fields.presence_penalty = 2;  // A at 8, B at 7, C at 6.5; then A at 6 for ever
  GenerateRequest repetition = Biased({1}, 5, 8, 5, 3);
  repetition.fields.repetition_penalty = 2;  // A at 8, B at 5; then A at 4 for ever
  GenerateRequest repetition_of_prompt = repetition;
  repetition_of_prompt.prompt_ids = {kA};  // B at 5; then A at 4 for ever
  GenerateRequest all = Biased({kB}, 6, 8, 7.5f, 3.125f);
  all.fields.repetition_penalty = 2;
  all.fields.presence_penalty = 0.25f;
  all.fields.frequency_penalty = 0.5f;  // A at 8, B at 7.5 / 2, A at 8 / 2 - 0.75, C, B at 3.75 - 0.75, A at 4 - 1.25
  const std::vector<Answer> answers =
      RunAll(*engine, {Biased({1}, 3, 8, 7, 6), frequency, presence, repetition, repetition_of_prompt, all}, false);
  using Tokens = std::vector<int32_t>;
  EXPECT_EQ(answers[0].tokens, (Tokens{kA, kA, kA})) << "without penalties";
  EXPECT_EQ(answers[1].tokens, (Tokens{kA, kA, kA, kB, kA, kB, kA, kB, kA, kB})) << "frequency";
  EXPECT_EQ(answers[2].tokens, (Tokens{kA, kB, kC, kA, kA})) << "presence";
  EXPECT_EQ(answers[3].tokens, (Tokens{kA, kB, kA, kA, kA})) << "repetition";
  EXPECT_EQ(answers[4].tokens, (Tokens{kB, kA, kA, kA, kA})) << "repetition of the prompt";
  EXPECT_EQ(answers[5].tokens, (Tokens{kA, kB, kA, kC, kB, kA})) << "all";
}

// Who is computed again has not generated its tokens twice.
TEST_F(InterfaceSamplingTest, PenaltiesCountOnceWhatIsComputedAgain) {
  // Pages for kContext tokens: 2 layers of K and V of 2 heads of 16 floats.
  const double kv_gib = kContext * 2.0 * 2 * 2 * 16 * 4 / (1 << 30);
  const auto engine = MakeEngine(Options() + OptionList{{"kv-gib", std::to_string(kv_gib)}});
  GenerateRequest request = Biased({1}, 200, 150, 100.5f, 0);
  request.fields.frequency_penalty = 1;
  std::vector<int32_t> expected(50, kA);  // at 150, 149, ... 101
  for (int i = 0; i < 75; ++i) expected.insert(expected.end(), {kB, kA});
  for (const Answer& answer : RunAll(*engine, {request, request, request}, false)) {
    EXPECT_EQ(answer.tokens, expected);
  }
  EXPECT_GT(Statistic(*engine, "preemptions"), 0) << "memory was never short";
}

// Each token by a random number of its own, and so each seed.
TEST_F(InterfaceSamplingTest, TokensAreDrawnAsOftenAsTheyAreLikely) {
  constexpr uint64_t kSeeds = 8;
  const auto engine = MakeEngine(Options());
  std::vector<GenerateRequest> requests;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    requests.push_back(Biased({1}, 200, 100, 100 - std::log(3.0f), 0));  // three times A to one B, and never another
    requests.back().fields.temperature = 1;
    requests.back().fields.seed = seed;
  }
  std::set<std::vector<int32_t>> different;
  for (const Answer& answer : RunAll(*engine, requests, false)) {
    const auto as = std::count(answer.tokens.begin(), answer.tokens.end(), kA);
    EXPECT_EQ(as + std::count(answer.tokens.begin(), answer.tokens.end(), kB), 200);
    EXPECT_NEAR(static_cast<double>(as), 150, 37) << "six standard deviations off";
    different.insert(answer.tokens);
  }
  EXPECT_EQ(different.size(), kSeeds);
}

}  // namespace
}  // namespace fastdecode
