#ifndef FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_OF_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_OF_H_

#include "tests/kernels/cuda/emulated_kernels.h"

// EmulateKernel of kernels that Dispatch finds, for the files that instantiate it.
namespace fastdecode {

template <class Args>
void EmulateKernel(const Args& args, const EmulatorOptions& options) {
  EmulatorOptions awaits = options;
  awaits.awaits = true;
  Dispatch(args, [&](void (*kernel)(Args)) { Emulate(ShapeOf(args), kernel, args, awaits); });
}

#define FD_INSTANTIATE(Args) template void EmulateKernel(const Args&, const EmulatorOptions&);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_OF_H_
