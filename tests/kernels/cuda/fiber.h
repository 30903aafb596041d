#ifndef FASTDECODE_TESTS_KERNELS_CUDA_FIBER_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_FIBER_H_

#include <boost/context/fiber.hpp>
#include <cstddef>

namespace fastdecode::simt_internal {

// A flow of control of its own or the thread's, that is switched to and from without the kernel; in less than 0.1 µs.
// The sanitizers are told of every switch. Many fibers may run the same code: their frames lie at different offsets, so
// that they do not all compete for the same few lines of the caches.
//
// Owns: its stack, which has an inaccessible page below it. Thread: one.
class Fiber {
 public:
  // The thread's own flow: what runs now.
  Fiber();
  // Begins with body(context) when it is first switched to. When that returns, the fiber is over, and whoever switched
  // to it last goes on. `index`: of the fibers of a kind.
  Fiber(unsigned index, void (*body)(void* context), void* context);
  // REQUIRES: it is over, has never begun, or is the thread's own.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Goes on with `next`, until somebody switches back. REQUIRES: this is what runs, `next` is not.
  void SwitchTo(Fiber* next);

 private:
  void Arrive(boost::context::fiber&& left);
  boost::context::fiber LeaveForGood();

  boost::context::fiber rest_;  // what it will go on with; empty while it runs
  Fiber* from_ = nullptr;       // who switched to it last
  // What sanitizers want to know.
  const void* bottom_ = nullptr;  // of its stack; the thread's own: from when somebody has switched away from it
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;  // AddressSanitizer's, while others run
  void* tsan_fiber_ = nullptr;
  const bool is_thread_;
};

}  // namespace fastdecode::simt_internal

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_FIBER_H_
