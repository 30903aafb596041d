// fastdecode bench step: decode steps at a given batch and context, over a window of whole rounds.
#include "tools/bench/step.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fastdecode/fastdecode_bench.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "numa/clock.h"
#include "tools/bench/accuracy.h"
#include "tools/bench/attention.h"
#include "tools/bench/gemm.h"
#include "tools/bench/gpu.h"
#include "tools/bench/gpu_home.h"
#include "tools/bench/memory.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/bench/serve.h"
#include "tools/bench/summary.h"
#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/load_engine.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

// Rounds that may pass between a token and its being seen here.
constexpr int kSlackRounds = 16;

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
    BenchRequest bench;
    bench.fill_tokens = static_cast<uint32_t>(flags.context - 1);
    streams.push_back(Submit(engine, request, bench));
  }
  return streams;
}

// The index of an event's last token. An event has several where nobody took them for long.
uint32_t LastIndex(const TokenEvent& event) {
  return event.token_index + static_cast<uint32_t>(event.tokens.size()) - 1;
}

// Waits for token number `index` of a stream.
void AwaitToken(TokenStream& stream, uint32_t index) {
  while (std::optional<TokenEvent> event = stream.Next()) {
    if (event->finished) {
      const std::string reason = event->error.empty() ? "it filled its context; give fewer --rounds" : event->error;
      throw Error(FD_UNAVAILABLE, "a sequence ended before the window was over: " + reason);
    }
    if (LastIndex(*event) >= index) return;
  }
}

// Passes over what is there of a stream, whose last token was number `index`. Returns its last token now.
uint32_t PassOver(TokenStream& stream, uint32_t index) {
  while (std::optional<TokenEvent> event = stream.Next(0)) {
    if (!event->finished) index = LastIndex(*event);
  }
  return index;
}

// Whether what is there of a stream goes up to its end.
bool HasEnded(TokenStream& stream) {
  while (std::optional<TokenEvent> event = stream.Next(0)) {
    if (event->finished) return true;
  }
  return false;
}

// Cancels all, and waits until none runs: before, the engine's queue may have no room for as many again.
void EndAll(std::vector<TokenStream>& streams) {
  for (TokenStream& stream : streams) stream.Cancel();
  for (TokenStream& stream : streams) {
    while (stream.Next()) {
    }
  }
}

// Throws unless all sequences fit their homes as long as the window lasts: otherwise some would wait for others to end.
void CheckHomesHold(const InferenceEngine& engine, const BenchFlags& flags) {
  const uint64_t tokens = static_cast<uint64_t>(flags.context + flags.warmup_rounds + flags.rounds + kSlackRounds);
  const uint64_t pages = (tokens + 31) / 32 + 1;
  uint64_t sequences = 0;
  const nlohmann::json statistics = nlohmann::json::parse(engine.StatisticsJson());
  for (const nlohmann::json& home : statistics["homes"]) {
    sequences += home["pages"].get<uint64_t>() / pages;
  }
  if (sequences >= static_cast<uint64_t>(flags.batch)) return;
  throw Error(FD_RESOURCE_EXHAUSTED, "--batch: the homes hold " + std::to_string(sequences) + " sequences of " +
                                         std::to_string(tokens) + " tokens, not " + std::to_string(flags.batch) +
                                         "; --kv-gib gives them more memory");
}

void WarnOfRounds(uint32_t rounds, const BenchFlags& flags) {
  if (rounds >= 0.9 * flags.rounds - 1 && rounds <= 1.1 * flags.rounds + 1) return;
  std::fprintf(stderr,
               "fastdecode: warning: the window caught %u rounds, not %d: steps are short and the machine is busy; "
               "give more --rounds\n",
               rounds, flags.rounds);
}

// What the homes say of their pages while the sequences run: homes count at most every 100 ms, so that a short window
// may have to wait for a count that was not there before it. A home that says nothing is left as it is.
void AddPages(const InferenceEngine& engine, uint64_t window_start_ns, nlohmann::json& s) {
  constexpr uint64_t kWaitNsMax = 300'000'000;
  const uint64_t start_ns = NowNs();
  nlohmann::json said;
  const auto is_recent = [&](const nlohmann::json& pages) {
    return pages.at("age_ns").get<uint64_t>() <= NowNs() - window_start_ns;
  };
  do {
    said = nlohmann::json::parse(engine.PagesJson());
    if (said.size() == s["homes"].size() && std::all_of(said.begin(), said.end(), is_recent)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (NowNs() - start_ns < kWaitNsMax);
  for (nlohmann::json& pages : said) {
    if (!is_recent(pages)) continue;
    pages.erase("age_ns");
    for (nlohmann::json& home : s["homes"]) {
      if (home["index"] == pages["index"]) home.update(pages);
    }
  }
}

// Counters over a window that starts when every sequence has been through its first steps, and ends whole rounds of the
// last sequence later. None, if a sequence had ended by then: where steps take a fraction of a millisecond, one that
// the machine keeps from reading its tokens comes too late.
std::optional<nlohmann::json> RunWindow(InferenceEngine& engine, const BenchFlags& flags) {
  std::vector<TokenStream> streams =
      SubmitBatch(engine, flags, flags.warmup_rounds + flags.rounds + kSlackRounds + 1000);
  for (TokenStream& stream : streams) AwaitToken(stream, static_cast<uint32_t>(flags.warmup_rounds));
  TokenStream& last = streams.back();
  // What came in meanwhile is passed over, so that the window starts at a boundary that is just over.
  uint32_t index = PassOver(last, static_cast<uint32_t>(flags.warmup_rounds));
  AwaitToken(last, ++index);
  engine.ResetStatistics();
  const uint64_t window_start_ns = NowNs();
  const uint32_t first = PassOver(last, index), end = first + static_cast<uint32_t>(flags.rounds);
  AwaitToken(last, end);
  nlohmann::json s = nlohmann::json::parse(engine.StatisticsJson());
  const uint32_t rounds = PassOver(last, end) - first;
  if (s["active_sequences"].get<int>() < flags.batch && std::any_of(streams.begin(), streams.end(), HasEnded)) {
    EndAll(streams);
    return std::nullopt;
  }
  WarnOfRounds(rounds, flags);
  AddPages(engine, window_start_ns, s);
  return s;
}

nlohmann::json RunWholeWindow(InferenceEngine& engine, const BenchFlags& flags) {
  constexpr int kAttempts = 5;
  for (int i = 0; i < kAttempts; ++i) {
    if (std::optional<nlohmann::json> s = RunWindow(engine, flags); s.has_value()) return *std::move(s);
  }
  throw Error(FD_UNAVAILABLE, "sequences ended before the window was over, " + std::to_string(kAttempts) +
                                  " times: steps are short and the machine is busy; give fewer --rounds");
}

// Adds what is derived from the window's counters. `micro_batches_max`: so many may have sequences. All have, and their
// steps as many tokens, where micro-batches grow evenly; beside a GPU home one may have all, or step more often than
// the others. So rounds are counted by tokens, of which a round has one for each sequence.
void AddFigures(nlohmann::json& s, const BenchFlags& flags, int micro_batches_max) {
  const auto number = [&](const char* name) { return s[name].get<double>(); };
  const double rounds = number("sampled_tokens") / flags.batch;
  const int steps_a_round = rounds > 0 ? static_cast<int>(std::lround(number("steps") / rounds)) : 0;
  const int micro_batches = std::clamp(steps_a_round, 1, micro_batches_max);
  s["batch"] = flags.batch;
  s["context"] = flags.context;
  s["micro_batches"] = micro_batches;
  s["rounds"] = rounds;
  s["step_us"] = s["step"].value("mean_us", 0.0);
  s["round_us"] = rounds > 0 ? number("wall_ns") * 1e-3 / rounds : 0;
  const double s_busy_ns = number("s_busy_ns"), r_busy_ns = number("r_busy_ns");
  s["weight_gb_per_s"] = s_busy_ns > 0 ? number("weight_bytes") * number("steps") / s_busy_ns : 0;
  s["s_over_r"] = r_busy_ns > 0 ? s_busy_ns / r_busy_ns : 0;
  s["kv_mb_per_round"] = rounds > 0 ? number("kv_bytes") * 1e-6 / rounds : 0;
}

// What the same cores read in the same run, with the engine gone: each side alone, and both at once as while they
// overlap.
void AddReadTest(nlohmann::json& s) {
  const CoreGroup s_cores = s["s_cores"];
  CoreGroup r_cores;
  int homes = 0;
  for (const nlohmann::json& home : s["homes"]) {
    if (!home.contains("cores")) continue;  // another process's
    const CoreGroup cores = home["cores"];
    r_cores.insert(r_cores.end(), cores.begin(), cores.end());
    ++homes;
  }
  nlohmann::json& read = s["read_test"];
  const double s_alone = MeasureReadBandwidth({s_cores})[0];
  read["s_gb_per_s"] = s_alone;
  s["weights_of_read"] = s["weight_gb_per_s"].get<double>() / s_alone;
  if (homes == 0) return;
  const double r_alone = MeasureReadBandwidth({r_cores})[0] / homes;
  read["r_gb_per_s"] = r_alone;
  const bool share =
      std::find_first_of(s_cores.begin(), s_cores.end(), r_cores.begin(), r_cores.end()) != s_cores.end();
  if (!share) {  // else they do not read at once
    const std::vector<double> together = MeasureReadBandwidth({s_cores, r_cores});
    read["together_s_gb_per_s"] = together[0];
    read["together_r_gb_per_s"] = together[1] / homes;
  }
  if (static_cast<size_t>(homes) == s["homes"].size()) s["kv_of_read"] = s["kv_gb_per_s"].get<double>() / r_alone;
}

std::string Text(const nlohmann::json& s) {
  const auto number = [&](const char* name) { return s[name].get<double>(); };
  char line[512];
  std::snprintf(line, sizeof(line),
                "batch %d, context %d, %d micro-batch(es), %.1f rounds\n"
                "round %.1f us, step %.1f us, %.1f tokens/s\n"
                "S busy %.3f, R busy %.3f, S/R %.2f, overlap %.3f\n"
                "weights %.2f GB/s while S is busy, KV %.2f GB/s while R is busy (%.1f MB a round)\n",
                s["batch"].get<int>(), s["context"].get<int>(), s["micro_batches"].get<int>(), number("rounds"),
                number("round_us"), number("step_us"), number("tokens_per_s"), number("s_busy"), number("r_busy"),
                number("s_over_r"), number("overlap"), number("weight_gb_per_s"), number("kv_gb_per_s"),
                number("kv_mb_per_round"));
  std::string text = s["machine"].get<std::string>() + "\n" + line;
  const nlohmann::json& read = s["read_test"];
  std::snprintf(line, sizeof(line), "read test of the same cores: S %.2f GB/s", read["s_gb_per_s"].get<double>());
  text += line;
  if (read.contains("r_gb_per_s")) {
    std::snprintf(line, sizeof(line), ", R %.2f a home", read["r_gb_per_s"].get<double>());
    text += line;
  }
  if (read.contains("together_s_gb_per_s")) {
    std::snprintf(line, sizeof(line), "; both at once %.2f and %.2f", read["together_s_gb_per_s"].get<double>(),
                  read["together_r_gb_per_s"].get<double>());
    text += line;
  }
  std::snprintf(line, sizeof(line), "\nof the read alone: weights %.2f", s["weights_of_read"].get<double>());
  text += line;
  if (s.contains("kv_of_read")) {
    std::snprintf(line, sizeof(line), ", KV %.2f", s["kv_of_read"].get<double>());
    text += line;
  }
  text += "\n";
  for (const nlohmann::json& home : s["homes"]) {
    std::snprintf(line, sizeof(line), "home %d: busy %.3f, %.1f us a hop (p50)", home["index"].get<int>(),
                  home["r_busy"].get<double>(), home["work"].value("p50_us", 0.0));
    text += line;
    if (home.contains("pages_used")) {
      const auto pages = [&](const char* name) { return home[name].get<unsigned long long>(); };
      std::snprintf(line, sizeof(line), "; %llu KV pages: %llu used, %llu free, runs hold %llu unused", pages("pages"),
                    pages("pages_used"), pages("pages_free"), pages("pages_held"));
      text += line;
    }
    text += "\n";
  }
  return text;
}

nlohmann::json MeasureSteps(const BenchFlags& flags, const EngineFlags& engine_flags) {
  const std::unique_ptr<EngineOptions> options = engine_flags.Build();
  if (flags.batch > std::stoi(engine_flags.Value("max-sequences"))) {
    throw Error(FD_INVALID_ARGUMENT, "--batch: " + std::to_string(flags.batch) +
                                         " sequences cannot advance at once with --max-sequences " +
                                         engine_flags.Value("max-sequences"));
  }
  const std::unique_ptr<InferenceEngine> made = LoadEngine(*options);
  InferenceEngine& engine = *made;
  if (engine.max_context() < flags.context + flags.warmup_rounds + flags.rounds + kSlackRounds) {
    throw Error(FD_INVALID_ARGUMENT, "--context: " + std::to_string(flags.context) + " and " +
                                         std::to_string(flags.warmup_rounds + flags.rounds + kSlackRounds) +
                                         " rounds do not fit the context of " + std::to_string(engine.max_context()));
  }
  CheckHomesHold(engine, flags);
  nlohmann::json s = RunWholeWindow(engine, flags);
  if (s["preemptions"].get<uint64_t>() > 0) {
    throw Error(FD_RESOURCE_EXHAUSTED,
                "--kv-gib: sequences were preempted within the window; give the homes more memory");
  }
  if (const auto active = s["active_sequences"].get<int>(); active < flags.batch) {
    throw Error(FD_RESOURCE_EXHAUSTED,
                "--batch: only " + std::to_string(active) + " of " + std::to_string(flags.batch) +
                    " sequences advanced at once; the others waited for room at the fastest home");
  }
  AddFigures(s, flags, std::min(s["micro_batches"].get<int>(), flags.batch));
  s["machine"] = engine.Describe();
  return s;
}

void BenchStep(BenchFlags& flags, EngineFlags& engine_flags) {
  engine_flags.SetDefault("max-sequences", std::to_string(flags.batch));
  engine_flags.SetDefault("prefill-chunk", "16");
  nlohmann::json s = MeasureSteps(flags, engine_flags);
  AddReadTest(s);
  WriteOut(flags.json ? ToLine(s) : Text(s));
}

}  // namespace

void AddBenchStep(CLI::App* bench) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      bench->add_subcommand("step", "Decode steps at a given batch and context: S, R, overlap, tokens/s");
  const auto add = [&](const char* name, int& value, int min, int max, const char* help) {
    command->add_option(name, value, help)->transform(Number(min, max))->type_name("N")->capture_default_str();
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
  AddBenchMemory(bench);
  AddBenchAttention(bench);
  AddBenchGemm(bench);
  AddBenchGpu(bench);
  AddBenchGpuHome(bench);
  AddBenchAccuracy(bench);
  AddBenchServe(bench);
}

}  // namespace fastdecode
