#include "numa/parker.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "numa/core_turn.h"

namespace fastdecode {

// Neither call uses FUTEX_PRIVATE_FLAG, because the word may lie in shared memory. Their errors (EAGAIN, EINTR,
// ETIMEDOUT) all mean: poll again, which the caller does anyway.

void FutexPolicy::Wait(Word* word, uint32_t expected, uint64_t timeout_ns) {
  const CoreTurn::Away away;
  const timespec timeout = {static_cast<time_t>(timeout_ns / 1'000'000'000),
                            static_cast<long>(timeout_ns % 1'000'000'000)};
  syscall(SYS_futex, word, FUTEX_WAIT, expected, timeout_ns == kForever ? nullptr : &timeout, nullptr, 0);
}

void FutexPolicy::Wake(Word* word, int sleepers_max) {
  syscall(SYS_futex, word, FUTEX_WAKE, sleepers_max, nullptr, nullptr, 0);
}

}  // namespace fastdecode
