#ifndef FASTDECODE_NUMA_ATOMICS_H_
#define FASTDECODE_NUMA_ATOMICS_H_

#include <atomic>
#include <utility>

namespace fastdecode {

// What a lock-free protocol is made of. The protocols take it as a template parameter, so that the very code that runs
// here also runs under Relacy, whose atomics and plain variables are other types (tests/numa/relacy_atomics.h).
struct StdAtomics {
  template <class T>
  using Atomic = std::atomic<T>;

  // Plain data that the protocol's atomics must protect.
  template <class T>
  class Cell {
   public:
    template <class U>
    void Put(U&& value) {
      value_ = std::forward<U>(value);
    }
    void TakeInto(T* out) { *out = std::move(value_); }

   private:
    T value_{};
  };
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_ATOMICS_H_
