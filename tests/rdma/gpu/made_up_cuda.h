#ifndef FASTDECODE_TESTS_RDMA_GPU_MADE_UP_CUDA_H_
#define FASTDECODE_TESTS_RDMA_GPU_MADE_UP_CUDA_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rdma/gpu/cuda_driver.h"

namespace fastdecode {

// A CUDA driver with one GPU, whose memory is memory of this process; its dma-bufs are memfds. The GPU addresses mapped
// host memory elsewhere than the CPU does. What only a program's error can bring about is kept in violations().
// Owns: all that was made through it. Thread: one.
class MadeUpCuda {
 public:
  MadeUpCuda();
  ~MadeUpCuda();
  MadeUpCuda(const MadeUpCuda&) = delete;
  MadeUpCuda& operator=(const MadeUpCuda&) = delete;

  CudaDriver Driver();

  // ---- What tests set ----
  // One that is not here is unknown to this driver. From the start: all that GPUDirect needs.
  std::map<CudaDeviceAttribute, int> attributes;
  // Calls of these names (cuMemAlloc) fail so.
  std::map<std::string, CudaResult> failures;
  // Of all calls that make or ask something, and of what tests pass to Enter, the one of this number fails; from 1 on,
  // 0: none.
  int fail_call = 0;
  size_t allocations_max = SIZE_MAX;  // at a time: there is no memory for more
  std::function<void()> on_flush;
  bool texts = true;  // false: it knows no texts of errors

  // ---- What tests look at ----
  int calls() const { return calls_; }
  // References to the context, contexts made current, allocations, mappings of host memory.
  int live_objects() const;
  const std::vector<std::string>& violations() const { return violations_; }
  // What was made and destroyed, in order, by name of the call.
  std::vector<std::string> log;
  bool IsDeviceMemory(CudaAddress address, size_t bytes) { return FindDevice(address, bytes) != nullptr; }
  // Whether the dma-buf is that of the memory there.
  bool IsDmaBufOf(int fd, CudaAddress address);

  // For a call that makes or asks something: how it ends.
  CudaResult Enter(const std::string& name);

 private:
  struct Allocation;

  // The groups of Driver().
  void AddDeviceCalls(CudaDriver* driver);
  void AddContextCalls(CudaDriver* driver);
  void AddMemoryCalls(CudaDriver* driver);
  void AddHostCalls(CudaDriver* driver);
  void AddFlush(CudaDriver* driver);

  // As Enter, for calls that need a current context.
  CudaResult EnterInContext(const std::string& name);
  // For a call that undoes something; the second, if it needs a current context (that could be had).
  CudaResult Undo(const std::string& name);
  CudaResult UndoInContext(const std::string& name);
  CudaResult Allocate(CudaAddress* address, size_t bytes);
  CudaResult Free(CudaAddress address);
  CudaResult Export(int* fd, CudaAddress address, size_t bytes);
  Allocation* FindDevice(CudaAddress address, size_t bytes);
  // Where the CPU finds what the GPU addresses so; nullptr if it is nothing of the GPU's.
  std::byte* Find(CudaAddress address, size_t bytes);
  CudaResult Copy(const std::string& name, CudaAddress address, size_t bytes,
                  const std::function<void(std::byte*)>& copy);

  int calls_ = 0;
  int references_ = 0;
  std::vector<CudaContext> current_;
  bool push_failed_ = false;  // the last one
  std::map<CudaAddress, std::unique_ptr<Allocation>> allocations_;
  std::map<CudaAddress, size_t> mapped_;
  std::vector<std::string> violations_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_GPU_MADE_UP_CUDA_H_
