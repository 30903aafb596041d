#ifndef FASTDECODE_ENGINE_SPART_CUDA_OVERLAP_CHECK_H_
#define FASTDECODE_ENGINE_SPART_CUDA_OVERLAP_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

struct OverlapBounds {
  uint64_t wait_ns = 2'000'000'000;  // what a step waits for the host, by the GPU's clock
  // A step that the GPU has not begun by then, it never will: far more than the time slices of other programs take, and
  // than their kernels where these are not interrupted.
  uint64_t begin_ns = 10'000'000'000;
};

// Whether a step of one stream runs and ends while another one's waits for the host, as the pipeline of micro-batches
// needs it: with launches that wait for what they launch (CUDA_LAUNCH_BLOCKING, a debugger, a queue without room for
// all of a step) or with fewer queues on the device than streams, steps would hang until their waits give up. Tries it
// with steps that do nothing, of so many kernels behind their wait, in all streams at once; a moment where
// they do overlap, and bounds.wait_ns where they do not. Takes a little memory from the device for good.
// Errors: FailedPrecondition; the device's own; DeadlineExceeded if launches returned and the GPU has begun nothing
// after both bounds: what was launched stays so, and whoever waits for the device, as its destructor does, may wait for
// ever. REQUIRES: nothing was launched. Thread: the one that makes graphs.
absl::Status CheckStepsOverlap(const std::vector<SPartDevice::Stream>& streams, size_t kernels,
                               const OverlapBounds& bounds, SPartDevice* device);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_OVERLAP_CHECK_H_
