#ifndef FASTDECODE_TESTS_KERNELS_RUNNABLE_KERNELS_H_
#define FASTDECODE_TESTS_KERNELS_RUNNABLE_KERNELS_H_

#include <vector>

#include "kernels/attention.h"

namespace fastdecode {

// Each set of kernels for a shape that this machine can run, also those whose prefetching it would not choose, once:
// ISAs may share one. AMX may be emulated (amx_emulator.h), unless kNative is asked for. A kernel for rows of prompts
// is one more set, in which it takes the place of `attend`.
enum class Runnable { kNative, kEmulated };
std::vector<AttentionKernels> RunnableKernels(const AttentionShape& shape, Runnable runnable = Runnable::kEmulated);

inline bool AreForPrompts(const AttentionKernels& kernels) { return kernels.attend == kernels.prompts.attend; }

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_RUNNABLE_KERNELS_H_
