// fastdecode bench gemm: how fast a `cpu` S-Part multiplies few rows by weights that no cache holds, by our own kernel
// and by oneDNN on the same bytes, beside what the same cores read of them.
#include "tools/bench/gemm.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include <fastdecode/fastdecode.hpp>
#include "engine/bench/gemm_bench.h"
#include "nlohmann/json.hpp"
#include "numa/core_plan.h"
#include "numa/pinned_thread.h"
#include "numa/topology.h"
#include "tools/bench/machine.h"
#include "tools/bench/summary.h"
#include "tools/bench/bracketed_runs.h"
#include "tools/bench/dot_pass.h"
#include "tools/bench/memory_pass.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

struct GemmFlags {
  std::string type = ElementName(ElementType::kBf16);
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 64};
  int inputs = 4096;
  int outputs = 14336;
  double gib = 2;
  BenchMachineFlags machine;
  int repetitions = 7;
  bool json = false;
};

ElementType ParseType(const std::string& name) {
  for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
    if (name == ElementName(type)) return type;
  }
  throw Error(FD_INVALID_ARGUMENT, "--type: '" + name + "' is neither bf16 nor f32");
}

GemmBenchOptions OptionsOf(const GemmFlags& flags, const Topology& topology) {
  GemmBenchOptions options;
  options.type = ParseType(flags.type);
  options.inputs = flags.inputs;
  options.outputs = flags.outputs;
  options.weight_bytes = static_cast<uint64_t>(flags.gib * static_cast<double>(uint64_t{1} << 30));
  options.rows_max = *std::max_element(flags.rows.begin(), flags.rows.end());
  options.isa = ChooseIsa(flags.machine);
  TeamCores team = ChooseCores(flags.machine, topology);
  options.cores = std::move(team.cores);
  options.node = team.node;
  return options;
}

// One implementation's figures; `run` returns the ns of a pass. Thread: the team's leader.
void MeasureRow(GemmBench* bench, MemoryPass read, DotPass* dots, int repetitions, double flop,
                const std::function<uint64_t()>& run, GemmRow* row) {
  const double read_bytes = static_cast<double>(read.BytesMoved(bench->team().thread_count()));
  const double bytes = static_cast<double>(bench->weight_bytes());
  const auto test = [&] {
    const double read_gb_per_s = read_bytes / static_cast<double>(read.Run(&bench->team()));
    return TestRates{read_gb_per_s, dots->GflopPerS(&bench->team())};
  };
  run();  // a first time unmeasured
  test();
  row->discarded = *RunBracketed(
      repetitions, test, [&] { return absl::StatusOr<uint64_t>(run()); },
      [&](uint64_t ns, const TestRates& around) {
        const double rate = bytes / static_cast<double>(ns), flops = flop / static_cast<double>(ns);
        row->gb_per_s.push_back(rate);
        row->read_gb_per_s.push_back(around[0]);
        row->ratio.push_back(rate / around[0]);
        row->gflop_per_s.push_back(flops);
        row->peak_gflop_per_s.push_back(around[1]);
        row->ratio_to_peak.push_back(flops / around[1]);
      });
}

}  // namespace

absl::StatusOr<GemmReport> MeasureGemm(const GemmBenchOptions& options, const std::vector<int>& rows_list,
                                       int repetitions) {
  absl::StatusOr<std::unique_ptr<GemmBench>> created = GemmBench::Create(options);
  if (!created.ok()) return created.status();
  GemmBench& bench = **created;
  MemoryPass read;
  read.data = reinterpret_cast<std::byte*>(bench.weights().data());
  read.bytes = bench.weights().bytes();
  read.streams = FasterStreams(read, &bench.team());

  GemmReport report;
  report.memory = bench.weights().Describe();
  report.huge_share = bench.weights().huge_share();
  report.matrices = bench.matrices();
  report.weight_bytes = bench.weight_bytes();
  report.streams = read.streams;
  report.instruction = bench.dot_loop().instruction;
  DotPass dots(bench.dot_loop());
  for (const int rows : rows_list) {
    const double weights = static_cast<double>(options.inputs * options.outputs * bench.matrices());
    const double flop = 2.0 * rows * weights;
    const auto measure = [&](bool by_onednn, const std::string& kernel, const std::function<uint64_t()>& run) {
      GemmRow& row = report.rows.emplace_back();
      row.rows = rows;
      row.by_onednn = by_onednn;
      row.kernel = kernel;
      MeasureRow(&bench, read, &dots, repetitions, flop, run, &row);
    };
    measure(false, bench.kernel_name(), [&] { return bench.RunOwn(rows); });
    if (bench.has_onednn()) {
      measure(true, "oneDNN " + bench.onednn_implementation(), [&] { return bench.RunOneDnn(rows); });
    }
  }
  return report;
}

namespace {

nlohmann::json Figures(const GemmReport& report, const GemmBenchOptions& options, const Topology& topology) {
  nlohmann::json out = {{"cpu", topology.cpu_model},
                        {"isa", IsaName(options.isa)},
                        {"type", ElementName(options.type)},
                        {"cores", options.cores},
                        {"threads", options.cores.size()},
                        {"node", options.node},
                        {"inputs", options.inputs},
                        {"outputs", options.outputs},
                        {"matrices", report.matrices},
                        {"weight_bytes", report.weight_bytes},
                        {"memory", report.memory},
                        {"huge_share", report.huge_share},
                        {"read_streams", static_cast<int>(report.streams)},
                        {"instruction", report.instruction},
                        {"rows", nlohmann::json::array()}};
  for (const GemmRow& row : report.rows) {
    nlohmann::json figures = {
        {"rows", row.rows}, {"kernel", row.kernel}, {"repetitions", row.ratio.size()}, {"discarded", row.discarded}};
    if (!row.ratio.empty()) {
      const double read_gb_per_s = Summarize(row.read_gb_per_s).median;
      const std::optional<std::string> regime = Regime(topology, options.cores.size(), read_gb_per_s);
      figures["gb_per_s"] = Summarize(row.gb_per_s).median;
      figures["read_gb_per_s"] = read_gb_per_s;
      figures["ratio_to_read"] = ToJson(Summarize(row.ratio));
      figures["gflop_per_s"] = Summarize(row.gflop_per_s).median;
      figures["peak_gflop_per_s"] = Summarize(row.peak_gflop_per_s).median;
      figures["ratio_to_peak"] = ToJson(Summarize(row.ratio_to_peak));
      figures["regime"] = nullptr;
      if (regime.has_value()) figures["regime"] = *regime;
    }
    out["rows"].push_back(std::move(figures));
  }
  return out;
}

std::string Text(const GemmReport& report, const GemmBenchOptions& options, const Topology& topology) {
  std::string text = absl::StrFormat(
      "%s, %d thread(s) on cores %s of node %d\n"
      "%d matrices of %d x %d in %s, %.1f MB read a pass\n"
      "weights: %s; read with %d stream(s) a thread; the peak is that of %s\n",
      topology.cpu_model, options.cores.size(), FormatCores(options.cores), options.node, report.matrices,
      options.outputs, options.inputs, ElementName(options.type), static_cast<double>(report.weight_bytes) * 1e-6,
      report.memory, static_cast<int>(report.streams), report.instruction);
  char line[512];
  std::snprintf(line, sizeof(line), "%5s  %-28s %7s %7s  %-20s %8s %8s  %s\n", "rows", "kernel", "GB/s", "read",
                "ratio to read", "GFLOP/s", "peak", "ratio to peak");
  text += line;
  for (const GemmRow& row : report.rows) {
    if (row.ratio.empty()) {
      std::snprintf(line, sizeof(line), "%5d  %-28s the machine is too busy: all %d repetitions were discarded\n",
                    row.rows, row.kernel.c_str(), row.discarded);
    } else {
      const double read_gb_per_s = Summarize(row.read_gb_per_s).median;
      std::snprintf(line, sizeof(line), "%5d  %-28s %7.2f %7.2f  %-20s %8.1f %8.1f  %-20s  %s\n", row.rows,
                    row.kernel.c_str(), Summarize(row.gb_per_s).median, read_gb_per_s,
                    ToText(Summarize(row.ratio), 3).c_str(), Summarize(row.gflop_per_s).median,
                    Summarize(row.peak_gflop_per_s).median, ToText(Summarize(row.ratio_to_peak), 3).c_str(),
                    Regime(topology, options.cores.size(), read_gb_per_s).value_or("").c_str());
    }
    text += line;
  }
  return text;
}

void BenchGemm(const GemmFlags& flags) {
  const Topology topology = DiscoverMachine();
  const GemmBenchOptions options = OptionsOf(flags, topology);
  absl::StatusOr<GemmReport> report = absl::UnknownError("not measured");
  PinnedThread("gemm", options.cores[0], [&] { report = MeasureGemm(options, flags.rows, flags.repetitions); }).Join();
  ThrowUnlessOk(report.status());
  size_t good = 0;
  for (const GemmRow& row : report->rows) {
    good += row.ratio.size();
    WarnOfDiscarded(row.ratio.size(), row.discarded, flags.repetitions);
  }
  if (good == 0) ThrowUnlessOk(TooBusy(report->rows.front().discarded));
  WriteOut(flags.json ? ToLine(Figures(*report, options, topology)) : Text(*report, options, topology));
}

}  // namespace

void AddBenchGemm(CLI::App* bench) {
  auto flags = std::make_shared<GemmFlags>();
  CLI::App* command = bench->add_subcommand(
      "gemm", "Few rows times weights in memory, by our kernel and by oneDNN, beside a read test of the same memory");
  const auto add = [&](const char* name, int& value, int max, const char* help) {
    command->add_option(name, value, help)->transform(Number(1, max))->type_name("N")->capture_default_str();
  };
  command->add_option("--type", flags->type, "of weights and rows: bf16 or f32")
      ->type_name("TYPE")
      ->capture_default_str();
  AddNumbers(command, "--rows", flags->rows, 1, 4096, "numbers of rows, one after the other")->type_name("LIST");
  add("--inputs", flags->inputs, 1 << 20, "of a matrix: elements of a row");
  add("--outputs", flags->outputs, 1 << 24, "of a matrix");
  command->add_option("--gib", flags->gib, "memory of the weights: as many matrices as it has room for")
      ->transform(Number(0.001, 65536.0))
      ->type_name("GIB")
      ->capture_default_str();
  flags->machine.AddTo(command);
  add("--repetitions", flags->repetitions, 10000, "good repetitions of each");
  command->add_flag("--json", flags->json, "one JSON object");
  command->callback([flags] { BenchGemm(*flags); });
}

}  // namespace fastdecode
