#include "tests/kernels/runnable_kernels.h"

#include <algorithm>

#include "kernels/cpu/attention_page.h"
#include "kernels/isa.h"
#include "tests/kernels/amx_emulator.h"

namespace fastdecode {

std::vector<AttentionKernels> RunnableKernels(const AttentionShape& shape, Runnable runnable) {
  std::vector<AttentionKernels> all;
  for (const Isa isa : kIsas) {
    const bool emulated = isa == Isa::kAmx && runnable == Runnable::kEmulated && CanRunTiles();
    if (isa > DetectIsa() && !emulated) continue;
    for (const Prefetching prefetching : kPrefetchings) {
      const AttentionKernels kernels = AttentionOf(isa, prefetching, shape);
      const auto same = [&](const AttentionKernels& other) { return other.attend == kernels.attend; };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back(kernels);
    }
  }
  return all;
}

}  // namespace fastdecode
