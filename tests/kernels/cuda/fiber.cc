#include "tests/kernels/cuda/fiber.h"

#include <sys/mman.h>

#include <boost/context/stack_context.hpp>
#include <utility>

#include "numa/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(FASTDECODE_FIBERS_UNDER_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace fastdecode::simt_internal {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 32 * kPage;

#if defined(__SANITIZE_ADDRESS__)
void BeginSwitch(void** fake_stack, const void* bottom, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
}
void EndSwitch(void* fake_stack, const void** bottom, size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
}
// Fibers that ended have left frames behind, whose marks outlive the mapping and would be the next one's.
void ForgetFrames(const void* memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
void ForgetFrames(const void*, size_t) {}
void BeginSwitch(void**, const void*, size_t) {}
void EndSwitch(void*, const void**, size_t*) {}
#endif

#if defined(FASTDECODE_FIBERS_UNDER_TSAN)
void* ThreadSanitizerFiber() { return __tsan_get_current_fiber(); }
void* NewThreadSanitizerFiber() { return __tsan_create_fiber(0); }
void DeleteThreadSanitizerFiber(void* fiber) { __tsan_destroy_fiber(fiber); }
void SwitchThreadSanitizer(void* fiber) { __tsan_switch_to_fiber(fiber, 0); }
#else
void* ThreadSanitizerFiber() { return nullptr; }
void* NewThreadSanitizerFiber() { return nullptr; }
void DeleteThreadSanitizerFiber(void*) {}
void SwitchThreadSanitizer(void*) {}
#endif

boost::context::stack_context MapStack(unsigned index) {
  void* const memory =
      mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  FD_CHECK(memory != MAP_FAILED && mprotect(memory, kPage, PROT_NONE) == 0, "there is memory for a fiber's stack");
  boost::context::stack_context stack;
  stack.size = kStackBytes - index % 16 * 256;
  stack.sp = static_cast<std::byte*>(memory) + kPage + stack.size;
  return stack;
}

// Hands a stack to a boost::context::fiber, and takes it back.
struct Stack {
  boost::context::stack_context mapped;

  boost::context::stack_context allocate() const { return mapped; }
  void deallocate(boost::context::stack_context& stack) const noexcept {
    std::byte* const memory = static_cast<std::byte*>(stack.sp) - stack.size - kPage;
    ForgetFrames(memory, kPage + kStackBytes);
    munmap(memory, kPage + kStackBytes);
  }
};

}  // namespace

Fiber::Fiber() : tsan_fiber_(ThreadSanitizerFiber()), is_thread_(true) {}

Fiber::Fiber(unsigned index, void (*body)(void* context), void* context)
    : tsan_fiber_(NewThreadSanitizerFiber()), is_thread_(false) {
  const auto run = [this, body, context](boost::context::fiber&& left) {
    Arrive(std::move(left));
    body(context);
    return LeaveForGood();
  };
  const Stack stack = {MapStack(index)};
  bottom_ = static_cast<std::byte*>(stack.mapped.sp) - stack.mapped.size;
  bytes_ = stack.mapped.size;
  rest_ = boost::context::fiber(std::allocator_arg, Stack(stack), run);
}

Fiber::~Fiber() {
  if (!is_thread_) DeleteThreadSanitizerFiber(tsan_fiber_);
}

void Fiber::SwitchTo(Fiber* next) {
  next->from_ = this;
  BeginSwitch(&fake_stack_, next->bottom_, next->bytes_);
  SwitchThreadSanitizer(next->tsan_fiber_);
  Arrive(std::move(next->rest_).resume());
}

void Fiber::Arrive(boost::context::fiber&& left) {
  EndSwitch(fake_stack_, &from_->bottom_, &from_->bytes_);
  from_->rest_ = std::move(left);
}

boost::context::fiber Fiber::LeaveForGood() {
  Fiber* const next = std::exchange(from_, nullptr);
  next->from_ = this;
  BeginSwitch(nullptr, next->bottom_, next->bytes_);
  SwitchThreadSanitizer(next->tsan_fiber_);
  return std::move(next->rest_);
}

}  // namespace fastdecode::simt_internal
