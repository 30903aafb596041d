#ifndef FASTDECODE_NUMA_CACHE_LINE_H_
#define FASTDECODE_NUMA_CACHE_LINE_H_

#include <cstddef>

namespace fastdecode {

// What two threads must not share if one of them writes it often. x86-64 only, where it is 64.
inline constexpr size_t kCacheLineBytes = 64;

// A value with its cache line to itself.
template <class T>
struct alignas(kCacheLineBytes) CacheAligned {
  T value;
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_CACHE_LINE_H_
