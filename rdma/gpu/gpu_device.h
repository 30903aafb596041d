#ifndef FASTDECODE_RDMA_GPU_GPU_DEVICE_H_
#define FASTDECODE_RDMA_GPU_GPU_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/gpu/cuda_driver.h"

namespace fastdecode {

// One GPU, in its primary context: the one that CUDA's runtime uses, too, so that its kernels see the same memory.
// Owns: a reference to the context. Thread: any.
class GpuDevice {
 public:
  // `gpu` counts as CUDA does. The driver must outlive the device.
  // Errors: NotFound if there is no such GPU; those of the calls.
  static absl::StatusOr<std::unique_ptr<GpuDevice>> Open(const CudaDriver& driver, int gpu);
  ~GpuDevice();
  GpuDevice(const GpuDevice&) = delete;
  GpuDevice& operator=(const GpuDevice&) = delete;

  const CudaDriver& driver() const { return driver_; }
  // "GPU 0 (NVIDIA H100 PCIe, 0000:5E:00.0)".
  const std::string& name() const { return name_; }
  CudaContext context() const { return context_; }

  absl::StatusOr<int> Attribute(CudaDeviceAttribute attribute) const;

  // Whether kernels may see an RDMA device's write into the GPU's memory only some time after its completion. Where a
  // GPU has several paths for such writes (Grace, Data Direct), this is about each alone.
  bool WritesNeedFlush() const;
  // Whether FlushWrites is to be had.
  bool CanFlushWrites() const;
  // What RDMA devices have written until now is seen by kernels from now on. Waits for PCIe. False: the driver says
  // that it failed. REQUIRES: CanFlushWrites().
  bool FlushWrites() const;
  // Ok, or "cuMemAlloc on GPU 0 (...): out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2); `advice`".
  absl::Status Check(CudaResult result, const std::string& call, const std::string& advice = "") const;

 private:
  GpuDevice(const CudaDriver& driver, int gpu);

  // The step of Open behind cuInit.
  absl::Status Find(int gpu);

  const CudaDriver& driver_;
  std::string name_;
  CudaDevice device_ = 0;
  CudaContext context_ = nullptr;
};

// The device's context is current in this thread while this lives.
class GpuContextScope {
 public:
  explicit GpuContextScope(const GpuDevice& device);
  ~GpuContextScope();
  GpuContextScope(const GpuContextScope&) = delete;
  GpuContextScope& operator=(const GpuContextScope&) = delete;

  // Not ok: the context could not be made current.
  const absl::Status& status() const { return status_; }

 private:
  const GpuDevice& device_;
  const absl::Status status_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_GPU_GPU_DEVICE_H_
