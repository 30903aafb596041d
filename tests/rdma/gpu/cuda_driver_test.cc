// Loading CUDA's driver: from libraries with its names, and where there is none.

#include "rdma/gpu/cuda_driver.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

unsigned Number(CudaResult result) { return static_cast<unsigned>(result); }

TEST(CudaDriverTest, EachEntryIsTheCallThatItIsNamedFor) {
  const absl::StatusOr<CudaDriver> driver = CudaDriver::Load(FASTDECODE_MADE_UP_LIBCUDA);
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_EQ(Number(driver->init(0)), 1u);
  EXPECT_EQ(Number(driver->get_error_name(CudaResult::kSuccess, nullptr)), 2u);
  EXPECT_EQ(Number(driver->get_error_string(CudaResult::kSuccess, nullptr)), 3u);
  EXPECT_EQ(Number(driver->device_get_count(nullptr)), 4u);
  EXPECT_EQ(Number(driver->device_get(nullptr, 0)), 5u);
  EXPECT_EQ(Number(driver->device_get_name(nullptr, 0, 0)), 6u);
  EXPECT_EQ(Number(driver->device_get_pci_bus_id(nullptr, 0, 0)), 7u);
  EXPECT_EQ(Number(driver->device_get_attribute(nullptr, CudaDeviceAttribute::kDmaBufSupported, 0)), 8u);
  EXPECT_EQ(Number(driver->device_primary_ctx_retain(nullptr, 0)), 9u);
  EXPECT_EQ(Number(driver->device_primary_ctx_release(0)), 10u);
  EXPECT_EQ(Number(driver->ctx_push_current(nullptr)), 11u);
  EXPECT_EQ(Number(driver->ctx_pop_current(nullptr)), 12u);
  EXPECT_EQ(Number(driver->mem_alloc(nullptr, 0)), 13u);
  EXPECT_EQ(Number(driver->mem_free(0)), 14u);
  EXPECT_EQ(Number(driver->memset_d8(0, 0, 0)), 15u);
  EXPECT_EQ(Number(driver->memcpy_htod(0, nullptr, 0)), 16u);
  EXPECT_EQ(Number(driver->memcpy_dtoh(nullptr, 0, 0)), 17u);
  EXPECT_EQ(Number(driver->pointer_set_attribute(nullptr, CudaPointerAttribute::kSyncMemops, 0)), 18u);
  EXPECT_EQ(Number(driver->mem_get_handle_for_address_range(nullptr, 0, 0, CudaRangeHandle::kDmaBufFd, 0)), 19u);
  EXPECT_EQ(Number(driver->mem_host_register(nullptr, 0, 0)), 20u);
  EXPECT_EQ(Number(driver->mem_host_unregister(nullptr)), 21u);
  EXPECT_EQ(Number(driver->mem_host_get_device_pointer(nullptr, nullptr, 0)), 22u);
  EXPECT_EQ(Number(driver->flush_gpu_direct_rdma_writes(CudaFlushTarget::kCurrentContext, CudaFlushScope::kToOwner)),
            23u);
}

TEST(CudaDriverTest, AnOlderDriverMayLackDmaBufAndFlush) {
  const absl::StatusOr<CudaDriver> driver = CudaDriver::Load(FASTDECODE_MADE_UP_LIBCUDA_WITHOUT_DMA_BUF);
  ASSERT_TRUE(driver.ok()) << driver.status();
  EXPECT_FALSE(driver->mem_get_handle_for_address_range);
  EXPECT_FALSE(driver->flush_gpu_direct_rdma_writes);
  EXPECT_EQ(Number(driver->mem_host_get_device_pointer(nullptr, nullptr, 0)), 22u);
}

TEST(CudaDriverTest, ALibraryThatLacksACallIsRefused) {
  const absl::Status status = CudaDriver::Load(FASTDECODE_MADE_UP_LIBCUDA_WITHOUT_HOST_POINTER).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no cuMemHostGetDevicePointer_v2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("install a newer GPU driver"));
}

TEST(CudaDriverTest, NoLibrary) {
  const absl::Status status = CudaDriver::Load("libcuda-of-nobody.so.1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no CUDA driver: libcuda-of-nobody.so.1: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file"));
}

TEST(CudaDriverTest, ThisHostHasTheDriverOrIsToldSo) {
  const absl::StatusOr<CudaDriver> driver = CudaDriver::Load();
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    EXPECT_EQ(driver.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(driver.status().message()), HasSubstr("no CUDA driver: libcuda.so.1: "));
  } else {
    EXPECT_TRUE(driver.ok()) << driver.status();
  }
}

}  // namespace
}  // namespace fastdecode
