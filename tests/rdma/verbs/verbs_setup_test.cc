// The small types that cross a verbs link, and the choice of its device.

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
#include <utility>
#include <vector>

#include "rdma/verbs/crc32c.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_parameters.h"
#include "rdma/verbs/verbs_wire.h"
#include "tests/rdma/verbs/fake_fabric.h"

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
  EXPECT_EQ(layout.control_bytes(), 8192u + 64u);
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
  ~VerbsDeviceTest() override {
    EXPECT_EQ(fabric_.live_objects(), 0);
    std::filesystem::remove_all(folder_);
  }

  FakeFabric::Device* Add(const std::string& name, int node = -1) {
    const std::string folder = folder_ + "/" + name;
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

  const std::string folder_ = testing::TempDir() + "/verbs_device_test." + std::to_string(getpid());
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

TEST_F(VerbsDeviceTest, AHostWithoutLibibverbsIsToldSo) {
  Add("out of reach");
  const VerbsCalls none = VerbsCalls::Load("libfastdecode_none.so.1");
  int count = 1;
  EXPECT_EQ(none.get_device_list(&count), nullptr);
  EXPECT_EQ(count, 0);
  none.free_device_list(nullptr);
  calls_.missing = none.missing;
  calls_.missing_advice = none.missing_advice;
  EXPECT_EQ(OpenVerbsDevice(calls_, {}, -1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Chosen({}),
            "no RDMA device: libfastdecode_none.so.1 could not be loaded: libfastdecode_none.so.1: cannot open shared "
            "object file: No such file or directory; install libibverbs1 and ibverbs-providers");
  EXPECT_EQ(VerbsCalls::Load("libc.so.6").missing,
            "libc.so.6 has no ibv_query_port@IBVERBS_1.1: it is older than rdma-core 34");
}

// Hosts that build this have it, with the headers.
TEST(VerbsCallsTest, ThisHostsLibibverbsHasAllThatIsCalled) { EXPECT_EQ(VerbsCalls::System().missing, ""); }

TEST_F(VerbsDeviceTest, DevicesOfOtherTransportsAreLeftAlone) {
  const std::string why =
      ", not InfiniBand or RoCE: links need their reliable connections, and writes with immediate data";
  Add("iwarp")->base.transport_type = IBV_TRANSPORT_IWARP;
  EXPECT_EQ(Chosen({}), "iwarp speaks iWARP" + why);
  FakeFabric::Device* const roce = Add("roce");
  Add("efa")->base.transport_type = IBV_TRANSPORT_UNSPECIFIED;
  EXPECT_EQ(Chosen({}).substr(0, 11), "roce port 1");
  EXPECT_EQ(Chosen(With(&FabricOptions::device, "iwarp")), "iwarp speaks iWARP" + why);
  EXPECT_EQ(Chosen(With(&FabricOptions::device, "efa")), "efa speaks a transport of its own" + why);
  roce->ports[0].state = IBV_PORT_DOWN;
  EXPECT_EQ(Chosen({}).substr(0, 23), "roce has no active port") << "what the user can do something about";
}

TEST_F(VerbsDeviceTest, TheRateIsTheChosenPorts) {
  FakeFabric::Device* const device = Add("fast", 0);
  device->ports.push_back(device->ports[0]);
  device->gids.push_back(device->gids[0]);
  device->gids[1].port_num = 2;
  const auto line = [this](int port) { return OpenVerbsDevice(calls_, With(&FabricOptions::port, port), -1)->Line(); };
  EXPECT_EQ(line(1).device, "fast port 1");
  EXPECT_EQ(line(1).gbit_per_s, 0) << "the kernel says nothing";
  for (const auto& [port, text] : {std::pair(1, "100 Gb/sec (4X EDR)"), std::pair(2, "2.5 Gb/sec (1X SDR)")}) {
    const std::string folder = std::string(device->base.ibdev_path) + "/ports/" + std::to_string(port);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/rate") << text << "\n";
  }
  EXPECT_EQ(line(1).gbit_per_s, 100);
  EXPECT_EQ(line(2).gbit_per_s, 2.5);
  EXPECT_EQ(line(2).device, "fast port 2");
  std::ofstream(std::string(device->base.ibdev_path) + "/ports/2/rate") << "fast\n";
  EXPECT_EQ(line(2).gbit_per_s, 0);
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

TEST_F(VerbsDeviceTest, AnAddressThatIsRoutedIsPreferredToALinkLocalOne) {
  const auto ipv6 = [](uint32_t index, uint32_t type, uint8_t first, uint8_t second) {
    ibv_gid_entry entry = FakeFabric::Gid(index, type, {1});
    entry.gid.raw[0] = first;
    entry.gid.raw[1] = second;
    return entry;
  };
  FakeFabric::Device* const device = Add("roce");
  device->gids = {ipv6(0, IBV_GID_TYPE_ROCE_V1, 0xfd, 0), ipv6(1, IBV_GID_TYPE_ROCE_V2, 0xfe, 0x80),
                  ipv6(2, IBV_GID_TYPE_ROCE_V2, 0xfe, 0xbf), ipv6(3, IBV_GID_TYPE_ROCE_V2, 0xfd, 0)};
  EXPECT_NE(Chosen({}).find("GID 3 fd00::1 (RoCE v2)"), std::string::npos) << Chosen({});
  device->gids.pop_back();
  EXPECT_NE(Chosen({}).find("GID 1 fe80::1 (RoCE v2)"), std::string::npos) << Chosen({});
}

TEST_F(VerbsDeviceTest, APartitionWithFullMembershipIsChosen) {
  FakeFabric::Device* const device = Add("ib");
  const auto index = [this] { return OpenVerbsDevice(calls_, {}, -1)->pkey_index; };
  for (const auto& [keys, chosen] : std::vector<std::pair<std::vector<uint16_t>, int>>{
           {{0xffff}, 0}, {{0x7fff, 0, 0x8001, 0xffff}, 2}, {{0x7fff, 0x0001}, 0}, {{}, 0}}) {
    device->partition_keys = keys;
    device->ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
    EXPECT_EQ(index(), chosen);
    device->ports[0].link_layer = IBV_LINK_LAYER_ETHERNET;
    EXPECT_EQ(index(), 0) << "of RoCE always the first";
  }
  device->partition_keys = {0x7fff, 0xffff};
  device->ports[0].link_layer = IBV_LINK_LAYER_INFINIBAND;
  calls_.query_pkey = [](auto...) { return -1; };
  EXPECT_EQ(index(), 0) << "which nothing was heard of";
}

TEST_F(VerbsDeviceTest, OptionsOutOfRangeAreNamed) {
  Add("any");
  EXPECT_EQ(Chosen(With(&FabricOptions::port, 256)), "fabric port: 256 is not 0 to 255");
  EXPECT_EQ(Chosen(With(&FabricOptions::gid_index, -2)), "fabric GID index: -2 is not -1 or more");
  EXPECT_EQ(Chosen(With(&FabricOptions::mtu, 1500)), "fabric MTU: 1500 is not 0, 256, 512, 1024, 2048 or 4096");
  EXPECT_EQ(Chosen(With(&FabricOptions::traffic_class, 256)), "fabric traffic class: 256 is not 0 to 255");
  EXPECT_EQ(Chosen(With(&FabricOptions::service_level, 16)), "fabric service level: 16 is not 0 to 15");
}

}  // namespace
}  // namespace fastdecode
