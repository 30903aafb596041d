#include "kernels/cuda/launch_any.cuh"
#include "kernels/cuda/sample_kernel.cuh"

namespace fastdecode {

template cudaError_t LaunchKernel(const SampleRowsArgs&, bool, cudaStream_t);

}  // namespace fastdecode
