#include "tests/engine/end_to_end/engine_runs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace fastdecode {

namespace {

// Whether condition() holds before kAnswerTimeoutNs has passed.
template <class Condition>
bool BecomesTrue(Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kAnswerTimeoutNs);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace

OptionList operator+(OptionList left, const OptionList& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::unique_ptr<InferenceEngine> MakeEngine(const OptionList& list) {
  // Threads that yield to others on their cores may stand still for 10 seconds (Linux 6.18): no home is lost by that.
  const OptionList patient = {{"hop-timeout-ms", "60000"}, {"gpu-wait-ms", "120000"}};
  EngineOptions options;
  for (const auto& [name, value] : patient + list) options.Set(name, value);
  return std::make_unique<InferenceEngine>(options);
}

Error EngineError(const OptionList& options) {
  try {
    MakeEngine(options);
  } catch (const Error& error) {
    return error;
  }
  return Error(FD_OK, "");
}

void Record(const TokenEvent& event, Answer* answer) {
  if (event.kind == FD_EVENT_PAUSED) {
    answer->pauses.push_back(event.home);
    return;
  }
  if (!event.finished) {
    EXPECT_EQ(event.token_index, answer->tokens.size()) << "tokens come in order, each once";
    answer->tokens.insert(answer->tokens.end(), event.tokens.begin(), event.tokens.end());
    return;
  }
  answer->ended = true;
  answer->finish = event.finish;
  answer->error = event.error;
  answer->end_ns = event.time_ns;
  if (event.times) answer->times = *event.times;
  EXPECT_EQ(event.generated_tokens, answer->tokens.size());
}

void ReadToEnd(TokenStream& stream, Answer* answer) {
  while (!answer->ended) {
    const std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs);
    if (!event) {
      ADD_FAILURE() << "request " << stream.id() << " was lost after " << answer->tokens.size() << " tokens";
      return;
    }
    Record(*event, answer);
  }
  EXPECT_FALSE(stream.Next(0).has_value()) << "something after the last event";
}

std::vector<Answer> RunAll(InferenceEngine& engine, const std::vector<GenerateRequest>& requests, bool with_logits) {
  std::vector<Answer> answers(requests.size());
  std::vector<TokenStream> streams;
  for (size_t i = 0; i < requests.size(); ++i) {
    BenchRequest bench;
    if (with_logits) {
      std::vector<float>& logits = answers[i].prompt_logits;
      logits.resize(requests[i].prompt_ids.size() * static_cast<size_t>(engine.vocab_size()));
      bench.prompt_logits = logits.data();
      bench.prompt_logits_floats = logits.size();
    }
    streams.push_back(Submit(engine, requests[i], bench));
  }
  for (size_t i = 0; i < requests.size(); ++i) ReadToEnd(streams[i], &answers[i]);
  return answers;
}

GenerateRequest GreedyRequest(std::vector<int32_t> prompt_ids, uint32_t max_tokens) {
  GenerateRequest request(std::move(prompt_ids));
  request.fields.max_tokens = max_tokens;
  request.fields.temperature = 0;
  request.fields.ignore_eos = 1;
  return request;
}

std::vector<int32_t> RandomPrompt(std::mt19937_64& random, int vocab, uint32_t tokens) {
  std::vector<int32_t> ids(tokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

GenerateRequest RandomRequest(std::mt19937_64& random, int vocab, uint32_t prompt_tokens, uint32_t max_tokens) {
  GenerateRequest request(RandomPrompt(random, vocab, prompt_tokens));
  fd_request& fields = request.fields;
  const auto share = [&random] { return static_cast<float>(random() % 1000) / 1000; };
  const auto happens = [&random](uint64_t one_in) { return random() % one_in == 0; };
  fields.max_tokens = max_tokens;
  fields.seed = random();
  fields.temperature = happens(4) ? 0 : 0.1f + 1.5f * share();
  if (happens(2)) fields.top_k = 1 + static_cast<int32_t>(random() % 50);
  if (happens(2)) fields.top_p = 0.5f + share() / 2;
  if (happens(4)) fields.min_p = share() / 5;
  if (happens(4)) fields.repetition_penalty = 1 + share() / 2;
  if (happens(4)) fields.presence_penalty = share();
  if (happens(4)) fields.frequency_penalty = share();
  if (happens(8)) fields.logprobs = static_cast<int32_t>(random() % 5);
  fields.ignore_eos = happens(2);
  fields.min_tokens = static_cast<uint32_t>(random() % (max_tokens + 1));
  if (happens(4)) request.stop_token_ids = RandomPrompt(random, vocab, 2);
  if (happens(4)) request.logit_bias = {{RandomPrompt(random, vocab, 1)[0], 10 * share() - 5}};
  return request;
}

std::string WriteTinyModel(const std::string& dir, const std::string& name, int max_context, uint64_t seed) {
  const std::string path = dir + "/" + name;
  fd_synth synth;
  fd_synth_init(&synth, sizeof(synth));
  synth.shape = "tiny-random";
  synth.seed = seed;
  synth.dtype = "f32";
  synth.out_dir = path.c_str();
  ThrowIfError(fd_synthesize(&synth));
  const std::string config_path = path + "/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(config_path));
  config["max_position_embeddings"] = max_context;
  std::ofstream(config_path) << config.dump(2);
  return path;
}

double Statistic(const InferenceEngine& engine, const std::string& name) {
  const nlohmann::json statistics = nlohmann::json::parse(engine.StatisticsJson());
  if (!statistics.contains(name)) {
    ADD_FAILURE() << "no statistic " << name;
    return 0;
  }
  return statistics[name].get<double>();
}

HomeCounts CountHomes(const InferenceEngine& engine) {
  HomeCounts counts;
  const nlohmann::json statistics = nlohmann::json::parse(engine.StatisticsJson());
  for (const nlohmann::json& home : statistics.at("homes")) {
    ++counts.all;
    counts.up += home.at("up").get<bool>();
  }
  return counts;
}

std::optional<HomesPages> AskForPages(const InferenceEngine& engine, int home) {
  const nlohmann::json said = nlohmann::json::parse(engine.PagesJson());
  for (const nlohmann::json& pages : said) {
    if (pages.at("index").get<int>() != home) continue;
    const auto number = [&](const char* name) { return pages.at(name).get<uint64_t>(); };
    return HomesPages{number("pages"), number("pages_used"), number("pages_free"), number("pages_held"),
                      number("age_ns")};
  }
  return std::nullopt;
}

std::optional<HomesPages> AwaitPages(const InferenceEngine& engine, int home,
                                     const std::function<bool(const HomesPages&)>& condition) {
  std::optional<HomesPages> pages;
  const auto is_there = [&] { return (pages = AskForPages(engine, home)).has_value() && condition(*pages); };
  return BecomesTrue(is_there) ? pages : std::nullopt;
}

double HopsOfHome(const InferenceEngine& engine, const std::string& name) {
  double hops = 0;
  const nlohmann::json statistics = nlohmann::json::parse(engine.StatisticsJson());
  for (const nlohmann::json& home : statistics.at("homes")) {
    if (home.at("name").get<std::string>().rfind(name, 0) == 0) hops += home.at("hops").get<double>();
  }
  return hops;
}

bool WaitForAllHomes(const InferenceEngine& engine) {
  return BecomesTrue([&engine] {
    const HomeCounts counts = CountHomes(engine);
    return counts.up == counts.all;
  });
}

void ExpectSoon(const InferenceEngine& engine, const std::string& name, double value) {
  BecomesTrue([&] { return Statistic(engine, name) == value; });
  EXPECT_EQ(Statistic(engine, name), value) << name;
}

}  // namespace fastdecode
