#ifndef FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_BLOCK_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_BLOCK_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/fiber.h"

namespace fastdecode::simt_internal {

class Emulator;
struct Runner;

// A block's shared memory, between bytes that nobody may change.
class GuardedMemory {
 public:
  // As a block finds it: NaN in every type.
  void Prepare(size_t bytes) {
    bytes_ = bytes;
    if (memory_.size() < bytes + 2 * kGuard) memory_.resize(bytes + 2 * kGuard);
    std::memset(memory_.data(), kGuardByte, kGuard);
    std::memset(data(), 0xff, bytes);
    std::memset(data() + bytes, kGuardByte, kGuard);
  }
  unsigned char* data() { return memory_.data() + kGuard; }  // 16-byte aligned
  bool intact() { return IsGuard(memory_.data()) && IsGuard(data() + bytes_); }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr unsigned char kGuardByte = 0xa5;

  static bool IsGuard(const unsigned char* at) {
    return at[0] == kGuardByte && std::memcmp(at, at + 1, kGuard - 1) == 0;
  }

  std::vector<unsigned char> memory_;
  size_t bytes_ = 0;
};

// A thread's copies on their way to shared memory. Each is done when it is waited for and no sooner; until then its
// bytes are NaN.
class CopiesOfThread {
 public:
  static constexpr size_t kBytes = 16;

  void Begin(std::byte* to, const std::byte* from) {
    std::memset(to, 0xff, kBytes);
    pending_.push_back({to, from, group_});
  }
  void Commit() { ++group_; }
  // All groups but the last `groups`.
  void Wait(unsigned groups) {
    size_t done = 0;
    for (; done < pending_.size() && pending_[done].group + groups < group_; ++done) {
      if (pending_[done].from == nullptr) std::memset(pending_[done].to, 0, kBytes);
      if (pending_[done].from != nullptr) std::memcpy(pending_[done].to, pending_[done].from, kBytes);
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(done));
  }
  bool none() const { return pending_.empty(); }

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    uint64_t group;
  };
  std::vector<Copy> pending_;  // oldest first
  uint64_t group_ = 0;
};

// The lanes of a warp that have come to what they do together.
struct Warp {
  unsigned arrived = 0, returned = 0;
  simt::Site site;
  Runner* lanes[simt::kWarp];  // those that have, one after another
  void* given[simt::kWarp];    // by each lane
};

// A block in flight.
struct Block {
  static constexpr unsigned kThreadsMax = 1024;  // as GPUs have it

  void Begin(const LaunchShape& launch_shape, uint32_t index) {
    shape = &launch_shape;
    x = index % launch_shape.blocks_x;
    y = index / launch_shape.blocks_x;
    returned = 0;
    unstarted.resize(launch_shape.threads);
    for (unsigned thread = 0; thread < launch_shape.threads; ++thread)
      unstarted[thread] = static_cast<uint16_t>(thread);
    for (unsigned warp = 0; warp * simt::kWarp < launch_shape.threads; ++warp) warps[warp].returned = 0;
    shared.Prepare(launch_shape.shared_bytes);
  }

  const LaunchShape* shape = nullptr;
  unsigned x = 0, y = 0;
  std::vector<uint16_t> unstarted;  // threads
  unsigned returned = 0;
  std::vector<Runner*> waiting;  // for the others, at the SyncBlock at `site`
  simt::Site site;
  Warp warps[kThreadsMax / simt::kWarp];
  GuardedMemory shared;
};

// A fiber that runs threads, one after another: those that never wait need no switch.
struct Runner {
  Runner(unsigned index, void (*body)(void*), Emulator* owner) : fiber(index, body, owner), emulator(*owner) {}

  Fiber fiber;
  Emulator& emulator;
  Block* block = nullptr;  // whose thread it runs; null: none
  unsigned thread = 0;
  const char* waits_at = nullptr;  // for reports: what it came to last...
  simt::Site site;                 // ...and where
  CopiesOfThread copies;
  bool awaited = false;  // the kernel before
};

}  // namespace fastdecode::simt_internal

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_EMULATED_BLOCK_H_
