// One end of a verbs link being made: every call that may fail, queues and memory that do not fit, a peer that does
// not, and a made-up GPU.

#include "rdma/verbs/verbs_end.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/rdma/gpu/made_up_cuda.h"
#include "tests/rdma/link_suite.h"
#include "tests/rdma/verbs/fake_fabric.h"

namespace fastdecode {
namespace {

class VerbsEndTest : public testing::Test {
 protected:
  VerbsEndTest() : calls_(fabric_.Calls()) { options_.calls = &calls_; }
  ~VerbsEndTest() override {
    EXPECT_EQ(fabric_.live_objects(), 0);
    EXPECT_TRUE(fabric_.violations().empty());
  }

  absl::StatusOr<std::unique_ptr<VerbsEnd>> Make(LinkRole role = LinkRole::kEngine) {
    return VerbsEnd::Create(options_, SmallSize(), role, -1);
  }
  std::string Error() { return std::string(Make().status().message()); }

  FakeFabric fabric_;
  VerbsCalls calls_;
  VerbsOptions options_;
};

TEST_F(VerbsEndTest, EveryCallThatFailsIsNamedAndNothingLeaks) {
  const auto with = [this](auto VerbsCalls::*call, auto replacement) {
    calls_ = fabric_.Calls();
    calls_.*call = replacement;
    const std::string error = Error();
    EXPECT_EQ(fabric_.live_objects(), 0) << error;
    return error;
  };
  const auto fail = [](int error) {
    return [error](auto...) {
      errno = error;
      return nullptr;
    };
  };
  EXPECT_EQ(with(&VerbsCalls::open_device, fail(EACCES)),
            "ibv_open_device on fake0: Permission denied (13); may this user open /dev/infiniband/uverbs*?");
  EXPECT_EQ(with(&VerbsCalls::query_device, [](auto...) { return EIO; }),
            "ibv_query_device on fake0: Input/output error (5)");
  EXPECT_EQ(with(&VerbsCalls::query_port, [](auto...) { return EIO; }),
            "ibv_query_port on fake0: Input/output error (5)");
  EXPECT_EQ(with(&VerbsCalls::query_gid_table, [](auto...) -> ssize_t { return -EIO; }),
            "ibv_query_gid_table on fake0: Input/output error (5)");
  EXPECT_EQ(with(&VerbsCalls::alloc_pd, fail(ENOMEM)), "ibv_alloc_pd on fake0: Cannot allocate memory (12)");
  EXPECT_EQ(with(&VerbsCalls::create_comp_channel, fail(EMFILE)),
            "ibv_create_comp_channel on fake0: Too many open files (24)");
  EXPECT_EQ(with(&VerbsCalls::create_cq, fail(EINVAL)).substr(0, 39), "ibv_create_cq on fake0: Invalid argumen");
  EXPECT_EQ(with(&VerbsCalls::create_qp, fail(ENOMEM)).substr(0, 39), "ibv_create_qp on fake0: Cannot allocate");
  EXPECT_EQ(with(&VerbsCalls::modify_qp, [](auto...) { return EINVAL; }),
            "ibv_modify_qp to INIT on fake0 port 1, GID 0 10.0.0.1 (RoCE v2): Invalid argument (22)");
}

TEST_F(VerbsEndTest, NothingLeaksWhicheverCallFails) {
  int failing = 0, calls = 0;
  const VerbsCalls real = fabric_.Calls();
  const auto fails = [&] {
    errno = ENOMEM;
    return ++calls == failing;
  };
  calls_.alloc_pd = [&](ibv_context* context) { return fails() ? nullptr : real.alloc_pd(context); };
  calls_.reg_mr = [&](ibv_pd* domain, void* data, size_t bytes, unsigned access) {
    return fails() ? nullptr : real.reg_mr(domain, data, bytes, access);
  };
  calls_.create_cq = [&](ibv_context* context, int depth, ibv_comp_channel* channel) {
    return fails() ? nullptr : real.create_cq(context, depth, channel);
  };
  calls_.create_qp = [&](ibv_pd* domain, ibv_qp_init_attr* attributes) {
    return fails() ? nullptr : real.create_qp(domain, attributes);
  };
  calls_.modify_qp = [&](ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
    return attributes->qp_state != IBV_QPS_ERR && fails() ? ENOMEM : real.modify_qp(pair, attributes, mask);
  };
  int good = 0;
  do {
    calls = 0;
    ++failing;
    {
      const auto engine = Make();
      const auto home = Make(LinkRole::kHome);
      if (engine.ok() && home.ok()) {
        good += (*engine)->Connect((*home)->parameters()).ok() && (*home)->Connect((*engine)->parameters()).ok();
      }
    }
    ASSERT_EQ(fabric_.live_objects(), 0) << failing;
  } while (calls >= failing);
  EXPECT_GT(failing, 25) << "two ends with two queue pairs each";
  EXPECT_EQ(good, 1 + 4) << "no failure, and four that fewer bytes inline made up for";
}

TEST_F(VerbsEndTest, TooLittleLockedMemorySaysWhatToSet) {
  calls_.reg_mr = [](auto...) -> ibv_mr* {
    errno = ENOMEM;
    return nullptr;
  };
  const auto end = Make();
  EXPECT_EQ(end.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string error(end.status().message());
  EXPECT_EQ(error.substr(0, 14), "ibv_reg_mr of ");
  EXPECT_NE(error.find("lock"), std::string::npos) << error;
}

TEST_F(VerbsEndTest, OneRegionThatCannotBeRegisteredFreesTheOthers) {
  for (int good = 0; good < 4; ++good) {
    int left = good;
    calls_.reg_mr = [&, real = fabric_.Calls().reg_mr](ibv_pd* pd, void* data, size_t bytes, unsigned access) {
      if (left-- > 0) return real(pd, data, bytes, access);
      errno = ENOMEM;
      return static_cast<ibv_mr*>(nullptr);
    };
    EXPECT_FALSE(Make().ok());
    EXPECT_EQ(fabric_.live_objects(), 0);
  }
}

// Twice: 3 slots of a payload and a line, 3 for each of 64 control messages, 3 segments; 3 hops and 64 control messages
// to receive, and 3 segments to send, with two markers for each queue pair.
TEST_F(VerbsEndTest, QueuesThatTheDeviceHasNotAreNamed) {
  fabric_.device(0)->attributes.max_qp_wr = 100;
  EXPECT_EQ(
      Error(),
      "fake0 port 1, GID 0 10.0.0.1 (RoCE v2) has queues of at most 99 work requests and 1048576 completions; this "
      "link needs 402 and 546: fewer micro-batches or smaller batches need less");
  fabric_.device(0)->attributes.max_qp_wr = 1 << 14;
  fabric_.device(0)->ports[0].max_msg_sz = 1 << 17;
  EXPECT_EQ(
      Error(),
      "fake0 port 1, GID 0 10.0.0.1 (RoCE v2) takes messages of 131072 bytes at most: too few for control messages");
}

TEST_F(VerbsEndTest, PacketNumbersAndQueuePairsDiffer) {
  auto first = Make();
  auto second = Make();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->parameters().hop_pair.packet_number, (*second)->parameters().hop_pair.packet_number)
      << "once in 16 million";
  EXPECT_NE((*first)->parameters().hop_pair.number, (*second)->parameters().hop_pair.number);
}

TEST_F(VerbsEndTest, ThePeerMustFit) {
  auto engine = Make();
  auto home = Make(LinkRole::kHome);
  ASSERT_TRUE(engine.ok() && home.ok());
  const auto error = [&](const std::function<void(VerbsParameters*)>& change) {
    VerbsParameters parameters = (*home)->parameters();
    change(&parameters);
    return std::string((*engine)->Connect(parameters).message());
  };
  EXPECT_EQ(error([](auto* p) { p->checksum = 1; }),
            "message checksums are off at this end and on at the peer's: both ends must agree");
  EXPECT_EQ(error([](auto* p) { p->slots.bytes -= 64; }),
            "the peer registered 8192 bytes for our messages where the agreed sizes make 8256");
  EXPECT_NE(error([](auto* p) { p->link_layer = IBV_LINK_LAYER_INFINIBAND; }).find("not on one fabric"),
            std::string::npos);
  EXPECT_EQ(error([](auto*) {}), "");
  EXPECT_TRUE((*engine)->connected());
}

// Between two ports of one subnet.
TEST_F(VerbsEndTest, OnInfiniBandPacketsSayTheirGidWhereThePortInsists) {
  FakeFabric::Device* const device = fabric_.device(0);
  ibv_port_attr& port = device->ports[0];
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.lid = 7;
  device->gids = {FakeFabric::Gid(0, IBV_GID_TYPE_IB, {9})};
  ibv_ah_attr route = {};
  calls_.modify_qp = [&](ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
    if ((mask & IBV_QP_AV) != 0) route = attributes->ah_attr;
    return fabric_.Calls().modify_qp(pair, attributes, mask);
  };
  for (const bool insists : {false, true}) {
    port.flags = insists ? IBV_QPF_GRH_REQUIRED : 0;
    const auto engine = Make(), home = Make(LinkRole::kHome);
    ASSERT_TRUE(engine.ok() && home.ok()) << engine.status() << home.status();
    ASSERT_TRUE((*home)->Connect((*engine)->parameters()).ok());
    EXPECT_EQ(route.dlid, 7);
    EXPECT_EQ(route.is_global != 0, insists);
    EXPECT_EQ(route.grh.dgid.raw[15], insists ? 9 : 0);
  }
}

TEST_F(VerbsEndTest, AQueuePairIsInTheChosenPartition) {
  fabric_.device(0)->ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
  fabric_.device(0)->partition_keys = {0x7fff, 0x8001};
  int made = 0;
  calls_.modify_qp = [&](ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
    if ((mask & IBV_QP_PKEY_INDEX) != 0) {
      ++made;
      EXPECT_EQ(attributes->pkey_index, 1);
    }
    return fabric_.Calls().modify_qp(pair, attributes, mask);
  };
  EXPECT_EQ(Error(), "");
  EXPECT_EQ(made, 2);
}

TEST_F(VerbsEndTest, TheSmallerMtuIsUsed) {
  options_.fabric.mtu = 1024;
  auto engine = Make();
  options_.fabric.mtu = 0;
  auto home = Make(LinkRole::kHome);
  ASSERT_TRUE(engine.ok() && home.ok());
  ASSERT_TRUE((*engine)->Connect((*home)->parameters()).ok());
  ASSERT_TRUE((*home)->Connect((*engine)->parameters()).ok());
  for (const auto* end : {&*engine, &*home}) {
    EXPECT_NE((*end)->Describe().find("path MTU 1024"), std::string::npos) << (*end)->Describe();
  }
}

// ---- With a GPU. ----

class VerbsGpuEndTest : public VerbsEndTest {
 protected:
  VerbsGpuEndTest() {
    options_.fabric.gpu = 0;
    options_.cuda = std::make_shared<const CudaDriver>(cuda_.Driver());
  }
  MadeUpCuda cuda_;
};

TEST_F(VerbsGpuEndTest, SaysWhatWasChosenAndWhy) {
  cuda_.attributes[CudaDeviceAttribute::kDmaBufSupported] = 0;
  options_.module_folder = "/nonexistent";
  auto end = Make();
  ASSERT_TRUE(end.ok()) << end.status();
  const std::string text = (*end)->Describe();
  EXPECT_NE(text.find("payload by host bounce"), std::string::npos) << text;
  EXPECT_NE(text.find("dma-buf: "), std::string::npos) << text;
  EXPECT_NE(text.find("peermem: neither nvidia_peermem nor nv_peer_mem is loaded"), std::string::npos) << text;
}

TEST_F(VerbsGpuEndTest, AHomeHasNone) {
  auto home = Make(LinkRole::kHome);
  ASSERT_TRUE(home.ok()) << home.status();
  EXPECT_EQ(cuda_.calls(), 0);
  EXPECT_EQ((*home)->parameters().payload.bytes, 0u);
}

TEST_F(VerbsGpuEndTest, ChecksumsAndAMissingGpuAreRefused) {
  options_.checksum = true;
  EXPECT_NE(Error().find("message checksums"), std::string::npos);
  options_.checksum = false;
  options_.fabric.gpu = 7;
  EXPECT_NE(Error().find("GPU 7"), std::string::npos) << Error();
}

TEST_F(VerbsGpuEndTest, AFullGpuLeavesTheHost) {
  cuda_.allocations_max = 1;  // what is received, and not what is sent
  auto end = Make();
  ASSERT_TRUE(end.ok()) << end.status();
  const std::string text = (*end)->Describe();
  EXPECT_NE(text.find("payload by host bounce; not dma-buf: "), std::string::npos) << text;
  EXPECT_NE(text.find("cuMemAlloc"), std::string::npos) << text;
  EXPECT_EQ((*end)->gpu_to_flush(), nullptr);
  end->reset();
  EXPECT_EQ(cuda_.live_objects(), 0);
}

// What makes and frees memory may wait for all that runs.
TEST_F(VerbsGpuEndTest, NothingRunsOnTheGpuWhileItsMemoryIsMadeOrFreed) {
  int holds = 0;
  bool held = false;
  options_.fabric.hold_gpu = [&] {
    EXPECT_FALSE(held);
    ++holds;
    held = true;
    cuda_.log.push_back("hold");
    return std::shared_ptr<void>(&held, [&](void*) {
      held = false;
      cuda_.log.push_back("go on");
    });
  };
  for (const int has_dma_buf : {1, 0}) {
    cuda_.attributes[CudaDeviceAttribute::kDmaBufSupported] = has_dma_buf;
    options_.module_folder = "/nonexistent";
    cuda_.log.clear();
    holds = 0;
    {
      auto end = Make();
      ASSERT_TRUE(end.ok()) << end.status();
      EXPECT_FALSE(held);
      EXPECT_EQ(holds, 1);
    }
    EXPECT_FALSE(held);
    EXPECT_EQ(holds, 2);
    bool in_hold = false;
    int made_or_freed = 0;
    for (const std::string& call : cuda_.log) {
      if (call == "hold" || call == "go on") in_hold = call == "hold";
      for (const char* part : {"cuMemAlloc", "cuMemFree", "cuMemHost"}) {
        if (call.find(part) == std::string::npos) continue;
        EXPECT_TRUE(in_hold) << call;
        ++made_or_freed;
      }
    }
    EXPECT_GE(made_or_freed, 4);
  }
}

// Freeing its memory would wait for it.
TEST_F(VerbsGpuEndTest, AGpuThatIsGivenUpIsNotCalledAgain) {
  bool hangs = false;
  options_.fabric.hold_gpu = [&] { return hangs ? nullptr : std::make_shared<int>(); };
  auto end = Make();
  ASSERT_TRUE(end.ok()) << end.status();
  hangs = true;
  const std::vector<std::string> calls = cuda_.log;
  EXPECT_TRUE(absl::IsFailedPrecondition(Make().status()));
  EXPECT_NE(Error().find("GPU 0 is given up"), std::string::npos) << Error();
  end->reset();
  EXPECT_EQ(cuda_.log, calls);
}

TEST_F(VerbsGpuEndTest, NothingLeaksWhicheverCallOfTheDriverFails) {
  int fail_call = 1;
  for (bool made = false; !made; ++fail_call) {
    ASSERT_LT(fail_call, 1000);
    MadeUpCuda cuda;
    cuda.fail_call = fail_call;
    options_.cuda = std::make_shared<const CudaDriver>(cuda.Driver());
    {
      auto end = Make();
      made = cuda.calls() < fail_call;
      EXPECT_TRUE(end.ok() || !made) << end.status();
    }
    EXPECT_EQ(cuda.live_objects(), 0) << fail_call;
    EXPECT_EQ(fabric_.live_objects(), 0) << fail_call;
    EXPECT_TRUE(cuda.violations().empty()) << cuda.violations()[0];
  }
  EXPECT_GT(fail_call, 20);
}

TEST_F(VerbsEndTest, AnEndThatWasNeverConnectedGoesCleanly) {
  auto end = Make();
  ASSERT_TRUE(end.ok()) << end.status();
}

}  // namespace
}  // namespace fastdecode
