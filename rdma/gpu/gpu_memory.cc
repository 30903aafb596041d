#include "rdma/gpu/gpu_memory.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "numa/check.h"
#include "numa/topology.h"
#include "rdma/verbs/verbs_device.h"

namespace fastdecode {

namespace {

// GPU memory is given to devices in whole pages of the GPU, and CUDA promises allocations aligned to 256 bytes alone: a
// buffer has pages to itself if it begins and ends at such a page's border. Whole pages of the host, too.
constexpr size_t kGpuPageBytes = 64 << 10;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// What to do about a registration that failed.
std::string RegistrationAdvice(GpuMemoryMethod method, int error) {
  if (error == ENOMEM && method == GpuMemoryMethod::kDmaBuf) {
    return "an IOMMU that translates has no room for large registrations: boot with iommu=pt";
  }
  if (error == ENOMEM) return "may this process lock so much memory (`ulimit -l unlimited`, LimitMEMLOCK=infinity)?";
  switch (method) {
    case GpuMemoryMethod::kDmaBuf:
      return "dma-buf needs Linux 5.12 and an RDMA driver that takes it, as mlx5 does";
    case GpuMemoryMethod::kPeerMem:
      return "nvidia_peermem must be of the GPU driver's version and built for the RDMA drivers in use: `dmesg` says "
             "more";
    case GpuMemoryMethod::kHostBounce:
      break;
  }
  return "";
}

}  // namespace

const char* GpuMemoryMethodName(GpuMemoryMethod method) {
  switch (method) {
    case GpuMemoryMethod::kDmaBuf:
      return "dma-buf";
    case GpuMemoryMethod::kPeerMem:
      return "peermem";
    case GpuMemoryMethod::kHostBounce:
      break;
  }
  return "host bounce";
}

absl::StatusOr<std::unique_ptr<GpuMemory>> GpuMemory::Create(const GpuMemoryPlace& place, GpuMemoryMethod method,
                                                             const GpuMemoryOptions& options) {
  constexpr size_t kBytesMax = size_t{1} << 40;  // far from where rounding up overflows
  if (options.bytes == 0 || options.bytes > kBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("GPU memory of ", options.bytes, " bytes: must be 1 to ", kBytesMax));
  }
  std::unique_ptr<GpuMemory> memory(new GpuMemory(place, method));
  absl::StatusOr<std::unique_ptr<GpuDevice>> device = GpuDevice::Open(*place.driver, place.gpu);
  if (!device.ok()) return device.status();
  memory->device_ = *std::move(device);
  const GpuContextScope scope(*memory->device_);
  absl::Status status = scope.status();
  if (method == GpuMemoryMethod::kHostBounce) {
    if (status.ok()) status = memory->MapHostMemory(options.bytes, options.host_node);
  } else {
    if (status.ok()) status = memory->CheckSupport();
    if (status.ok()) status = memory->AllocateOnDevice(options.bytes);
    if (status.ok() && method == GpuMemoryMethod::kDmaBuf) status = memory->ExportDmaBuf();
  }
  if (status.ok()) status = memory->Register(options.access);
  if (!status.ok()) return status;
  return memory;
}

GpuMemory::~GpuMemory() {
  EndAccess();
  if (allocation_ == 0 && !host_mapped_) return;
  const GpuContextScope scope(*device_);
  if (allocation_ != 0) device_->driver().mem_free(allocation_);
  if (host_mapped_) device_->driver().mem_host_unregister(arena_.data());
}

void GpuMemory::EndAccess() {
  region_.reset();
  dma_buf_.Close();
}

absl::Status GpuMemory::CheckSupport() const {
  absl::StatusOr<int> direct = device_->Attribute(CudaDeviceAttribute::kGpuDirectRdmaSupported);
  if (!direct.ok()) return direct.status();
  if (*direct == 0) {
    return absl::UnimplementedError(absl::StrCat(device_->name(), " has no GPUDirect RDMA (attribute ",
                                                 "GPU_DIRECT_RDMA_SUPPORTED is 0): data centre GPUs have it"));
  }
  if (method_ != GpuMemoryMethod::kDmaBuf) return absl::OkStatus();
  constexpr char kNeeds[] = "needs driver 515 or later with the open kernel module, and Linux 5.12";
  if (!device_->driver().mem_get_handle_for_address_range) {
    return absl::UnimplementedError(
        absl::StrCat("the CUDA driver has no cuMemGetHandleForAddressRange; dma-buf ", kNeeds));
  }
  absl::StatusOr<int> dma_buf = device_->Attribute(CudaDeviceAttribute::kDmaBufSupported);
  if (!dma_buf.ok()) return dma_buf.status();
  if (*dma_buf != 0) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(device_->name(), " exports no dma-buf (attribute DMA_BUF_SUPPORTED is 0), which ", kNeeds));
}

absl::Status GpuMemory::AllocateOnDevice(size_t bytes) {
  const CudaDriver& driver = device_->driver();
  bytes_ = RoundUp(bytes, kGpuPageBytes);
  absl::Status status = device_->Check(driver.mem_alloc(&allocation_, bytes_ + kGpuPageBytes),
                                       absl::StrCat("cuMemAlloc of ", FormatBytes(bytes_)),
                                       "`nvidia-smi` says who uses the GPU's memory");
  if (!status.ok()) {
    allocation_ = 0;
    return status;
  }
  data_ = RoundUp(allocation_, kGpuPageBytes);
  address_ = data_;
  // Without this, a copy or memset that CUDA calls synchronous may return before the bytes are where the RDMA device
  // looks for them.
  const unsigned on = 1;
  status = device_->Check(driver.pointer_set_attribute(&on, CudaPointerAttribute::kSyncMemops, allocation_),
                          "cuPointerSetAttribute SYNC_MEMOPS");
  if (!status.ok()) return status;
  return device_->Check(driver.memset_d8(data_, 0, bytes_), "cuMemsetD8");
}

absl::Status GpuMemory::MapHostMemory(size_t bytes, int node) {
  const CudaDriver& driver = device_->driver();
  ArenaOptions options;
  options.bytes = bytes;
  options.node = node;
  absl::StatusOr<Arena> arena = Arena::Create(options);
  if (!arena.ok()) return arena.status();
  arena_ = *std::move(arena);
  bytes_ = arena_.bytes();
  address_ = reinterpret_cast<uint64_t>(arena_.data());
  absl::Status status = device_->Check(
      driver.mem_host_register(arena_.data(), bytes_, kCudaHostRegisterPortable | kCudaHostRegisterDeviceMap),
      absl::StrCat("cuMemHostRegister of ", FormatBytes(bytes_)),
      "may this process lock so much memory (`ulimit -l unlimited`, LimitMEMLOCK=infinity)?");
  if (!status.ok()) return status;
  host_mapped_ = true;
  return device_->Check(driver.mem_host_get_device_pointer(&data_, arena_.data(), 0), "cuMemHostGetDevicePointer",
                        "this GPU cannot map host memory");
}

absl::Status GpuMemory::ExportDmaBuf() {
  int fd = -1;
  absl::Status status = device_->Check(
      device_->driver().mem_get_handle_for_address_range(&fd, data_, bytes_, CudaRangeHandle::kDmaBufFd, 0),
      absl::StrCat("cuMemGetHandleForAddressRange of ", FormatBytes(bytes_)),
      "dma-buf needs the open kernel module of driver 515 or later");
  if (status.ok()) dma_buf_ = FileDescriptor(fd);
  return status;
}

absl::Status GpuMemory::Register(unsigned access) {
  const VerbsCalls& calls = *place_.calls;
  const bool dma_buf = method_ == GpuMemoryMethod::kDmaBuf;
  ibv_mr* const region = dma_buf ? calls.reg_dmabuf_mr(place_.domain, 0, bytes_, address_, dma_buf_.get(), access)
                                 : calls.reg_mr(place_.domain, reinterpret_cast<void*>(address_), bytes_, access);
  if (region == nullptr) {
    const int error = errno;
    const std::string call = absl::StrCat(dma_buf ? "ibv_reg_dmabuf_mr" : "ibv_reg_mr", " of ", FormatBytes(bytes_));
    return VerbsError(place_.domain->context->device->name, call.c_str(), error, RegistrationAdvice(method_, error));
  }
  region_ = VerbsHandle<ibv_mr>(region, [&calls](ibv_mr* registered) { calls.dereg_mr(registered); });
  return absl::OkStatus();
}

absl::Status GpuMemory::CopyFromHost(size_t offset, const void* source, size_t bytes) {
  FD_CHECK(offset <= bytes_ && bytes <= bytes_ - offset, "a copy beyond the memory");
  const GpuContextScope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  return device_->Check(device_->driver().memcpy_htod(data_ + offset, source, bytes), "cuMemcpyHtoD");
}

absl::Status GpuMemory::CopyToHost(size_t offset, void* destination, size_t bytes) const {
  FD_CHECK(offset <= bytes_ && bytes <= bytes_ - offset, "a copy beyond the memory");
  const GpuContextScope scope(*device_);
  if (!scope.status().ok()) return scope.status();
  return device_->Check(device_->driver().memcpy_dtoh(destination, data_ + offset, bytes), "cuMemcpyDtoH");
}

std::string GpuMemory::Describe() const {
  const char* const device = place_.domain->context->device->name;
  if (host_accessible()) return absl::StrCat(arena_.Describe(), ", mapped by ", device_->name(), ", for ", device);
  return absl::StrCat(FormatBytes(bytes_), " of ", device_->name(), " by ", GpuMemoryMethodName(method_), " for ",
                      device);
}

}  // namespace fastdecode
