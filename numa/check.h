#ifndef FASTDECODE_NUMA_CHECK_H_
#define FASTDECODE_NUMA_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace fastdecode {

// Ends the process for a broken invariant of our own code. Never used for bad input, a dead peer or a full queue.
[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message);
  std::abort();
}

}  // namespace fastdecode

// On in every build. `message` is a literal that says which rule was broken.
#define FD_CHECK(condition, message)                                                   \
  do {                                                                                 \
    if (__builtin_expect(!(condition), 0)) {                                           \
      ::fastdecode::CheckFailed(__FILE__, __LINE__, #condition, message);              \
    }                                                                                  \
  } while (false)

#endif  // FASTDECODE_NUMA_CHECK_H_
