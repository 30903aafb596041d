// fastdecode latency kernel: what `bench attention` and `bench gemm` measure, as latencies beside what the machine
// reads.
#include "tools/latency/kernel.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fastdecode/fastdecode.hpp>
#include "numa/pinned_thread.h"
#include "tools/bench/attention.h"
#include "tools/bench/gemm.h"
#include "tools/bench/machine.h"
#include "tools/bench/summary.h"
#include "tools/bench/bracketed_runs.h"
#include "tools/doctor/sys_root.h"
#include "tools/latency/machine/provenance.h"
#include "tools/latency/report_flags.h"
#include "tools/option_values.h"

namespace fastdecode {

namespace {

struct KernelFlags {
  std::string kv_type = KvTypeName(KvType::kBf16);
  uint32_t heads = 32, kv_heads = 8, head_size = 128, context = 4096;
  std::vector<int> rows = {1, 8, 32};
  int inputs = 4096, outputs = 14336;
  double gib = 1;
  BenchMachineFlags machine;
  int repetitions = 60;
  ReportFlags report;
};

// A rate of a known number of bytes, as the time that it took.
uint64_t NsOf(uint64_t bytes, double gb_per_s) { return static_cast<uint64_t>(static_cast<double>(bytes) / gb_per_s); }

std::string Where(const TeamCores& team) {
  return std::to_string(team.cores.size()) + " core(s), node " + std::to_string(team.node);
}

void AddAttention(const KernelFlags& flags, const TeamCores& team, Isa isa, LatencyResult* result) {
  RPartBenchOptions options;
  options.kv_type = ParseKvType("--kv-type", flags.kv_type);
  options.heads = flags.heads;
  options.kv_heads = flags.kv_heads;
  options.head_size = flags.head_size;
  options.context = flags.context;
  options.pool_bytes = static_cast<uint64_t>(flags.gib * static_cast<double>(uint64_t{1} << 30));
  options.cores = team.cores;
  options.node = team.node;
  options.isa = isa;
  absl::StatusOr<AttentionReport> report = absl::UnknownError("not measured");
  PinnedThread("attend", team.cores[0], [&] { report = MeasureAttention(options, flags.repetitions); }).Join();
  ThrowUnlessOk(report.status());
  WarnOfDiscarded(report->ratio.size(), report->discarded, flags.repetitions);
  std::vector<uint64_t> ns;
  for (const double step_ms : report->step_ms) ns.push_back(static_cast<uint64_t>(step_ms * 1e6));
  const std::string name = "attention, " + std::to_string(report->rpart.sequences) + " x " +
                           std::to_string(flags.context) + " tokens, " + flags.kv_type;
  result->phases.push_back({name, Where(team), Distribution(std::move(ns)), 0, report->rpart.kernel});
  result->achieved.push_back({"KV read, " + name, Summarize(report->gb_per_s).median,
                              Summarize(report->read_gb_per_s).median, "GB/s", kReadTest});
  NoteCache(&result->achieved.back());
}

GemmBenchOptions GemmOptionsOf(const KernelFlags& flags, const TeamCores& team, Isa isa) {
  GemmBenchOptions options;
  options.type = flags.kv_type == KvTypeName(KvType::kF32) ? ElementType::kF32 : ElementType::kBf16;
  options.inputs = flags.inputs;
  options.outputs = flags.outputs;
  options.weight_bytes = static_cast<uint64_t>(flags.gib * static_cast<double>(uint64_t{1} << 30));
  for (const int rows : flags.rows) options.rows_max = std::max(options.rows_max, rows);
  options.cores = team.cores;
  options.node = team.node;
  options.isa = isa;
  return options;
}

absl::Status AddGemm(const KernelFlags& flags, const TeamCores& team, const GemmBenchOptions& options,
                     LatencyResult* result) {
  absl::StatusOr<GemmReport> report = absl::UnknownError("not measured");
  PinnedThread("gemm", team.cores[0], [&] { report = MeasureGemm(options, flags.rows, flags.repetitions); }).Join();
  if (!report.ok()) return report.status();
  for (const GemmRow& row : report->rows) {
    WarnOfDiscarded(row.ratio.size(), row.discarded, flags.repetitions);
    if (row.ratio.empty()) continue;
    std::vector<uint64_t> ns;
    for (const double rate : row.gb_per_s) ns.push_back(NsOf(report->weight_bytes, rate));
    const std::string name = "GEMM, " + std::to_string(row.rows) + " row(s)";
    // Whose kernel, but not which: that of another ISA or version is compared with it.
    result->phases.push_back(
        {row.by_onednn ? name + ", oneDNN" : name, Where(team), Distribution(std::move(ns)), 0, row.kernel});
    result->achieved.push_back({"weights read, " + name + ", " + row.kernel, Summarize(row.gb_per_s).median,
                                Summarize(row.read_gb_per_s).median, "GB/s", kReadTest});
    NoteCache(&result->achieved.back());
    result->achieved.push_back({"products, " + name + ", " + row.kernel, Summarize(row.gflop_per_s).median,
                                Summarize(row.peak_gflop_per_s).median, "GFLOP/s", report->instruction});
  }
  return absl::OkStatus();
}

// Each number of rows is a phase of its own.
void CheckRows(std::vector<int> rows) {
  std::sort(rows.begin(), rows.end());
  if (const auto twice = std::adjacent_find(rows.begin(), rows.end()); twice != rows.end()) {
    throw Error(FD_INVALID_ARGUMENT, "--rows: " + std::to_string(*twice) + " is there twice");
  }
}

void LatencyKernel(KernelFlags& flags) {
  flags.report.Check();
  CheckRows(flags.rows);
  const Topology topology = DiscoverMachine();
  const Isa isa = ChooseIsa(flags.machine);
  const TeamCores team = ChooseCores(flags.machine, topology);
  LatencyResult result;
  result.command = "kernel";
  result.provenance = ReadProvenance(SysRoot("/"), ProvenanceInput::Now(fd_version()));
  const GemmBenchOptions gemm = GemmOptionsOf(flags, team, isa);
  ThrowUnlessOk(GemmBench::Check(gemm));  // rather than behind the attention
  AddAttention(flags, team, isa, &result);
  const absl::Status measured = AddGemm(flags, team, gemm, &result);
  flags.report.ReportFigures(result);  // the attention's in any case
  ThrowUnlessOk(measured);
}

}  // namespace

void AddLatencyKernel(CLI::App* latency) {
  auto flags = std::make_shared<KernelFlags>();
  CLI::App* command = latency->add_subcommand(
      "kernel", "The kernels of R-Part and S-Part by themselves, beside what the same cores read and multiply");
  const auto add = [&](const char* name, auto& value, int min, int max, const char* help) {
    command->add_option(name, value, help)->transform(Number(min, max))->type_name("N")->capture_default_str();
  };
  command->add_option("--kv-type", flags->kv_type, "of the KV: f32 (all in f32), bf16, fp16, int8 or int4")
      ->type_name("TYPE")
      ->capture_default_str();
  add("--heads", flags->heads, 1, 4096, "query heads");
  add("--kv-heads", flags->kv_heads, 1, 1024, "KV heads");
  add("--head-size", flags->head_size, 16, 256, "elements of a head, a multiple of 16");
  add("--context", flags->context, 1, 1 << 24, "tokens of each sequence; as many sequences as fill the memory");
  AddNumbers(command, "--rows", flags->rows, 1, 4096, "of the S-Part's products, one number after the other")
      ->type_name("LIST");
  add("--inputs", flags->inputs, 1, 1 << 20, "of a weight matrix");
  add("--outputs", flags->outputs, 1, 1 << 24, "of a weight matrix");
  command->add_option("--gib", flags->gib, "memory of the KV, and then of the weights")
      ->transform(Number(0.001, 65536.0))
      ->type_name("GIB")
      ->capture_default_str();
  flags->machine.AddTo(command);
  add("--repetitions", flags->repetitions, 1, 100'000, "good repetitions of each");
  flags->report.AddToWithoutRecording(command);
  command->callback([flags] { LatencyKernel(*flags); });
}

}  // namespace fastdecode
