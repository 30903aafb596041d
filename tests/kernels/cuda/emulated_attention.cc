#include "kernels/cuda/attention_dispatch.cuh"
#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/cuda/emulated_kernels_of.h"

namespace fastdecode {

#define FD_INSTANTIATE(Args) template void EmulateKernel(const Args&, const EmulatorOptions&);
FD_FOR_ATTENTION_KERNELS(FD_INSTANTIATE)
#undef FD_INSTANTIATE

}  // namespace fastdecode
