// Our own declarations of CUDA's driver against cuda.h, where that is found.

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>
#include <type_traits>

#include "rdma/gpu/cuda_driver.h"

namespace fastdecode {
namespace {

// Passed to a call in the same way, and meaning the same: pointers to the same (or both to something opaque), or
// numbers and enumerations of one size and sign.
template <class Ours, class Theirs>
constexpr bool Same() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using Our = std::remove_pointer_t<Ours>;
    using Their = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_const_v<Our> != std::is_const_v<Their>) {
      return false;
    } else if constexpr (std::is_class_v<Our> || std::is_class_v<Their>) {
      return std::is_class_v<Our> && std::is_class_v<Their>;
    } else {
      return Same<std::remove_const_t<Our>, std::remove_const_t<Their>>();
    }
  } else if constexpr (std::is_enum_v<Ours>) {
    return Same<std::underlying_type_t<Ours>, Theirs>();
  } else if constexpr (std::is_enum_v<Theirs>) {
    return Same<Ours, std::underlying_type_t<Theirs>>();
  } else {
    return std::is_same_v<Ours, Theirs>;
  }
}

template <class Ours, class Theirs>
struct SameCall;
template <class OurResult, class... Ours, class TheirResult, class... Theirs>
struct SameCall<std::function<OurResult(Ours...)>, TheirResult(Theirs...)> {
  static constexpr bool Compare() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return Same<OurResult, TheirResult>() && (Same<Ours, Theirs>() && ...);
    }
  }
};

// The comparison itself tells apart.
static_assert(!Same<int, unsigned>() && !Same<const void*, void*>() && !Same<int*, void*>() && !Same<int, long>());
static_assert(!SameCall<decltype(CudaDriver::mem_free), decltype(cuMemAlloc)>::Compare());

// Names as the linker sees them: cuda.h gives most calls a version by macro.
#define NAME_OF(call) #call
#define EXPECT_CALL_IS(entry, call)                                                                       \
  static_assert(SameCall<decltype(CudaDriver::entry), decltype(call)>::Compare(), #call " is different"); \
  EXPECT_NE(dlsym(library, NAME_OF(call)), nullptr) << NAME_OF(call)

TEST(CudaHeaderTest, Calls) {
  // It has exactly the names that CudaDriver::Load looks for: see CudaDriverTest.
  void* const library = dlopen(FASTDECODE_MADE_UP_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_CALL_IS(init, cuInit);
  EXPECT_CALL_IS(get_error_name, cuGetErrorName);
  EXPECT_CALL_IS(get_error_string, cuGetErrorString);
  EXPECT_CALL_IS(device_get_count, cuDeviceGetCount);
  EXPECT_CALL_IS(device_get, cuDeviceGet);
  EXPECT_CALL_IS(device_get_name, cuDeviceGetName);
  EXPECT_CALL_IS(device_get_pci_bus_id, cuDeviceGetPCIBusId);
  EXPECT_CALL_IS(device_get_attribute, cuDeviceGetAttribute);
  EXPECT_CALL_IS(device_primary_ctx_retain, cuDevicePrimaryCtxRetain);
  EXPECT_CALL_IS(device_primary_ctx_release, cuDevicePrimaryCtxRelease);
  EXPECT_CALL_IS(ctx_push_current, cuCtxPushCurrent);
  EXPECT_CALL_IS(ctx_pop_current, cuCtxPopCurrent);
  EXPECT_CALL_IS(mem_alloc, cuMemAlloc);
  EXPECT_CALL_IS(mem_free, cuMemFree);
  EXPECT_CALL_IS(memset_d8, cuMemsetD8);
  EXPECT_CALL_IS(memcpy_htod, cuMemcpyHtoD);
  EXPECT_CALL_IS(memcpy_dtoh, cuMemcpyDtoH);
  EXPECT_CALL_IS(pointer_set_attribute, cuPointerSetAttribute);
  EXPECT_CALL_IS(mem_host_register, cuMemHostRegister);
  EXPECT_CALL_IS(mem_host_unregister, cuMemHostUnregister);
  EXPECT_CALL_IS(mem_host_get_device_pointer, cuMemHostGetDevicePointer);
#if CUDA_VERSION >= 11070
  EXPECT_CALL_IS(mem_get_handle_for_address_range, cuMemGetHandleForAddressRange);
  EXPECT_CALL_IS(flush_gpu_direct_rdma_writes, cuFlushGPUDirectRDMAWrites);
#endif
  dlclose(library);
}

static_assert(Same<CudaDevice, CUdevice>() && Same<CudaAddress, CUdeviceptr>() && Same<CudaContext, CUcontext>());

static_assert(static_cast<int>(CudaResult::kSuccess) == CUDA_SUCCESS);
static_assert(static_cast<int>(CudaResult::kInvalidValue) == CUDA_ERROR_INVALID_VALUE);
static_assert(static_cast<int>(CudaResult::kOutOfMemory) == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(static_cast<int>(CudaResult::kNoDevice) == CUDA_ERROR_NO_DEVICE);
static_assert(static_cast<int>(CudaResult::kInvalidDevice) == CUDA_ERROR_INVALID_DEVICE);
static_assert(static_cast<int>(CudaResult::kInvalidContext) == CUDA_ERROR_INVALID_CONTEXT);
static_assert(static_cast<int>(CudaResult::kNotSupported) == CUDA_ERROR_NOT_SUPPORTED);

static_assert(static_cast<int>(CudaPointerAttribute::kSyncMemops) == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
static_assert(kCudaHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kCudaHostRegisterDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);

#if CUDA_VERSION >= 11070
static_assert(static_cast<int>(CudaDeviceAttribute::kGpuDirectRdmaSupported) ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
static_assert(static_cast<int>(CudaDeviceAttribute::kGpuDirectRdmaFlushWritesOptions) ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
static_assert(static_cast<int>(CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering) ==
              CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
static_assert(static_cast<int>(CudaDeviceAttribute::kDmaBufSupported) == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(kCudaFlushByHost == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
static_assert(static_cast<int>(CudaFlushTarget::kCurrentContext) == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
static_assert(static_cast<int>(CudaFlushScope::kToOwner) == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
static_assert(kCudaWritesOrderingOwner == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
static_assert(static_cast<int>(CudaRangeHandle::kDmaBufFd) == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
#endif

}  // namespace
}  // namespace fastdecode
