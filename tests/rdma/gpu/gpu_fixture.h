#ifndef FASTDECODE_TESTS_RDMA_GPU_GPU_FIXTURE_H_
#define FASTDECODE_TESTS_RDMA_GPU_GPU_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <string>

#include "rdma/gpu/gpu_memory.h"
#include "tests/rdma/gpu/made_up_cuda.h"
#include "tests/rdma/verbs/fake_fabric.h"

namespace fastdecode {

inline constexpr unsigned kPeerWrites = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

// A made-up GPU and a protection domain of a made-up adapter, fake0. The registrations of memory count as calls of the
// GPU's driver and stand in its log.
class GpuFixture : public testing::Test {
 protected:
  GpuFixture() : driver_(cuda_.Driver()), calls_(fabric_.Calls()) {
    context_ = calls_.open_device(&fabric_.device(0)->base);
    domain_ = calls_.alloc_pd(context_);
    fabric_objects_ = fabric_.live_objects();
    calls_.reg_mr = [this, inner = calls_.reg_mr](ibv_pd* domain, void* data, size_t bytes, unsigned access) {
      // Without the kernel module, memory of the GPU is none of the process's.
      if (!peermem_ && cuda_.IsDeviceMemory(reinterpret_cast<CudaAddress>(data), bytes)) {
        errno = EFAULT;
        return static_cast<ibv_mr*>(nullptr);
      }
      return Allowed("ibv_reg_mr") ? inner(domain, data, bytes, access) : nullptr;
    };
    calls_.reg_dmabuf_mr = [this, inner = calls_.reg_dmabuf_mr](ibv_pd* domain, uint64_t offset, size_t bytes,
                                                                uint64_t address, int fd, unsigned access) {
      EXPECT_TRUE(cuda_.IsDmaBufOf(fd, address));
      return Allowed("ibv_reg_dmabuf_mr") ? inner(domain, offset, bytes, address, fd, access) : nullptr;
    };
    calls_.dereg_mr = [this, inner = calls_.dereg_mr](ibv_mr* region) {
      cuda_.log.push_back("ibv_dereg_mr");
      return inner(region);
    };
  }
  ~GpuFixture() override {
    ExpectNothingLeft();
    calls_.dealloc_pd(domain_);
    calls_.close_device(context_);
    EXPECT_EQ(fabric_.live_objects(), 0);
    EXPECT_THAT(fabric_.violations(), testing::IsEmpty());
  }

  GpuMemoryPlace place() { return {.driver = &driver_, .gpu = 0, .calls = &calls_, .domain = domain_}; }

  void ExpectNothingLeft() {
    EXPECT_EQ(cuda_.live_objects(), 0);
    EXPECT_EQ(fabric_.live_objects(), fabric_objects_);
    EXPECT_THAT(cuda_.violations(), testing::IsEmpty());
  }

  FakeFabric fabric_;
  MadeUpCuda cuda_;
  CudaDriver driver_;
  VerbsCalls calls_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  bool peermem_ = true;                             // the RDMA drivers know the GPU's memory
  std::map<std::string, int> registration_errors_;  // calls of these names fail so

 private:
  bool Allowed(const std::string& name) {
    const bool entered = cuda_.Enter(name) == CudaResult::kSuccess;
    const auto failure = registration_errors_.find(name);
    errno = failure != registration_errors_.end() ? failure->second : ENOMEM;
    return entered && failure == registration_errors_.end();
  }

  int fabric_objects_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_GPU_GPU_FIXTURE_H_
