#include "tools/bench/chunk.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "numa/arena.h"
#include "numa/core_plan.h"
#include "tools/bench/summary.h"
#include "tools/bench/bracketed_runs.h"
#include "tools/bench/dot_pass.h"
#include "tools/bench/memory_pass.h"

namespace fastdecode {

namespace {

// More than the caches hold, as what came over a link and what goes to pages does together.
constexpr uint64_t kCopyBytes = uint64_t{256} << 20;

double FlopOfAStep(const RPartBenchOptions& o, uint32_t sequences) {
  const double rows = o.rows, before = static_cast<double>(o.context) - rows;
  const double pairs = rows * before + rows * (rows + 1) / 2;
  return 4.0 * o.head_size * o.heads * o.layers * sequences * pairs;
}

void AddRepetition(const RPartBench::ChunkTimes& times, const TestRates& around, ChunkReport* report) {
  const double copy = around[0], peak = around[1];
  report->pack_ms.push_back(static_cast<double>(times.append_ns) * 1e-6);
  report->copy_gb_per_s.push_back(copy);
  report->ratio_to_copy.push_back(static_cast<double>(report->packed_bytes) / static_cast<double>(times.append_ns) /
                                  copy);
  report->attend_ms.push_back(static_cast<double>(times.attend_ns) * 1e-6);
  report->peak_gflop_per_s.push_back(peak);
  report->ratio_to_peak.push_back(report->flop / static_cast<double>(times.attend_ns) / peak);
}

absl::StatusOr<Arena> MakeCopyMemory(const RPartBenchOptions& options) {
  ArenaOptions memory;
  memory.bytes = kCopyBytes;
  memory.node = options.node;
  memory.prefault_cores = options.cores;
  return Arena::Create(memory);
}

double PackedGbPerS(const ChunkReport& report) {
  return static_cast<double>(report.packed_bytes) * 1e-6 / Summarize(report.pack_ms).median;
}

double GflopPerS(const ChunkReport& report) { return report.flop * 1e-6 / Summarize(report.attend_ms).median; }

}  // namespace

absl::StatusOr<ChunkReport> MeasureChunk(const RPartBenchOptions& options, int repetitions) {
  absl::StatusOr<std::unique_ptr<RPartBench>> created = RPartBench::Create(options);
  if (!created.ok()) return created.status();
  RPartBench& bench = **created;
  const absl::StatusOr<Arena> copy_memory = MakeCopyMemory(options);
  if (!copy_memory.ok()) return copy_memory.status();
  MemoryPass copy;
  copy.data = reinterpret_cast<std::byte*>(copy_memory->data());
  copy.bytes = copy_memory->bytes();
  copy.operation = MemoryOperation::kCopy;
  const double copy_bytes = static_cast<double>(copy.BytesMoved(bench.team().thread_count()));
  DotPass dots(bench.dot_loop());
  const auto test = [&] {
    const double copy_gb_per_s = copy_bytes / static_cast<double>(copy.Run(&bench.team()));
    return TestRates{copy_gb_per_s, dots.GflopPerS(&bench.team())};
  };

  if (absl::Status warm_up = bench.RunChunks().status(); !warm_up.ok()) return warm_up;
  ChunkReport report;
  report.rpart = MeasuredRPart(bench);
  report.packed_bytes = bench.appended_bytes_per_step();
  report.flop = FlopOfAStep(options, bench.sequences());
  report.dot_instruction = dots.instruction();
  test();
  const absl::StatusOr<int> discarded = RunBracketed(
      repetitions, test, [&] { return bench.RunChunks(); },
      [&](const RPartBench::ChunkTimes& times, const TestRates& around) { AddRepetition(times, around, &report); });
  if (!discarded.ok()) return discarded.status();
  if (report.pack_ms.empty()) return TooBusy(*discarded);
  report.discarded = *discarded;
  return report;
}

nlohmann::json ChunkFigures(const ChunkReport& report, const RPartBenchOptions& options, const Topology& topology) {
  const double rows = static_cast<double>(report.rpart.sequences) * options.rows * options.layers;
  const double ms = Summarize(report.pack_ms).median + Summarize(report.attend_ms).median;
  nlohmann::json out = ToJson(report.rpart, options, topology);
  out.update({{"context", options.context - options.rows},
              {"chunk", options.rows},
              {"tokens_per_s", rows / ms * 1e3},
              {"packing",
               {{"bytes", report.packed_bytes},
                {"ms", ToJson(Summarize(report.pack_ms))},
                {"gb_per_s", PackedGbPerS(report)},
                {"copy_gb_per_s", Summarize(report.copy_gb_per_s).median},
                {"ratio_to_copy", ToJson(Summarize(report.ratio_to_copy))}}},
              {"attention",
               {{"flop", report.flop},
                {"ms", ToJson(Summarize(report.attend_ms))},
                {"gflop_per_s", GflopPerS(report)},
                {"peak_gflop_per_s", Summarize(report.peak_gflop_per_s).median},
                {"instruction", report.dot_instruction},
                {"ratio_to_peak", ToJson(Summarize(report.ratio_to_peak))}}},
              {"repetitions", report.pack_ms.size()},
              {"discarded", report.discarded}});
  return out;
}

std::string ChunkText(const ChunkReport& report, const RPartBenchOptions& options, const Topology& topology) {
  const std::string pages = PagesText(report.rpart);
  const double packed_mb = static_cast<double>(report.packed_bytes) * 1e-6;
  char text[2048];
  std::snprintf(text, sizeof(text),
                "%s, kernel %s, %zu thread(s) on cores %s of node %d\n"
                "%s, %u heads, %u KV heads of %u, %u layer(s); %u chunk(s) of %u tokens behind %u others\n"
                "KV memory: %s; %s\n"
                "%s\n"
                "packing: %.1f MB read and written in %s ms, %.2f GB/s; copy test of the same cores %.2f GB/s\n"
                "ratio to copy %s\n"
                "attention: %.3f GFLOP of visible pairs in %s ms, %.1f GFLOP/s; %s on the same cores %.1f GFLOP/s\n"
                "ratio to peak %s\n"
                "%zu repetitions, %d discarded\n",
                topology.cpu_model.c_str(), report.rpart.kernel.c_str(), options.cores.size(),
                FormatCores(options.cores).c_str(), options.node, KvTypeName(options.kv_type), options.heads,
                options.kv_heads, options.head_size, options.layers, report.rpart.sequences, options.rows,
                options.context - options.rows, report.rpart.memory.c_str(),
                options.fragmented ? "fragmented" : "fresh", pages.c_str(), packed_mb,
                ToText(Summarize(report.pack_ms), 3).c_str(), PackedGbPerS(report),
                Summarize(report.copy_gb_per_s).median, ToText(Summarize(report.ratio_to_copy), 3).c_str(),
                report.flop * 1e-9, ToText(Summarize(report.attend_ms), 2).c_str(), GflopPerS(report),
                report.dot_instruction.c_str(), Summarize(report.peak_gflop_per_s).median,
                ToText(Summarize(report.ratio_to_peak), 3).c_str(), report.pack_ms.size(), report.discarded);
  return text;
}

}  // namespace fastdecode
