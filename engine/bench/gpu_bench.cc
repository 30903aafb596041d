#include "engine/bench/gpu_bench.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "engine/start/choices.h"
#include "engine/start/load_spart.h"
#include "engine/model/model_config.h"
#include "engine/start/options.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"

namespace fastdecode {

absl::StatusOr<GpuBenchSPart> LoadGpuBenchSPart(const std::map<std::string, std::string>& given,
                                                const GpuBenchLoad& load, Logger* log) {
  Options options;
  for (const auto& [name, value] : given) {
    if (absl::Status bad = SetOption(options, name, value); !bad.ok()) return bad;
  }
  if (options.model.empty()) return absl::InvalidArgumentError("--model: a model folder is needed");
  options.spart = Options::SPartBackend::kCuda;
  options.micro_batches = load.several ? SplitMicroBatches(options) : 1;
  options.max_sequences = load.sequences_max * options.micro_batches;
  options.prefill_chunk = load.chunk;
  absl::StatusOr<ModelSpec> spec = ReadModelSpec(options.model);
  if (!spec.ok()) return spec.status();
  absl::StatusOr<std::unique_ptr<SPartDevice>> device = ChooseDevice(options, log);
  if (!device.ok()) return device.status();
  SPartPlace place;
  place.device = *std::move(device);
  const absl::StatusOr<ElementType> type = ChooseType(options, Isa::kNone, /*gpu=*/true);
  if (!type.ok()) return type.status();
  const absl::StatusOr<int> context = ChooseContext(options, *spec);
  if (!context.ok()) return context.status();
  if (absl::Status bad = CheckSequences(options); !bad.ok()) return bad;
  place.type = *type;
  place.shape = MakeShape(*spec, options, *type, *context, /*places_for_all=*/false);
  if (absl::Status bad = ValidateShape(place.shape); !bad.ok()) return bad;
  if (load.is_home && !GpuHolds(static_cast<KvType>(place.shape.kv_type))) {
    return absl::InvalidArgumentError("--kv-type: a home on a GPU holds f32, bf16, fp16 or int8");
  }
  place.sequences_max = load.sequences_max;
  place.is_home = load.is_home;
  place.pushes = load.pushes;
  place.all_cores = load.cores;
  GpuBenchSPart loaded = {place.shape, *type, spec->vocab, nullptr};
  const absl::StatusOr<ModelFiles> files = OpenModelFiles(options, *spec);
  if (!files.ok()) return files.status();
  absl::StatusOr<std::unique_ptr<SPart>> spart = LoadSPart(options, *spec, *files, std::move(place), log);
  if (!spart.ok()) return spart.status();
  // With a device, LoadSPart makes no other.
  loaded.spart.reset(static_cast<CudaSPart*>(spart->release()));
  return loaded;
}

StepTable MakeBenchTable(const RPartShape& shape) {
  StepTable table;
  table.tokens.resize(shape.max_rows);
  table.positions.resize(shape.max_rows);
  table.homes.resize(shape.max_rows);
  table.home_rows.resize(shape.max_rows);
  table.logits.resize(shape.max_rows);
  return table;
}

absl::StatusOr<uint64_t> RunBenchStep(CudaSPart* spart, StepTable* table, std::vector<StageTrace>* traces,
                                      absl::FunctionRef<void(int stages_over)> turn) {
  const uint64_t start_ns = NowNs();
  for (int stage = 0; stage <= spart->layers(); ++stage) {
    table->trace = traces == nullptr ? nullptr : &(*traces)[static_cast<size_t>(stage)];
    spart->StartStage(/*micro_batch=*/0, stage, *table);
    StageState state;
    do {
      turn(stage);
      state = spart->PollStage(/*micro_batch=*/0);
    } while (state == StageState::kRunning);
    if (state == StageState::kFailed) {
      return absl::UnavailableError(
          absl::StrFormat("stage %d of a step of %d rows: %s", stage, table->rows, spart->failure()));
    }
  }
  return NowNs() - start_ns;
}

absl::StatusOr<uint64_t> RunBenchStepAhead(CudaSPart* spart, StepTable* table) {
  const uint64_t start_ns = NowNs();
  table->trace = nullptr;
  for (int stage = 0; stage <= spart->layers(); ++stage) spart->StartStage(/*micro_batch=*/0, stage, *table);
  StageState state;
  do {
    state = spart->PollStage(/*micro_batch=*/0);
  } while (state == StageState::kRunning);
  if (state == StageState::kDone) return NowNs() - start_ns;
  return absl::UnavailableError(absl::StrFormat("a step of %d rows: %s", table->rows, spart->failure()));
}

}  // namespace fastdecode
