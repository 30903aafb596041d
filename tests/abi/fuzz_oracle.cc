#include "tests/abi/fuzz_oracle.h"

#include "tests/engine/end_to_end/engine_runs.h"

namespace fastdecode {

namespace {

constexpr int kTinyContext = 256;

GenerateRequest WayOf(std::vector<int32_t> ids, int way) {
  GenerateRequest request = GreedyRequest(std::move(ids), kAnswerTokens);
  if (way == 0) return request;
  request.fields.temperature = 0.8f;
  request.fields.top_k = 20;
  request.fields.seed = static_cast<uint64_t>(way);
  return request;
}

std::string Detokenize(InferenceEngine& engine, const std::vector<int32_t>& tokens, size_t count) {
  char* text = nullptr;
  size_t bytes = 0;
  ThrowIfError(fd_detokenize(engine.get(), tokens.data(), count, &text, &bytes));
  const std::string copy(text, bytes);
  fd_string_free(text);
  return copy;
}

void FindAnswers(InferenceEngine& engine, FuzzModel* model) {
  std::vector<GenerateRequest> requests;
  for (const FuzzPrompt& prompt : model->prompts) {
    for (int way = 0; way < kWays; ++way) requests.push_back(WayOf(prompt.ids, way));
  }
  const std::vector<Answer> answers = RunAll(engine, requests, false);
  for (size_t i = 0; i < answers.size(); ++i) {
    RightAnswer& answer = model->prompts[i / kWays].answers[i % kWays];
    answer.tokens = answers[i].tokens;
    EXPECT_EQ(answer.tokens.size(), kAnswerTokens);
    for (size_t n = 0; model->has_tokenizer && n <= answer.tokens.size(); ++n) {
      answer.texts.push_back(Detokenize(engine, answer.tokens, n));
    }
  }
}

FuzzModel TinyModel(const std::string& dir) {
  FuzzModel model;
  model.folder = WriteTinyModel(dir, "tiny", kTinyContext, /*seed=*/4);
  model.kv_gib_of_token = 2.0 * 2 * 2 * 16 * 4 / (1 << 30);  // 2 layers of K and V of 2 heads of 16 floats
  const auto engine = MakeEngine(FuzzOptions(model));
  model.context = engine->max_context();
  model.vocab = engine->vocab_size();
  std::mt19937_64 random(1);
  for (const uint32_t length : {1, 3, 17, 28, 30, 31, 62, 90}) {  // some grow into another page of 32 soon
    model.prompts.push_back({RandomPrompt(random, model.vocab, length), "", {}});
  }
  FindAnswers(*engine, &model);
  return model;
}

// The one with a tokenizer.
FuzzModel DemoModel() {
  FuzzModel model;
  model.folder = std::string(FASTDECODE_TESTS_DIR) + "/../tools/demo_model/model";
  model.kv_gib_of_token = 4.0 * 2 * 2 * 32 * 4 / (1 << 30);
  const auto engine = MakeEngine(FuzzOptions(model));
  model.context = engine->max_context();
  model.vocab = engine->vocab_size();
  model.has_tokenizer = true;
  for (const char* text : {"Once upon a time", "Anna", "One day, Ben and his dog", "The old tree"}) {
    FuzzPrompt prompt;
    prompt.text = text;
    fd_prompt_part part = {};
    part.struct_size = sizeof(part);
    part.text = text;
    part.text_bytes = prompt.text.size();
    prompt.ids.resize(64);
    size_t count = 0;
    ThrowIfError(fd_tokenize(engine->get(), &part, 1, 1, prompt.ids.data(), prompt.ids.size(), &count));
    prompt.ids.resize(count);
    model.prompts.push_back(prompt);
  }
  FindAnswers(*engine, &model);
  return model;
}

}  // namespace

OptionList FuzzOptions(const FuzzModel& model) {
  return {{"model", model.folder}, {"compute", "f32"}, {"batch-invariant", "true"}, {"poll", "yield"}};
}

FuzzOracle::FuzzOracle() {
  models_.push_back(TinyModel(dir_.path()));
  models_.push_back(DemoModel());
}

}  // namespace fastdecode
