#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/launch_any.cuh"

namespace fastdecode {

#define FD_INSTANTIATE(Args) template cudaError_t LaunchKernel(const Args&, bool, cudaStream_t);
FD_FOR_STEP_KERNELS(FD_INSTANTIATE)
#undef FD_INSTANTIATE

}  // namespace fastdecode
