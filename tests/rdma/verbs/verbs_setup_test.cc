// Making and connecting the ends of a verbs link, and the small types that cross it.

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "rdma/verbs/crc32c.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_parameters.h"
#include "rdma/verbs/verbs_wire.h"
#include "tests/rdma/link_suite.h"
#include "tests/rdma/verbs/verbs_pair.h"

namespace fastdecode {
namespace {

// ---- Small types. ----

TEST(ImmDataTest, GoesThroughTheWire) {
  for (const MessageKind kind : {MessageKind::kHop, MessageKind::kReply, MessageKind::kControl, MessageKind::kRing}) {
    for (const int slot : {0, 1, kMaxSlots - 1}) {
      for (const uint64_t sequence : {uint64_t{0}, uint64_t{1}, uint64_t{0xffff}, uint64_t{0x10000}, ~uint64_t{0}}) {
        const ImmData data = ImmData::FromWire(ImmData(kind, slot, sequence).ToWire());
        EXPECT_EQ(data.kind(), kind);
        EXPECT_EQ(data.slot(), slot);
        EXPECT_TRUE(data.MatchesSequence(sequence));
        EXPECT_FALSE(data.MatchesSequence(sequence + 1));
      }
    }
  }
  // In network byte order: kind, slot, sequence.
  const uint32_t wire = ImmData(MessageKind::kControl, 2, 0x1234).ToWire();
  const unsigned char expected[] = {3, 2, 0x12, 0x34};
  EXPECT_EQ(std::memcmp(&wire, expected, 4), 0);
  EXPECT_DEATH(ImmData(MessageKind::kHop, kMaxSlots, 0), "slot out of range");
}

TEST(WrIdTest, KeepsItsParts) {
  for (const uint64_t posted : {uint64_t{0}, uint64_t{1}, WrId::kPostedMax}) {
    const WrId id = WrId::FromBits(WrId(MessageKind::kCredit, 15, posted).bits());
    EXPECT_EQ(id.kind(), MessageKind::kCredit);
    EXPECT_EQ(id.slot(), 15);
    EXPECT_EQ(id.posted(), posted);
  }
  EXPECT_DEATH(WrId(MessageKind::kHop, 0, WrId::kPostedMax + 1), "work request id");
}

TEST(RegionLayoutTest, PartsAreAlignedAndApart) {
  const LinkSize size = {.slots = 3, .control_ring_bytes = 8192};
  const RegionLayout layout(size, 100, /*payload_apart=*/false);
  EXPECT_EQ(layout.line_offset(0), 0u);
  EXPECT_EQ(layout.payload_offset(0), 64u);
  EXPECT_EQ(layout.line_offset(1), 192u);
  EXPECT_EQ(layout.slots_bytes(), 576u);
  EXPECT_EQ(layout.ring_offset(), 4096u);
  EXPECT_EQ(layout.credit_offset(), 4096u + 8192u);
  EXPECT_EQ(layout.bytes(), 4096u + 8192u + 64u);
  EXPECT_EQ(layout.apart_bytes(), 0u);

  const RegionLayout apart(size, 100, /*payload_apart=*/true);
  EXPECT_EQ(apart.line_offset(1), 64u);
  EXPECT_EQ(apart.payload_offset(0), 0u);
  EXPECT_EQ(apart.payload_offset(2), 256u);
  EXPECT_EQ(apart.slots_bytes(), 192u);
  EXPECT_EQ(apart.ring_offset(), 4096u);
  EXPECT_EQ(apart.apart_bytes(), 384u);
}

TEST(RegionLayoutTest, OneWriteTakesLineAndPayloadWhereTheyLieTogether) {
  const RegionLayout layout({}, 1 << 20, /*payload_apart=*/false);
  EXPECT_TRUE(layout.OneWrite(8192 - 64));
  EXPECT_FALSE(layout.OneWrite(8192 - 63));
  EXPECT_FALSE(RegionLayout({}, 1 << 20, /*payload_apart=*/true).OneWrite(0));
}

TEST(BulkLayoutTest, SegmentsAreAlignedAndGoRound) {
  const BulkLayout layout({.bulk_segments = 3, .bulk_segment_bytes_max = 61});
  EXPECT_EQ(layout.offset(0), 0u);
  EXPECT_EQ(layout.offset(1), 128u) << "61 bytes and the trailer are more than a line";
  EXPECT_EQ(layout.offset(5), 256u);
  EXPECT_EQ(layout.bytes(), 384u);
  EXPECT_EQ(BulkLayout(LinkSize()).bytes(), 0u);
}

TEST(Crc32cTest, KnownAnswers) {
  std::vector<unsigned char> ascending(32);
  for (size_t i = 0; i < 32; ++i) ascending[i] = static_cast<unsigned char>(i);
  const struct {
    std::vector<unsigned char> bytes;
    uint32_t crc;
  } cases[] = {// RFC 3720, B.4, and the check value of the catalogue of CRCs
               {std::vector<unsigned char>(32, 0), 0x8a9136aa},
               {std::vector<unsigned char>(32, 0xff), 0x62a8ab43},
               {ascending, 0x46dd794e},
               {{'1', '2', '3', '4', '5', '6', '7', '8', '9'}, 0xe3069283},
               {{}, 0}};
  for (const auto& [bytes, crc] : cases) {
    EXPECT_EQ(Crc32c(0, bytes.data(), bytes.size()), crc);
    EXPECT_EQ(Crc32cByTable(0, bytes.data(), bytes.size()), crc);
  }
}

TEST(Crc32cTest, InPiecesAndByTableItIsTheSame) {
  std::mt19937_64 random(1);
  std::vector<unsigned char> bytes(1000);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (int i = 0; i < 300; ++i) {
    const size_t count = random() % bytes.size();
    const size_t cut = random() % (count + 1);
    const uint32_t whole = Crc32c(0, bytes.data(), count);
    EXPECT_EQ(Crc32c(Crc32c(0, bytes.data(), cut), bytes.data() + cut, count - cut), whole);
    EXPECT_EQ(Crc32cByTable(0, bytes.data(), count), whole);
  }
}

// ---- Parameters. ----

VerbsParameters GoodParameters() {
  VerbsParameters parameters;
  parameters.gid[15] = 9;
  parameters.hop_pair = {0xabcdef, 0x123456};
  parameters.bulk_pair = {0xfedcba, 0x654321};
  parameters.lid = 7;
  parameters.link_layer = IBV_LINK_LAYER_ETHERNET;
  parameters.mtu = IBV_MTU_4096;
  parameters.checksum = 1;
  parameters.slots = {0x7f0000001000, 1 << 20, 11};
  parameters.control_key = 12;
  parameters.payload = {0x7f1000001000, 1 << 21, 13};
  parameters.bulk = {0x7f2000001000, 1 << 22, 14};
  return parameters;
}

TEST(VerbsParametersTest, GoThroughTheWire) {
  const auto read = VerbsParameters::FromWire(GoodParameters().ToWire());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, GoodParameters());
}

TEST(VerbsParametersTest, WhatCannotBeIsRefused) {
  const auto error = [](const std::function<void(VerbsParameters*)>& change) {
    VerbsParameters parameters = GoodParameters();
    change(&parameters);
    return std::string(VerbsParameters::FromWire(parameters.ToWire()).status().message());
  };
  const std::string by = "the peer's verbs parameters: ";
  constexpr uint32_t k25Bits = 1 << 24;
  const std::string bits = " 16777216 has more than 24 bits";
  EXPECT_EQ(error([](auto* p) { p->hop_pair.number = k25Bits; }), by + "hop queue pair" + bits);
  EXPECT_EQ(error([](auto* p) { p->bulk_pair.number = k25Bits; }), by + "bulk queue pair" + bits);
  EXPECT_EQ(error([](auto* p) { p->hop_pair.packet_number = k25Bits; }), by + "hop packet number" + bits);
  EXPECT_EQ(error([](auto* p) { p->link_layer = 9; }), by + "link layer 9 is neither Ethernet nor InfiniBand");
  EXPECT_EQ(error([](auto* p) { p->mtu = 0; }), by + "MTU code 0");
  EXPECT_EQ(error([](auto* p) { p->mtu = 6; }), by + "MTU code 6");
  EXPECT_EQ(error([](auto* p) { p->checksum = 2; }), by + "checksum 2 is neither 0 nor 1");
  EXPECT_EQ(error([](auto* p) { p->slots.address = ~uint64_t{63}; }),
            by + "slots region of 1048576 bytes at 18446744073709551552");
  EXPECT_EQ(error([](auto* p) { p->payload.address = 32; }), by + "payload region of 2097152 bytes at 32");
  EXPECT_EQ(error([](auto* p) { p->bulk.address = 1; }), by + "bulk region of 4194304 bytes at 1");
  const std::string wire = GoodParameters().ToWire();
  EXPECT_EQ(VerbsParameters::FromWire(wire.substr(1)).status().message(), by + "159 bytes instead of 160");
  EXPECT_EQ(VerbsParameters::FromWire(std::string(160, 'x')).status().message(),
            by + "not of this version of the provider");
}

TEST(VerbsParametersTest, NoBytesBreakTheReader) {
  std::mt19937_64 random(4);
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string wire = GoodParameters().ToWire();
    for (uint64_t flips = random() % 4; flips > 0; --flips) wire[random() % wire.size()] = static_cast<char>(random());
    const auto read = VerbsParameters::FromWire(wire);
    if (!read.ok()) continue;
    ++taken;
    ASSERT_GE(read->mtu, IBV_MTU_256);
    ASSERT_LE(read->mtu, IBV_MTU_4096);
    ASSERT_LT(read->hop_pair.number, 1u << 24);
    ASSERT_LT(read->bulk_pair.number, 1u << 24);
    for (const auto& range : {read->slots, read->payload, read->bulk}) {
      ASSERT_GE(range.address + range.bytes, range.address);
    }
  }
  EXPECT_GT(taken, 0);
}

// ---- Devices. ----

template <class Field, class Value>
FabricOptions With(Field FabricOptions::*field, Value value) {
  FabricOptions options;
  options.*field = value;
  return options;
}

class VerbsDeviceTest : public testing::Test {
 protected:
  VerbsDeviceTest() : calls_(fabric_.Calls()) { fabric_.RemoveDevices(); }
  ~VerbsDeviceTest() override { EXPECT_EQ(fabric_.live_objects(), 0); }

  FakeFabric::Device* Add(const std::string& name, int node = -1) {
    const std::string folder = testing::TempDir() + "/verbs_device_test." + std::to_string(getpid()) + "/" + name;
    if (node >= 0) {
      std::filesystem::create_directories(folder + "/device");
      std::ofstream(folder + "/device/numa_node") << node << "\n";
    }
    return fabric_.AddDevice(name, folder);
  }
  std::string Chosen(const FabricOptions& options, int node = -1) {
    const auto device = OpenVerbsDevice(calls_, options, node);
    return device.ok() ? device->Describe() : std::string(device.status().message());
  }

  FakeFabric fabric_;
  VerbsCalls calls_;
};

TEST_F(VerbsDeviceTest, TheNearestActiveOneIsChosen) {
  EXPECT_EQ(
      Chosen({}),
      "no RDMA device: is its driver loaded (`rdma link`), are /dev/infiniband/uverbs* there and open to this user?");
  Add("far");
  Add("near", 0);
  EXPECT_EQ(Chosen({}, 0), "near port 1, GID 0 10.0.0.1 (RoCE v2), Ethernet, MTU 4096, NUMA node 0");
  EXPECT_EQ(Chosen(With(&FabricOptions::device, "far"), 0),
            "far port 1, GID 0 10.0.0.1 (RoCE v2), Ethernet, MTU 4096, NUMA node unknown");
  EXPECT_EQ(Chosen(With(&FabricOptions::device, "mlx9"), 0), "no RDMA device is called 'mlx9'; there are: near, far");
  fabric_.device(1)->ports[0].state = IBV_PORT_DOWN;
  EXPECT_EQ(Chosen({}, 0).substr(0, 4), "far ") << "one with an active port, if further away";
  EXPECT_EQ(
      Chosen(With(&FabricOptions::device, "near"), 0),
      "near has no active port (port 1 is in state 1): is the cable in, and the network interface up (`rdma link`)?");
}

TEST_F(VerbsDeviceTest, TheFirstActivePortIsChosen) {
  FakeFabric::Device* const device = Add("two");
  device->ports.push_back(device->ports[0]);
  device->ports[0].state = IBV_PORT_INIT;
  device->gids[0].port_num = 2;
  EXPECT_EQ(Chosen({}).substr(0, 10), "two port 2");
  EXPECT_EQ(Chosen(With(&FabricOptions::port, 1)).substr(0, 22), "two has no active port");
  EXPECT_EQ(Chosen(With(&FabricOptions::port, 3)), "RDMA port 3: two has ports 1 to 2");
}

TEST_F(VerbsDeviceTest, RoceV2OverIpv4IsPreferred) {
  FakeFabric::Device* const device = Add("roce");
  device->gids = {FakeFabric::Gid(0, IBV_GID_TYPE_ROCE_V1, {1}), FakeFabric::Gid(1, IBV_GID_TYPE_ROCE_V2, {1}),
                  FakeFabric::Gid(4, IBV_GID_TYPE_ROCE_V1, {0xff, 0xff, 10, 0, 0, 2}),
                  FakeFabric::Gid(5, IBV_GID_TYPE_ROCE_V2, {0xff, 0xff, 10, 0, 0, 2}),
                  FakeFabric::Gid(6, IBV_GID_TYPE_ROCE_V2, {0xff, 0xff, 10, 0, 0, 3})};
  EXPECT_NE(Chosen({}).find("GID 5 10.0.0.2 (RoCE v2)"), std::string::npos) << Chosen({});
  EXPECT_NE(Chosen(With(&FabricOptions::gid_index, 0)).find("GID 0 ::1 (RoCE v1)"), std::string::npos)
      << Chosen(With(&FabricOptions::gid_index, 0));
  EXPECT_EQ(Chosen(With(&FabricOptions::gid_index, 2)),
            "roce port 1 has no GID 2 (it has 0, 1, 4, 5, 6): has its network interface an address?");
  device->gids.resize(2);
  EXPECT_NE(Chosen({}).find("GID 1 ::1 (RoCE v2)"), std::string::npos) << Chosen({});
  device->gids.clear();
  EXPECT_EQ(Chosen({}), "roce port 1 has no GID (it has none): has its network interface an address?");
}

TEST_F(VerbsDeviceTest, OptionsOutOfRangeAreNamed) {
  Add("any");
  EXPECT_EQ(Chosen(With(&FabricOptions::port, 256)), "fabric port: 256 is not 0 to 255");
  EXPECT_EQ(Chosen(With(&FabricOptions::gid_index, -2)), "fabric GID index: -2 is not -1 or more");
  EXPECT_EQ(Chosen(With(&FabricOptions::mtu, 1500)), "fabric MTU: 1500 is not 0, 256, 512, 1024, 2048 or 4096");
  EXPECT_EQ(Chosen(With(&FabricOptions::traffic_class, 256)), "fabric traffic class: 256 is not 0 to 255");
  EXPECT_EQ(Chosen(With(&FabricOptions::service_level, 16)), "fabric service level: 16 is not 0 to 15");
}

// ---- Ends. ----

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
