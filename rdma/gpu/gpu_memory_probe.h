#ifndef FASTDECODE_RDMA_GPU_GPU_MEMORY_PROBE_H_
#define FASTDECODE_RDMA_GPU_GPU_MEMORY_PROBE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rdma/gpu/gpu_memory.h"

namespace fastdecode {

// Whether a running kernel sees what the RDMA device wrote into the GPU's memory once the CPU has polled the
// completion, or whether that needs a flush in between; and which of CUDA's flushes there are (an RDMA read of the
// memory always works). Where a GPU has several paths for such writes (Grace, Data Direct), this is about each alone.
struct GpuFlush {
  bool needed = false;
  bool by_host = false;    // cuFlushGPUDirectRDMAWrites
  bool by_stream = false;  // a stream's wait with CU_STREAM_WAIT_VALUE_FLUSH

  // "the GPU sees the device's writes without a flush".
  std::string Describe() const;
};

// What was found out about one GPU and one protection domain.
struct GpuMemoryProbe {
  GpuMemoryMethod method = GpuMemoryMethod::kHostBounce;
  // Why not a better one: a line for each that was tried before, "dma-buf: ibv_reg_dmabuf_mr on mlx5_0: ...".
  std::vector<std::string> refused;
  GpuFlush flush;

  // "peermem; the GPU sees the device's writes without a flush; not dma-buf: ...".
  std::string Describe() const;
};

// Makes and destroys a small GpuMemory by each method until one works. `module_folder` is where the kernel lists its
// modules.
// Errors: those of GpuDevice::Open; FailedPrecondition with a line for each method if none works.
absl::StatusOr<GpuMemoryProbe> ProbeGpuMemory(const GpuMemoryPlace& place,
                                              const std::string& module_folder = "/sys/module");

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_GPU_GPU_MEMORY_PROBE_H_
