// Memory that a GPU and an RDMA device share: made by each method, read and written from both sides, destroyed in
// order, also when any of the calls fails.

#include "rdma/gpu/gpu_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tests/rdma/gpu/gpu_fixture.h"

namespace fastdecode {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr GpuMemoryMethod kMethods[] = {GpuMemoryMethod::kDmaBuf, GpuMemoryMethod::kPeerMem,
                                        GpuMemoryMethod::kHostBounce};

std::string Text(const absl::Status& status) { return std::string(status.message()); }

class GpuMemoryTest : public GpuFixture {
 protected:
  absl::StatusOr<std::unique_ptr<GpuMemory>> Create(GpuMemoryMethod method, size_t bytes = 100'000) {
    return GpuMemory::Create(place(), method, {.bytes = bytes, .access = kPeerWrites});
  }
  // The part of the log about what is made and destroyed.
  std::vector<std::string> Objects() const {
    std::vector<std::string> objects;
    std::copy_if(cuda_.log.begin(), cuda_.log.end(), std::back_inserter(objects), [](const std::string& call) {
      for (const char* part : {"Ctx", "Alloc", "Free", "Host", "Handle", "reg_"}) {
        if (call.find(part) != std::string::npos && call != "cuCtxPushCurrent") return true;
      }
      return false;
    });
    return objects;
  }
};

TEST_F(GpuMemoryTest, HasWholePagesOfItsOwnAndIsZeroed) {
  for (const GpuMemoryMethod method : kMethods) {
    SCOPED_TRACE(GpuMemoryMethodName(method));
    const auto memory = Create(method);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ((*memory)->method(), method);
    EXPECT_GE((*memory)->bytes(), 100'000u);
    EXPECT_EQ((*memory)->bytes() % 4096, 0u);
    EXPECT_EQ((*memory)->address() % 4096, 0u);
    std::vector<std::byte> bytes((*memory)->bytes(), std::byte{1});
    ASSERT_TRUE((*memory)->CopyToHost(0, bytes.data(), bytes.size()).ok());
    EXPECT_THAT(bytes, Each(std::byte{0}));
  }
}

// CUDA's allocations begin anywhere in pages of 64 KiB, which an RDMA device gets whole.
TEST_F(GpuMemoryTest, NothingElseLiesInTheGpuPagesThatTheDeviceGets) {
  constexpr size_t kGpuPageBytes = 64 << 10;
  for (const size_t bytes : {size_t{1}, kGpuPageBytes - 1, kGpuPageBytes, kGpuPageBytes + 1, 5 * kGpuPageBytes}) {
    for (const GpuMemoryMethod method : {GpuMemoryMethod::kDmaBuf, GpuMemoryMethod::kPeerMem}) {
      const auto memory = Create(method, bytes);
      ASSERT_TRUE(memory.ok()) << memory.status();
      EXPECT_EQ((*memory)->address() % kGpuPageBytes, 0u);
      EXPECT_EQ((*memory)->bytes(), (bytes + kGpuPageBytes - 1) / kGpuPageBytes * kGpuPageBytes);
      EXPECT_TRUE(cuda_.IsDeviceMemory((*memory)->address(), (*memory)->bytes()));
    }
  }
}

TEST_F(GpuMemoryTest, TheCpuReachesTheBounceAlone) {
  for (const GpuMemoryMethod method : {GpuMemoryMethod::kDmaBuf, GpuMemoryMethod::kPeerMem}) {
    const auto memory = Create(method);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_FALSE((*memory)->host_accessible());
    EXPECT_EQ((*memory)->host_data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uint64_t>((*memory)->data()), (*memory)->address());
  }
  const auto memory = Create(GpuMemoryMethod::kHostBounce);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_TRUE((*memory)->host_accessible());
  // The device and the CPU use one address, the GPU another.
  EXPECT_EQ(reinterpret_cast<uint64_t>((*memory)->host_data()), (*memory)->address());
  EXPECT_NE((*memory)->data(), (*memory)->host_data());
  const int value = 4711;
  ASSERT_TRUE((*memory)->CopyFromHost(64, &value, sizeof(value)).ok());
  EXPECT_EQ(std::memcmp((*memory)->host_data() + 64, &value, sizeof(value)), 0);
}

TEST_F(GpuMemoryTest, CopiesStayWithinTheMemory) {
  const auto memory = Create(GpuMemoryMethod::kDmaBuf);
  ASSERT_TRUE(memory.ok()) << memory.status();
  char bytes[16] = "fifteen letters";
  char back[16] = "";
  const size_t last = (*memory)->bytes() - sizeof(bytes);
  ASSERT_TRUE((*memory)->CopyFromHost(last, bytes, sizeof(bytes)).ok());
  ASSERT_TRUE((*memory)->CopyToHost(last, back, sizeof(back)).ok());
  EXPECT_STREQ(back, bytes);
  EXPECT_DEATH((void)(*memory)->CopyFromHost(last + 1, bytes, sizeof(bytes)), "beyond the memory");
  EXPECT_DEATH((void)(*memory)->CopyToHost(~size_t{0}, back, sizeof(back)), "beyond the memory");
}

// ---- What the RDMA device does with it. ----

// Two queue pairs of fake0 that are connected with each other.
class LoopedPairs {
 public:
  LoopedPairs(const VerbsCalls& calls, ibv_pd* domain) : calls_(calls) {
    queue_ = calls_.create_cq(domain->context, 16, nullptr);
    ibv_qp_init_attr init = {};
    init.send_cq = queue_;
    init.recv_cq = queue_;
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = 4;
    init.cap.max_send_sge = 1;
    for (ibv_qp*& pair : pairs_) pair = calls_.create_qp(domain, &init);
    for (int i = 0; i < 2; ++i) {
      ibv_qp_attr attributes = {};
      attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
      attributes.dest_qp_num = pairs_[1 - i]->qp_num;
      attributes.path_mtu = IBV_MTU_4096;
      for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
        attributes.qp_state = state;
        EXPECT_EQ(calls_.modify_qp(pairs_[i], &attributes, IBV_QP_STATE | IBV_QP_DEST_QPN), 0);
      }
    }
  }
  ~LoopedPairs() {
    for (ibv_qp* pair : pairs_) {
      ibv_qp_attr attributes = {};
      attributes.qp_state = IBV_QPS_ERR;
      EXPECT_EQ(calls_.modify_qp(pair, &attributes, IBV_QP_STATE), 0);
      calls_.destroy_qp(pair);
    }
    calls_.destroy_cq(queue_);
  }

  ibv_wc_status Write(const GpuMemory& from, const GpuMemory& to, size_t bytes) {
    ibv_sge piece = {.addr = from.address(), .length = static_cast<uint32_t>(bytes), .lkey = from.local_key()};
    ibv_send_wr request = {};
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = to.address();
    request.wr.rdma.rkey = to.remote_key();
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(pairs_[0], &request, &bad), 0);
    ibv_wc completion = {};
    EXPECT_EQ(ibv_poll_cq(queue_, 1, &completion), 1);
    return completion.status;
  }

 private:
  const VerbsCalls& calls_;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pairs_[2] = {};
};

TEST_F(GpuMemoryTest, TheDeviceReadsAndWritesIt) {
  for (const GpuMemoryMethod from_method : kMethods) {
    for (const GpuMemoryMethod to_method : kMethods) {
      SCOPED_TRACE(std::string(GpuMemoryMethodName(from_method)) + " to " + GpuMemoryMethodName(to_method));
      const auto from = Create(from_method, 8192);
      const auto to = Create(to_method, 8192);
      ASSERT_TRUE(from.ok() && to.ok());
      std::vector<uint8_t> bytes(8192);
      std::iota(bytes.begin(), bytes.end(), 0);
      ASSERT_TRUE((*from)->CopyFromHost(0, bytes.data(), bytes.size()).ok());
      EXPECT_EQ(LoopedPairs(calls_, domain_).Write(**from, **to, bytes.size()), IBV_WC_SUCCESS);
      std::vector<uint8_t> back(bytes.size());
      ASSERT_TRUE((*to)->CopyToHost(0, back.data(), back.size()).ok());
      EXPECT_EQ(back, bytes);
    }
  }
}

TEST_F(GpuMemoryTest, PeersHaveTheAccessThatWasGiven) {
  for (const GpuMemoryMethod method : kMethods) {
    const auto from = Create(method);
    const auto read_only = GpuMemory::Create(place(), method, {.bytes = 8192, .access = 0});
    ASSERT_TRUE(from.ok() && read_only.ok());
    EXPECT_EQ(LoopedPairs(calls_, domain_).Write(**from, **read_only, 64), IBV_WC_REM_ACCESS_ERR);
  }
}

// ---- Making and destroying. ----

TEST_F(GpuMemoryTest, DmaBufIsDestroyedInReverseOrder) {
  ASSERT_TRUE(Create(GpuMemoryMethod::kDmaBuf).ok());
  EXPECT_THAT(Objects(), ElementsAre("cuDevicePrimaryCtxRetain", "cuMemAlloc", "cuMemGetHandleForAddressRange",
                                     "ibv_reg_dmabuf_mr", "ibv_dereg_mr", "cuMemFree", "cuDevicePrimaryCtxRelease"));
}

TEST_F(GpuMemoryTest, PeerMemIsDestroyedInReverseOrder) {
  ASSERT_TRUE(Create(GpuMemoryMethod::kPeerMem).ok());
  EXPECT_THAT(Objects(), ElementsAre("cuDevicePrimaryCtxRetain", "cuMemAlloc", "ibv_reg_mr", "ibv_dereg_mr",
                                     "cuMemFree", "cuDevicePrimaryCtxRelease"));
}

TEST_F(GpuMemoryTest, HostBounceIsDestroyedInReverseOrder) {
  ASSERT_TRUE(Create(GpuMemoryMethod::kHostBounce).ok());
  EXPECT_THAT(Objects(), ElementsAre("cuDevicePrimaryCtxRetain", "cuMemHostRegister", "cuMemHostGetDevicePointer",
                                     "ibv_reg_mr", "ibv_dereg_mr", "cuMemHostUnregister", "cuDevicePrimaryCtxRelease"));
}

TEST_F(GpuMemoryTest, NothingIsLeftWhicheverCallFails) {
  for (const GpuMemoryMethod method : kMethods) {
    SCOPED_TRACE(GpuMemoryMethodName(method));
    const int before = cuda_.calls();
    cuda_.fail_call = 0;
    ASSERT_TRUE(Create(method).ok());
    // One of them is for destroying it: the context is made current again.
    const int calls = cuda_.calls() - before - 1;
    ASSERT_GT(calls, 8);
    for (int i = 1; i <= calls; ++i) {
      SCOPED_TRACE(i);
      cuda_.fail_call = cuda_.calls() + i;
      const absl::Status status = Create(method).status();
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(Text(status), MatchesRegex("(cu[A-Z]|ibv_).* on (GPU 0|fake0).*: .* \\(.*(, 2|12)\\).*"));
      ExpectNothingLeft();
    }
  }
}

TEST_F(GpuMemoryTest, WhatDestroysFailsQuietly) {
  for (const char* name : {"cuMemFree", "cuMemHostUnregister", "cuDevicePrimaryCtxRelease"}) {
    cuda_.failures[name] = CudaResult::kInvalidContext;
  }
  for (const GpuMemoryMethod method : kMethods) EXPECT_TRUE(Create(method).ok());
  ExpectNothingLeft();
}

// ---- Errors say what, where, why, and what to do. ----

TEST_F(GpuMemoryTest, ErrorsNameTheCallAndTheGpu) {
  cuda_.failures["cuMemAlloc"] = CudaResult::kOutOfMemory;
  const absl::Status status = Create(GpuMemoryMethod::kDmaBuf, 1 << 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Text(status),
            "cuMemAlloc of 1 MiB on GPU 0 (Made-up GPU, 0000:5E:00.0): made-up error (CUDA_ERROR_MADE_UP, 2); "
            "`nvidia-smi` says who uses the GPU's memory");
  cuda_.texts = false;
  EXPECT_THAT(Text(Create(GpuMemoryMethod::kDmaBuf).status()), HasSubstr("): failed (CUDA's error, 2); "));
}

TEST_F(GpuMemoryTest, ErrorsNameTheCallAndTheDevice) {
  registration_errors_["ibv_reg_dmabuf_mr"] = ENOMEM;
  registration_errors_["ibv_reg_mr"] = ENOMEM;
  EXPECT_EQ(Text(Create(GpuMemoryMethod::kDmaBuf).status()),
            "ibv_reg_dmabuf_mr of 128 KiB on fake0: Cannot allocate memory (12); an IOMMU that translates has no "
            "room for large registrations: boot with iommu=pt");
  EXPECT_THAT(Text(Create(GpuMemoryMethod::kHostBounce).status()), HasSubstr("ulimit -l unlimited"));
}

TEST_F(GpuMemoryTest, SizesOutOfRange) {
  for (const size_t bytes : {size_t{0}, ~size_t{0}, size_t{1} << 41}) {
    const absl::Status status = Create(GpuMemoryMethod::kDmaBuf, bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(status), HasSubstr(std::to_string(bytes)));
  }
}

TEST_F(GpuMemoryTest, NoSuchGpuOrNode) {
  for (const int gpu : {-1, 1}) {
    GpuMemoryPlace other = place();
    other.gpu = gpu;
    const absl::Status status = GpuMemory::Create(other, GpuMemoryMethod::kDmaBuf, {.bytes = 1}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(Text(status), "GPU " + std::to_string(gpu) + ": the CUDA driver has 1 GPU, counted from 0");
  }
  const absl::Status status =
      GpuMemory::Create(place(), GpuMemoryMethod::kHostBounce, {.bytes = 1, .host_node = 9999}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(status), HasSubstr("9999"));
}

TEST_F(GpuMemoryTest, Describes) {
  const auto dma_buf = Create(GpuMemoryMethod::kDmaBuf);
  const auto bounce = Create(GpuMemoryMethod::kHostBounce);
  ASSERT_TRUE(dma_buf.ok() && bounce.ok());
  EXPECT_EQ((*dma_buf)->Describe(), "128 KiB of GPU 0 (Made-up GPU, 0000:5E:00.0) by dma-buf for fake0");
  EXPECT_THAT((*bounce)->Describe(), HasSubstr(", mapped by GPU 0 (Made-up GPU, 0000:5E:00.0), for fake0"));
}

}  // namespace
}  // namespace fastdecode
