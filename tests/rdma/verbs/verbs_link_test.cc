// Both ends of a verbs link over made-up adapters, without threads.

#include "rdma/verbs/verbs_link.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/rdma/link_suite.h"
#include "tests/rdma/verbs/verbs_pair.h"

namespace fastdecode {
namespace {

// ---- What every provider promises. ----

struct VerbsEnds final : LinkEnds {
  explicit VerbsEnds(const VerbsPair::Options& options) : pair(options) {
    engine = std::move(pair.engine);
    home = std::move(pair.home);
  }
  ~VerbsEnds() override {
    engine.reset();
    home.reset();
    pair.ExpectClean();
  }
  void PassNews() override {
    // The heartbeat's timer runs in real time.
    if (home != nullptr) {
      pollfd entry = {home->liveness_fd(), POLLIN, 0};
      ::poll(&entry, 1, 1000);
      home->CheckPeer();
    }
    if (engine != nullptr) engine->CheckPeer();
  }

  VerbsPair pair;
};

// The engine's payload in memory of a made-up GPU.
struct GpuEnds final : LinkEnds {
  GpuEnds(const LinkSize& size, uint64_t epoch, uint64_t seed)
      : ends(VerbsPair::Options{.size = size, .fabric = {.seed = seed}, .epoch = epoch, .cuda = &cuda}) {
    engine = std::move(ends.engine);
    home = std::move(ends.home);
    EXPECT_TRUE(cuda.IsDeviceMemory(reinterpret_cast<CudaAddress>(engine->SendArea(0)), 1));
    EXPECT_TRUE(cuda.IsDeviceMemory(reinterpret_cast<CudaAddress>(engine->ReceiveArea(0)), 1));
    if (size.bulk_segments > 0) {  // which the CPU fills
      EXPECT_FALSE(cuda.IsDeviceMemory(reinterpret_cast<CudaAddress>(engine->BulkArea()), 1));
    }
  }
  ~GpuEnds() override {
    engine.reset();
    home.reset();
    EXPECT_EQ(cuda.live_objects(), 0);
    for (const std::string& violation : cuda.violations()) ADD_FAILURE() << violation;
  }
  void PassNews() override {
    std::swap(ends.engine, engine);
    std::swap(ends.home, home);
    ends.PassNews();
    std::swap(ends.engine, engine);
    std::swap(ends.home, home);
  }

  MadeUpCuda cuda;
  VerbsEnds ends;
};

std::unique_ptr<LinkEnds> MakeGpuEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<GpuEnds>(size, epoch, 0);
}
std::unique_ptr<LinkEnds> MakeSeededGpuEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<GpuEnds>(size, epoch, 6);
}

std::unique_ptr<LinkEnds> MakePlainEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<VerbsEnds>(VerbsPair::Options{.size = size, .epoch = epoch});
}
std::unique_ptr<LinkEnds> MakeChecksumEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<VerbsEnds>(VerbsPair::Options{.size = size, .checksum = true, .epoch = epoch});
}
std::unique_ptr<LinkEnds> MakeEndsWithoutInline(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<VerbsEnds>(VerbsPair::Options{.size = size, .fabric = {.max_inline = 0}, .epoch = epoch});
}

INSTANTIATE_TEST_SUITE_P(Verbs, LinkSuite,
                         testing::Values(LinkProvider{"plain", MakePlainEnds},
                                         LinkProvider{"checksum", MakeChecksumEnds}, LinkProvider{"gpu", MakeGpuEnds},
                                         LinkProvider{"without_inline", MakeEndsWithoutInline}),
                         LinkProviderName);

std::unique_ptr<LinkEnds> MakeSeededEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<VerbsEnds>(
      VerbsPair::Options{.size = size, .fabric = {.seed = 5}, .checksum = true, .epoch = epoch});
}

INSTANTIATE_TEST_SUITE_P(Verbs, LinkStressSuite,
                         testing::Values(LinkProvider{"plain", MakePlainEnds}, LinkProvider{"seeded", MakeSeededEnds},
                                         LinkProvider{"gpu", MakeSeededGpuEnds}),
                         LinkProviderName);

// ---- Control. ----

TEST(VerbsControlTest, MessagesOfEveryLengthGoRoundTheRing) {
  VerbsPair pair({.size = {.slots = 1, .control_ring_bytes = 4096}, .checksum = true});
  std::vector<char> buffer(kControlMessageBytesMax);
  for (int direction = 0; direction < 2; ++direction) {
    for (size_t bytes = 1; bytes <= 4088; bytes += 13) {
      const std::string message(bytes, static_cast<char>('a' + bytes % 26));
      size_t received = 0;
      ASSERT_TRUE(direction == 0 ? pair.engine->TrySendControl(message.data(), bytes)
                                 : pair.home->TrySendControl(message.data(), bytes));
      ASSERT_EQ(direction == 0 ? pair.home->PollControl(buffer.data(), &received)
                               : pair.engine->PollControl(buffer.data(), &received),
                LinkPoll::kMessage);
      ASSERT_EQ(std::string(buffer.data(), received), message);
      ASSERT_EQ(direction == 0 ? pair.home->PollControl(buffer.data(), &received)
                               : pair.engine->PollControl(buffer.data(), &received),
                LinkPoll::kEmpty)
          << "and returns the credit";
    }
  }
  pair.ExpectClean();
}

TEST(VerbsControlTest, TheWindowBoundsSmallMessages) {
  VerbsPair pair({.size = {.slots = 1}});
  uint64_t sent = 0;
  while (pair.engine->TrySendControl("x", 1)) ++sent;
  EXPECT_EQ(sent, kControlWindow);
  char buffer[64];
  size_t bytes;
  for (uint64_t i = 0; i < kControlWindow / 8; ++i) {
    ASSERT_EQ(pair.home->PollControl(buffer, &bytes), LinkPoll::kMessage);
    EXPECT_EQ(pair.engine->TrySendControl("x", 1), i + 1 == kControlWindow / 8) << "credit comes by eighths";
  }
  pair.ExpectClean();
}

TEST(VerbsControlTest, ARingWithoutCreditIsSentWhenThereIsSome) {
  VerbsPair pair({.size = {.slots = 1}});
  while (pair.engine->TrySendControl("x", 1)) {
  }
  pair.home->Arm();
  pair.engine->RingHome();
  ReplyHeader reply;
  EXPECT_EQ(pair.engine->PollReply(&reply), LinkPoll::kEmpty);
  char buffer[64];
  size_t bytes;
  while (pair.home->PollControl(buffer, &bytes) == LinkPoll::kMessage) {
  }
  EXPECT_EQ(pair.engine->PollReply(&reply), LinkPoll::kEmpty);  // sends the ring
  pair.home->Sleep(3'600'000'000'000);                          // would hang the test
  pair.ExpectClean();
}

TEST(VerbsParkTest, ABulkSegmentWakesTheSleeperWithoutARing) {
  VerbsPair pair({.size = SmallSize()});
  pair.home->Arm();
  const std::byte* segment = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(pair.home->PollBulk(&segment, &bytes), LinkPoll::kEmpty);
  ASSERT_NE(pair.engine->BulkArea(), nullptr);
  pair.engine->PostBulk(3);
  pair.home->Sleep(3'600'000'000'000);  // would hang the test
  EXPECT_EQ(pair.home->PollBulk(&segment, &bytes), LinkPoll::kMessage);
  pair.ExpectClean();
}

TEST(VerbsParkTest, ALossWakesTheSleeper) {
  VerbsPair pair({.size = SmallSize()});
  pair.home->Arm();
  pair.home->MarkLost("shutting down");
  pair.home->Sleep(3'600'000'000'000);
  pair.ExpectClean();
}

TEST(VerbsParkTest, ARingTakenByThePollAfterArmKeepsItAwake) {
  VerbsPair pair({.size = SmallSize()});
  pair.engine->RingHome();
  pair.home->Arm();
  HopHeader hop;
  const std::byte* payload;
  EXPECT_EQ(pair.home->PollHop(&hop, &payload), LinkPoll::kEmpty);
  pair.home->Sleep(3'600'000'000'000);
  // An old ring's event is not taken for a new one for ever: this sleep lasts its time.
  pair.home->Arm();
  const uint64_t start_ns = NowNs();
  pair.home->Sleep(20'000'000);
  EXPECT_GE(NowNs() - start_ns, 15'000'000u);
  pair.ExpectClean();
}

}  // namespace
}  // namespace fastdecode
