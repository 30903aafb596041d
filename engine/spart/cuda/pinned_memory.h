#ifndef FASTDECODE_ENGINE_SPART_CUDA_PINNED_MEMORY_H_
#define FASTDECODE_ENGINE_SPART_CUDA_PINNED_MEMORY_H_

#include <memory_resource>

#include "engine/spart/cuda/launch_gate.h"
#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// A device's pinned memory as a memory_resource: for pools to be cut from, since each piece costs a system call.
// Throws std::bad_alloc where there is none left. Waits until no step runs. Owns: nothing. Thread: any but the
// pipeline's.
class PinnedMemory final : public std::pmr::memory_resource {
 public:
  PinnedMemory(SPartDevice* device, LaunchGate* gate) : device_(device), gate_(gate) {}

 private:
  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  SPartDevice* const device_;
  LaunchGate* const gate_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_PINNED_MEMORY_H_
