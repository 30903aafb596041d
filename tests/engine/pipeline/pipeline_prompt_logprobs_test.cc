// Log-probabilities of prompt tokens: complete before the first token, whatever the chunks, and left alone from then
// on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/engine/pipeline/sim_engine.h"
#include "tests/engine/pipeline/small_engine.h"
#include "tests/logprob_check.h"

namespace fastdecode {
namespace {

// Against the logits that the same request was shown.
void CheckAgainstLogits(const SimRequest& request) {
  const Sequence& sequence = request.sequence;
  const size_t vocab = request.prompt_logits.size() / sequence.prompt_tokens;
  const auto top = static_cast<size_t>(sequence.sampling.prompt_params.logprobs);
  for (uint32_t p = 1; p < sequence.prompt_tokens; ++p) {
    const TokenLogprob* const listed = sequence.log.prompt_top_logprobs.data() + p * top;
    ASSERT_NO_FATAL_FAILURE(CheckLogprobs({request.prompt_logits.data() + (p - 1) * vocab, vocab},
                                          sequence.log.tokens[p], sequence.log.prompt_logprobs[p], {listed, top}))
        << "position " << p;
  }
}

TEST(PipelinePromptLogprobsTest, AreThoseOfTheLogits) {
  for (const int micro_batches : {1, 2}) {
    for (const uint32_t chunk : {1u, 7u, 32u}) {
      SimOptions options = SmallOptions();
      options.limits.micro_batches = micro_batches;
      options.limits.chunk_tokens_max = chunk;
      SimEngine engine(options);
      engine.AddHome(0, 100);
      engine.AddHome(1, 100);
      const int tops[] = {0, 3, 20, -1};
      for (uint32_t i = 0; i < 12; ++i) {
        engine.Submit(Prompt(1 + i * 8, i),
                      {.max_tokens = 1 + i, .prompt_logits = true, .prompt_logprobs = tops[i % 4]});
      }
      ASSERT_TRUE(engine.RunAll(kTurnsMax));
      for (const auto& request : engine.requests()) {
        engine.CheckTokens(*request);
        EXPECT_EQ(request->sequence.log.prompt_logprobs.empty(), request->sequence.id % 4 == 0);
        if (!request->sequence.log.prompt_logprobs.empty()) CheckAgainstLogits(*request);
      }
    }
  }
}

TEST(PipelinePromptLogprobsTest, NeedNoLogits) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 40);
  SimRequest* const request = engine.Submit(Prompt(70), {.prompt_logprobs = 5});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  engine.CheckTokens(*request);
  const Sequence& sequence = request->sequence;
  EXPECT_EQ(sequence.log.prompt_logprobs.size(), 70u);
  EXPECT_EQ(sequence.log.prompt_top_logprobs.size(), 70u * 5);
  EXPECT_TRUE(std::isnan(sequence.log.prompt_logprobs[0]));
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(sequence.log.prompt_top_logprobs[i].token, -1);
}

// A vocabulary that has no twenty tokens.
TEST(PipelinePromptLogprobsTest, NoMoreAreListedThanThereAre) {
  SimOptions options = SmallOptions();
  options.vocab = 12;
  SimEngine engine(options);
  engine.AddHome(0, 40);
  SimRequest* const request = engine.Submit(SimEngine::Prompt(10, 1, 12), {.prompt_logprobs = 20});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  engine.CheckTokens(*request);
  EXPECT_GE(request->sequence.log.prompt_top_logprobs[20 + 11].token, 0);
  EXPECT_EQ(request->sequence.log.prompt_top_logprobs[20 + 12].token, -1);
}

// One whose prompt is half computed, in steps of one token, makes room for one that grows.
TEST(PipelinePromptLogprobsTest, APromptThatIsComputedAgainGivesTheSame) {
  SimOptions options = SmallOptions();
  options.limits.chunk_tokens_max = 1;
  options.limits.micro_batches = 1;
  SimEngine engine(options);
  engine.AddHome(0, 5);
  engine.Submit(Prompt(10, 1), {.max_tokens = 120});
  RunUntil(&engine, [&] { return engine.requests()[0]->announced > 0; });
  SimRequest* const young = engine.Submit(Prompt(90, 2), {.max_tokens = 3, .prompt_logprobs = 2});
  RunUntil(&engine, [&] { return young->sequence.times.preemptions > 0; });
  ASSERT_EQ(young->announced, 0u);
  ASSERT_FALSE(std::isnan(young->sequence.log.prompt_logprobs[1]));
  ASSERT_TRUE(std::isnan(young->sequence.log.prompt_logprobs[89]));
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  engine.CheckTokens(*young);
}

// Their caller may read them: whoever is computed again does not write there.
TEST(PipelinePromptLogprobsTest, AreLeftAloneOnceTheyAreComplete) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 9);
  for (uint64_t i = 0; i < 8; ++i) engine.Submit(Prompt(10, i), {.max_tokens = 200, .prompt_logprobs = 1});
  std::vector<std::vector<float>> complete(8);
  std::vector<std::vector<TokenLogprob>> most_likely(8);
  uint32_t preemptions = 0;
  for (int turn = 0; turn < 2 * kTurnsMax && engine.unfinished() > 0; ++turn) {
    engine.Turn();
    for (size_t i = 0; i < 8; ++i) {
      SimRequest& request = *engine.requests()[i];
      if (request.announced == 0 || !complete[i].empty()) continue;
      complete[i] = request.sequence.log.prompt_logprobs;
      most_likely[i] = request.sequence.log.prompt_top_logprobs;
      request.sequence.log.prompt_logprobs.assign(10, 1.0f);
      request.sequence.log.prompt_top_logprobs.assign(10, {-7, 1.0f});
    }
  }
  ASSERT_EQ(engine.unfinished(), 0u);
  for (size_t i = 0; i < 8; ++i) {
    Sequence& sequence = engine.requests()[i]->sequence;
    EXPECT_THAT(sequence.log.prompt_logprobs, testing::Each(1.0f)) << i;
    for (const TokenLogprob& top : sequence.log.prompt_top_logprobs) EXPECT_EQ(top.token, -7) << i;
    sequence.log.prompt_logprobs = complete[i];
    sequence.log.prompt_top_logprobs = most_likely[i];
    engine.CheckTokens(*engine.requests()[i]);
    preemptions += sequence.times.preemptions;
  }
  EXPECT_GT(preemptions, 0u);
}

// ---- rows that are not as they should be

TEST(PipelinePromptLogprobsTest, ATokenThatCannotComeHasMinusInfinity) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 40);
  engine.spart().SpoilLogits(1, SampleOutcome::kNoCandidate);  // the first row, so of the second token
  SimRequest* const request = engine.Submit(Prompt(10), {.prompt_logprobs = 0});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(request->reason, FinishReason::kLength);
  float& second = request->sequence.log.prompt_logprobs[1];
  EXPECT_EQ(second, -std::numeric_limits<float>::infinity());
  for (uint32_t p = 2; p < 10; ++p) EXPECT_TRUE(std::isfinite(request->sequence.log.prompt_logprobs[p]));
}

TEST(PipelinePromptLogprobsTest, BadLogitsEndTheRequest) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 40);
  engine.spart().SpoilLogits(1);
  SimRequest* const bad = engine.Submit(Prompt(40, 1), {.prompt_logprobs = 2});  // in its first chunk
  SimRequest* const good = engine.Submit(Prompt(40, 2), {.prompt_logprobs = 2});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(bad->reason, FinishReason::kBadLogits);
  EXPECT_EQ(bad->announced, 0u);
  EXPECT_EQ(good->reason, FinishReason::kLength);
  engine.CheckTokens(*good);
  engine.CheckNothingLeft();
}

// ---- a prompt alone

TEST(PipelinePromptLogprobsTest, APromptAloneEndsWithoutAToken) {
  for (const int micro_batches : {1, 2}) {
    SimOptions options = SmallOptions();
    options.limits.micro_batches = micro_batches;
    SimEngine engine(options);
    engine.AddHome(0, 20);
    for (uint32_t i = 0; i < 20; ++i) {
      const uint32_t max_tokens = i % 5 == 0 ? 30 : 0;
      engine.Submit(
          Prompt(1 + i * 5, i),
          {.max_tokens = max_tokens, .prompt_logits = i % 2 == 0, .prompt_logprobs = static_cast<int>(i % 3)});
    }
    ASSERT_TRUE(engine.RunAll(kTurnsMax));
    for (const auto& request : engine.requests()) {
      EXPECT_EQ(request->reason, FinishReason::kLength);
      EXPECT_EQ(request->announced, request->sequence.length_max - request->sequence.prompt_tokens);
      engine.CheckTokens(*request);
    }
    EXPECT_EQ(engine.pipeline().statistics().sampled_tokens.value(), 4u * 30);
    engine.CheckNothingLeft();
  }
}

// What would come behind it nobody asks.
TEST(PipelinePromptLogprobsTest, APromptAloneEndsWellWhateverItsLastLogits) {
  SimEngine engine(SmallOptions());
  engine.AddHome(0, 20);
  engine.spart().SpoilLogits(1);
  SimRequest* const request = engine.Submit(Prompt(1), {.max_tokens = 0, .prompt_logprobs = 0});
  ASSERT_TRUE(engine.RunAll(kTurnsMax));
  EXPECT_EQ(request->reason, FinishReason::kLength);
}

}  // namespace
}  // namespace fastdecode
