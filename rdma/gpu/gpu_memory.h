#ifndef FASTDECODE_RDMA_GPU_GPU_MEMORY_H_
#define FASTDECODE_RDMA_GPU_GPU_MEMORY_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "numa/arena.h"
#include "rdma/file_descriptor.h"
#include "rdma/gpu/cuda_driver.h"
#include "rdma/gpu/gpu_device.h"
#include "rdma/verbs/verbs_calls.h"

namespace fastdecode {

// How a GPU and an RDMA device come to share memory; the first that works is the best.
enum class GpuMemoryMethod : uint8_t {
  kDmaBuf,      // memory of the GPU, given to the RDMA device through the kernel's dma-buf
  kPeerMem,     // memory of the GPU, which the kernel module nvidia_peermem makes known to the RDMA drivers
  kHostBounce,  // pinned memory of the host, which the GPU reads and writes over PCIe
};
// "dma-buf", "peermem", "host bounce".
const char* GpuMemoryMethodName(GpuMemoryMethod method);

// The two that share memory: a GPU, counted as CUDA does, and the protection domain of an RDMA device. All of it must
// outlive what is made with it.
struct GpuMemoryPlace {
  const CudaDriver* driver = nullptr;
  int gpu = 0;
  const VerbsCalls* calls = nullptr;
  ibv_pd* domain = nullptr;
};

struct GpuMemoryOptions {
  size_t bytes = 0;     // at least; rounded up to whole pages
  unsigned access = 0;  // of the RDMA device and its peers: IBV_ACCESS_*
  int host_node = -1;   // kHostBounce: the NUMA node that holds it; -1: anywhere
};

// One zeroed piece of memory that a GPU and an RDMA device share: work requests and peers address it by address() and
// the keys, kernels by data(). No other allocation lies in the pages that were registered.
// Owns: the memory and its registration. Destroying it ends the RDMA device's access before it frees the memory; no
// work request may be under way. Making and destroying may wait for kernels that run on the GPU. Thread: one at a time.
class GpuMemory {
 public:
  // Errors: InvalidArgument for no bytes; those of Arena::Create; a GPU that has not what the method needs, or a failed
  // call, naming GPU or device, call, cause and what to do.
  static absl::StatusOr<std::unique_ptr<GpuMemory>> Create(const GpuMemoryPlace& place, GpuMemoryMethod method,
                                                           const GpuMemoryOptions& options);
  ~GpuMemory();
  // Ends the RDMA device's access, without the GPU, before it is abandoned (numa/abandon.h): nothing else may be called
  // any more, and what it was made with need not outlive it.
  void EndAccess();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  GpuMemoryMethod method() const { return method_; }
  // As kernels address it.
  std::byte* data() const { return reinterpret_cast<std::byte*>(data_); }
  // Whether the CPU may read and write it too, at host_data(), which is nullptr if not.
  bool host_accessible() const { return host_data() != nullptr; }
  std::byte* host_data() const { return reinterpret_cast<std::byte*>(arena_.data()); }
  // At least as many as asked for.
  size_t bytes() const { return bytes_; }

  // As the RDMA device and its peers address it.
  uint64_t address() const { return address_; }
  uint32_t local_key() const { return region_->lkey; }
  uint32_t remote_key() const { return region_->rkey; }

  // For set-up and tests: returns when the bytes have been copied. REQUIRES: they lie within bytes().
  absl::Status CopyFromHost(size_t offset, const void* source, size_t bytes);
  absl::Status CopyToHost(size_t offset, void* destination, size_t bytes) const;

  // "2.0 MiB of GPU 0 (NVIDIA H100 PCIe, 0000:5E:00.0) by dma-buf for mlx5_0".
  std::string Describe() const;

 private:
  GpuMemory(const GpuMemoryPlace& place, GpuMemoryMethod method) : place_(place), method_(method) {}

  // The steps of Create, the context being current.
  absl::Status CheckSupport() const;
  absl::Status AllocateOnDevice(size_t bytes);
  absl::Status MapHostMemory(size_t bytes, int node);
  absl::Status ExportDmaBuf();
  absl::Status Register(unsigned access);

  const GpuMemoryPlace place_;
  const GpuMemoryMethod method_;
  // Constant after Create; in order of making.
  std::unique_ptr<GpuDevice> device_;
  Arena arena_;                 // kHostBounce
  bool host_mapped_ = false;    // the arena, for the GPU
  CudaAddress allocation_ = 0;  // else; 0: none
  CudaAddress data_ = 0;        // from here on
  size_t bytes_ = 0;
  FileDescriptor dma_buf_;
  uint64_t address_ = 0;
  VerbsHandle<ibv_mr> region_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_GPU_GPU_MEMORY_H_
