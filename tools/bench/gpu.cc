// fastdecode bench gpu: decode steps of the S-Part on a GPU at a home that answers at once, beside its GEMMs alone; and
// what the way to a home and back takes.
#include "tools/bench/gpu.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/bench/gpu_step_bench.h"
#include "nlohmann/json.hpp"
#include "numa/clock.h"
#include "numa/core_plan.h"
#include "numa/log.h"
#include "numa/pinned_thread.h"
#include "numa/topology.h"
#include "tools/bench/summary.h"
#include "tools/engine_flags.h"
#include "tools/latency/distribution.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

// One measurement of the GEMMs: as many steps' as make the launch's own time small.
constexpr int kGemmTimes = 4;
constexpr int kWarmupSteps = 3;
// Of a batch, whatever its repetitions: the 99th percentile is not one of the few longest. Slow steps end at the bound.
constexpr size_t kHopsWanted = 1000;
constexpr uint64_t kHopsNsMax = 500'000'000;

struct GpuFlags {
  std::vector<int> batches = {1, 8, 64, 256};
  int repetitions = 20;
  bool json = false;
};

// Steps of one batch.
struct BatchFigures {
  int batch = 0;
  // Of each repetition.
  std::vector<double> step_us, gemms_us, ratio;
  std::vector<double> near_step_us, near_ratio;  // without the way to the host's memory and waiting for it
  std::vector<double> beside_waits;              // GEMMs, of what they take alone; none with one micro-batch
  Distribution idle, hop;
  // A layer's rows there and back: by kernels, by the copy engine.
  std::vector<double> way_us[2][2];
};

struct GpuReport {
  std::string spart;
  int layers = 0;
  uint64_t weight_bytes = 0;
  double weights = 0;  // elements
  std::vector<BatchFigures> batches;
  std::vector<std::pair<size_t, size_t>> hop_bytes;  // of each batch: there and back
};

absl::Status MeasureHops(GpuStepBench* bench, BatchFigures* figures) {
  GpuStepBench::Hops hops;
  const uint64_t start_ns = NowNs();
  do {
    if (absl::Status bad = bench->RunTimedStep(figures->batch, &hops); !bad.ok()) return bad;
  } while (hops.hop_ns.size() < kHopsWanted && NowNs() - start_ns < kHopsNsMax);
  figures->idle = Distribution(std::move(hops.idle_ns));
  figures->hop = Distribution(std::move(hops.hop_ns));
  return absl::OkStatus();
}

absl::Status MeasureBatch(GpuStepBench* bench, int repetitions, BatchFigures* figures) {
  for (int i = 0; i < kWarmupSteps; ++i) {
    GpuStepBench::Hops unused;
    if (absl::Status bad = bench->RunTimedStep(figures->batch, &unused); !bad.ok()) return bad;
  }
  if (absl::Status bad = MeasureHops(bench, figures); !bad.ok()) return bad;
  absl::StatusOr<double> before = bench->RunGemms(figures->batch, kGemmTimes);
  if (!before.ok()) return before.status();
  for (int i = 0; i < repetitions; ++i) {
    const absl::StatusOr<uint64_t> near_ns = bench->RunNearStep(figures->batch);
    if (!near_ns.ok()) return near_ns.status();
    const absl::StatusOr<uint64_t> step_ns = bench->RunStep(figures->batch);
    if (!step_ns.ok()) return step_ns.status();
    const absl::StatusOr<double> after = bench->RunGemms(figures->batch, kGemmTimes);
    if (!after.ok()) return after.status();
    const double gemms_ns = (*before + *after) / 2;
    figures->step_us.push_back(static_cast<double>(*step_ns) * 1e-3);
    figures->gemms_us.push_back(gemms_ns * 1e-3);
    figures->ratio.push_back(static_cast<double>(*step_ns) / gemms_ns);
    figures->near_step_us.push_back(static_cast<double>(*near_ns) * 1e-3);
    figures->near_ratio.push_back(static_cast<double>(*near_ns) / gemms_ns);
    before = after;
  }
  for (int i = 0; i < repetitions && bench->micro_batches() > 1; ++i) {
    const absl::StatusOr<double> alone = bench->RunGemms(figures->batch, kGemmTimes);
    if (!alone.ok()) return alone.status();
    const absl::StatusOr<double> beside = bench->RunGemmsBesideWaits(figures->batch, kGemmTimes);
    if (!beside.ok()) return beside.status();
    figures->beside_waits.push_back(*beside / *alone);
  }
  for (int i = 0; i < repetitions; ++i) {
    for (const Way way : {Way::kThere, Way::kBack}) {
      for (const bool by_copies : {false, true}) {
        const absl::StatusOr<double> ns = bench->RunCrossing(figures->batch, kGemmTimes, way, by_copies);
        if (!ns.ok()) return ns.status();
        figures->way_us[way == Way::kBack][by_copies].push_back(*ns * 1e-3);
      }
    }
  }
  return absl::OkStatus();
}

// Thread: one that is pinned.
absl::StatusOr<GpuReport> Measure(const std::map<std::string, std::string>& options, const GpuFlags& flags,
                                  const std::vector<int>& cores, Logger* log) {
  const int rows_max = *std::max_element(flags.batches.begin(), flags.batches.end());
  absl::StatusOr<std::unique_ptr<GpuStepBench>> bench = GpuStepBench::Create(options, rows_max, cores, log);
  if (!bench.ok()) return bench.status();
  GpuReport report;
  report.spart = (*bench)->Describe();
  report.layers = (*bench)->layers();
  report.weight_bytes = (*bench)->weight_bytes();
  report.weights = static_cast<double>(report.weight_bytes) / static_cast<double>((*bench)->weight_element_bytes());
  for (const int batch : flags.batches) {
    BatchFigures& figures = report.batches.emplace_back();
    figures.batch = batch;
    if (absl::Status bad = MeasureBatch(bench->get(), flags.repetitions, &figures); !bad.ok()) return bad;
    report.hop_bytes.emplace_back((*bench)->hop_bytes(batch), (*bench)->reply_bytes(batch));
  }
  return report;
}

nlohmann::json Percentiles(const Distribution& ns) {
  nlohmann::json figures = {{"count", ns.count()}, {"p50", nullptr}, {"p99", nullptr}};
  if (const std::optional<uint64_t> p50 = ns.Percentile(0.5)) figures["p50"] = static_cast<double>(*p50) * 1e-3;
  if (const std::optional<uint64_t> p99 = ns.Percentile(0.99)) figures["p99"] = static_cast<double>(*p99) * 1e-3;
  return figures;
}

nlohmann::json Ways(const std::vector<double> (&us)[2]) {
  return {{"kernel", ToJson(Summarize(us[0]))}, {"copy", ToJson(Summarize(us[1]))}};
}

nlohmann::json Figures(const GpuReport& report) {
  nlohmann::json out = {{"s_part", report.spart},
                        {"layers", report.layers},
                        {"weight_bytes", report.weight_bytes},
                        {"batches", nlohmann::json::array()}};
  for (size_t i = 0; i < report.batches.size(); ++i) {
    const BatchFigures& figures = report.batches[i];
    const double gemms_us = Summarize(figures.gemms_us).median;
    out["batches"].push_back(
        {{"batch", figures.batch},
         {"step_us", ToJson(Summarize(figures.step_us))},
         {"gemms_us", ToJson(Summarize(figures.gemms_us))},
         {"step_over_gemms", ToJson(Summarize(figures.ratio))},
         {"near_step_us", ToJson(Summarize(figures.near_step_us))},
         {"near_step_over_gemms", ToJson(Summarize(figures.near_ratio))},
         {"gemms_beside_waits",
          figures.beside_waits.empty() ? nlohmann::json() : ToJson(Summarize(figures.beside_waits))},
         {"gemms_tflop_per_s", 2 * report.weights * figures.batch / gemms_us * 1e-6},
         {"gemms_gb_per_s", static_cast<double>(report.weight_bytes) / gemms_us * 1e-3},
         {"idle_us", Percentiles(figures.idle)},
         {"hop_us", Percentiles(figures.hop)},
         {"there_us", Ways(figures.way_us[0])},
         {"back_us", Ways(figures.way_us[1])},
         {"hop_bytes", report.hop_bytes[i].first},
         {"reply_bytes", report.hop_bytes[i].second}});
  }
  return out;
}

std::string PercentileText(const nlohmann::json& us, const char* name) {
  if (us[name].is_null()) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", us[name].get<double>());
  return text;
}

std::string Text(const GpuReport& report) {
  char line[360];
  std::snprintf(line, sizeof(line), "%d layers, %.2f GB of weights a step; us, hops to a home that answers at once\n",
                report.layers, static_cast<double>(report.weight_bytes) * 1e-9);
  std::string text = report.spart + "\n" + line;
  std::snprintf(line, sizeof(line), "%6s  %-25s %-25s %-20s %-20s %-20s %8s %8s  %9s %9s  %9s %9s  %s\n", "batch",
                "step", "its GEMMs alone", "ratio", "near ratio", "GEMMs beside waits", "TFLOP/s", "GB/s", "idle p50",
                "p99", "hop p50", "p99", "KiB there, back");
  text += line;
  const nlohmann::json figures = Figures(report);
  for (size_t i = 0; i < report.batches.size(); ++i) {
    const BatchFigures& batch = report.batches[i];
    const nlohmann::json& row = figures["batches"][i];
    const std::string beside = batch.beside_waits.empty() ? "-" : ToText(Summarize(batch.beside_waits), 3);
    std::snprintf(
        line, sizeof(line), "%6d  %-25s %-25s %-20s %-20s %-20s %8.1f %8.1f  %9s %9s  %9s %9s  %.1f, %.1f\n",
        batch.batch, ToText(Summarize(batch.step_us), 1).c_str(), ToText(Summarize(batch.gemms_us), 1).c_str(),
        ToText(Summarize(batch.ratio), 3).c_str(), ToText(Summarize(batch.near_ratio), 3).c_str(), beside.c_str(),
        row["gemms_tflop_per_s"].get<double>(), row["gemms_gb_per_s"].get<double>(),
        PercentileText(row["idle_us"], "p50").c_str(), PercentileText(row["idle_us"], "p99").c_str(),
        PercentileText(row["hop_us"], "p50").c_str(), PercentileText(row["hop_us"], "p99").c_str(),
        static_cast<double>(report.hop_bytes[i].first) / 1024, static_cast<double>(report.hop_bytes[i].second) / 1024);
    text += line;
  }
  std::snprintf(line, sizeof(line),
                "\na layer's rows between the GPU and the host, us\n%6s  %-20s %-20s  %-20s %-20s\n", "batch",
                "there: by the kernel", "by the copy engine", "back: by the kernel", "by the copy engine");
  text += line;
  for (const BatchFigures& batch : report.batches) {
    std::snprintf(line, sizeof(line), "%6d  %-20s %-20s  %-20s %-20s\n", batch.batch,
                  ToText(Summarize(batch.way_us[0][0]), 1).c_str(), ToText(Summarize(batch.way_us[0][1]), 1).c_str(),
                  ToText(Summarize(batch.way_us[1][0]), 1).c_str(), ToText(Summarize(batch.way_us[1][1]), 1).c_str());
    text += line;
  }
  return text;
}

void BenchGpu(const GpuFlags& flags, const EngineFlags& engine_flags) {
  std::map<std::string, std::string> options;
  engine_flags.ForEachValue([&](const std::string& name, const std::string& value) { options[name] = value; });
  Logger log(Logger::Stderr(), nullptr, static_cast<LogLevel>(engine_flags.log_level()));
  const Topology topology = DiscoverMachine();
  absl::StatusOr<ReservedCorePlan> cores = PlanAndReserveCores(topology, CorePlanOptions());
  ThrowUnlessOk(cores.status());
  for (const std::string& warning : cores->warnings) log.Warning(warning);
  absl::StatusOr<GpuReport> report = absl::UnknownError("not measured");
  PinnedThread("bench", cores->plan.s_cores[0], [&] {
    report = Measure(options, flags, cores->plan.AllCores(), &log);
  }).Join();
  ThrowUnlessOk(report.status());
  WriteOut(flags.json ? ToLine(Figures(*report)) : Text(*report));
}

}  // namespace

void AddBenchGpu(CLI::App* bench) {
  auto flags = std::make_shared<GpuFlags>();
  CLI::App* command = bench->add_subcommand(
      "gpu", "Decode steps of the S-Part on a GPU beside its GEMMs alone, and the way to a home and back");
  AddNumbers(command, "--batch", flags->batches, 1, 4096, "sequences of a step, one number after the other")
      ->type_name("LIST");
  command->add_option("--repetitions", flags->repetitions, "of each")
      ->transform(Number(1, 100000))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object");
  auto engine_flags = std::make_shared<EngineFlags>(
      command, std::vector<std::string>{"model", "compute", "gpu", "cuda-module", "batch-invariant", "max-context",
                                        "micro-batches"});
  command->callback([flags, engine_flags] { BenchGpu(*flags, *engine_flags); });
}

}  // namespace fastdecode
