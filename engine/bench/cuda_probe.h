#ifndef FASTDECODE_ENGINE_BENCH_CUDA_PROBE_H_
#define FASTDECODE_ENGINE_BENCH_CUDA_PROBE_H_

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/spart/cuda/cuda_spart.h"
#include "engine/spart/cuda/step_graph.h"
#include "engine/spart/cuda/wait_probe.h"

namespace fastdecode {

// Measures parts of a step of a CudaSPart alone, in graphs of their own. The first call with a number of rows makes
// their graph. Owns: nothing; graphs and memory are the device's, until it goes. Thread: the control thread, while no
// step runs. REQUIRES: rows <= rows_max; the S-Part outlives the probe.
class CudaProbe {
 public:
  explicit CudaProbe(CudaSPart* spart) : spart_(spart) {}

  // How long the GEMMs of a step of so many rows, all sampled, take alone, one after another, on average over `times`
  // steps, in ns.
  absl::StatusOr<double> MeasureGemms(int rows, int times);
  // The same while a kernel waits in the stream of each other micro-batch, as a step that waits for a hop does.
  // REQUIRES: there are others, and the GEMMs were measured alone. Errors: DeadlineExceeded if the wait ends first, or
  // if they do not end: the GPU is given up then; the device's own.
  absl::StatusOr<double> MeasureGemmsBesideWaits(int rows, int times);
  // The same for appending and attending to the KV of the last step, all of whose rows were at the own home.
  // REQUIRES: it had no prompt's chunk.
  absl::StatusOr<double> MeasureAttention(int rows, int times);
  // The same for one way of the last step's rows, there or back, in all layers. REQUIRES: their home is that of index 0.
  absl::StatusOr<double> MeasureCrossing(int rows, int times, Way way, bool by_copies);
  // An area in the device's memory, in place of a home's in steps of the first micro-batch: they are all but the way to
  // the host's memory.
  absl::StatusOr<HomeArea> NearArea();

 private:
  absl::Status MakeNearArea();
  absl::Status MakeProbes();
  template <class Make>
  absl::StatusOr<double> Measure(std::map<int, SPartDevice::Graph>* graphs, int rows, int times, const Make& make);

  CudaSPart* const spart_;
  std::map<int, SPartDevice::Graph> gemms_, attention_, crossings_[2][2];  // by rows
  std::vector<WaitProbe> probes_;                                          // of each micro-batch
  StepArea near_area_;                                                     // its rows lie in the device's memory
  StepArea* near_area_on_device_ = nullptr;                                // as kernels take it
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_BENCH_CUDA_PROBE_H_
