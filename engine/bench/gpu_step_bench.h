#ifndef FASTDECODE_ENGINE_BENCH_GPU_STEP_BENCH_H_
#define FASTDECODE_ENGINE_BENCH_GPU_STEP_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/bench/gpu_bench.h"
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
  // Steps have up to rows_max rows. `cores`: to read weights with. As LoadGpuBenchSPart.
  static absl::StatusOr<std::unique_ptr<GpuStepBench>> Create(const std::map<std::string, std::string>& options,
                                                              int rows_max, const std::vector<int>& cores, Logger* log);
  ~GpuStepBench();
  GpuStepBench(const GpuStepBench&) = delete;
  GpuStepBench& operator=(const GpuStepBench&) = delete;

  // One step, each row of a sequence of its own, all sampled greedily, in ns. Errors: Unavailable, with what the S-Part
  // says. REQUIRES: 0 < rows <= rows_max.
  absl::StatusOr<uint64_t> RunStep(int rows);
  // As that, at a home whose area is in the GPU's memory, and no stage waits for the host: the S-Part's own time.
  absl::StatusOr<uint64_t> RunNearStep(int rows);
  // What lies between the stages of a step, of each layer, in ns of the GPU's clock.
  struct Hops {
    std::vector<uint64_t> idle_ns;  // from a stage's last word to the next one's first: the GPU computes nothing
    std::vector<uint64_t> hop_ns;   // as that, and writing q, k, v before and reading o behind
  };
  // One step like RunStep's whose kernels store their times.
  absl::Status RunTimedStep(int rows, Hops* hops);
  // CudaProbe::MeasureGemms.
  absl::StatusOr<double> RunGemms(int rows, int times) { return probe_.MeasureGemms(rows, times); }
  // CudaProbe::MeasureGemmsBesideWaits. REQUIRES: micro_batches() > 1, and RunGemms of as many rows.
  absl::StatusOr<double> RunGemmsBesideWaits(int rows, int times) {
    return probe_.MeasureGemmsBesideWaits(rows, times);
  }
  // How long one layer's rows take there or back, in ns: by kernels, as in a step, or by the copy engine. Of the last
  // step, which had so many rows; over `times` steps' layers.
  absl::StatusOr<double> RunCrossing(int rows, int times, Way way, bool by_copies);

  int micro_batches() const { return loaded_.spart->micro_batches(); }
  int layers() const { return static_cast<int>(loaded_.shape.layers); }
  // What a hop of so many rows moves to its home and back.
  size_t hop_bytes(int rows) const { return static_cast<size_t>(rows) * loaded_.shape.hop_row_bytes(); }
  size_t reply_bytes(int rows) const { return static_cast<size_t>(rows) * loaded_.shape.reply_row_bytes(); }
  // Of matrices, that a step reads.
  uint64_t weight_bytes() const { return loaded_.spart->weight_bytes(); }
  size_t weight_element_bytes() const { return ElementBytes(loaded_.type); }
  std::string Describe() const { return loaded_.spart->Describe(); }

 private:
  explicit GpuStepBench(GpuBenchSPart loaded);
  absl::Status MakeAreas();
  void FillTable(int rows);
  absl::StatusOr<uint64_t> Run(int rows, std::vector<StageTrace>* traces);

  const GpuBenchSPart loaded_;
  CudaProbe probe_{loaded_.spart.get()};
  Arena areas_;  // send, then receive
  bool registered_ = false;
  SamplingParams greedy_;
  StepTable table_;
  uint64_t steps_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_BENCH_GPU_STEP_BENCH_H_
