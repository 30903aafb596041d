#include "tests/kernels/cuda/emulated_kernels.h"

#include "kernels/cuda/attention_dispatch.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/sample_kernel.cuh"

namespace fastdecode {

template <class Args>
void EmulateKernel(const Args& args, const EmulatorOptions& options) {
  EmulatorOptions awaits = options;
  awaits.awaits = true;
  Dispatch(args, [&](void (*kernel)(Args)) { Emulate(ShapeOf(args), kernel, args, awaits); });
}

#define FD_INSTANTIATE(Args) template void EmulateKernel(const Args&, const EmulatorOptions&);
FD_FOR_STEP_KERNELS(FD_INSTANTIATE)
FD_FOR_ATTENTION_KERNELS(FD_INSTANTIATE)
FD_INSTANTIATE(SampleRowsArgs)
#undef FD_INSTANTIATE

}  // namespace fastdecode
