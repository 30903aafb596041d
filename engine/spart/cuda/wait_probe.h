#ifndef FASTDECODE_ENGINE_SPART_CUDA_WAIT_PROBE_H_
#define FASTDECODE_ENGINE_SPART_CUDA_WAIT_PROBE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/spart/cuda/spart_device.h"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode {

// A step that does nothing: waits for the host in its stream, and says again and again that it is over. Its memory is
// the device's. Thread: the one that launches.
class WaitProbe {
 public:
  // board: pinned; kernels: behind the wait. Takes a little memory from the device for good. Errors: the device's.
  static absl::StatusOr<WaitProbe> Make(SPartDevice::Stream stream, StepBoard* board, size_t kernels, uint64_t bound_ns,
                                        SPartDevice* device);

  SPartDevice::Graph graph() const { return graph_; }
  // Before it is launched again. REQUIRES: it is over, and did not give up: one that did says nothing any more.
  void Rearm() const;
  // Before or after it is launched.
  void Release() const;
  bool is_over() const;
  bool gave_up() const;

 private:
  WaitProbe(StepBoard* board, SPartDevice::Graph graph) : board_(board), graph_(graph) {}

  StepBoard* board_;
  SPartDevice::Graph graph_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_WAIT_PROBE_H_
