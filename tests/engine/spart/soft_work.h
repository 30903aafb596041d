#ifndef FASTDECODE_TESTS_ENGINE_SPART_SOFT_WORK_H_
#define FASTDECODE_TESTS_ENGINE_SPART_SOFT_WORK_H_

#include <cstdint>
#include <functional>

#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// Does a piece of work as a GPU would: kernels on emulated threads, whose order follows from `seed`; GEMMs by sums in
// f32 in the order of k, however many rows there are. `before`: of a kernel of ours, what comes before it and is not
// done yet; it is called when the kernel awaits it.
void DoSoftWork(const DeviceWork& work, uint64_t seed, const std::function<void()>& before = nullptr);
// Whether it is a kernel of ours.
bool IsKernel(const DeviceWork& work);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_SPART_SOFT_WORK_H_
