// fastdecode bench step: decode steps at a given batch and context, over a window of whole rounds.
#include "tools/bench_step.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/fastdecode.hpp"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/engine_flags.h"

namespace fastdecode {

namespace {

struct BenchFlags {
  int batch = 32;
  int context = 512;
  int rounds = 30;
  int warmup_rounds = 5;
  bool json = false;
};

// Requests whose first context - 1 tokens have random KV at their homes; every further token is a real step.
std::vector<TokenStream> SubmitBatch(InferenceEngine& engine, const BenchFlags& flags, int tokens) {
  std::vector<TokenStream> streams;
  uint64_t state = 1;
  for (int i = 0; i < flags.batch; ++i) {
    std::vector<int32_t> ids(flags.context);
    for (int32_t& id : ids) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      id = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(engine.vocab_size()));
    }
    GenerateRequest request(std::move(ids));
    request.fields.max_tokens = static_cast<uint32_t>(tokens);
    request.fields.temperature = 0;
    request.fields.ignore_eos = 1;
    request.fields.fill_tokens = static_cast<uint32_t>(flags.context - 1);
    streams.push_back(engine.Submit(request));
  }
  return streams;
}

// Waits for token number `index` of a stream.
void AwaitToken(TokenStream& stream, uint32_t index) {
  while (std::optional<TokenEvent> event = stream.Next()) {
    if (event->finished) throw Error(FD_UNAVAILABLE, "a sequence ended before the window was over: " + event->error);
    if (event->token_index >= index) return;
  }
}

nlohmann::json RunWindow(InferenceEngine& engine, const BenchFlags& flags) {
  // The window starts when every sequence has been through its first steps, and ends whole rounds later: between two tokens
  // of the same sequence every micro-batch makes as many steps.
  const int slack = 10;
  std::vector<TokenStream> streams = SubmitBatch(engine, flags, flags.warmup_rounds + flags.rounds + slack + 1000);
  for (TokenStream& stream : streams) AwaitToken(stream, static_cast<uint32_t>(flags.warmup_rounds));
  TokenStream& last = streams.back();
  // What came in meanwhile is passed over, so that the window starts at a boundary that is just over.
  uint32_t index = static_cast<uint32_t>(flags.warmup_rounds);
  while (std::optional<TokenEvent> event = last.Next(0)) index = event->token_index;
  AwaitToken(last, ++index);
  engine.ResetStatistics();
  AwaitToken(last, index + static_cast<uint32_t>(flags.rounds));
  return nlohmann::json::parse(engine.StatisticsJson());
}

void BenchStep(BenchFlags& flags, EngineFlags& engine_flags) {
  engine_flags.SetDefault("max-sequences", std::to_string(flags.batch));
  engine_flags.SetDefault("prefill-chunk", "16");
  const std::unique_ptr<EngineOptions> options = engine_flags.Build();
  InferenceEngine engine(*options);
  if (engine.max_context() < flags.context + flags.warmup_rounds + flags.rounds + 16) {
    throw Error(FD_INVALID_ARGUMENT, "--context: " + std::to_string(flags.context) + " and the window do not fit --max-context " +
                                         std::to_string(engine.max_context()));
  }
  nlohmann::json s = RunWindow(engine, flags);
  if (s["preemptions"].get<uint64_t>() > 0 || s["sampled_tokens"].get<uint64_t>() < static_cast<uint64_t>(flags.batch) * (flags.rounds - 2)) {
    throw Error(FD_RESOURCE_EXHAUSTED, "the homes do not hold " + std::to_string(flags.batch) + " sequences of this context: give --kv-gib more");
  }
  s["batch"] = flags.batch;
  s["context"] = flags.context;
  s["rounds"] = flags.rounds;
  s["micro_batches"] = std::stoi(engine_flags.Value("micro-batches"));
  s["step_us"] = s["step"].value("mean_us", 0.0);
  s["round_us"] = s["wall_ns"].get<double>() * 1e-3 / flags.rounds;
  const double s_busy_ns = s["s_busy_ns"].get<double>();
  s["weight_gb_per_s"] = s_busy_ns > 0 ? s["weight_bytes"].get<double>() * s["steps"].get<double>() / s_busy_ns : 0;
  s["s_over_r"] = s["r_busy_ns"].get<double>() > 0 ? s_busy_ns / s["r_busy_ns"].get<double>() : 0;
  s["machine"] = engine.Describe();
  if (flags.json) {
    std::printf("%s\n", s.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  std::printf("%s\n", engine.Describe().c_str());
  std::printf("batch %d, context %d, %d micro-batch(es), %d rounds\n", flags.batch, flags.context, s["micro_batches"].get<int>(), flags.rounds);
  std::printf("round %.1f us, step %.1f us, %.1f tokens/s\n", s["round_us"].get<double>(), s["step_us"].get<double>(), s["tokens_per_s"].get<double>());
  std::printf("S busy %.3f, R busy %.3f, S/R %.2f, overlap %.3f\n", s["s_busy"].get<double>(), s["r_busy"].get<double>(), s["s_over_r"].get<double>(), s["overlap"].get<double>());
  std::printf("weights %.2f GB/s while S is busy, KV %.2f GB/s while R is busy (%.1f MB a round)\n", s["weight_gb_per_s"].get<double>(), s["kv_gb_per_s"].get<double>(),
              s["kv_bytes"].get<double>() * 1e-6 / flags.rounds);
  for (const nlohmann::json& home : s["homes"]) {
    std::printf("home %d: busy %.3f, %.1f us a hop (p50)\n", home["index"].get<int>(), home["r_busy"].get<double>(), home["work"].value("p50_us", 0.0));
  }
}

}  // namespace

void AddBenchStep(CLI::App* bench) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = bench->add_subcommand("step", "Decode steps at a given batch and context: S, R, overlap, tokens/s");
  const auto add = [&](const char* name, int& value, int min, int max, const char* help) {
    command->add_option(name, value, help)->check(CLI::Range(min, max))->type_name("N")->capture_default_str();
  };
  add("--batch", flags->batch, 1, 4096, "sequences over all micro-batches");
  add("--context", flags->context, 2, 1 << 20, "tokens of each sequence at the start");
  add("--rounds", flags->rounds, 1, 1 << 20, "steps of every micro-batch in the window");
  add("--warmup-rounds", flags->warmup_rounds, 1, 1 << 20, "steps before it");
  command->add_flag("--json", flags->json, "one JSON object");
  const std::vector<FlagHelp> helps = {
      {"max-sequences", "sequences that advance at once, over all micro-batches (default: --batch)"},
      {"prefill-chunk", "prompt tokens that share one step of a micro-batch [16]"}};
  auto engine_flags = std::make_shared<EngineFlags>(command, EngineFlagNames(), helps);
  command->callback([flags, engine_flags] { BenchStep(*flags, *engine_flags); });
}

void AddBench(CLI::App& program) {
  CLI::App* bench = program.add_subcommand("bench", "Measure");
  bench->require_subcommand(1);
  AddBenchStep(bench);
}

}  // namespace fastdecode
