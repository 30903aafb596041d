#include "engine/gpu_step_bench.h"

#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/choices.h"
#include "engine/load_spart.h"
#include "engine/model/model_config.h"
#include "engine/options.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/check.h"
#include "numa/clock.h"

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
    if (part.what == FD_STAGE_O) borders.gathered = part.start_ns;
    if (part.what == FD_STAGE_QKV) borders.sends = part.end_ns;
    if (part.what != FD_STAGE_SIGNAL) continue;
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

absl::StatusOr<std::unique_ptr<GpuStepBench>> GpuStepBench::Create(const std::map<std::string, std::string>& given,
                                                                   int rows_max, Logger* log) {
  Options options;
  for (const auto& [name, value] : given) {
    if (absl::Status bad = SetOption(options, name, value); !bad.ok()) return bad;
  }
  if (options.model.empty()) return absl::InvalidArgumentError("--model: a model folder is needed");
  options.spart = Options::SPartBackend::kCuda;
  options.micro_batches = 1;
  options.max_sequences = rows_max;
  options.prefill_chunk = 1;
  absl::StatusOr<ModelSpec> spec = ReadModelSpec(options.model);
  if (!spec.ok()) return spec.status();
  absl::StatusOr<std::unique_ptr<SPartDevice>> device = ChooseDevice(options, log);
  if (!device.ok()) return device.status();
  SPartPlace place;
  place.device = *std::move(device);
  const absl::StatusOr<ElementType> type = ChooseType(options, Isa::kNone, /*gpu=*/true);
  if (!type.ok()) return type.status();
  absl::StatusOr<int> context = ChooseContext(options, *spec);
  if (!context.ok()) return context.status();
  if (absl::Status bad = CheckSequences(options); !bad.ok()) return bad;
  place.type = *type;
  place.shape = MakeShape(*spec, options, *type, *context);
  if (absl::Status bad = ValidateShape(place.shape); !bad.ok()) return bad;
  place.sequences_max = SequencesPerMicroBatch(options);
  const RPartShape shape = place.shape;
  absl::StatusOr<std::unique_ptr<SPart>> spart = LoadSPart(options, *spec, std::move(place), log);
  if (!spart.ok()) return spart.status();
  // With a device, LoadSPart makes no other.
  std::unique_ptr<CudaSPart> on_gpu(static_cast<CudaSPart*>(spart->release()));
  std::unique_ptr<GpuStepBench> bench(new GpuStepBench(shape, *type, spec->vocab, std::move(on_gpu)));
  if (absl::Status bad = bench->MakeAreas(); !bad.ok()) return bad;
  return bench;
}

GpuStepBench::GpuStepBench(const RPartShape& shape, ElementType type, int vocab, std::unique_ptr<CudaSPart> spart)
    : shape_(shape), type_(type), vocab_(vocab), spart_(std::move(spart)) {
  table_.tokens.resize(shape.max_rows);
  table_.positions.resize(shape.max_rows);
  table_.homes.resize(shape.max_rows);
  table_.home_rows.resize(shape.max_rows);
  table_.logits.resize(shape.max_rows);
  greedy_.temperature = 0;
}

GpuStepBench::~GpuStepBench() {
  if (registered_) spart_->UnregisterAreas(reinterpret_cast<std::byte*>(areas_.data()));
}

absl::Status GpuStepBench::MakeAreas() {
  const size_t send_bytes = hop_bytes(static_cast<int>(shape_.max_rows));
  ArenaOptions wanted;
  wanted.bytes = send_bytes + reply_bytes(static_cast<int>(shape_.max_rows));
  absl::StatusOr<Arena> areas = Arena::Create(wanted);
  if (!areas.ok()) return areas.status();
  areas_ = *std::move(areas);
  auto* const memory = reinterpret_cast<std::byte*>(areas_.data());
  if (absl::Status bad = spart_->RegisterAreas(memory, areas_.bytes()); !bad.ok()) return bad;
  registered_ = true;
  table_.home_areas = {{memory, memory + send_bytes}};
  return absl::OkStatus();
}

// Tokens and positions are others in each step.
void GpuStepBench::FillTable(int rows) {
  ++steps_;
  table_.rows = table_.logit_rows = rows;
  for (int r = 0; r < rows; ++r) {
    const auto row = static_cast<size_t>(r);
    const uint64_t drawn = (steps_ * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(r)) * 0xbf58476d1ce4e5b9u >> 20;
    table_.tokens[row] = static_cast<int32_t>(drawn % static_cast<uint64_t>(vocab_));
    table_.positions[row] = static_cast<int32_t>(drawn % shape_.max_context);
    table_.home_rows[row] = static_cast<uint32_t>(r);
    LogitRow& logits = table_.logits[row];
    logits.row = static_cast<uint32_t>(r);
    logits.args = {};
    logits.args.vocab = vocab_;
    logits.args.params = &greedy_;
    logits.args.position = static_cast<uint64_t>(table_.positions[row]) + 1;
  }
}

// `traces`: of each stage; null: no times are stored.
absl::StatusOr<uint64_t> GpuStepBench::Run(int rows, std::vector<StageTrace>* traces) {
  FD_CHECK(rows > 0 && rows <= static_cast<int>(shape_.max_rows), "rows of a step");
  FillTable(rows);
  const uint64_t start_ns = NowNs();
  for (int stage = 0; stage <= layers(); ++stage) {
    table_.trace = traces == nullptr ? nullptr : &(*traces)[static_cast<size_t>(stage)];
    spart_->StartStage(/*micro_batch=*/0, stage, table_);
    StageState state;
    do {
      state = spart_->PollStage(/*micro_batch=*/0);
    } while (state == StageState::kRunning);
    if (state == StageState::kFailed) {
      return absl::UnavailableError(
          absl::StrFormat("stage %d of a step of %d rows: %s", stage, rows, spart_->failure()));
    }
  }
  return NowNs() - start_ns;
}

absl::StatusOr<uint64_t> GpuStepBench::RunStep(int rows) { return Run(rows, nullptr); }

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
