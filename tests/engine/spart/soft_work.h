#ifndef FASTDECODE_TESTS_ENGINE_SPART_SOFT_WORK_H_
#define FASTDECODE_TESTS_ENGINE_SPART_SOFT_WORK_H_

#include <cstdint>

#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// Does a piece of work as a GPU would: kernels on emulated threads, whose order follows from `seed`; GEMMs by sums in
// f32 in the order of k, however many rows there are.
void DoSoftWork(const DeviceWork& work, uint64_t seed);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_SPART_SOFT_WORK_H_
