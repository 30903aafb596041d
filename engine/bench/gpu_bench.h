#ifndef FASTDECODE_ENGINE_BENCH_GPU_BENCH_H_
#define FASTDECODE_ENGINE_BENCH_GPU_BENCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/messages.h"
#include "engine/bench/cuda_probe.h"
#include "engine/spart/cuda/cuda_spart.h"
#include "numa/log.h"

namespace fastdecode {

// What gpu_step_bench.h and gpu_home_bench.h share: a GPU's S-Part without an engine around it, and its steps.

struct GpuBenchSPart {
  RPartShape shape;
  ElementType type = ElementType::kF32;
  int vocab = 0;
  std::unique_ptr<CudaSPart> spart;
};

struct GpuBenchLoad {
  int sequences_max = 0;        // of a micro-batch
  bool several = false;         // micro-batches, as many as the options say; else one
  int chunk = 1;                // rows of a prompt in a step
  bool is_home = false;         // of KV
  bool pushes = false;          // then: k and v of prompts to others
  std::vector<int> cores = {};  // to read weights with
};

// `options`: of the engine's, by name, the model and what concerns the S-Part. Errors: those of SetOption;
// FailedPrecondition if there is no GPU; those of loading a model.
absl::StatusOr<GpuBenchSPart> LoadGpuBenchSPart(const std::map<std::string, std::string>& options,
                                                const GpuBenchLoad& load, Logger* log);

// A step table with room for all rows; its rows have their home at index 0.
StepTable MakeBenchTable(const RPartShape& shape);

// All stages of a step, in ns. `traces`: of each stage; null: no times are stored. `turn`: is called again and again
// meanwhile, with the stages that are over. Errors: Unavailable, with what the S-Part says. Thread: the one that plays
// the pipeline thread.
absl::StatusOr<uint64_t> RunBenchStep(
    CudaSPart* spart, StepTable* table, std::vector<StageTrace>* traces,
    absl::FunctionRef<void(int stages_over)> turn = [](int) {});
// As that, but no stage waits for the host: all may run from the start.
absl::StatusOr<uint64_t> RunBenchStepAhead(CudaSPart* spart, StepTable* table);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_BENCH_GPU_BENCH_H_
