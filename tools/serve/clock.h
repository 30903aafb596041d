#ifndef FASTDECODE_TOOLS_SERVE_CLOCK_H_
#define FASTDECODE_TOOLS_SERVE_CLOCK_H_

#include <cstdint>
#include <ctime>

namespace fastdecode::serve {

// CLOCK_MONOTONIC, which is the engine's clock, too.
inline uint64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Since 1970.
inline uint64_t WallNs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_CLOCK_H_
