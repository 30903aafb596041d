// fastdecode bench step: decode steps at a given batch and context, over a window of whole rounds.
#include "tools/bench/step.h"

#include <algorithm>
#include <cstdio>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/bench/accuracy.h"
#include "tools/bench/attention.h"
#include "tools/bench/gemm.h"
#include "tools/bench/gpu.h"
#include "tools/bench/gpu_home.h"
#include "tools/bench/memory.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/bench/serve.h"
#include "tools/bench/step_window.h"
#include "tools/bench/summary.h"
#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/load_engine.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

struct BenchFlags {
  StepWindow window;
  bool json = false;
};

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
  if (number("stage_attend_ns") > 0) {
    std::snprintf(line, sizeof(line), "S-Part's threads attended for %.3f of the time, with %.2f GB/s of KV\n",
                  number("stage_attend"), number("stage_attend_gb_per_s"));
    text += line;
  }
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
  if (flags.window.batch > std::stoi(engine_flags.Value("max-sequences"))) {
    throw Error(FD_INVALID_ARGUMENT, "--batch: " + std::to_string(flags.window.batch) +
                                         " sequences cannot advance at once with --max-sequences " +
                                         engine_flags.Value("max-sequences"));
  }
  const std::unique_ptr<InferenceEngine> engine = LoadEngine(*options);
  nlohmann::json s = MeasureWindow(*engine, flags.window);
  s["machine"] = engine->Describe();
  return s;
}

void BenchStep(BenchFlags& flags, EngineFlags& engine_flags) {
  engine_flags.SetDefault("max-sequences", std::to_string(flags.window.batch));
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
  add("--batch", flags->window.batch, 1, 4096, "sequences over all micro-batches");
  add("--context", flags->window.context, 2, 1 << 20, "tokens of each sequence at the start");
  add("--rounds", flags->window.rounds, 1, 1 << 20, "steps of every micro-batch in the window");
  add("--warmup-rounds", flags->window.warmup_rounds, 1, 1 << 20, "steps before it");
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
