// What simt.h declares, for the thread of a kernel that runs on emulated threads.
#include <atomic>
#include <cstring>
#include <string>

#include "kernels/cuda/simt.h"
#include "numa/clock.h"
#include "tests/kernels/cuda/emulator.h"

namespace fastdecode::simt {

using simt_internal::Emulator;
using simt_internal::running;

unsigned Thread() { return running->thread; }
unsigned Threads() { return running->block->shape->threads; }
unsigned BlockX() { return running->block->x; }
unsigned BlockY() { return running->block->y; }
unsigned BlocksX() { return running->block->shape->blocks_x; }
unsigned BlocksY() { return running->block->shape->blocks_y; }
std::byte* SharedMemory() { return reinterpret_cast<std::byte*>(running->block->shared.data()); }

void SyncBlock(Site here) { running->emulator.SyncBlock(here); }
void AwaitKernelBefore(Site here) {
  running->site = here;
  running->emulator.AwaitKernelBefore();
}
void SyncWarp(Site here) {
  running->emulator.Meet(
      nullptr, [](void* const*) {}, "SyncWarp", here);
}
void ExchangeInWarp(const void* mine, void* theirs, size_t size, unsigned lane, Site here) {
  struct Shuffle {
    unsigned wanted;  // lane
    uint64_t value, received;
  };
  if (lane >= kWarp) {
    running->emulator.Fail("a shuffle takes from a lane of the warp", here, "lane " + std::to_string(lane));
  }
  Shuffle shuffle = {lane, 0, 0};
  std::memcpy(&shuffle.value, mine, size);
  const auto together = [](void* const* given) {
    for (unsigned i = 0; i < kWarp; ++i) {
      auto* const of_lane = static_cast<Shuffle*>(given[i]);
      of_lane->received = static_cast<const Shuffle*>(given[of_lane->wanted])->value;
    }
  };
  running->emulator.Meet(&shuffle, together, "a shuffle", here);
  std::memcpy(theirs, &shuffle.received, size);
}

namespace {

// An atomic operation, before and after which others may come.
template <class Operation>
auto Contended(const Operation& operation) {
  Emulator& emulator = running->emulator;
  emulator.MaybePreempt();
  const auto result = operation();
  emulator.MaybePreempt();
  return result;
}

}  // namespace

uint32_t AtomicAdd(uint32_t* word, uint32_t add) {
  return Contended([&] { return std::atomic_ref(*word).fetch_add(add, std::memory_order_relaxed); });
}
uint64_t AtomicAdd(uint64_t* word, uint64_t add) {
  return Contended([&] { return std::atomic_ref(*word).fetch_add(add, std::memory_order_relaxed); });
}
void AtomicMax(uint64_t* word, uint64_t value) {
  Contended([&] {
    const std::atomic_ref<uint64_t> shared(*word);
    uint64_t before = shared.load(std::memory_order_relaxed);
    while (before < value && !shared.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
    }
    return before;
  });
}
// All threads of a kernel are one of the host's, whose release stores order what any of them wrote.
uint32_t CountIn(uint32_t* word) { return AtomicAdd(word, 1u); }
void StoreReleaseSystem(uint64_t* word, uint64_t value) {
  running->emulator.CheckAwaited(running->site);
  Contended([&] {
    std::atomic_ref(*word).store(value, std::memory_order_release);
    running->emulator.Released(word);
    return 0;
  });
}
uint64_t LoadAcquireSystem(const uint64_t* word) {
  return Contended([&] { return std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire); });
}

void CopyAsync(std::byte* shared, const std::byte* from, bool zeros) {
  constexpr uintptr_t kUnit = simt_internal::CopiesOfThread::kBytes;
  running->emulator.CheckAwaited(running->site);
  ExpectAligned(reinterpret_cast<uintptr_t>(shared) % kUnit == 0 && reinterpret_cast<uintptr_t>(from) % kUnit == 0);
  running->copies.Begin(shared, zeros ? nullptr : from);
}
void CommitCopies() { running->copies.Commit(); }
void WaitForCopies(unsigned groups) { running->copies.Wait(groups); }

// Another clock than the host's: years ahead, and 50 parts in a million faster.
uint64_t DeviceNs() {
  const uint64_t now_ns = NowNs();
  return now_ns + now_ns / 20'000 + 100'000'000'000'000'000;
}
void Pause() { running->emulator.Pause(); }

}  // namespace fastdecode::simt
