#include "tests/kernels/runnable_kernels.h"

#include <algorithm>
#include <set>
#include <string>

#include "kernels/cpu/attention_page.h"
#include "tests/kernels/amx_emulator.h"

namespace fastdecode {
namespace {

AttentionKernels ForPrompts(AttentionKernels kernels) {
  static std::set<std::string> names;
  kernels.name = names.insert(std::string(kernels.name) + "-prompts").first->c_str();
  kernels.attend = kernels.prompts.attend;
  kernels.p_rounding = kernels.prompts.p_rounding;
  kernels.cost = kernels.prompts.cost;
  return kernels;
}

}  // namespace

bool IsRunnable(Isa isa) { return isa <= DetectIsa() || (isa == Isa::kAmx && CanRunTiles()); }

std::vector<AttentionKernels> RunnableKernels(const AttentionShape& shape) {
  std::vector<AttentionKernels> all;
  for (const Isa isa : kIsas) {
    if (!IsRunnable(isa)) continue;
    for (const Prefetching prefetching : kPrefetchings) {
      const AttentionKernels kernels = AttentionOf(isa, prefetching, shape);
      const auto same = [&](const AttentionKernels& other) { return other.attend == kernels.attend; };
      if (std::any_of(all.begin(), all.end(), same)) continue;
      all.push_back(kernels);
      if (kernels.HasPrompts()) all.push_back(ForPrompts(kernels));
    }
  }
  return all;
}

}  // namespace fastdecode
