#ifndef FASTDECODE_NUMA_PINNING_H_
#define FASTDECODE_NUMA_PINNING_H_

#include <cstddef>
#include <string>

#include "numa/core_plan.h"

namespace fastdecode {

// Whether an errno of PinnedThread::pin_error() says that the kernel pins no thread of this process, whichever core it
// is.
bool PinningIsForbidden(int error);

// What to do then.
inline constexpr char kPinningAdvice[] =
    "let the filter pass sched_setaffinity: in a container --cap-add SYS_NICE or --security-opt seccomp=FILE, in a "
    "systemd unit a SystemCallFilter without ~@resources";

// Tries it with a thread that ends at once: what the kernel says, as "sched_setaffinity: Operation not permitted";
// empty if it pins the thread to the core.
std::string TryToPin(int core);

// Tries whether the kernel pins threads as a plan says, with threads that end at once. Empty if it does,
// else for the log: how many threads of which part are not pinned, why, what that costs and what to do. `s_threads`:
// that the S-Part has; the plan's first cores of its.
std::string DescribeRefusedPinning(const CorePlan& plan, size_t s_threads);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_PINNING_H_
