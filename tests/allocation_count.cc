#include "tests/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<uint64_t> g_allocations{0};

void* Allocate(size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}

}  // namespace

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // GCC 12 inlines one of the pair and not the other
// NOLINTBEGIN
void* operator new(size_t bytes) {
  if (void* memory = Allocate(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND

namespace fastdecode {

uint64_t AllocationCount() { return g_allocations.load(std::memory_order_relaxed); }

}  // namespace fastdecode
