#ifndef FASTDECODE_ENGINE_SPART_CUDA_STAGE_PARTS_H_
#define FASTDECODE_ENGINE_SPART_CUDA_STAGE_PARTS_H_

#include <cstdint>

#include "engine/spart/cuda/device_clock.h"
#include "engine/spart/spart.h"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode {

// A stage of a model of `layers` layers, as the host saw it: from when it was started until it was seen to be over.
struct HostStage {
  int stage = 0, layers = 0;
  uint64_t start_ns = 0, seen_ns = 0;
};

// The parts of a stage that ran on a device, by the host's clock, in order and within the stage. What the clocks'
// difference is not known by is cut off at the stage's ends.
void AddStageParts(const HostStage& stage, const StageStamps& times, const DeviceClock& clock, StageTrace* trace);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_STAGE_PARTS_H_
