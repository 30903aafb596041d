#include "engine/bench/gpu_step_bench.h"

#include <optional>
#include <utility>

#include "numa/check.h"

namespace fastdecode {

namespace {

// What a stage says of itself: the GPU's first and last word, and the parts that border on a hop.
struct StageBorders {
  std::optional<uint64_t> begun, gathered;  // none in stage 0
  std::optional<uint64_t> sends, published;
};

StageBorders BordersOf(const StageTrace& trace) {
  StageBorders borders;
  for (int i = 0; i < trace.count; ++i) {
    const StageTrace::Part& part = trace.parts[i];
    if (part.what == kStageO) borders.gathered = part.start_ns;
    if (part.what == kStageQkv) borders.sends = part.end_ns;
    if (part.what != kStageSignal) continue;
    if (i == 0) {
      borders.begun = part.end_ns;
    } else {
      borders.published = part.start_ns;
    }
  }
  return borders;
}

// What is known of the clocks' difference may have grown in between.
uint64_t Between(uint64_t from_ns, uint64_t to_ns) { return to_ns > from_ns ? to_ns - from_ns : 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<GpuStepBench>> GpuStepBench::Create(const std::map<std::string, std::string>& options,
                                                                   int rows_max, const std::vector<int>& cores,
                                                                   Logger* log) {
  absl::StatusOr<GpuBenchSPart> loaded =
      LoadGpuBenchSPart(options, {.sequences_max = rows_max, .several = true, .cores = cores}, log);
  if (!loaded.ok()) return loaded.status();
  std::unique_ptr<GpuStepBench> bench(new GpuStepBench(*std::move(loaded)));
  if (absl::Status bad = bench->MakeAreas(); !bad.ok()) return bad;
  return bench;
}

GpuStepBench::GpuStepBench(GpuBenchSPart loaded) : loaded_(std::move(loaded)), table_(MakeBenchTable(loaded_.shape)) {
  greedy_.temperature = 0;
}

GpuStepBench::~GpuStepBench() {
  if (registered_) loaded_.spart->areas()->UnregisterAreas(reinterpret_cast<std::byte*>(areas_.data()));
}

absl::Status GpuStepBench::MakeAreas() {
  const size_t send_bytes = hop_bytes(static_cast<int>(loaded_.shape.max_rows));
  ArenaOptions wanted;
  wanted.bytes = send_bytes + reply_bytes(static_cast<int>(loaded_.shape.max_rows));
  absl::StatusOr<Arena> areas = Arena::Create(wanted);
  if (!areas.ok()) return areas.status();
  areas_ = *std::move(areas);
  auto* const memory = reinterpret_cast<std::byte*>(areas_.data());
  if (absl::Status bad = loaded_.spart->areas()->RegisterAreas(memory, areas_.bytes()); !bad.ok()) return bad;
  registered_ = true;
  table_.home_areas = {{memory, memory + send_bytes}};
  return absl::OkStatus();
}

// Tokens and positions are others in each step.
void GpuStepBench::FillTable(int rows) {
  FD_CHECK(rows > 0 && rows <= static_cast<int>(loaded_.shape.max_rows), "rows of a step");
  ++steps_;
  table_.rows = table_.logit_rows = rows;
  for (int r = 0; r < rows; ++r) {
    const auto row = static_cast<size_t>(r);
    const uint64_t drawn = (steps_ * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(r)) * 0xbf58476d1ce4e5b9u >> 20;
    table_.tokens[row] = static_cast<int32_t>(drawn % static_cast<uint64_t>(loaded_.vocab));
    table_.positions[row] = static_cast<int32_t>(drawn % loaded_.shape.max_context);
    table_.home_rows[row] = static_cast<uint32_t>(r);
    LogitRow& logits = table_.logits[row];
    logits.row = static_cast<uint32_t>(r);
    logits.args = {};
    logits.args.vocab = loaded_.vocab;
    logits.args.params = &greedy_;
    logits.args.position = static_cast<uint64_t>(table_.positions[row]) + 1;
  }
}

absl::StatusOr<uint64_t> GpuStepBench::Run(int rows, std::vector<StageTrace>* traces) {
  FillTable(rows);
  return RunBenchStep(loaded_.spart.get(), &table_, traces);
}

absl::StatusOr<uint64_t> GpuStepBench::RunStep(int rows) { return Run(rows, nullptr); }

absl::StatusOr<uint64_t> GpuStepBench::RunNearStep(int rows) {
  absl::StatusOr<HomeArea> near = probe_.NearArea();
  if (!near.ok()) return near.status();
  std::swap(table_.home_areas[0], *near);
  FillTable(rows);
  const absl::StatusOr<uint64_t> ns = RunBenchStepAhead(loaded_.spart.get(), &table_);
  std::swap(table_.home_areas[0], *near);
  return ns;
}

absl::StatusOr<double> GpuStepBench::RunCrossing(int rows, int times, Way way, bool by_copies) {
  const absl::StatusOr<double> step_ns = probe_.MeasureCrossing(rows, times, way, by_copies);
  if (!step_ns.ok()) return step_ns.status();
  return *step_ns / layers();
}

absl::Status GpuStepBench::RunTimedStep(int rows, Hops* hops) {
  std::vector<StageTrace> traces(static_cast<size_t>(layers()) + 1);
  if (absl::StatusOr<uint64_t> done = Run(rows, &traces); !done.ok()) return done.status();
  StageBorders before = BordersOf(traces[0]);
  for (size_t stage = 1; stage < traces.size(); ++stage) {
    const StageBorders now = BordersOf(traces[stage]);
    FD_CHECK(before.published && before.sends && now.begun && now.gathered, "a stage says when it began and ended");
    hops->idle_ns.push_back(Between(*before.published, *now.begun));
    hops->hop_ns.push_back(Between(*before.sends, *now.gathered));
    before = now;
  }
  return absl::OkStatus();
}

}  // namespace fastdecode
