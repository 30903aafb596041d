#include "tests/kernels/runnable_kernels.h"

#include "kernels/cpu/attention_page.h"
#include "kernels/isa.h"
#include "tests/kernels/amx_emulator.h"

namespace fastdecode {

std::vector<AttentionKernels> RunnableKernels(const AttentionShape& shape, Runnable runnable) {
  std::vector<AttentionKernels> all;
  for (const Isa isa : kIsas) {
    const bool emulated = isa == Isa::kAmx && runnable == Runnable::kEmulated && CanRunTiles();
    if (isa > DetectIsa() && !emulated) continue;
    const AttentionKernels kernels = AttentionOf(isa, shape);
    if (all.empty() || all.back().attend != kernels.attend) all.push_back(kernels);
  }
  return all;
}

}  // namespace fastdecode
