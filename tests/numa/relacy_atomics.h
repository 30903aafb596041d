#ifndef FASTDECODE_TESTS_NUMA_RELACY_ATOMICS_H_
#define FASTDECODE_TESTS_NUMA_RELACY_ATOMICS_H_

// The types that let a protocol of numa/ run under the Relacy race detector. Include it after the protocol's own
// headers and the standard library: Relacy replaces words like `new` and `memory_order_acquire` by macros, which are
// undone below.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

// clang-format off
#include <relacy/relacy.hpp>  // last
// clang-format on

#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#undef Sleep

// Relacy replaces the global operators new and delete by inline functions. All of them must exist out of line, or the
// standard library's own code pairs one of Relacy's with one of its own.
[[gnu::used]] inline void* (*const kRelacyNew[])(size_t) = {&::operator new, &::operator new[] };
[[gnu::used]] inline void (*const kRelacyDelete[])(void*) noexcept = {&::operator delete, &::operator delete[] };

namespace fastdecode {

inline rl::memory_order ToRelacy(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return rl::mo_relaxed;
    case std::memory_order_consume:
      return rl::mo_consume;
    case std::memory_order_acquire:
      return rl::mo_acquire;
    case std::memory_order_release:
      return rl::mo_release;
    case std::memory_order_acq_rel:
      return rl::mo_acq_rel;
    case std::memory_order_seq_cst:
      return rl::mo_seq_cst;
  }
  return rl::mo_seq_cst;
}

// std::atomic's face on Relacy's atomic: every load may return any value that the C++ memory model allows.
template <class T>
class RelacyAtomic {
 public:
  RelacyAtomic() : value_(T()) {}
  RelacyAtomic(T value) : value_(value) {}  // NOLINT: implicit as std::atomic's

  T load(std::memory_order order) const { return value_.load(ToRelacy(order), $); }
  void store(T value, std::memory_order order) { value_.store(value, ToRelacy(order), $); }
  T exchange(T value, std::memory_order order) { return value_.exchange(value, ToRelacy(order), $); }
  T fetch_add(T value, std::memory_order order) { return value_.fetch_add(value, ToRelacy(order), $); }

  rl::atomic<T>& relacy() { return value_; }

 private:
  rl::atomic<T> value_;
};

// As StdAtomics; a Cell that two threads touch without order between them is reported as a data race.
struct RelacyAtomics {
  template <class T>
  using Atomic = RelacyAtomic<T>;

  template <class T>
  class Cell {
   public:
    void Put(T value) { value_($) = value; }
    void TakeInto(T* out) { *out = value_($); }

   private:
    rl::var<T> value_;
  };
};

// As FutexPolicy, on Relacy's model of a futex, which also wakes for no reason. Without a timeout, so that a lost
// wake-up is a deadlock, which Relacy reports.
struct RelacyFutexPolicy {
  using Word = RelacyAtomic<int>;
  static constexpr uint64_t kForever = UINT64_MAX;

  static void Wait(Word* word, uint32_t expected, uint64_t /*timeout_ns*/) {
    rl::rl_futex(&word->relacy(), rl::RL_FUTEX_WAIT, static_cast<int>(expected), nullptr, nullptr, 0, $);
  }
  static void Wake(Word* word, int sleepers_max) {
    rl::rl_futex(&word->relacy(), rl::RL_FUTEX_WAKE, sleepers_max, nullptr, nullptr, 0, $);
  }
};

// Runs `Model` in so many random schedules. `*log` is Relacy's report. It goes through stdout: a string stream would
// grow under Relacy's allocator and be freed outside of it.
template <class Model>
bool SimulateSchedules(int schedules, std::string* log) {
  rl::test_params params;
  params.iteration_count = static_cast<rl::iteration_t>(schedules);
  testing::internal::CaptureStdout();
  const bool passed = rl::simulate<Model>(params);
  *log = testing::internal::GetCapturedStdout();
  return passed;
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_NUMA_RELACY_ATOMICS_H_
