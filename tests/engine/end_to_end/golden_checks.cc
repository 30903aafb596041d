#include "tests/engine/end_to_end/golden_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/engine/end_to_end/engine_runs.h"

namespace fastdecode {

void ExpectLogitsAndTokens(const Golden& golden, InferenceEngine& engine) {
  ASSERT_EQ(static_cast<size_t>(engine.vocab_size()), golden.vocab);
  std::vector<GenerateRequest> requests;
  for (const uint32_t length : golden.prompt_lengths) requests.push_back(GreedyRequest(golden.Prompt(length), 1));
  for (const Golden::Greedy& greedy : golden.greedy) {
    EXPECT_EQ(greedy.tokens.size(), 64u);
    requests.push_back(GreedyRequest(golden.Prompt(greedy.prompt_length), static_cast<uint32_t>(greedy.tokens.size())));
  }
  const std::vector<Answer> answers = RunAll(engine, requests, /*with_logits=*/true);
  double worst = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_EQ(answers[i].finish, FD_FINISH_LENGTH) << answers[i].error;
    const LogitDifference difference = Compare(golden, golden.logits, answers[i].prompt_logits);
    EXPECT_LE(difference.max, kExactShare * golden.largest_logit) << "prompt of " << requests[i].prompt_ids.size();
    worst = std::max(worst, difference.max);
  }
  testing::Test::RecordProperty("largest_error_of_largest_logit", std::to_string(worst / golden.largest_logit));
  for (size_t i = 0; i < golden.greedy.size(); ++i) {
    EXPECT_EQ(answers[golden.prompt_lengths.size() + i].tokens, golden.greedy[i].tokens)
        << "prompt of " << golden.greedy[i].prompt_length;
  }
}

void ExpectAsCloseAsBf16(const Golden& golden, InferenceEngine& engine, const std::string& name) {
  const std::vector<Answer> answers = RunAll(engine, {GreedyRequest(golden.prompt, 1)}, /*with_logits=*/true);
  ASSERT_EQ(answers[0].finish, FD_FINISH_LENGTH) << answers[0].error;
  const LogitDifference difference = Compare(golden, golden.bf16_reference, answers[0].prompt_logits);
  EXPECT_LE(difference.rms, kBf16Share * golden.bf16_rms_error);
  EXPECT_LE(difference.max, kBf16Share * golden.bf16_max_error);
  // Were it f32 in disguise, the bound would say nothing.
  EXPECT_GT(difference.max, kExactShare * golden.largest_logit);
  const auto share = [](double part, double of) { return std::to_string(part / of); };
  testing::Test::RecordProperty("rms_of_transformers_" + name, share(difference.rms, golden.bf16_rms_error));
  testing::Test::RecordProperty("max_of_transformers_" + name, share(difference.max, golden.bf16_max_error));
}

}  // namespace fastdecode
