#include "rdma/gpu/cuda_driver.h"

#include <dlfcn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fastdecode {

namespace {

// Finds calls in a library, and remembers the first that it lacks.
class SymbolFinder {
 public:
  explicit SymbolFinder(void* library) : library_(library) {}

  template <class Call>
  bool Find(const char* symbol, std::function<Call>* entry) const {
    void* const address = dlsym(library_, symbol);
    if (address == nullptr) return false;
    *entry = reinterpret_cast<Call*>(address);
    return true;
  }
  template <class Call>
  void Require(const char* symbol, std::function<Call>* entry) {
    if (!Find(symbol, entry) && missing_ == nullptr) missing_ = symbol;
  }
  // nullptr: none.
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

}  // namespace

absl::StatusOr<CudaDriver> CudaDriver::Load(const char* library) {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "no CUDA driver: ", dlerror(), "; a host with an NVIDIA GPU has it with the GPU's driver, and a container if ",
        "it was started with the GPU (with NVIDIA's container toolkit: --gpus all)"));
  }
  CudaDriver driver;
  SymbolFinder finder(handle);
  finder.Require("cuInit", &driver.init);
  finder.Require("cuGetErrorName", &driver.get_error_name);
  finder.Require("cuGetErrorString", &driver.get_error_string);
  finder.Require("cuDeviceGetCount", &driver.device_get_count);
  finder.Require("cuDeviceGet", &driver.device_get);
  finder.Require("cuDeviceGetName", &driver.device_get_name);
  finder.Require("cuDeviceGetPCIBusId", &driver.device_get_pci_bus_id);
  finder.Require("cuDeviceGetAttribute", &driver.device_get_attribute);
  finder.Require("cuDevicePrimaryCtxRetain", &driver.device_primary_ctx_retain);
  finder.Require("cuDevicePrimaryCtxRelease_v2", &driver.device_primary_ctx_release);
  finder.Require("cuCtxPushCurrent_v2", &driver.ctx_push_current);
  finder.Require("cuCtxPopCurrent_v2", &driver.ctx_pop_current);
  finder.Require("cuMemAlloc_v2", &driver.mem_alloc);
  finder.Require("cuMemFree_v2", &driver.mem_free);
  finder.Require("cuMemsetD8_v2", &driver.memset_d8);
  finder.Require("cuMemcpyHtoD_v2", &driver.memcpy_htod);
  finder.Require("cuMemcpyDtoH_v2", &driver.memcpy_dtoh);
  finder.Require("cuPointerSetAttribute", &driver.pointer_set_attribute);
  finder.Require("cuMemHostRegister_v2", &driver.mem_host_register);
  finder.Require("cuMemHostUnregister", &driver.mem_host_unregister);
  finder.Require("cuMemHostGetDevicePointer_v2", &driver.mem_host_get_device_pointer);
  finder.Find("cuMemGetHandleForAddressRange", &driver.mem_get_handle_for_address_range);
  finder.Find("cuFlushGPUDirectRDMAWrites", &driver.flush_gpu_direct_rdma_writes);
  if (finder.missing() == nullptr) return driver;
  const std::string missing = finder.missing();
  dlclose(handle);
  return absl::FailedPreconditionError(absl::StrCat("the CUDA driver ", library, " has no ", missing,
                                                    ": it is older than CUDA 11; install a newer GPU driver"));
}

}  // namespace fastdecode
