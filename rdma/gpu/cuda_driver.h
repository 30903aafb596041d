#ifndef FASTDECODE_RDMA_GPU_CUDA_DRIVER_H_
#define FASTDECODE_RDMA_GPU_CUDA_DRIVER_H_

#include <cstddef>
#include <functional>

#include "absl/status/statusor.h"

namespace fastdecode {

// CUDA's driver interface as far as memory that an RDMA device shares needs it, in types of our own: neither CUDA's
// headers nor its libraries are needed to build or to start. A test compares all of it with cuda.h where that is found.

using CudaDevice = int;
using CudaAddress = unsigned long long;  // NOLINT: as CUDA has it
using CudaContext = struct CudaContextOpaque*;

enum class CudaResult : unsigned {
  kSuccess = 0,
  kInvalidValue = 1,  // also: the driver is too old to know what it was asked for
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kNotSupported = 801,
};

enum class CudaDeviceAttribute : unsigned {
  kGpuDirectRdmaSupported = 116,
  kGpuDirectRdmaFlushWritesOptions = 117,  // bits, kCudaFlushByHost among them
  kGpuDirectRdmaWritesOrdering = 118,      // kCudaWritesOrdering* or more
  kDmaBufSupported = 124,
};
inline constexpr int kCudaFlushByHost = 1;
inline constexpr int kCudaWritesOrderingOwner = 100;

enum class CudaPointerAttribute : unsigned { kSyncMemops = 6 };
enum class CudaFlushTarget : unsigned { kCurrentContext = 0 };
enum class CudaFlushScope : unsigned { kToOwner = 100 };
enum class CudaRangeHandle : unsigned { kDmaBufFd = 1 };

inline constexpr unsigned kCudaHostRegisterPortable = 1;
inline constexpr unsigned kCudaHostRegisterDeviceMap = 2;

// The driver's calls. Each behaves as the one that it is named for (mem_alloc: cuMemAlloc_v2).
// Thread: any; which context is current is a matter of the thread.
struct CudaDriver {
  std::function<CudaResult(unsigned flags)> init;
  std::function<CudaResult(CudaResult, const char**)> get_error_name;
  std::function<CudaResult(CudaResult, const char**)> get_error_string;

  std::function<CudaResult(int*)> device_get_count;
  std::function<CudaResult(CudaDevice*, int ordinal)> device_get;
  std::function<CudaResult(char*, int bytes, CudaDevice)> device_get_name;
  std::function<CudaResult(char*, int bytes, CudaDevice)> device_get_pci_bus_id;
  std::function<CudaResult(int*, CudaDeviceAttribute, CudaDevice)> device_get_attribute;
  std::function<CudaResult(CudaContext*, CudaDevice)> device_primary_ctx_retain;
  std::function<CudaResult(CudaDevice)> device_primary_ctx_release;
  std::function<CudaResult(CudaContext)> ctx_push_current;
  std::function<CudaResult(CudaContext*)> ctx_pop_current;

  std::function<CudaResult(CudaAddress*, size_t)> mem_alloc;
  std::function<CudaResult(CudaAddress)> mem_free;
  std::function<CudaResult(CudaAddress, unsigned char, size_t)> memset_d8;
  std::function<CudaResult(CudaAddress, const void*, size_t)> memcpy_htod;
  std::function<CudaResult(void*, CudaAddress, size_t)> memcpy_dtoh;
  std::function<CudaResult(const void*, CudaPointerAttribute, CudaAddress)> pointer_set_attribute;
  // Empty with a driver that has no such call: one before 515.
  std::function<CudaResult(void*, CudaAddress, size_t, CudaRangeHandle, unsigned long long)>  // NOLINT: as CUDA has it
      mem_get_handle_for_address_range;
  // Empty with one before 465.
  std::function<CudaResult(CudaFlushTarget, CudaFlushScope)> flush_gpu_direct_rdma_writes;
  std::function<CudaResult(void*, size_t, unsigned)> mem_host_register;
  std::function<CudaResult(void*)> mem_host_unregister;
  std::function<CudaResult(CudaAddress*, void*, unsigned)> mem_host_get_device_pointer;

  // Loads the driver's library, for as long as the process lives: it has threads of its own.
  // Errors: NotFound if there is none; FailedPrecondition if it lacks a call. Both say what to install.
  static absl::StatusOr<CudaDriver> Load(const char* library = "libcuda.so.1");
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_GPU_CUDA_DRIVER_H_
