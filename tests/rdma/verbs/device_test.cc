// Verbs links over a real RDMA device (Soft-RoCE in tests/softroce), both ends in this process, back through the
// device. Skipped where there is none.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "numa/clock.h"
#include "numa/spin.h"
#include "rdma/verbs/verbs_link.h"
#include "tests/rdma/gpu/made_up_cuda.h"
#include "tests/rdma/link_suite.h"
#include "tests/rdma/verbs/fake_peer_channel.h"

namespace fastdecode {
namespace {

constexpr uint64_t kPatienceNs = 20'000'000'000;  // under emulation everything is slow

bool HasDevice() {
  const VerbsCalls& calls = VerbsCalls::System();
  int count = 0;
  ibv_device** const list = calls.get_device_list(&count);
  if (list != nullptr) calls.free_device_list(list);
  return count > 0;
}

// With `cuda` the engine's payload lies apart, in memory that the device is told is a made-up GPU's.
struct DeviceEnds final : LinkEnds {
  DeviceEnds(const LinkSize& size, uint64_t epoch, bool checksum, std::unique_ptr<MadeUpCuda> made_up = nullptr)
      : cuda(std::move(made_up)) {
    VerbsOptions options;
    options.checksum = checksum;
    options.fabric.heartbeat_timeout_ns = 60'000'000'000;
    auto home_end = VerbsEnd::Create(options, size, LinkRole::kHome, -1);
    if (cuda != nullptr) {
      // By peermem: the only method whose memory a device without dma-buf, and this process, can both address.
      const std::string modules = testing::TempDir() + "fastdecode_modules";
      mkdir(modules.c_str(), 0700);
      mkdir((modules + "/nvidia_peermem").c_str(), 0700);
      cuda->attributes[CudaDeviceAttribute::kDmaBufSupported] = 0;
      options.fabric.gpu = 0;
      options.cuda = std::make_shared<const CudaDriver>(cuda->Driver());
      options.module_folder = modules;
    }
    auto engine_end = VerbsEnd::Create(options, size, LinkRole::kEngine, -1);
    EXPECT_TRUE(engine_end.ok()) << engine_end.status();
    EXPECT_TRUE(home_end.ok()) << home_end.status();
    const absl::Status home_status = (*home_end)->Connect((*engine_end)->parameters());
    const absl::Status engine_status = (*engine_end)->Connect((*home_end)->parameters());
    EXPECT_TRUE(engine_status.ok()) << engine_status;
    EXPECT_TRUE(home_status.ok()) << home_status;
    description = (*engine_end)->Describe();
    const auto to_engine = std::make_shared<FakeWire>();
    const auto to_home = std::make_shared<FakeWire>();
    engine = *MakeVerbsEngineLink(*std::move(engine_end), epoch,
                                  std::make_unique<FakePeerChannel>("the home", to_engine, to_home));
    home = *MakeVerbsHomeLink(*std::move(home_end), epoch,
                              std::make_unique<FakePeerChannel>("the engine", to_home, to_engine));
  }
  ~DeviceEnds() override {
    engine.reset();
    home.reset();
  }
  void PassNews() override {
    if (home != nullptr) {
      pollfd entry = {home->liveness_fd(), POLLIN, 0};
      ::poll(&entry, 1, 1000);
      home->CheckPeer();
    }
    if (engine != nullptr) engine->CheckPeer();
  }

  const std::unique_ptr<MadeUpCuda> cuda;
  std::string description;
};

template <bool kChecksum>
std::unique_ptr<LinkEnds> MakeDeviceEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<DeviceEnds>(size, epoch, kChecksum);
}
std::unique_ptr<LinkEnds> MakeApartEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<DeviceEnds>(size, epoch, false, std::make_unique<MadeUpCuda>());
}

std::vector<LinkProvider> Providers() {
  if (!HasDevice()) return {};
  return {
      {"device", MakeDeviceEnds<false>}, {"device_checksum", MakeDeviceEnds<true>}, {"device_apart", MakeApartEnds}};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinkStressSuite);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinkSuite);
INSTANTIATE_TEST_SUITE_P(Device, LinkStressSuite, testing::ValuesIn(Providers()), LinkProviderName);

class VerbsDeviceLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasDevice()) GTEST_SKIP() << "no RDMA device on this host";
  }

  // Polls until there is a message.
  template <class Poll>
  LinkPoll Await(Poll&& poll) {
    const uint64_t end_ns = NowNs() + kPatienceNs;
    PollBackoff backoff(PollMode::kYield);
    LinkPoll outcome;
    while ((outcome = poll()) == LinkPoll::kEmpty && NowNs() < end_ns) backoff.Idle();
    return outcome;
  }
};

TEST_F(VerbsDeviceLinkTest, MessagesOfEveryLengthGoThereAndBack) {
  constexpr size_t kBytesMax = 3 << 20;
  const LinkSize size = {.slots = 2, .hop_payload_bytes_max = kBytesMax, .reply_payload_bytes_max = kBytesMax};
  for (auto* const make : {MakeDeviceEnds<false>, MakeDeviceEnds<true>, MakeApartEnds}) {
    const std::unique_ptr<LinkEnds> made = make(size, 5);
    const auto& ends = static_cast<const DeviceEnds&>(*made);
    std::printf("%s\n", ends.description.c_str());
    uint64_t step = 0;
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{4096}, kOneWriteBytesMax - 64,
                               kOneWriteBytesMax - 63, size_t{1} << 20, kBytesMax, size_t{7}}) {
      SCOPED_TRACE(bytes);
      ++step;
      HopHeader hop = Hop(static_cast<int>(step % 2), step);
      hop.payload_bytes = static_cast<uint32_t>(bytes);
      const int slot = hop.micro_batch;
      FillPattern(ends.engine->SendArea(slot), bytes, step);
      ends.engine->PostHop(hop);
      const std::byte* payload = nullptr;
      ASSERT_EQ(Await([&] { return ends.home->PollHop(&hop, &payload); }), LinkPoll::kMessage)
          << ends.home->lost_cause() << ends.engine->lost_cause();
      ASSERT_TRUE(HasPattern(payload, bytes, step));
      FillPattern(ends.home->ReplyArea(slot), bytes, step + 1);
      ReplyHeader reply = ReplyTo(hop);
      reply.payload_bytes = static_cast<uint32_t>(bytes);
      ends.home->PostReply(reply);
      ASSERT_EQ(Await([&] { return ends.engine->PollReply(&reply); }), LinkPoll::kMessage)
          << ends.home->lost_cause() << ends.engine->lost_cause();
      ASSERT_TRUE(HasPattern(ends.engine->ReceiveArea(slot), bytes, step + 1));
    }
  }
}

TEST_F(VerbsDeviceLinkTest, BulkSegmentsGoRound) {
  const LinkSize size = {.slots = 1, .bulk_segments = 4, .bulk_segment_bytes_max = kBulkSegmentBytesMax};
  for (auto* const make : {MakeDeviceEnds<false>, MakeDeviceEnds<true>, MakeApartEnds}) {
    const std::unique_ptr<LinkEnds> ends = make(size, 5);
    for (uint64_t i = 1; i <= 20; ++i) {
      const size_t bytes = i % 5 == 0 ? kBulkSegmentBytesMax : 1 + i * 7919 % kBulkSegmentBytesMax;
      std::byte* area = nullptr;
      ASSERT_EQ(Await([&] {
                  area = ends->engine->BulkArea();
                  return area != nullptr ? LinkPoll::kMessage : LinkPoll::kEmpty;
                }),
                LinkPoll::kMessage)
          << ends->engine->lost_cause();
      FillPattern(area, bytes, i);
      ends->engine->PostBulk(bytes);
      const std::byte* segment = nullptr;
      size_t received = 0;
      ASSERT_EQ(Await([&] { return ends->home->PollBulk(&segment, &received); }), LinkPoll::kMessage)
          << ends->home->lost_cause() << ends->engine->lost_cause();
      ASSERT_EQ(received, bytes);
      ASSERT_TRUE(HasPattern(segment, bytes, i));
      ends->home->FreeBulk();
    }
  }
}

TEST_F(VerbsDeviceLinkTest, ControlGoesRoundTheRingManyTimes) {
  DeviceEnds ends({.slots = 1, .control_ring_bytes = 4096}, 5, true);
  std::vector<std::byte> buffer(kControlMessageBytesMax), message(4096);
  for (uint64_t i = 1; i <= 200; ++i) {
    const size_t bytes = 1 + i * 97 % 3000;
    FillPattern(message.data(), bytes, i);
    size_t received = 0;
    ASSERT_EQ(Await([&] {
                size_t none = 0;
                ends.home->PollControl(buffer.data(), &none);  // returns credit
                return ends.engine->TrySendControl(message.data(), bytes) ? LinkPoll::kMessage : LinkPoll::kEmpty;
              }),
              LinkPoll::kMessage)
        << ends.engine->lost_cause();
    ASSERT_EQ(Await([&] { return ends.home->PollControl(buffer.data(), &received); }), LinkPoll::kMessage)
        << ends.home->lost_cause() << ends.engine->lost_cause();
    ASSERT_EQ(received, bytes);
    ASSERT_TRUE(HasPattern(buffer.data(), bytes, i));
  }
}

TEST_F(VerbsDeviceLinkTest, AHomeThatIsGoneWithoutAWordIsNoticedByTheTransport) {
  VerbsOptions options;
  const LinkSize size = SmallSize();
  auto engine_end = VerbsEnd::Create(options, size, LinkRole::kEngine, -1);
  auto home_end = VerbsEnd::Create(options, size, LinkRole::kHome, -1);
  ASSERT_TRUE(engine_end.ok() && home_end.ok()) << engine_end.status() << home_end.status();
  ASSERT_TRUE((*engine_end)->Connect((*home_end)->parameters()).ok());
  ASSERT_TRUE((*home_end)->Connect((*engine_end)->parameters()).ok());
  auto engine = *MakeVerbsEngineLink(
      *std::move(engine_end), 5,
      std::make_unique<FakePeerChannel>("the home", std::make_shared<FakeWire>(), std::make_shared<FakeWire>()));
  home_end->reset();
  engine->PostHop(Hop(0));
  ReplyHeader reply;
  const uint64_t start_ns = NowNs();
  EXPECT_EQ(Await([&] { return engine->PollReply(&reply); }), LinkPoll::kLost);
  std::printf("after %d ms: %s\n", static_cast<int>((NowNs() - start_ns) / 1'000'000), engine->lost_cause().c_str());
  EXPECT_NE(engine->lost_cause().find("the home through "), std::string::npos);
}

TEST_F(VerbsDeviceLinkTest, LinksComeAndGoWithoutLeavingObjects) {
  for (uint64_t epoch = 1; epoch <= 20; ++epoch) {
    const uint64_t start_ns = NowNs();
    {
      DeviceEnds ends(SmallSize(), epoch, false);
      ends.engine->PostHop(Hop(0));
      if (epoch % 2 == 0) ends.engine.reset();
    }
    if (epoch == 20)
      std::printf("a link made and destroyed in %d ms\n", static_cast<int>((NowNs() - start_ns) / 1'000'000));
  }
}

}  // namespace
}  // namespace fastdecode
