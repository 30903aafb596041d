#ifndef FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_H_

#include "tests/kernels/cuda/simt_emulator.h"

namespace fastdecode {

// What LaunchKernel (kernels/cuda/launch_kernels.h) does, on emulated threads: comes back when the kernel is over. Args
// are those of step_kernels.h and attention_kernels.h, and SampleRowsArgs of sample_kernel.h.
//
// Thread: as Emulate.
template <class Args>
void EmulateKernel(const Args& args, const EmulatorOptions& options = {});

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_KERNELS_H_
