#ifndef FASTDECODE_RDMA_GPU_GPU_MEMORY_PROBE_H_
#define FASTDECODE_RDMA_GPU_GPU_MEMORY_PROBE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rdma/gpu/gpu_memory.h"

namespace fastdecode {

// What was found out about one GPU and one protection domain.
struct GpuMemoryProbe {
  GpuMemoryMethod method = GpuMemoryMethod::kHostBounce;
  // Why not a better one: a line for each that was tried before, "dma-buf: ibv_reg_dmabuf_mr on mlx5_0: ...".
  std::vector<std::string> refused;
  // The GPU's kernels see what the RDMA device wrote only after GpuDevice::FlushWrites.
  bool flush = false;

  // "peermem; the GPU sees the device's writes without a flush; not dma-buf: ...".
  std::string Describe() const;
};

// Makes and destroys a small GpuMemory by each method until one works; memory of a GPU that needs a flush, but has none
// that the CPU can ask for, does not. `module_folder` is where the kernel lists its modules.
// Errors: those of GpuDevice::Open; FailedPrecondition with a line for each method if none works.
absl::StatusOr<GpuMemoryProbe> ProbeGpuMemory(const GpuMemoryPlace& place,
                                              const std::string& module_folder = "/sys/module");

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_GPU_GPU_MEMORY_PROBE_H_
