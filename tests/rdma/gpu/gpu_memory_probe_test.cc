// Which way to share memory is chosen, for each thing that a host may lack.

#include "rdma/gpu/gpu_memory_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/rdma/gpu/gpu_fixture.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class GpuMemoryProbeTest : public GpuFixture {
 protected:
  GpuMemoryProbeTest()
      : modules_(testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(modules_);
    std::filesystem::create_directories(modules_ + "/nvidia_peermem");
  }
  ~GpuMemoryProbeTest() override { std::filesystem::remove_all(modules_); }

  absl::StatusOr<GpuMemoryProbe> Probe() { return ProbeGpuMemory(place(), modules_); }
  // REQUIRES: some method works.
  GpuMemoryProbe Found() {
    absl::StatusOr<GpuMemoryProbe> probe = Probe();
    EXPECT_TRUE(probe.ok()) << probe.status();
    ExpectNothingLeft();
    return probe.ok() ? *probe : GpuMemoryProbe();
  }
  void ExpectPeerMem(const std::string& reason) {
    const GpuMemoryProbe probe = Found();
    EXPECT_EQ(probe.method, GpuMemoryMethod::kPeerMem);
    EXPECT_THAT(probe.refused, ElementsAre(AllOf(StartsWith("dma-buf: "), HasSubstr(reason))));
  }
  void ExpectBounce(const std::string& dma_buf_reason, const std::string& peermem_reason) {
    const GpuMemoryProbe probe = Found();
    EXPECT_EQ(probe.method, GpuMemoryMethod::kHostBounce);
    EXPECT_THAT(probe.refused, ElementsAre(AllOf(StartsWith("dma-buf: "), HasSubstr(dma_buf_reason)),
                                           AllOf(StartsWith("peermem: "), HasSubstr(peermem_reason))));
  }

  const std::string modules_;
};

TEST_F(GpuMemoryProbeTest, DmaBufFirst) {
  const GpuMemoryProbe probe = Found();
  EXPECT_EQ(probe.method, GpuMemoryMethod::kDmaBuf);
  EXPECT_THAT(probe.refused, IsEmpty());
  EXPECT_EQ(probe.Describe(), "dma-buf; the GPU sees the device's writes without a flush");
}

// ---- No dma-buf, for each reason. ----

TEST_F(GpuMemoryProbeTest, TheDriverLacksTheCall) {
  driver_.mem_get_handle_for_address_range = nullptr;
  ExpectPeerMem("no cuMemGetHandleForAddressRange; dma-buf needs driver 515 or later");
}

TEST_F(GpuMemoryProbeTest, TheGpuHasNoDmaBuf) {
  cuda_.attributes[CudaDeviceAttribute::kDmaBufSupported] = 0;
  ExpectPeerMem("DMA_BUF_SUPPORTED is 0), which needs driver 515 or later with the open kernel module");
}

TEST_F(GpuMemoryProbeTest, TheDriverDoesNotKnowOfDmaBuf) {
  cuda_.attributes.erase(CudaDeviceAttribute::kDmaBufSupported);
  ExpectPeerMem("cuDeviceGetAttribute 124 on GPU 0 (Made-up GPU, 0000:5E:00.0): made-up error");
}

TEST_F(GpuMemoryProbeTest, TheExportFails) {
  cuda_.failures["cuMemGetHandleForAddressRange"] = CudaResult::kNotSupported;
  ExpectPeerMem("cuMemGetHandleForAddressRange of 64 KiB on GPU 0");
}

TEST_F(GpuMemoryProbeTest, TheRdmaDeviceTakesNoDmaBuf) {
  registration_errors_["ibv_reg_dmabuf_mr"] = EOPNOTSUPP;
  ExpectPeerMem(
      "ibv_reg_dmabuf_mr of 64 KiB on fake0: Operation not supported (95); dma-buf needs Linux 5.12 and an RDMA "
      "driver that takes it");
  EXPECT_THAT(Found().Describe(), StartsWith("peermem; the GPU sees the device's writes without a flush; not dma-buf: "
                                             "ibv_reg_dmabuf_mr of"));
}

// ---- Nor peermem. ----

TEST_F(GpuMemoryProbeTest, NoKernelModule) {
  registration_errors_["ibv_reg_dmabuf_mr"] = EOPNOTSUPP;
  std::filesystem::remove(modules_ + "/nvidia_peermem");
  ExpectBounce("Operation not supported",
               "neither nvidia_peermem nor nv_peer_mem is loaded: `modprobe nvidia_peermem`");
  std::filesystem::create_directories(modules_ + "/nv_peer_mem");
  ExpectPeerMem("Operation not supported");
}

TEST_F(GpuMemoryProbeTest, TheKernelModuleDoesNotFit) {
  registration_errors_["ibv_reg_dmabuf_mr"] = EOPNOTSUPP;
  peermem_ = false;
  ExpectBounce("Operation not supported", "ibv_reg_mr of 64 KiB on fake0: Bad address (14); nvidia_peermem must be");
}

TEST_F(GpuMemoryProbeTest, TheGpuHasNoGpuDirect) {
  cuda_.attributes[CudaDeviceAttribute::kGpuDirectRdmaSupported] = 0;
  ExpectBounce("GPU_DIRECT_RDMA_SUPPORTED is 0", "GPU_DIRECT_RDMA_SUPPORTED is 0");
}

TEST_F(GpuMemoryProbeTest, TheDriverDoesNotKnowOfGpuDirect) {
  cuda_.attributes.erase(CudaDeviceAttribute::kGpuDirectRdmaSupported);
  ExpectBounce("this driver does not know the attribute", "this driver does not know the attribute");
}

TEST_F(GpuMemoryProbeTest, MemoryOfTheGpuCannotBeHadOrUsed) {
  for (const char* call : {"cuMemAlloc", "cuPointerSetAttribute", "cuMemsetD8"}) {
    cuda_.failures = {{call, CudaResult::kOutOfMemory}};
    ExpectBounce(call, call);
  }
}

// ---- Nor the bounce. ----

TEST_F(GpuMemoryProbeTest, NothingWorks) {
  const struct {
    std::string call;
    bool of_cuda;
  } cases[] = {{"cuMemHostRegister", true}, {"cuMemHostGetDevicePointer", true}, {"ibv_reg_mr", false}};
  for (const auto& [call, of_cuda] : cases) {
    SCOPED_TRACE(call);
    cuda_.failures = {{"cuMemAlloc", CudaResult::kOutOfMemory}};
    registration_errors_.clear();
    if (of_cuda) {
      cuda_.failures[call] = CudaResult::kNotSupported;
    } else {
      registration_errors_[call] = ENOMEM;
    }
    const absl::Status status = Probe().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    const std::string text(status.message());
    EXPECT_THAT(text,
                StartsWith("fake0 and GPU 0 (Made-up GPU, 0000:5E:00.0) cannot share memory: dma-buf: cuMemAlloc"));
    EXPECT_THAT(text, HasSubstr("; peermem: cuMemAlloc"));
    EXPECT_THAT(text, HasSubstr("; host bounce: " + call + " o"));
    ExpectNothingLeft();
  }
}

TEST_F(GpuMemoryProbeTest, NoGpu) {
  cuda_.failures["cuInit"] = CudaResult::kNoDevice;
  const absl::Status status = Probe().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(status.message()),
            "cuInit on GPU 0: made-up error (CUDA_ERROR_MADE_UP, 100); `nvidia-smi` says more about what is wrong");
}

// Whatever fails, there is a next method or an error, and nothing is left behind.
TEST_F(GpuMemoryProbeTest, NothingIsLeftWhicheverCallFails) {
  const int before = cuda_.calls();
  EXPECT_EQ(Found().method, GpuMemoryMethod::kDmaBuf);
  const int calls = cuda_.calls() - before;
  ASSERT_GT(calls, 10);
  int errors = 0;
  int others = 0;
  for (int i = 1; i <= calls; ++i) {
    SCOPED_TRACE(i);
    cuda_.fail_call = cuda_.calls() + i;
    const absl::StatusOr<GpuMemoryProbe> probe = Probe();
    errors += probe.ok() ? 0 : 1;
    others += probe.ok() && probe->method == GpuMemoryMethod::kPeerMem ? 1 : 0;
    ExpectNothingLeft();
  }
  EXPECT_EQ(errors, 6);  // the GPU itself could not be had
  EXPECT_GT(others, 6);
}

// ---- Flushing. ----

TEST_F(GpuMemoryProbeTest, WhetherTheGpuNeedsAFlush) {
  const auto found = [this](int ordering) {
    cuda_.attributes[CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering] = ordering;
    return Found();
  };
  EXPECT_TRUE(found(0).flush);
  EXPECT_EQ(found(0).Describe(), "dma-buf; the GPU sees the device's writes after a flush a reply");
  EXPECT_FALSE(found(kCudaWritesOrderingOwner).flush);
  EXPECT_FALSE(found(2 * kCudaWritesOrderingOwner).flush);
}

TEST_F(GpuMemoryProbeTest, MemoryThatNobodyCanFlushIsNotUsed) {
  cuda_.attributes[CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering] = 0;
  cuda_.attributes[CudaDeviceAttribute::kGpuDirectRdmaFlushWritesOptions] = 0;
  const GpuMemoryProbe probe = Found();
  EXPECT_EQ(probe.method, GpuMemoryMethod::kHostBounce);
  EXPECT_FALSE(probe.flush);
  EXPECT_THAT(probe.Describe(),
              StartsWith("host bounce; not dma-buf: the GPU sees the device's writes only after a flush, "
                         "and has no cuFlushGPUDirectRDMAWrites"));
}

TEST_F(GpuMemoryProbeTest, ADriverThatDoesNotSayMayNeedAFlush) {
  cuda_.attributes.erase(CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering);
  EXPECT_TRUE(Found().flush);
  cuda_.attributes.erase(CudaDeviceAttribute::kGpuDirectRdmaFlushWritesOptions);
  EXPECT_EQ(Found().method, GpuMemoryMethod::kHostBounce);
}

TEST_F(GpuMemoryProbeTest, HostMemoryNeedsNoFlush) {
  cuda_.failures["cuMemAlloc"] = CudaResult::kOutOfMemory;
  cuda_.attributes[CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering] = 0;
  const GpuMemoryProbe probe = Found();
  EXPECT_EQ(probe.method, GpuMemoryMethod::kHostBounce);
  EXPECT_FALSE(probe.flush);
  EXPECT_THAT(probe.Describe(), StartsWith("host bounce; not dma-buf: "));
}

}  // namespace
}  // namespace fastdecode
