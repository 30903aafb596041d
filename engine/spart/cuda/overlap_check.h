#ifndef FASTDECODE_ENGINE_SPART_CUDA_OVERLAP_CHECK_H_
#define FASTDECODE_ENGINE_SPART_CUDA_OVERLAP_CHECK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// Whether a step of one stream runs and ends while another one's waits for the host, as the pipeline of micro-batches
// needs it: with launches that wait for what they launch (CUDA_LAUNCH_BLOCKING, a debugger) or with fewer queues on the
// device than streams, steps would hang until their waits give up. Tries it, in all streams at once; a moment where
// they do overlap, and `bound_ns` where they do not. Takes a little memory from the device for good.
// Errors: FailedPrecondition; the device's own. REQUIRES: nothing was launched. Thread: the one that makes graphs.
absl::Status CheckStepsOverlap(const std::vector<SPartDevice::Stream>& streams, uint64_t bound_ns, SPartDevice* device);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_OVERLAP_CHECK_H_
