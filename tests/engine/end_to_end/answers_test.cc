// Requests of several answers by a whole engine: each is what a request of its own with the same seed gets, whether the
// prompt's pages are shared or computed again. Through the engine's own classes.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/own_engine_fixture.h"

namespace fastdecode {
namespace {

constexpr uint32_t kAnswers = 5, kTokens = 40;

class AnswersTest : public OwnEngineTest {
 protected:
  // The tokens of each answer.
  std::vector<std::vector<int32_t>> Ask(const std::vector<int32_t>& prompt, uint64_t seed, uint32_t answers) {
    RequestFields fields;
    fields.prompt_ids = prompt.data();
    fields.prompt_id_count = prompt.size();
    fields.max_tokens = kTokens;
    fields.temperature = 0.9f;
    fields.repetition_penalty = 1.1f;
    fields.ignore_eos = true;
    fields.seed = seed;
    fields.answers = answers;
    uint64_t id = 0;
    EXPECT_TRUE(engine_->Submit(fields, &id).ok());
    std::vector<std::vector<int32_t>> tokens(answers);
    TakenEvent taken;
    while (engine_->desk().Next(id, &taken, kAnswerTimeoutNs) == RequestDesk::NextResult::kEvent) {
      const RequestAnswer& answer = *taken.request->answers.at(taken.event->answer);
      if (taken.event->kind == RequestEvent::Kind::kFinished) {
        EXPECT_EQ(answer.end.finish, RequestFinish::kLength) << answer.end.error;
        continue;
      }
      const int32_t* const generated = answer.sequence.log.tokens.data() + answer.sequence.prompt_tokens;
      for (uint32_t i = 0; i < taken.event->token_count; ++i) {
        tokens[answer.index].push_back(generated[taken.event->token_index + i]);
      }
    }
    return tokens;
  }

  // Prompts that end within a page, with one, and with a piece of a page that is open.
  void CheckPrompts() {
    std::mt19937_64 random(3);
    for (const size_t length : {1, 32, 40, 77}) {
      SCOPED_TRACE(length);
      const std::vector<int32_t> prompt = RandomPrompt(random, kVocab, length);
      const std::vector<std::vector<int32_t>> group = Ask(prompt, 50, kAnswers);
      for (uint32_t i = 0; i < kAnswers; ++i) {
        EXPECT_EQ(group[i].size(), kTokens);
        EXPECT_EQ(group[i], Ask(prompt, 50 + i, 1)[0]) << i;
        if (i > 0) EXPECT_NE(group[i], group[0]) << i;
      }
    }
  }
};

TEST_F(AnswersTest, SharePagesOfAnyType) {
  for (const char* type : {"f32", "bf16", "int8", "int4"}) {
    SCOPED_TRACE(type);
    Start({{"kv-type", type}});
    ASSERT_NE(engine_, nullptr);
    CheckPrompts();
    EXPECT_EQ(engine_->Counts().preemptions, 0u);
  }
}

TEST_F(AnswersTest, AreComputedAgainWhereThereIsNoPlaceBesideTheFirst) {
  for (const char* type : {"bf16", "int4"}) {
    SCOPED_TRACE(type);
    Start({{"kv-type", type}, {"max-sequences", "2"}});
    ASSERT_NE(engine_, nullptr);
    CheckPrompts();
  }
}

#ifdef SOFT_GPU_MODULE
TEST_F(AnswersTest, SharePagesOfAGpu) {
  for (const char* type : {"f32", "bf16", "int8"}) {
    SCOPED_TRACE(type);
    Start({{"kv-type", type},
           {"spart", "cuda"},
           {"cuda-module", SOFT_GPU_MODULE},
           {"homes", "gpu"},
           {"gpu-kv-gib", "0.01"},
           {"gpu-wait-ms", "120000"}});
    ASSERT_NE(engine_, nullptr);
    CheckPrompts();
    EXPECT_EQ(engine_->Counts().preemptions, 0u);
  }
}
#endif

}  // namespace
}  // namespace fastdecode
