#include "tests/rdma/gpu/made_up_cuda.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace fastdecode {

namespace {

// CUDA promises no more, and gives no more for small allocations.
constexpr size_t kAlignment = 256;
constexpr size_t kPageBytes = 4096;
// Addresses that the CPU cannot use.
constexpr CudaAddress kMappedFrom = CudaAddress{1} << 48;

CudaAddress ToAddress(const void* data) { return reinterpret_cast<CudaAddress>(data); }

CudaContext TheContext() { return reinterpret_cast<CudaContext>(uintptr_t{0x10}); }

// Device and number: files of two devices may have one number.
using File = std::pair<dev_t, ino_t>;
File FileOf(int fd) {
  struct stat status = {};
  return fstat(fd, &status) == 0 ? File(status.st_dev, status.st_ino) : File();
}

// Of the descriptors of this process.
int CountDescriptorsOf(const File& file) {
  int count = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) count += FileOf(std::atoi(entry->d_name)) == file ? 1 : 0;
  closedir(folder);
  return count;
}

}  // namespace

struct MadeUpCuda::Allocation {
  explicit Allocation(size_t bytes_wanted) : bytes(bytes_wanted) {
    fd = memfd_create("made_up_gpu_memory", MFD_CLOEXEC);
    mapping_bytes = bytes + kAlignment;
    if (ftruncate(fd, static_cast<off_t>(mapping_bytes)) != 0) std::abort();
    mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) std::abort();
  }
  ~Allocation() {
    munmap(mapping, mapping_bytes);
    close(fd);
  }

  const size_t bytes;
  size_t mapping_bytes = 0;
  int fd = -1;
  void* mapping = nullptr;
  bool synchronous = false;
};

MadeUpCuda::MadeUpCuda()
    : attributes{{CudaDeviceAttribute::kGpuDirectRdmaSupported, 1},
                 {CudaDeviceAttribute::kDmaBufSupported, 1},
                 {CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering, kCudaWritesOrderingOwner},
                 {CudaDeviceAttribute::kGpuDirectRdmaFlushWritesOptions, kCudaFlushByHost}} {}

MadeUpCuda::~MadeUpCuda() = default;

CudaDriver MadeUpCuda::Driver() {
  CudaDriver driver;
  AddDeviceCalls(&driver);
  AddContextCalls(&driver);
  AddMemoryCalls(&driver);
  AddHostCalls(&driver);
  AddFlush(&driver);
  return driver;
}

void MadeUpCuda::AddDeviceCalls(CudaDriver* driver) {
  driver->init = [this](unsigned) { return Enter("cuInit"); };
  driver->get_error_name = [this](CudaResult, const char** text) {
    if (!texts) return CudaResult::kInvalidValue;
    *text = "CUDA_ERROR_MADE_UP";
    return CudaResult::kSuccess;
  };
  driver->get_error_string = [this](CudaResult, const char** text) {
    if (!texts) return CudaResult::kInvalidValue;
    *text = "made-up error";
    return CudaResult::kSuccess;
  };
  driver->device_get_count = [this](int* count) {
    *count = 1;
    return Enter("cuDeviceGetCount");
  };
  driver->device_get = [this](CudaDevice* device, int ordinal) {
    *device = ordinal;
    return Enter("cuDeviceGet");
  };
  driver->device_get_name = [this](char* name, int bytes, CudaDevice) {
    std::strncpy(name, "Made-up GPU", static_cast<size_t>(bytes));
    return Enter("cuDeviceGetName");
  };
  driver->device_get_pci_bus_id = [this](char* id, int bytes, CudaDevice) {
    std::strncpy(id, "0000:5E:00.0", static_cast<size_t>(bytes));
    return Enter("cuDeviceGetPCIBusId");
  };
  driver->device_get_attribute = [this](int* value, CudaDeviceAttribute attribute, CudaDevice) {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return CudaResult::kInvalidValue;
    *value = found->second;
    return Enter("cuDeviceGetAttribute");
  };
}

void MadeUpCuda::AddContextCalls(CudaDriver* driver) {
  driver->device_primary_ctx_retain = [this](CudaContext* context, CudaDevice) {
    // What comes with an error is not to be used.
    *context = TheContext();
    const CudaResult result = Enter("cuDevicePrimaryCtxRetain");
    if (result == CudaResult::kSuccess) ++references_;
    return result;
  };
  driver->device_primary_ctx_release = [this](CudaDevice) {
    if (--references_ < 0) violations_.push_back("a context was released that was not retained");
    if (references_ == 0 && live_objects() > 0) violations_.push_back("the context went before what lives in it");
    return Undo("cuDevicePrimaryCtxRelease");
  };
  driver->ctx_push_current = [this](CudaContext context) {
    if (context != TheContext() || references_ == 0) violations_.push_back("no context was made current");
    const CudaResult result = Enter("cuCtxPushCurrent");
    push_failed_ = result != CudaResult::kSuccess;
    if (!push_failed_) current_.push_back(context);
    return result;
  };
  driver->ctx_pop_current = [this](CudaContext* context) {
    if (current_.empty()) {
      violations_.push_back("no context was current");
      return CudaResult::kInvalidContext;
    }
    *context = current_.back();
    current_.pop_back();
    return CudaResult::kSuccess;
  };
}

void MadeUpCuda::AddMemoryCalls(CudaDriver* driver) {
  driver->mem_alloc = [this](CudaAddress* address, size_t bytes) { return Allocate(address, bytes); };
  driver->mem_free = [this](CudaAddress address) { return Free(address); };
  driver->memset_d8 = [this](CudaAddress address, unsigned char value, size_t bytes) {
    return Copy("cuMemsetD8", address, bytes, [&](std::byte* data) { std::memset(data, value, bytes); });
  };
  driver->memcpy_htod = [this](CudaAddress address, const void* source, size_t bytes) {
    return Copy("cuMemcpyHtoD", address, bytes, [&](std::byte* data) { std::memcpy(data, source, bytes); });
  };
  driver->memcpy_dtoh = [this](void* destination, CudaAddress address, size_t bytes) {
    return Copy("cuMemcpyDtoH", address, bytes, [&](std::byte* data) { std::memcpy(destination, data, bytes); });
  };
  driver->pointer_set_attribute = [this](const void* value, CudaPointerAttribute attribute, CudaAddress address) {
    Allocation* const allocation = FindDevice(address, 1);
    if (allocation == nullptr || attribute != CudaPointerAttribute::kSyncMemops) return CudaResult::kInvalidValue;
    unsigned on;
    std::memcpy(&on, value, sizeof(on));
    const CudaResult result = EnterInContext("cuPointerSetAttribute");
    if (result == CudaResult::kSuccess) allocation->synchronous = on == 1;
    return result;
  };
  driver->mem_get_handle_for_address_range = [this](void* handle, CudaAddress address, size_t bytes,
                                                    CudaRangeHandle type, unsigned long long flags) {  // NOLINT
    if (type != CudaRangeHandle::kDmaBufFd || flags != 0) return CudaResult::kInvalidValue;
    return Export(static_cast<int*>(handle), address, bytes);
  };
}

void MadeUpCuda::AddFlush(CudaDriver* driver) {
  driver->flush_gpu_direct_rdma_writes = [this](CudaFlushTarget target, CudaFlushScope scope) {
    if (target != CudaFlushTarget::kCurrentContext || scope != CudaFlushScope::kToOwner) {
      violations_.push_back("a flush of something else");
    }
    if (on_flush) on_flush();
    return EnterInContext("cuFlushGPUDirectRDMAWrites");
  };
}

void MadeUpCuda::AddHostCalls(CudaDriver* driver) {
  driver->mem_host_register = [this](void* data, size_t bytes, unsigned flags) {
    if (flags != (kCudaHostRegisterPortable | kCudaHostRegisterDeviceMap)) return CudaResult::kInvalidValue;
    const CudaResult result = EnterInContext("cuMemHostRegister");
    if (result == CudaResult::kSuccess) mapped_[ToAddress(data)] = bytes;
    return result;
  };
  driver->mem_host_unregister = [this](void* data) {
    if (mapped_.erase(ToAddress(data)) == 0) violations_.push_back("host memory was unmapped that was not mapped");
    return UndoInContext("cuMemHostUnregister");
  };
  driver->mem_host_get_device_pointer = [this](CudaAddress* address, void* data, unsigned flags) {
    if (flags != 0 || mapped_.count(ToAddress(data)) == 0) return CudaResult::kInvalidValue;
    *address = kMappedFrom + ToAddress(data);
    return EnterInContext("cuMemHostGetDevicePointer");
  };
}

CudaResult MadeUpCuda::Enter(const std::string& name) {
  const auto failure = failures.find(name);
  if (++calls_ == fail_call) return CudaResult::kOutOfMemory;
  if (failure != failures.end()) return failure->second;
  log.push_back(name);
  return CudaResult::kSuccess;
}

CudaResult MadeUpCuda::EnterInContext(const std::string& name) {
  if (!current_.empty()) return Enter(name);
  violations_.push_back(name + " without a current context");
  return CudaResult::kInvalidContext;
}

CudaResult MadeUpCuda::Undo(const std::string& name) {
  log.push_back(name);
  const auto failure = failures.find(name);
  return failure != failures.end() ? failure->second : CudaResult::kSuccess;
}

CudaResult MadeUpCuda::UndoInContext(const std::string& name) {
  if (current_.empty() && !push_failed_) violations_.push_back(name + " without a current context");
  return Undo(name);
}

int MadeUpCuda::live_objects() const {
  return references_ + static_cast<int>(current_.size() + allocations_.size() + mapped_.size());
}

CudaResult MadeUpCuda::Allocate(CudaAddress* address, size_t bytes) {
  *address = 0xbad;  // what comes with an error is not to be used
  const CudaResult result = EnterInContext("cuMemAlloc");
  if (result != CudaResult::kSuccess) return result;
  if (allocations_.size() == allocations_max) return CudaResult::kOutOfMemory;
  auto allocation = std::make_unique<Allocation>(bytes);
  std::memset(allocation->mapping, 0xa5, allocation->mapping_bytes);  // old bytes
  *address = ToAddress(allocation->mapping) + kAlignment;
  allocations_[*address] = std::move(allocation);
  return result;
}

CudaResult MadeUpCuda::Free(CudaAddress address) {
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) {
    violations_.push_back("memory was freed that was not allocated");
    return CudaResult::kInvalidValue;
  }
  if (CountDescriptorsOf(FileOf(found->second->fd)) != 1) violations_.push_back("memory was freed before its dma-buf");
  allocations_.erase(found);
  return UndoInContext("cuMemFree");
}

CudaResult MadeUpCuda::Export(int* fd, CudaAddress address, size_t bytes) {
  Allocation* const allocation = FindDevice(address, bytes);
  if (allocation == nullptr || address % kPageBytes != 0 || bytes % kPageBytes != 0) return CudaResult::kInvalidValue;
  *fd = 0;  // what comes with an error is not to be used
  const CudaResult result = EnterInContext("cuMemGetHandleForAddressRange");
  if (result == CudaResult::kSuccess) *fd = dup(allocation->fd);
  return result;
}

bool MadeUpCuda::IsDmaBufOf(int fd, CudaAddress address) {
  const Allocation* const allocation = FindDevice(address, 1);
  return allocation != nullptr && FileOf(fd) == FileOf(allocation->fd);
}

MadeUpCuda::Allocation* MadeUpCuda::FindDevice(CudaAddress address, size_t bytes) {
  for (const auto& [start, allocation] : allocations_) {
    if (address >= start && address + bytes <= start + allocation->bytes) return allocation.get();
  }
  return nullptr;
}

std::byte* MadeUpCuda::Find(CudaAddress address, size_t bytes) {
  if (FindDevice(address, bytes) != nullptr) return reinterpret_cast<std::byte*>(address);
  for (const auto& [start, mapped_bytes] : mapped_) {
    const CudaAddress host = address - kMappedFrom;
    if (host >= start && host + bytes <= start + mapped_bytes) return reinterpret_cast<std::byte*>(host);
  }
  return nullptr;
}

CudaResult MadeUpCuda::Copy(const std::string& name, CudaAddress address, size_t bytes,
                            const std::function<void(std::byte*)>& copy) {
  std::byte* const data = Find(address, bytes);
  if (data == nullptr) return CudaResult::kInvalidValue;
  const Allocation* const allocation = FindDevice(address, bytes);
  if (allocation != nullptr && !allocation->synchronous) violations_.push_back(name + " that may return too early");
  const CudaResult result = EnterInContext(name);
  if (result == CudaResult::kSuccess) copy(data);
  return result;
}

}  // namespace fastdecode
