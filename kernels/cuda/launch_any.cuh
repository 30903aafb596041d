#ifndef FASTDECODE_KERNELS_CUDA_LAUNCH_ANY_CUH_
#define FASTDECODE_KERNELS_CUDA_LAUNCH_ANY_CUH_

// The body of launch_kernels.h, for arguments with a ShapeOf and a Dispatch.

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernels.h"

namespace fastdecode {

template <class Args>
cudaError_t LaunchKernel(const Args& args, cudaStream_t stream) {
  const LaunchShape shape = ShapeOf(args);
  const dim3 blocks(shape.blocks_x, shape.blocks_y);
  return Dispatch(args, [&](void (*kernel)(Args)) {
    constexpr unsigned kSharedUnasked = 48 << 10;  // more is given to who asks for it
    if (shape.shared_bytes > kSharedUnasked) {
      const cudaError_t refused = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                       static_cast<int>(shape.shared_bytes));
      if (refused != cudaSuccess) return refused;
    }
    kernel<<<blocks, shape.threads, shape.shared_bytes, stream>>>(args);
    return cudaGetLastError();
  });
}

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_LAUNCH_ANY_CUH_
