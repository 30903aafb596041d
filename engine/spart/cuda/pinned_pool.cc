#include "engine/spart/cuda/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <new>

#include "numa/check.h"

namespace fastdecode {

namespace {

constexpr size_t kBlockBytesMin = 64, kSlabBytesMin = size_t{1} << 20, kSlabBlocksMin = 4;
constexpr size_t kAlignmentMax = 256;  // of a slab

size_t ClassOf(size_t bytes, size_t alignment) {
  FD_CHECK(alignment <= kAlignmentMax, "pinned memory is aligned to 256 bytes");
  return static_cast<size_t>(std::bit_width(std::max({bytes, alignment, kBlockBytesMin}) - 1));
}

}  // namespace

PinnedPool::~PinnedPool() {
  for (const auto& [slab, bytes] : ordinary_) std::pmr::new_delete_resource()->deallocate(slab, bytes, kAlignmentMax);
  if (gate_->shut()) return;
  for (std::byte* slab : slabs_) device_->FreePinned(slab);
}

void* PinnedPool::do_allocate(size_t bytes, size_t alignment) {
  const size_t block_class = ClassOf(bytes, alignment);
  if (block_class >= kClasses) throw std::bad_alloc();
  void* const block = TakeFree(block_class);
  return block != nullptr ? block : TakeFromNewSlab(block_class);
}

void PinnedPool::do_deallocate(void* memory, size_t bytes, size_t alignment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_[ClassOf(bytes, alignment)].push_back(static_cast<std::byte*>(memory));
}

void* PinnedPool::TakeFree(size_t block_class) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::byte*>& free = free_[block_class];
  if (free.empty()) return nullptr;
  std::byte* const block = free.back();
  free.pop_back();
  return block;
}

void* PinnedPool::TakeFromNewSlab(size_t block_class) {
  const size_t block_bytes = size_t{1} << block_class;
  const size_t slab_bytes = std::max(kSlabBytesMin, kSlabBlocksMin * block_bytes);
  absl::StatusOr<std::byte*> pinned = nullptr;
  if (const std::shared_ptr<void> hold = gate_->Hold(); hold != nullptr) pinned = device_->AllocatePinned(slab_bytes);
  if (!pinned.ok()) throw std::bad_alloc();
  std::byte* slab = *pinned;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (slab != nullptr) {
    slabs_.push_back(slab);
  } else {
    slab = static_cast<std::byte*>(std::pmr::new_delete_resource()->allocate(slab_bytes, kAlignmentMax));
    ordinary_.emplace_back(slab, slab_bytes);
  }
  for (size_t at = block_bytes; at < slab_bytes; at += block_bytes) free_[block_class].push_back(slab + at);
  return slab;
}

}  // namespace fastdecode
