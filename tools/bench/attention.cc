// fastdecode bench attention: how fast the R-Part reads KV, beside what the same cores read of the same memory.
#include "tools/bench/attention.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fastdecode/fastdecode.hpp>
#include "engine/bench/rpart_bench.h"
#include "nlohmann/json.hpp"
#include "numa/core_plan.h"
#include "numa/pinned_thread.h"
#include "numa/topology.h"
#include "tools/bench/chunk.h"
#include "tools/bench/machine.h"
#include "tools/bench/summary.h"
#include "tools/bench/bracketed_runs.h"
#include "tools/bench/measured_rpart.h"
#include "tools/bench/memory_pass.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

constexpr uint32_t kContext = 4096;

struct AttentionFlags {
  std::string kv_type = KvTypeName(KvType::kBf16);
  uint32_t heads = 32;
  uint32_t kv_heads = 8;
  uint32_t head_size = 128;
  uint32_t layers = 1;
  std::optional<uint32_t> context;
  uint32_t shared_prefix = 0;
  uint32_t rows = 1;
  uint32_t chunk = 0;  // 0: decode steps
  uint32_t sequences = 0;
  double gib = 4;
  bool fragmented = false;
  BenchMachineFlags machine;
  int repetitions = 7;
  bool json = false;
};

// ---- What the command line says

RPartBenchOptions OptionsOf(const AttentionFlags& flags, const Topology& topology) {
  RPartBenchOptions options;
  options.kv_type = ParseKvType("--kv-type", flags.kv_type);
  options.heads = flags.heads;
  options.kv_heads = flags.kv_heads;
  options.head_size = flags.head_size;
  options.layers = flags.layers;
  options.context = flags.chunk > 0 ? flags.context.value_or(0) + flags.chunk : flags.context.value_or(kContext);
  options.shared_prefix = flags.shared_prefix;
  options.rows = flags.chunk > 0 ? flags.chunk : flags.rows;
  options.of_prompts = flags.chunk > 0;
  options.sequences = flags.chunk > 0 ? std::max(flags.sequences, 1u) : flags.sequences;
  options.pool_bytes = static_cast<uint64_t>(flags.gib * static_cast<double>(uint64_t{1} << 30));
  options.fragmented = flags.fragmented;
  options.isa = ChooseIsa(flags.machine);
  TeamCores team = ChooseCores(flags.machine, topology);
  options.cores = std::move(team.cores);
  options.node = team.node;
  return options;
}

// ---- Measuring, on the leader's thread

}  // namespace

absl::StatusOr<AttentionReport> MeasureAttention(const RPartBenchOptions& options, int repetitions) {
  absl::StatusOr<std::unique_ptr<RPartBench>> created = RPartBench::Create(options);
  if (!created.ok()) return created.status();
  RPartBench& bench = **created;
  MemoryPass read;
  read.data = reinterpret_cast<std::byte*>(bench.memory().data());
  read.bytes = bench.memory().bytes();
  read.streams = FasterStreams(read, &bench.team());
  const double read_bytes = static_cast<double>(read.BytesMoved(bench.team().thread_count()));

  if (absl::Status warm_up = bench.RunStep().status(); !warm_up.ok()) return warm_up;
  AttentionReport report;
  report.rpart = MeasuredRPart(bench);
  report.contiguous_kib = bench.contiguous_bytes_mean() / 1024;
  report.kv_bytes = bench.kv_bytes_per_step();
  report.streams = read.streams;
  const absl::StatusOr<int> discarded = RunBracketed(
      repetitions, [&] { return TestRates{read_bytes / static_cast<double>(read.Run(&bench.team()))}; },
      [&] { return bench.RunStep(); },
      [&](uint64_t step_ns, const TestRates& around) {
        const double rate = static_cast<double>(report.kv_bytes) / static_cast<double>(step_ns);
        report.step_ms.push_back(static_cast<double>(step_ns) * 1e-6);
        report.gb_per_s.push_back(rate);
        report.read_gb_per_s.push_back(around[0]);
        report.ratio.push_back(rate / around[0]);
      });
  if (!discarded.ok()) return discarded.status();
  if (report.ratio.empty()) return TooBusy(*discarded);
  report.discarded = *discarded;
  return report;
}

namespace {

// ---- What is said of it

nlohmann::json Figures(const AttentionReport& report, const RPartBenchOptions& options, const Topology& topology) {
  const Summary step_ms = Summarize(report.step_ms);
  const double read_gb_per_s = Summarize(report.read_gb_per_s).median;
  const std::optional<std::string> regime = Regime(topology, options.cores.size(), read_gb_per_s);
  const double rows = static_cast<double>(report.rpart.sequences) * options.rows * options.layers;
  nlohmann::json out = ToJson(report.rpart, options, topology);
  out.update({{"context", options.context},
              {"shared_prefix", options.shared_prefix},
              {"rows", options.rows},
              {"contiguous_kib", report.contiguous_kib},
              {"kv_bytes", report.kv_bytes},
              {"step_ms", ToJson(step_ms)},
              {"gb_per_s", Summarize(report.gb_per_s).median},
              {"read_gb_per_s", read_gb_per_s},
              {"read_streams", static_cast<int>(report.streams)},
              {"ratio_to_read", ToJson(Summarize(report.ratio))},
              {"tokens_per_s", rows / step_ms.median * 1e3},
              {"repetitions", report.ratio.size()},
              {"discarded", report.discarded}});
  out["regime"] = nullptr;
  if (regime.has_value()) out["regime"] = *regime;
  return out;
}

std::string Text(const AttentionReport& report, const RPartBenchOptions& options, const nlohmann::json& figures) {
  char text[2048];
  std::snprintf(text, sizeof(text),
                "%s, kernel %s, %zu thread(s) on cores %s of node %d\n"
                "%s, %u heads, %u KV heads of %u, %u layer(s); %u sequences of %u tokens, %u of them shared, %u query "
                "row(s) each\n"
                "KV memory: %s; %s, %.0f KiB of a layer lie together on average\n"
                "%s\n"
                "a step reads %.1f MB of KV in %s ms: %.0f query rows/s of one layer\n"
                "KV %.2f GB/s; read test of the same cores and memory %.2f GB/s, %d stream(s) a thread, %s\n"
                "ratio to read %s, %zu repetitions, %d discarded\n",
                figures["cpu"].get<std::string>().c_str(), report.rpart.kernel.c_str(), options.cores.size(),
                FormatCores(options.cores).c_str(), options.node, KvTypeName(options.kv_type), options.heads,
                options.kv_heads, options.head_size, options.layers, report.rpart.sequences, options.context,
                options.shared_prefix, options.rows, report.rpart.memory.c_str(),
                options.fragmented ? "fragmented" : "fresh", report.contiguous_kib, PagesText(report.rpart).c_str(),
                static_cast<double>(report.kv_bytes) * 1e-6, ToText(Summarize(report.step_ms), 3).c_str(),
                figures["tokens_per_s"].get<double>(), figures["gb_per_s"].get<double>(),
                figures["read_gb_per_s"].get<double>(), static_cast<int>(report.streams),
                figures["regime"].is_null() ? "not judged" : figures["regime"].get<std::string>().c_str(),
                ToText(Summarize(report.ratio), 3).c_str(), report.ratio.size(), report.discarded);
  return text;
}

// The result of measuring on the team's leader.
template <typename Function>
auto OnLeader(const RPartBenchOptions& options, Function measure) {
  decltype(measure()) report = absl::UnknownError("not measured");
  PinnedThread("attend", options.cores[0], [&] { report = measure(); }).Join();
  ThrowUnlessOk(report.status());
  return *std::move(report);
}

void BenchAttention(const AttentionFlags& flags) {
  const Topology topology = DiscoverMachine();
  const RPartBenchOptions options = OptionsOf(flags, topology);
  if (flags.chunk > 0) {
    const ChunkReport report = OnLeader(options, [&] { return MeasureChunk(options, flags.repetitions); });
    WarnOfDiscarded(report.pack_ms.size(), report.discarded, flags.repetitions);
    WriteOut(flags.json ? ToLine(ChunkFigures(report, options, topology)) : ChunkText(report, options, topology));
    return;
  }
  const AttentionReport report = OnLeader(options, [&] { return MeasureAttention(options, flags.repetitions); });
  WarnOfDiscarded(report.ratio.size(), report.discarded, flags.repetitions);
  const nlohmann::json figures = Figures(report, options, topology);
  WriteOut(flags.json ? ToLine(figures) : Text(report, options, figures));
}

}  // namespace

void AddBenchAttention(CLI::App* bench) {
  auto flags = std::make_shared<AttentionFlags>();
  CLI::App* command = bench->add_subcommand(
      "attention",
      "Attention without a model or a link: KV read by decode steps, beside a read test of the same memory, or chunks");
  const auto add = [&](const char* name, uint32_t& value, uint32_t min, uint32_t max, const char* help) {
    command->add_option(name, value, help)->transform(Number(min, max))->type_name("N")->capture_default_str();
  };
  command
      ->add_option("--kv-type", flags->kv_type,
                   "of the KV: f32 (and the rows), or with rows in bf16: bf16, fp16, int8, int4")
      ->type_name("TYPE")
      ->capture_default_str();
  add("--heads", flags->heads, 1, 4096, "query heads");
  add("--kv-heads", flags->kv_heads, 1, 1024, "KV heads");
  add("--head-size", flags->head_size, 16, 256, "elements of a head, a multiple of 16");
  add("--layers", flags->layers, 1, 1024, "layers that the pool's pages cover, and hops of a step");
  command
      ->add_option("--context", flags->context,
                   "tokens of each sequence (default 4096); with --chunk those before it (default 0)")
      ->transform(Number(0u, 1u << 24))
      ->type_name("N");
  add("--shared-prefix", flags->shared_prefix, 0, 1u << 24,
      "of these, the first ones that all share, a multiple of 512");
  add("--rows", flags->rows, 1, 65536, "query rows of each sequence in a step, its last ones");
  command
      ->add_option(
          "--chunk", flags->chunk,
          "in place of decode steps a chunk of so many tokens of a prompt: packing beside a copy test, attention "
          "beside the peak of its instruction")
      ->transform(Number(kDecodeRowsMax + 1, 65536u))
      ->type_name("N")
      ->excludes("--rows", "--shared-prefix");
  add("--sequences", flags->sequences, 0, 65536, "sequences (0: as many as fill the memory; with --chunk one)");
  command->add_option("--gib", flags->gib, "KV memory")
      ->transform(Number(0.001, 65536.0))
      ->type_name("GIB")
      ->capture_default_str();
  command->add_flag("--fragmented", flags->fragmented,
                    "fill the memory with other sequences, release a random half, and grow in turns in what is free");
  flags->machine.AddTo(command);
  command->add_option("--repetitions", flags->repetitions, "good repetitions to measure")
      ->transform(Number(1, 10000))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object");
  command->callback([flags] { BenchAttention(*flags); });
}

}  // namespace fastdecode
