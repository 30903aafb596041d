#ifndef FASTDECODE_KERNELS_CUDA_LAUNCH_ANY_CUH_
#define FASTDECODE_KERNELS_CUDA_LAUNCH_ANY_CUH_

// The body of launch_kernels.h, for arguments with a ShapeOf and a Dispatch.

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernels.h"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode {

// How many of a kernel's blocks the current device has room for at once.
template <class Args>
cudaError_t CountResident(void (*kernel)(Args), const LaunchShape& shape, unsigned* blocks) {
  int device = 0, multiprocessors = 0, of_each = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, static_cast<int>(shape.threads),
                                                          shape.shared_bytes);
  }
  *blocks = static_cast<unsigned>(multiprocessors * of_each);
  return error;
}

template <class Args>
cudaError_t LaunchKernel(const Args& args, bool overlaps, cudaStream_t stream) {
  const LaunchShape shape = ShapeOf(args);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.blocks_x, shape.blocks_y);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute begins_early = {};
  begins_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  begins_early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &begins_early;
  config.numAttrs = overlaps ? 1 : 0;
  return Dispatch(args, [&](void (*kernel)(Args)) {
    constexpr unsigned kSharedUnasked = 48 << 10;  // more is given to who asks for it
    if (shape.shared_bytes > kSharedUnasked) {
      const cudaError_t refused = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(shape.shared_bytes));
      if (refused != cudaSuccess) return refused;
    }
    if constexpr (std::is_same_v<Args, WaitArgs>) {
      // Else a GEMM's block that needs nearly all shared memory finds no room beside it for as long as it waits.
      const cudaError_t refused =
          cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
      if (refused != cudaSuccess) return refused;
    }
    if constexpr (std::is_same_v<Args, AttendKvArgs>) {
      // Blocks share the items: one that finds no room would begin when they are done.
      unsigned resident = 0;
      if (const cudaError_t error = CountResident(kernel, shape, &resident); error != cudaSuccess) return error;
      config.gridDim.x = std::min(shape.blocks_x, std::max(resident, 1u));
    }
    return cudaLaunchKernelEx(&config, kernel, args);
  });
}

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_LAUNCH_ANY_CUH_
