// fastdecode bench gpu-home: attention of decode steps over KV in a GPU's memory, beside copies within it; and prompts
// there, beside their GEMMs alone.
#include "tools/bench/gpu_home.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/bench/gpu_home_bench.h"
#include "nlohmann/json.hpp"
#include "numa/core_plan.h"
#include "numa/log.h"
#include "numa/pinned_thread.h"
#include "numa/topology.h"
#include "tools/bench/summary.h"
#include "tools/engine_flags.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

// One measurement of attention: as many steps' as make the launch's own time small.
constexpr int kAttentionTimes = 16;

struct HomeFlags {
  std::vector<int> batches = {64};
  std::vector<int> contexts = {512, 4096};
  std::vector<int> prompts = {2048};
  int chunk = 256;
  int repetitions = 20;
  bool json = false;
};

struct AttentionFigures {
  int batch = 0, context = 0;
  uint64_t kv_bytes = 0;
  std::vector<double> us;  // of all layers, of each repetition
};

struct PromptFigures {
  int tokens = 0;
  double flop = 0;
  // Of each repetition: the prompt, its GEMMs alone, the prompt with its KV pushed to another home; the GEMMs' share of
  // the prompt, and what pushing adds to it.
  std::vector<double> us, gemms_us, pushed_us, share, push_cost;
};

struct HomeReport {
  std::string spart;
  int layers = 0;
  double read_rate = 0;  // bytes a second
  std::vector<AttentionFigures> attention;
  std::vector<PromptFigures> prompts;
};

absl::Status MeasureGpuAttention(GpuHomeBench* bench, int repetitions, AttentionFigures* figures) {
  if (absl::Status bad = bench->Place(figures->batch, figures->context); !bad.ok()) return bad;
  figures->kv_bytes = bench->kv_bytes(figures->batch, figures->context);
  for (int i = 0; i < repetitions; ++i) {
    const absl::StatusOr<double> ns = bench->RunAttention(kAttentionTimes);
    if (!ns.ok()) return ns.status();
    figures->us.push_back(*ns * 1e-3);
  }
  return absl::OkStatus();
}

absl::Status MeasurePrompt(GpuHomeBench* bench, int repetitions, PromptFigures* figures) {
  // The first of each chooses algorithms, and makes graphs.
  if (const auto unused = bench->RunPrompt(figures->tokens); !unused.ok()) return unused.status();
  absl::StatusOr<double> before = bench->RunPromptGemms(figures->tokens);
  if (before.ok()) before = bench->RunPromptGemms(figures->tokens);
  if (!before.ok()) return before.status();
  for (int i = 0; i < repetitions; ++i) {
    const absl::StatusOr<uint64_t> ns = bench->RunPrompt(figures->tokens);
    if (!ns.ok()) return ns.status();
    const absl::StatusOr<uint64_t> pushed_ns = bench->RunPrompt(figures->tokens, /*pushed=*/true);
    if (!pushed_ns.ok()) return pushed_ns.status();
    const absl::StatusOr<double> after = bench->RunPromptGemms(figures->tokens);
    if (!after.ok()) return after.status();
    const double gemms_ns = (*before + *after) / 2;
    figures->us.push_back(static_cast<double>(*ns) * 1e-3);
    figures->pushed_us.push_back(static_cast<double>(*pushed_ns) * 1e-3);
    figures->push_cost.push_back(static_cast<double>(*pushed_ns) / static_cast<double>(*ns) - 1);
    figures->gemms_us.push_back(gemms_ns * 1e-3);
    figures->share.push_back(gemms_ns / static_cast<double>(*ns));
    before = after;
  }
  return absl::OkStatus();
}

// Steps without a prompt's chunk and steps with one are of two S-Parts: one step has as many rows as the other has
// sequences. Thread: one that is pinned.
absl::StatusOr<HomeReport> Measure(const std::map<std::string, std::string>& options, const HomeFlags& flags,
                                   const std::vector<int>& cores, Logger* log) {
  HomeReport report;
  {
    const int sequences = *std::max_element(flags.batches.begin(), flags.batches.end());
    absl::StatusOr<std::unique_ptr<GpuHomeBench>> bench =
        GpuHomeBench::Create(options, sequences, /*chunk=*/1, cores, log);
    if (!bench.ok()) return bench.status();
    report.spart = (*bench)->Describe();
    report.layers = (*bench)->layers();
    report.read_rate = (*bench)->read_rate();
    for (const int context : flags.contexts) {
      for (const int batch : flags.batches) {
        AttentionFigures& figures = report.attention.emplace_back();
        figures.batch = batch;
        figures.context = context;
        if (absl::Status bad = MeasureGpuAttention(bench->get(), flags.repetitions, &figures); !bad.ok()) return bad;
      }
    }
  }
  absl::StatusOr<std::unique_ptr<GpuHomeBench>> bench = GpuHomeBench::Create(options, 1, flags.chunk, cores, log);
  if (!bench.ok()) return bench.status();
  for (const int tokens : flags.prompts) {
    PromptFigures& figures = report.prompts.emplace_back();
    figures.tokens = tokens;
    figures.flop = (*bench)->prompt_flop(tokens);
    if (absl::Status bad = MeasurePrompt(bench->get(), flags.repetitions, &figures); !bad.ok()) return bad;
  }
  return report;
}

nlohmann::json Figures(const HomeReport& report, const HomeFlags& flags) {
  nlohmann::json out = {{"s_part", report.spart},
                        {"layers", report.layers},
                        {"copy_gb_per_s", report.read_rate * 1e-9},
                        {"chunk", flags.chunk},
                        {"attention", nlohmann::json::array()},
                        {"prompts", nlohmann::json::array()}};
  for (const AttentionFigures& figures : report.attention) {
    const double us = Summarize(figures.us).median, bytes_per_s = static_cast<double>(figures.kv_bytes) / us * 1e6;
    out["attention"].push_back({{"batch", figures.batch},
                                {"context", figures.context},
                                {"us", ToJson(Summarize(figures.us))},
                                {"kv_bytes", figures.kv_bytes},
                                {"kv_gb_per_s", bytes_per_s * 1e-9},
                                {"of_copies", report.read_rate > 0 ? nlohmann::json(bytes_per_s / report.read_rate)
                                                                   : nlohmann::json(nullptr)}});
  }
  for (const PromptFigures& figures : report.prompts) {
    out["prompts"].push_back({{"tokens", figures.tokens},
                              {"us", ToJson(Summarize(figures.us))},
                              {"gemms_us", ToJson(Summarize(figures.gemms_us))},
                              {"gemms_over_prompt", ToJson(Summarize(figures.share))},
                              {"pushed_us", ToJson(Summarize(figures.pushed_us))},
                              {"push_cost", ToJson(Summarize(figures.push_cost))},
                              {"tflop_per_s", figures.flop / Summarize(figures.us).median * 1e-6}});
  }
  return out;
}

std::string Text(const HomeReport& report, const HomeFlags& flags) {
  char line[256];
  std::string text = report.spart + "\n";
  std::snprintf(line, sizeof(line), "attention of decode steps, %d layers; copies on the device: %.1f GB/s\n",
                report.layers, report.read_rate * 1e-9);
  text += line;
  std::snprintf(line, sizeof(line), "%6s %8s %10s  %-28s %10s  %s\n", "batch", "context", "MB of KV", "us", "KV GB/s",
                "of copies");
  text += line;
  const nlohmann::json figures = Figures(report, flags);
  for (size_t i = 0; i < report.attention.size(); ++i) {
    const AttentionFigures& one = report.attention[i];
    const nlohmann::json& row = figures["attention"][i];
    std::snprintf(line, sizeof(line), "%6d %8d %10.1f  %-28s %10.1f  ", one.batch, one.context,
                  static_cast<double>(one.kv_bytes) * 1e-6, ToText(Summarize(one.us), 1).c_str(),
                  row["kv_gb_per_s"].get<double>());
    text += line;
    std::snprintf(line, sizeof(line), "%.3f", row["of_copies"].is_null() ? 0 : row["of_copies"].get<double>());
    text += row["of_copies"].is_null() ? "-\n" : std::string(line) + "\n";
  }
  std::snprintf(line, sizeof(line), "prompts, in chunks of %d\n%6s  %-28s %-28s %-20s  %-28s %s\n", flags.chunk,
                "tokens", "us", "its GEMMs alone", "GEMMs / prompt", "pushed to another home", "that costs");
  text += line;
  for (const PromptFigures& one : report.prompts) {
    std::snprintf(line, sizeof(line), "%6d  %-28s %-28s %-20s  %-28s %s\n", one.tokens,
                  ToText(Summarize(one.us), 1).c_str(), ToText(Summarize(one.gemms_us), 1).c_str(),
                  ToText(Summarize(one.share), 3).c_str(), ToText(Summarize(one.pushed_us), 1).c_str(),
                  ToText(Summarize(one.push_cost), 3).c_str());
    text += line;
  }
  return text;
}

// The engine knows its own option, which the longest of ours gives a value.
absl::Status NamingOurOptions(const absl::Status& status) {
  const std::string theirs = "--max-context:", message(status.message());
  if (!message.starts_with(theirs)) return status;
  return {status.code(), "--context, --prompt:" + message.substr(theirs.size())};
}

void BenchGpuHome(const HomeFlags& flags, const EngineFlags& engine_flags) {
  std::map<std::string, std::string> options;
  engine_flags.ForEachValue([&](const std::string& name, const std::string& value) { options[name] = value; });
  const int longest = std::max(*std::max_element(flags.contexts.begin(), flags.contexts.end()),
                               *std::max_element(flags.prompts.begin(), flags.prompts.end()));
  options["max-context"] = std::to_string(longest);
  Logger log(Logger::Stderr(), nullptr, static_cast<LogLevel>(engine_flags.log_level()));
  const Topology topology = DiscoverMachine();
  absl::StatusOr<ReservedCorePlan> cores = PlanAndReserveCores(topology, CorePlanOptions());
  ThrowUnlessOk(cores.status());
  for (const std::string& warning : cores->warnings) log.Warning(warning);
  absl::StatusOr<HomeReport> report = absl::UnknownError("not measured");
  PinnedThread("bench", cores->plan.s_cores[0], [&] {
    report = Measure(options, flags, cores->plan.AllCores(), &log);
  }).Join();
  ThrowUnlessOk(NamingOurOptions(report.status()));
  WriteOut(flags.json ? ToLine(Figures(*report, flags)) : Text(*report, flags));
}

}  // namespace

void AddBenchGpuHome(CLI::App* bench) {
  auto flags = std::make_shared<HomeFlags>();
  CLI::App* command = bench->add_subcommand(
      "gpu-home", "Attention over KV in a GPU's memory beside copies within it, and prompts there beside their GEMMs");
  const auto list = [&](const char* name, std::vector<int>& values, int max, const char* help) {
    AddNumbers(command, name, values, 1, max, help)->type_name("LIST");
  };
  list("--batch", flags->batches, 4096, "sequences of a decode step, one number after the other");
  list("--context", flags->contexts, 1 << 20, "tokens that each of them has");
  list("--prompt", flags->prompts, 1 << 20, "tokens of a prompt");
  command->add_option("--chunk", flags->chunk, "tokens of a prompt in one step")
      ->transform(Number(1, 65536))
      ->type_name("TOKENS")
      ->capture_default_str();
  command->add_option("--repetitions", flags->repetitions, "of each")
      ->transform(Number(1, 100000))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object");
  auto engine_flags = std::make_shared<EngineFlags>(
      command,
      std::vector<std::string>{"model", "compute", "kv-type", "gpu", "gpu-kv-gib", "cuda-module", "batch-invariant"});
  command->callback([flags, engine_flags] { BenchGpuHome(*flags, *engine_flags); });
}

}  // namespace fastdecode
