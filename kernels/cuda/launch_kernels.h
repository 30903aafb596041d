#ifndef FASTDECODE_KERNELS_CUDA_LAUNCH_KERNELS_H_
#define FASTDECODE_KERNELS_CUDA_LAUNCH_KERNELS_H_

#include <cuda_runtime_api.h>

namespace fastdecode {

// Puts a kernel into a stream of the current device, or into the graph that is captured from it. Args are those of
// step_kernels.h and attention_kernels.h, and SampleRowsArgs of sample_kernel.h. `overlaps`: it may begin before the
// one before it has ended (simt.h). REQUIRES: only where that one is a kernel, and on GPUs from Hopper on. Errors:
// CUDA's own for the launch; what goes wrong in the kernel shows later.
//
// Thread: any, as CUDA says.
template <class Args>
cudaError_t LaunchKernel(const Args& args, bool overlaps, cudaStream_t stream);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_LAUNCH_KERNELS_H_
