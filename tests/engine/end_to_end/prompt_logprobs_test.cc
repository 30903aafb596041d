// Log-probabilities of prompt tokens by a whole engine: those of the logits that the same request is shown, and of
// transformers'. Through the engine's own classes.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/build_request.h"
#include "engine/start/engine.h"
#include "tests/engine/end_to_end/engine_runs.h"
#include "tests/engine/end_to_end/golden.h"
#include "tests/logprob_check.h"

namespace fastdecode {
namespace {

constexpr double kLogprobTolerance = 2e-3;  // of what transformers has, in f32

std::unique_ptr<Engine> StartEngine(const OptionList& list) {
  Options options;
  for (const auto& [name, value] : OptionList{{"hop-timeout-ms", "60000"}, {"gpu-wait-ms", "120000"}} + list) {
    EXPECT_TRUE(SetOption(options, name, value).ok()) << name;
  }
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

// A request whose sequence is looked at before its last event is taken.
struct Asked {
  uint64_t id = 0;
  const Sequence* sequence = nullptr;
  std::vector<float> prompt_logits;
};

// Everything that is asked for in sampling memory lies in memory of any kind here, which the CPU and a software GPU
// can read.
Asked Ask(Engine* engine, const std::vector<int32_t>& prompt, uint32_t max_tokens, int32_t top, bool with_logits) {
  Asked asked;
  RequestFields fields;
  fields.prompt_ids = prompt.data();
  fields.prompt_id_count = prompt.size();
  fields.max_tokens = max_tokens;
  fields.temperature = 0;
  fields.ignore_eos = true;
  fields.prompt_logprobs = top;
  if (with_logits) {
    asked.prompt_logits.resize(prompt.size() * static_cast<size_t>(engine->spec().vocab));
    fields.prompt_logits = asked.prompt_logits.data();
    fields.prompt_logits_floats = asked.prompt_logits.size();
  }
  RequestContext context;
  context.spec = &engine->spec();
  context.tokenizer_missing_reason = &engine->tokenizer_missing_reason();
  context.max_context = engine->max_context();
  absl::StatusOr<std::unique_ptr<Request>> request = BuildRequest(context, fields);
  EXPECT_TRUE(request.ok()) << request.status();
  asked.sequence = &(*request)->first();
  EXPECT_TRUE(engine->desk().Submit(*std::move(request), &asked.id).ok());
  return asked;
}

void CheckAgainstLogits(const Sequence& sequence, const std::vector<float>& logits, size_t vocab) {
  const auto top = static_cast<size_t>(sequence.sampling.prompt_params.logprobs);
  ASSERT_TRUE(std::isnan(sequence.log.prompt_logprobs[0]));
  for (size_t p = 1; p < sequence.prompt_tokens; ++p) {
    const TokenLogprob* const listed = sequence.log.prompt_top_logprobs.data() + p * top;
    ASSERT_NO_FATAL_FAILURE(CheckLogprobs({logits.data() + (p - 1) * vocab, vocab}, sequence.log.tokens[p],
                                          sequence.log.prompt_logprobs[p], {listed, top}))
        << "position " << p;
  }
}

void CheckAgainstTransformers(const Sequence& sequence, const Golden& golden) {
  for (size_t i = 0; i < golden.positions.size(); ++i) {
    const size_t p = golden.positions[i] + 1;
    if (p >= sequence.prompt_tokens) continue;
    const std::vector<double> expected = LogSoftmax({golden.logits.data() + i * golden.vocab, golden.vocab});
    ASSERT_NEAR(sequence.log.prompt_logprobs[p], expected[static_cast<size_t>(golden.prompt[p])], kLogprobTolerance)
        << p;
  }
}

// Takes all events.
void CheckRequest(Engine* engine, const Golden& golden, const Asked& asked) {
  SCOPED_TRACE(asked.id);
  TakenEvent taken;
  ASSERT_EQ(engine->desk().Next(asked.id, &taken, kAnswerTimeoutNs), RequestDesk::NextResult::kEvent);
  ASSERT_EQ(taken.event->kind, RequestEvent::Kind::kPrompt) << taken.request->answers[0]->end.error;
  ASSERT_EQ(&taken.request->first(), asked.sequence);
  ASSERT_NO_FATAL_FAILURE(CheckAgainstTransformers(*asked.sequence, golden));
  if (!asked.prompt_logits.empty()) CheckAgainstLogits(*asked.sequence, asked.prompt_logits, golden.vocab);
  while (taken.event->kind != RequestEvent::Kind::kFinished) {
    ASSERT_EQ(engine->desk().Next(asked.id, &taken, kAnswerTimeoutNs), RequestDesk::NextResult::kEvent);
  }
  EXPECT_EQ(taken.request->answers[0]->end.finish, RequestFinish::kLength) << taken.request->answers[0]->end.error;
}

// Several at once, of different lengths, with tokens to come and without, with logits and without; and two alone.
void CheckAll(Engine* engine, const Golden& golden) {
  const size_t whole = golden.prompt.size();
  std::vector<Asked> all;
  all.push_back(Ask(engine, golden.prompt, 0, 20, /*with_logits=*/true));
  all.push_back(Ask(engine, golden.prompt, 3, 5, /*with_logits=*/true));
  all.push_back(Ask(engine, golden.prompt, 1, 0, /*with_logits=*/false));
  for (size_t i = 1; i <= 6; ++i) {
    all.push_back(Ask(engine, {golden.prompt.begin(), golden.prompt.begin() + static_cast<long>(i * whole / 7)},
                      static_cast<uint32_t>(i % 3) * 4, static_cast<int32_t>(i), /*with_logits=*/i % 2 == 0));
  }
  for (const Asked& asked : all) CheckRequest(engine, golden, asked);
  CheckRequest(engine, golden, Ask(engine, golden.prompt, 40, 5, /*with_logits=*/true));
  // Whoever has drained the engine may read what the last event has not been taken of.
  const Asked alone = Ask(engine, golden.prompt, 0, 20, /*with_logits=*/true);
  engine->desk().Drain(-1);
  CheckAgainstLogits(*alone.sequence, alone.prompt_logits, golden.vocab);
  CheckAgainstTransformers(*alone.sequence, golden);
  EXPECT_EQ(alone.sequence->times.decode.steps, 0u);
  EXPECT_GE(alone.sequence->times.prefill.steps, 1u);
}

TEST(PromptLogprobsTest, AreThoseOfTheLogitsWhateverTheChunks) {
  const Golden golden("gqa");
  for (const char* micro_batches : {"1", "2"}) {
    for (const char* chunk : {"1", "7", "37", "256"}) {
      SCOPED_TRACE(std::string(micro_batches) + " micro-batches, chunks of " + chunk);
      const auto engine = StartEngine({{"model", golden.folder},
                                       {"compute", "f32"},
                                       {"prefill-chunk", chunk},
                                       {"micro-batches", micro_batches},
                                       {"homes", "local:1"},
                                       {"max-sequences", "12"},
                                       {"poll", "yield"}});
      ASSERT_NE(engine, nullptr);
      CheckAll(engine.get(), golden);
    }
  }
}

#ifdef SOFT_GPU_MODULE
// On a GPU that is no home, that is one, and that has room for any prompt but not for all sequences: then prompts are
// computed there and pushed to the home that holds them.
TEST(PromptLogprobsTest, OnAGpuToo) {
  const Golden golden("gqa");
  const double page_gib = 2 * 2 * 32 * 2 * 32 * 4 * 0x1p-30;  // 2 layers, 2 KV heads of 32 elements, k and v, f32
  const std::string prompt_gib = std::to_string(10.5 * page_gib);
  const std::pair<std::string, std::string> kinds[] = {{"local:1", "0"}, {"gpu", "0.01"}, {"gpu,local:1", prompt_gib}};
  for (const auto& [homes, gib] : kinds) {
    for (const char* micro_batches : {"1", "2"}) {
      SCOPED_TRACE(homes + ", micro-batches " + micro_batches);
      const auto engine = StartEngine({{"model", golden.folder},
                                       {"spart", "cuda"},
                                       {"cuda-module", SOFT_GPU_MODULE},
                                       {"compute", "f32"},
                                       {"prefill-chunk", "37"},
                                       {"micro-batches", micro_batches},
                                       {"homes", homes},
                                       {"gpu-kv-gib", gib},
                                       {"kv-gib", "0.01"},
                                       {"max-context", "512"},
                                       {"max-sequences", "8"},
                                       {"poll", "yield"}});
      ASSERT_NE(engine, nullptr);
      CheckAll(engine.get(), golden);
      const std::string statistics = engine->StatisticsJson();
      const bool none_pushed = statistics.find("\"pushed_bytes\":0") != std::string::npos;
      EXPECT_EQ(none_pushed, homes != "gpu,local:1") << statistics;
    }
  }
}
#endif

}  // namespace
}  // namespace fastdecode
