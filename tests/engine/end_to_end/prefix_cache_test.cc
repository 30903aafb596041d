// What the prefix cache finds is what a run without it computes, bit for bit: tokens and log-probabilities of a whole
// engine. Through the engine's own classes.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/end_to_end/own_engine_fixture.h"

namespace fastdecode {
namespace {

struct CachedAnswer {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> logprobs;  // their bits
  bool operator==(const CachedAnswer&) const = default;
};

// A request, and how many of its prompt's tokens are to be found where rows of prompts have no kernel of their own.
struct Turn {
  std::vector<int32_t> prompt;
  uint32_t found = 0;
  uint32_t answers = 1;
};

class PrefixCacheTest : public OwnEngineTest {
 protected:
  std::vector<CachedAnswer> Ask(const Turn& turn, uint32_t* found) {
    RequestFields fields;
    fields.prompt_ids = turn.prompt.data();
    fields.prompt_id_count = turn.prompt.size();
    fields.max_tokens = kTokens;
    fields.temperature = 0.9f;
    fields.ignore_eos = true;
    fields.logprobs = 0;
    fields.seed = 7;
    fields.answers = turn.answers;
    uint64_t id = 0;
    EXPECT_TRUE(engine_->Submit(fields, &id).ok());
    std::vector<CachedAnswer> answers(turn.answers);
    TakenEvent taken;
    while (engine_->desk().Next(id, &taken, kAnswerTimeoutNs) == RequestDesk::NextResult::kEvent) {
      if (taken.event->kind != RequestEvent::Kind::kFinished) continue;
      const RequestAnswer& answer = *taken.request->answers.at(taken.event->answer);
      EXPECT_EQ(answer.end.finish, RequestFinish::kLength) << answer.end.error;
      const Sequence& sequence = answer.sequence;
      answers[answer.index].tokens = {sequence.log.tokens.begin() + sequence.prompt_tokens, sequence.log.tokens.end()};
      for (const float logprob : sequence.log.logprobs) {
        answers[answer.index].logprobs.push_back(std::bit_cast<uint32_t>(logprob));
      }
      *found = sequence.times.cached_tokens;
    }
    return answers;
  }

  // The prompts are made as the answers come; with and without a cache they are the same.
  void Check(const OptionList& options, bool finds_answers, bool finds_last_page) {
    std::vector<std::vector<CachedAnswer>> cold;
    for (const char* cache : {"off", "on"}) {
      SCOPED_TRACE(cache);
      const bool on = std::string(cache) == "on";
      Start(options + OptionList{{"prefix-cache", cache}});
      ASSERT_NE(engine_, nullptr);
      std::mt19937_64 random(3);
      const auto draw = [&](size_t tokens) { return RandomPrompt(random, kVocab, tokens); };
      const auto join = [](std::vector<int32_t> first, const std::vector<int32_t>& second) {
        first.insert(first.end(), second.begin(), second.end());
        return first;
      };
      const std::vector<int32_t> prompt = draw(100), tail = draw(20), whole(prompt.begin(), prompt.begin() + 96);
      size_t asked = 0;
      const auto ask = [&](const Turn& turn) {
        SCOPED_TRACE("turn " + std::to_string(asked));
        uint32_t found = 0;
        std::vector<CachedAnswer> answers = Ask(turn, &found);
        EXPECT_EQ(found, on ? turn.found : 0);
        if (!on) cold.push_back(answers);
        EXPECT_EQ(answers, cold[asked]);
        ++asked;
        return answers[0].tokens;
      };
      const std::vector<int32_t> answer = ask({prompt});
      ask({prompt, 96});
      ask({join(prompt, tail), 96});
      ask({whole, finds_last_page ? 95u : 64u});
      ask({whole, finds_last_page ? 95u : 64u, /*answers=*/3});
      // 139 tokens of the first answer were computed; the prompt's last page is in part an answer's.
      const std::vector<int32_t> next = join(join(prompt, answer), tail);
      ask({next, finds_answers ? 128u : 96u});
      ask({next, finds_last_page ? 159u : 128u});  // 160 tokens
      ask({draw(50)});
    }
  }

  static constexpr uint32_t kTokens = 40;
};

TEST_F(PrefixCacheTest, WithAnyTypeInExactMode) {
  for (const char* type : {"f32", "bf16", "int8", "int4"}) {
    SCOPED_TRACE(type);
    Check({{"compute", "f32"}, {"kv-type", type}}, /*finds_answers=*/true, std::string(type) != "int4");
  }
}

TEST_F(PrefixCacheTest, WithAnyTypeAndBf16) {
  for (const char* type : {"bf16", "int8", "int4"}) {
    SCOPED_TRACE(type);
    Check({{"compute", "bf16"}, {"kv-type", type}}, std::string(type) == "bf16", std::string(type) != "int4");
  }
}

TEST_F(PrefixCacheTest, InChunksOnSplitCoresAndAtTwoHomes) {
  for (const char* chunk : {"5", "37"}) {
    SCOPED_TRACE(chunk);
    Check({{"compute", "f32"}, {"core-plan", "split"}, {"prefill-chunk", chunk}, {"homes", "local:2"}}, true, true);
  }
}

#ifdef SOFT_GPU_MODULE
TEST_F(PrefixCacheTest, AtAGpu) {
  for (const char* type : {"f32", "bf16", "int8"}) {
    SCOPED_TRACE(type);
    Check({{"compute", "f32"},
           {"kv-type", type},
           {"spart", "cuda"},
           {"cuda-module", SOFT_GPU_MODULE},
           {"homes", "gpu"},
           {"gpu-kv-gib", "0.01"},
           {"gpu-wait-ms", "120000"}},
          /*finds_answers=*/false, true);
  }
}
#endif

}  // namespace
}  // namespace fastdecode
