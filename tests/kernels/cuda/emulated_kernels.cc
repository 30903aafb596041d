#include "tests/kernels/cuda/emulated_kernels.h"

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/sample_kernel.cuh"
#include "tests/kernels/cuda/emulated_kernels_of.h"

namespace fastdecode {

FD_FOR_STEP_KERNELS(FD_INSTANTIATE)
FD_INSTANTIATE(SampleRowsArgs)

}  // namespace fastdecode
