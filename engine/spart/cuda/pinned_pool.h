#ifndef FASTDECODE_ENGINE_SPART_CUDA_PINNED_POOL_H_
#define FASTDECODE_ENGINE_SPART_CUDA_PINNED_POOL_H_

#include <array>
#include <cstddef>
#include <memory_resource>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/spart/cuda/launch_gate.h"
#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// A device's pinned memory as a memory_resource, in blocks of powers of two. Freed blocks are kept for others, since
// pinning more waits until no step runs and holds the next ones up: the standard's pools give large blocks back at once
// and keep some for each thread.
// Once the gate is shut it is ordinary memory, since no step will read it any more.
// Throws std::bad_alloc where there is none left. Owns: all its slabs; a shut gate leaves what is pinned to the
// device.
// Bounded: by what was in use at once, by powers of two and slabs. Thread: any but the pipeline's. REQUIRES, to be
// destroyed: no step runs.
class PinnedPool final : public std::pmr::memory_resource {
 public:
  PinnedPool(SPartDevice* device, LaunchGate* gate) : device_(device), gate_(gate) {}
  ~PinnedPool() override;

 private:
  static constexpr size_t kClasses = 48;  // of blocks: 1, 2, 4, ... bytes

  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  void* TakeFree(size_t block_class);
  void* TakeFromNewSlab(size_t block_class);

  SPartDevice* const device_;
  LaunchGate* const gate_;
  std::mutex mutex_;  // never held while waiting for steps
  std::array<std::vector<std::byte*>, kClasses> free_;
  std::vector<std::byte*> slabs_;
  std::vector<std::pair<std::byte*, size_t>> ordinary_;  // slabs that are not pinned, and their sizes
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_PINNED_POOL_H_
