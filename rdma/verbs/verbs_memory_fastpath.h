// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_RDMA_VERBS_VERBS_MEMORY_FASTPATH_H_
#define FASTDECODE_RDMA_VERBS_VERBS_MEMORY_FASTPATH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fastdecode {

// Reads memory that the peer may write at any time: each word once, so that what is checked is what is used.
inline uint64_t LoadWord(const std::byte* at, std::memory_order order) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(const_cast<std::byte*>(at))).load(order);
}

// Writes memory that the device may read at any time. Relaxed, where posting orders it.
inline void StoreWord(std::byte* at, uint64_t value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at)).store(value, order);
}

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_MEMORY_FASTPATH_H_
