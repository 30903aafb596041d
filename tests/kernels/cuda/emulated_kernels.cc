#include "tests/kernels/cuda/emulated_kernels.h"

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/sample_kernel.cuh"
#include "tests/kernels/cuda/emulated_kernels_of.h"

namespace fastdecode {

#define FD_INSTANTIATE(Args) template void EmulateKernel(const Args&, const EmulatorOptions&);
FD_FOR_STEP_KERNELS(FD_INSTANTIATE)
FD_INSTANTIATE(SampleRowsArgs)
#undef FD_INSTANTIATE

}  // namespace fastdecode
