// CUDA's driver as a library, for programs that look for one: the made-up one, whose GPU's memory is the process's, so
// that the software GPU's kernels (tests/engine/spart) reach it. It needs a flush after what RDMA devices write.
#include <mutex>

#include "tests/rdma/gpu/made_up_cuda.h"

namespace {

using namespace fastdecode;  // NOLINT: a library of its own

struct SoftDriver {
  SoftDriver() {
    cuda.attributes[CudaDeviceAttribute::kDmaBufSupported] = 0;  // no kernel knows its dma-bufs
    cuda.attributes[CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering] = 0;
    driver = cuda.Driver();
  }
  std::mutex mutex;
  MadeUpCuda cuda;
  CudaDriver driver;
};

// Never destroyed: links may outlive static objects.
SoftDriver& Soft() {
  static SoftDriver* const soft = new SoftDriver;
  return *soft;
}

template <class Entry, class... Arguments>
CudaResult Call(Entry entry, Arguments... arguments) {
  std::lock_guard lock(Soft().mutex);
  return (Soft().driver.*entry)(arguments...);
}

}  // namespace

#define VISIBLE __attribute__((visibility("default")))

extern "C" {
VISIBLE CudaResult cuInit(unsigned flags) { return Call(&CudaDriver::init, flags); }
VISIBLE CudaResult cuGetErrorName(CudaResult result, const char** text) {
  return Call(&CudaDriver::get_error_name, result, text);
}
VISIBLE CudaResult cuGetErrorString(CudaResult result, const char** text) {
  return Call(&CudaDriver::get_error_string, result, text);
}
VISIBLE CudaResult cuDeviceGetCount(int* count) { return Call(&CudaDriver::device_get_count, count); }
VISIBLE CudaResult cuDeviceGet(CudaDevice* device, int ordinal) {
  return Call(&CudaDriver::device_get, device, ordinal);
}
VISIBLE CudaResult cuDeviceGetName(char* name, int bytes, CudaDevice device) {
  return Call(&CudaDriver::device_get_name, name, bytes, device);
}
VISIBLE CudaResult cuDeviceGetPCIBusId(char* id, int bytes, CudaDevice device) {
  return Call(&CudaDriver::device_get_pci_bus_id, id, bytes, device);
}
VISIBLE CudaResult cuDeviceGetAttribute(int* value, CudaDeviceAttribute attribute, CudaDevice device) {
  return Call(&CudaDriver::device_get_attribute, value, attribute, device);
}
VISIBLE CudaResult cuDevicePrimaryCtxRetain(CudaContext* context, CudaDevice device) {
  return Call(&CudaDriver::device_primary_ctx_retain, context, device);
}
VISIBLE CudaResult cuDevicePrimaryCtxRelease_v2(CudaDevice device) {
  return Call(&CudaDriver::device_primary_ctx_release, device);
}
VISIBLE CudaResult cuCtxPushCurrent_v2(CudaContext context) { return Call(&CudaDriver::ctx_push_current, context); }
VISIBLE CudaResult cuCtxPopCurrent_v2(CudaContext* context) { return Call(&CudaDriver::ctx_pop_current, context); }
VISIBLE CudaResult cuMemAlloc_v2(CudaAddress* address, size_t bytes) {
  return Call(&CudaDriver::mem_alloc, address, bytes);
}
VISIBLE CudaResult cuMemFree_v2(CudaAddress address) { return Call(&CudaDriver::mem_free, address); }
VISIBLE CudaResult cuMemsetD8_v2(CudaAddress address, unsigned char value, size_t bytes) {
  return Call(&CudaDriver::memset_d8, address, value, bytes);
}
VISIBLE CudaResult cuMemcpyHtoD_v2(CudaAddress address, const void* source, size_t bytes) {
  return Call(&CudaDriver::memcpy_htod, address, source, bytes);
}
VISIBLE CudaResult cuMemcpyDtoH_v2(void* destination, CudaAddress address, size_t bytes) {
  return Call(&CudaDriver::memcpy_dtoh, destination, address, bytes);
}
VISIBLE CudaResult cuPointerSetAttribute(const void* value, CudaPointerAttribute attribute, CudaAddress address) {
  return Call(&CudaDriver::pointer_set_attribute, value, attribute, address);
}
VISIBLE CudaResult cuMemHostRegister_v2(void* data, size_t bytes, unsigned flags) {
  return Call(&CudaDriver::mem_host_register, data, bytes, flags);
}
VISIBLE CudaResult cuMemHostUnregister(void* data) { return Call(&CudaDriver::mem_host_unregister, data); }
VISIBLE CudaResult cuMemHostGetDevicePointer_v2(CudaAddress* address, void* data, unsigned flags) {
  return Call(&CudaDriver::mem_host_get_device_pointer, address, data, flags);
}
VISIBLE CudaResult cuFlushGPUDirectRDMAWrites(CudaFlushTarget target, CudaFlushScope scope) {
  return Call(&CudaDriver::flush_gpu_direct_rdma_writes, target, scope);
}
}
