#include "engine/spart/cuda/pinned_memory.h"

#include <memory>
#include <new>

#include "numa/check.h"

namespace fastdecode {

void* PinnedMemory::do_allocate(size_t bytes, size_t alignment) {
  FD_CHECK(alignment <= 256, "pinned memory is aligned to 256 bytes");
  const std::shared_ptr<void> hold = gate_->Hold();
  absl::StatusOr<std::byte*> memory = device_->AllocatePinned(bytes);
  if (!memory.ok()) throw std::bad_alloc();
  return *memory;
}

void PinnedMemory::do_deallocate(void* memory, size_t, size_t) {
  const std::shared_ptr<void> hold = gate_->Hold();
  device_->FreePinned(static_cast<std::byte*>(memory));
}

}  // namespace fastdecode
