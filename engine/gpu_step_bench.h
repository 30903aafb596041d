#ifndef FASTDECODE_ENGINE_GPU_STEP_BENCH_H_
#define FASTDECODE_ENGINE_GPU_STEP_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/messages.h"
#include "engine/spart/cuda/cuda_spart.h"
#include "kernels/sampler.h"
#include "numa/arena.h"
#include "numa/log.h"

namespace fastdecode {

// Decode steps of a GPU's S-Part at a home that answers at once and with zeros, for measuring: what a step costs beside
// its GEMMs, and what the way to a home and back takes without the home.
// Owns: the S-Part, a step table, the areas of one home in memory of the host, as links over shared memory have them.
// Thread: one at a time, which plays the pipeline thread.
class GpuStepBench {
 public:
  // `options`: of the engine's, by name, the model and what concerns the S-Part. Steps have up to rows_max rows.
  // Errors: those of SetOption; FailedPrecondition if there is no GPU; those of loading a model.
  static absl::StatusOr<std::unique_ptr<GpuStepBench>> Create(const std::map<std::string, std::string>& options,
                                                              int rows_max, Logger* log);
  ~GpuStepBench();
  GpuStepBench(const GpuStepBench&) = delete;
  GpuStepBench& operator=(const GpuStepBench&) = delete;

  // One step, each row of a sequence of its own, all sampled greedily, in ns. Errors: Unavailable, with what the S-Part
  // says. REQUIRES: 0 < rows <= rows_max.
  absl::StatusOr<uint64_t> RunStep(int rows);
  // What lies between the stages of a step, of each layer, in ns of the GPU's clock.
  struct Hops {
    std::vector<uint64_t> idle_ns;  // from a stage's last word to the next one's first: the GPU computes nothing
    std::vector<uint64_t> hop_ns;   // as that, and writing q, k, v before and reading o behind
  };
  // One step like RunStep's whose kernels store their times.
  absl::Status RunTimedStep(int rows, Hops* hops);
  // As CudaSPart::MeasureGemms.
  absl::StatusOr<double> RunGemms(int rows, int times) { return spart_->MeasureGemms(rows, times); }

  int layers() const { return static_cast<int>(shape_.layers); }
  // What a hop of so many rows moves to its home and back.
  size_t hop_bytes(int rows) const { return static_cast<size_t>(rows) * shape_.hop_row_bytes(); }
  size_t reply_bytes(int rows) const { return static_cast<size_t>(rows) * shape_.reply_row_bytes(); }
  // Of matrices, that a step reads.
  uint64_t weight_bytes() const { return spart_->weight_bytes(); }
  size_t weight_element_bytes() const { return ElementBytes(type_); }
  std::string Describe() const { return spart_->Describe(); }

 private:
  GpuStepBench(const RPartShape& shape, ElementType type, int vocab, std::unique_ptr<CudaSPart> spart);
  absl::Status MakeAreas();
  void FillTable(int rows);
  absl::StatusOr<uint64_t> Run(int rows, std::vector<StageTrace>* traces);

  const RPartShape shape_;
  const ElementType type_;
  const int vocab_;
  const std::unique_ptr<CudaSPart> spart_;
  Arena areas_;  // send, then receive
  bool registered_ = false;
  SamplingParams greedy_;
  StepTable table_;
  uint64_t steps_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_GPU_STEP_BENCH_H_
