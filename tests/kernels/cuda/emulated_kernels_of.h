#ifndef FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_OF_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_OF_H_

#include "tests/kernels/cuda/emulated_kernels.h"

// EmulateKernel, for the files that instantiate it, which include what declares Dispatch for their kernels first.
namespace fastdecode {

template <class Args>
void EmulateKernel(const Args& args, const EmulatorOptions& options) {
  EmulatorOptions awaits = options;
  awaits.awaits = true;
  Dispatch(args, [&](void (*kernel)(Args)) { Emulate(ShapeOf(args), kernel, args, awaits); });
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_OF_H_
