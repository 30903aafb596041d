#include "rdma/gpu/gpu_device.h"

#include "absl/strings/str_cat.h"

namespace fastdecode {

absl::StatusOr<std::unique_ptr<GpuDevice>> GpuDevice::Open(const CudaDriver& driver, int gpu) {
  std::unique_ptr<GpuDevice> device(new GpuDevice(driver, gpu));
  absl::Status status = device->Check(driver.init(0), "cuInit", "`nvidia-smi` says more about what is wrong");
  if (status.ok()) status = device->Find(gpu);
  if (!status.ok()) return status;
  status = device->Check(driver.device_primary_ctx_retain(&device->context_, device->device_),
                         "cuDevicePrimaryCtxRetain", "is another process using the GPU alone (`nvidia-smi`)?");
  if (!status.ok()) {
    device->context_ = nullptr;
    return status;
  }
  return device;
}

GpuDevice::GpuDevice(const CudaDriver& driver, int gpu) : driver_(driver), name_(absl::StrCat("GPU ", gpu)) {}

GpuDevice::~GpuDevice() {
  if (context_ != nullptr) driver_.device_primary_ctx_release(device_);
}

absl::Status GpuDevice::Find(int gpu) {
  int count = 0;
  if (absl::Status status = Check(driver_.device_get_count(&count), "cuDeviceGetCount"); !status.ok()) return status;
  if (gpu < 0 || gpu >= count) {
    return absl::NotFoundError(
        absl::StrCat("GPU ", gpu, ": the CUDA driver has ", count, count == 1 ? " GPU" : " GPUs", ", counted from 0"));
  }
  if (absl::Status status = Check(driver_.device_get(&device_, gpu), "cuDeviceGet"); !status.ok()) return status;
  char model[256] = "";
  char bus_id[32] = "";
  absl::Status status = Check(driver_.device_get_name(model, sizeof(model), device_), "cuDeviceGetName");
  if (status.ok()) {
    status = Check(driver_.device_get_pci_bus_id(bus_id, sizeof(bus_id), device_), "cuDeviceGetPCIBusId");
  }
  if (status.ok()) absl::StrAppend(&name_, " (", model, ", ", bus_id, ")");
  return status;
}

absl::StatusOr<int> GpuDevice::Attribute(CudaDeviceAttribute attribute) const {
  int value = 0;
  const CudaResult result = driver_.device_get_attribute(&value, attribute, device_);
  absl::Status status =
      Check(result, absl::StrCat("cuDeviceGetAttribute ", static_cast<unsigned>(attribute)),
            result == CudaResult::kInvalidValue ? "this driver does not know the attribute: a newer one does" : "");
  if (!status.ok()) return status;
  return value;
}

bool GpuDevice::WritesNeedFlush() const {
  const absl::StatusOr<int> ordering = Attribute(CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering);
  return !ordering.ok() || *ordering < kCudaWritesOrderingOwner;
}

bool GpuDevice::CanFlushWrites() const {
  const absl::StatusOr<int> options = Attribute(CudaDeviceAttribute::kGpuDirectRdmaFlushWritesOptions);
  return driver_.flush_gpu_direct_rdma_writes && options.ok() && (*options & kCudaFlushByHost) != 0;
}

// Without GpuContextScope, whose errors have texts: this is part of a hop.
bool GpuDevice::FlushWrites() const {
  if (driver_.ctx_push_current(context_) != CudaResult::kSuccess) return false;
  const CudaResult flushed =
      driver_.flush_gpu_direct_rdma_writes(CudaFlushTarget::kCurrentContext, CudaFlushScope::kToOwner);
  CudaContext popped;
  const CudaResult left = driver_.ctx_pop_current(&popped);
  return flushed == CudaResult::kSuccess && left == CudaResult::kSuccess;
}

absl::Status GpuDevice::Check(CudaResult result, const std::string& call, const std::string& advice) const {
  if (result == CudaResult::kSuccess) return absl::OkStatus();
  const char* meaning = nullptr;
  const char* symbol = nullptr;
  if (driver_.get_error_string(result, &meaning) != CudaResult::kSuccess || meaning == nullptr) meaning = "failed";
  if (driver_.get_error_name(result, &symbol) != CudaResult::kSuccess || symbol == nullptr) symbol = "CUDA's error";
  const std::string text = absl::StrCat(call, " on ", name_, ": ", meaning, " (", symbol, ", ",
                                        static_cast<unsigned>(result), ")", advice.empty() ? "" : "; ", advice);
  switch (result) {
    case CudaResult::kOutOfMemory:
      return absl::ResourceExhaustedError(text);
    case CudaResult::kNoDevice:
    case CudaResult::kInvalidDevice:
      return absl::NotFoundError(text);
    case CudaResult::kNotSupported:
      return absl::UnimplementedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

GpuContextScope::GpuContextScope(const GpuDevice& device)
    : device_(device), status_(device.Check(device.driver().ctx_push_current(device.context()), "cuCtxPushCurrent")) {}

GpuContextScope::~GpuContextScope() {
  CudaContext popped = nullptr;
  if (status_.ok()) device_.driver().ctx_pop_current(&popped);
}

}  // namespace fastdecode
