#include "kernels/cuda/attention_dispatch.cuh"
#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/cuda/emulated_kernels_of.h"

namespace fastdecode {

FD_FOR_ATTENTION_KERNELS(FD_INSTANTIATE)

}  // namespace fastdecode
