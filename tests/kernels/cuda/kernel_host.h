#ifndef FASTDECODE_TESTS_KERNELS_CUDA_KERNEL_HOST_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_KERNEL_HOST_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_kernels.h"

namespace fastdecode {

// Where a test's kernels run: on emulated threads, or on a GPU, which reaches a test's memory only as copies of it.
// Thread: one.
class KernelHost {
 public:
  virtual ~KernelHost() = default;

  // Where the next kernel finds `count` T of the test's, which stay where they are until its Run comes back. What it is
  // shown it may not change; what it changes of what is shared is there then. Nothing is given to a kernel twice.
  template <class T>
  const T* Show(const T* data, size_t count = 1) {
    return reinterpret_cast<const T*>(Show(reinterpret_cast<const std::byte*>(data), count * sizeof(T)));
  }
  template <class T>
  T* Share(T* data, size_t count = 1) {
    return reinterpret_cast<T*>(Share(reinterpret_cast<std::byte*>(data), count * sizeof(T)));
  }
  virtual const std::byte* Show(const std::byte* data, size_t bytes) = 0;
  virtual std::byte* Share(std::byte* data, size_t bytes) = 0;

  // Comes back when the kernel is over. `seed`: of what order things happen in, where that is to be chosen.
  virtual void Run(const TakeKvStepArgs& args, uint64_t seed) = 0;
  virtual void Run(const AppendKvArgs& args, uint64_t seed) = 0;
  virtual void Run(const AttendKvArgs& args, uint64_t seed) = 0;
};

// On emulated threads, in the test's own memory.
KernelHost& EmulatedHost();

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_KERNEL_HOST_H_
