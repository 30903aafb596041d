#include "kernels/cuda/attention_dispatch.cuh"
#include "kernels/cuda/launch_any.cuh"

namespace fastdecode {

#define FD_INSTANTIATE(Args) template cudaError_t LaunchKernel(const Args&, bool, cudaStream_t);
FD_FOR_ATTENTION_KERNELS(FD_INSTANTIATE)
#undef FD_INSTANTIATE

}  // namespace fastdecode
