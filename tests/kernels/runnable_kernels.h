#ifndef FASTDECODE_TESTS_KERNELS_RUNNABLE_KERNELS_H_
#define FASTDECODE_TESTS_KERNELS_RUNNABLE_KERNELS_H_

#include <vector>

#include "kernels/attention.h"
#include "kernels/isa.h"

namespace fastdecode {

// Whether this machine can run an ISA's kernels. AMX may be emulated (amx_emulator.h).
bool IsRunnable(Isa isa);

// Each set of kernels for a shape that this machine can run, also those whose prefetching it would not choose, once:
// ISAs may share one. A kernel for rows of prompts is one more set, in which it takes the place of `attend`. Programs
// that use it have runnable_isas_test.cc among their sources, which names the ISAs that are left out.
std::vector<AttentionKernels> RunnableKernels(const AttentionShape& shape);

inline bool AreForPrompts(const AttentionKernels& kernels) { return kernels.attend == kernels.prompts.attend; }

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_RUNNABLE_KERNELS_H_
