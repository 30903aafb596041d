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

std::unique_ptr<LinkEnds> MakeFlagEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<VerbsEnds>(
      VerbsPair::Options{.size = size, .link = {.notify_by_flag = true}, .epoch = epoch});
}

INSTANTIATE_TEST_SUITE_P(Verbs, LinkSuite,
                         testing::Values(LinkProvider{"plain", MakePlainEnds},
                                         LinkProvider{"checksum", MakeChecksumEnds}, LinkProvider{"gpu", MakeGpuEnds},
                                         LinkProvider{"flag", MakeFlagEnds},
                                         LinkProvider{"without_inline", MakeEndsWithoutInline}),
                         LinkProviderName);

std::unique_ptr<LinkEnds> MakeSeededEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<VerbsEnds>(
      VerbsPair::Options{.size = size, .fabric = {.seed = 5}, .checksum = true, .epoch = epoch});
}

std::unique_ptr<LinkEnds> MakeSeededFlagEnds(const LinkSize& size, uint64_t epoch) {
  return std::make_unique<VerbsEnds>(VerbsPair::Options{
      .size = size, .fabric = {.seed = 7, .place_in_order = true}, .link = {.notify_by_flag = true}, .epoch = epoch});
}

INSTANTIATE_TEST_SUITE_P(Verbs, LinkStressSuite,
                         testing::Values(LinkProvider{"plain", MakePlainEnds}, LinkProvider{"seeded", MakeSeededEnds},
                                         LinkProvider{"gpu", MakeSeededGpuEnds},
                                         LinkProvider{"flag", MakeSeededFlagEnds}),
                         LinkProviderName);

// ---- Messages of every length. ----

class VerbsLengthTest : public testing::Test {
 protected:
  static constexpr size_t kBytesMax = 5 << 20;

  // There and back with so many bytes of payload each way.
  void Bounce(VerbsPair* pair, int slot, uint64_t step, size_t hop_bytes, size_t reply_bytes) {
    FillPattern(pair->engine->SendArea(slot), hop_bytes, step);
    HopHeader hop = Hop(slot, step);
    hop.payload_bytes = static_cast<uint32_t>(hop_bytes);
    const uint64_t writes = pair->fabric.writes();
    pair->engine->PostHop(hop);
    pair->fabric.Settle();
    hop_writes_ = pair->fabric.writes() - writes;
    const std::byte* payload = nullptr;
    ASSERT_EQ(pair->home->PollHop(&hop, &payload), LinkPoll::kMessage) << pair->home->lost_cause();
    ASSERT_EQ(hop.payload_bytes, hop_bytes);
    ASSERT_TRUE(HasPattern(payload, hop_bytes, step));
    FillPattern(pair->home->ReplyArea(slot), reply_bytes, step + 1);
    ReplyHeader reply = ReplyTo(hop);
    reply.payload_bytes = static_cast<uint32_t>(reply_bytes);
    pair->home->PostReply(reply);
    pair->fabric.Settle();
    ASSERT_EQ(pair->engine->PollReply(&reply), LinkPoll::kMessage) << pair->engine->lost_cause();
    ASSERT_TRUE(HasPattern(pair->engine->ReceiveArea(slot), reply_bytes, step + 1));
  }

  uint64_t hop_writes_ = 0;
};

TEST_F(VerbsLengthTest, OneWriteUpToEightKibThenAChain) {
  for (const bool checksum : {false, true}) {
    VerbsPair pair({.size = {.slots = 2,
                             .hop_payload_bytes_max = kBytesMax,
                             .reply_payload_bytes_max = kBytesMax,
                             .control_ring_bytes = 4096},
                    .checksum = checksum});
    const size_t line = sizeof(MessageLine);
    const struct {
      size_t bytes;
      uint64_t writes;
    } cases[] = {{0, 1},
                 {1, 1},
                 {kOneWriteBytesMax - line, 1},
                 {kOneWriteBytesMax - line + 1, 2},
                 {1 << 20, 2},  // one piece, and the line behind it
                 {(1 << 20) + 1, 3},
                 {kBytesMax, 6},
                 {3 << 20, 4},
                 {100, 1}};
    uint64_t step = 0;
    for (const auto& [bytes, writes] : cases) {
      for (int slot = 0; slot < 2; ++slot) {
        SCOPED_TRACE(bytes);
        ++step;
        ASSERT_NO_FATAL_FAILURE(Bounce(&pair, slot, step, bytes, kBytesMax - bytes));
        EXPECT_EQ(hop_writes_, writes);
      }
    }
    pair.ExpectClean();
  }
}

TEST_F(VerbsLengthTest, AFlagIsOneWriteMore) {
  VerbsPair pair({.size = {.slots = 2, .hop_payload_bytes_max = kBytesMax, .reply_payload_bytes_max = kBytesMax},
                  .link = {.notify_by_flag = true}});
  uint64_t step = 0;
  for (const size_t bytes : {size_t{0}, kOneWriteBytesMax - 64, kOneWriteBytesMax - 63, size_t{3} << 20, kBytesMax}) {
    SCOPED_TRACE(bytes);
    ++step;
    ASSERT_NO_FATAL_FAILURE(Bounce(&pair, static_cast<int>(step % 2), step, bytes, kBytesMax - bytes));
    EXPECT_EQ(hop_writes_, bytes <= kOneWriteBytesMax - 64 ? 2 : ((bytes + (1 << 20) - 1) >> 20) + 2);
  }
  pair.ExpectClean();
}

TEST_F(VerbsLengthTest, FromAGpuALineAndItsPayloadAreOneWriteAndBackTwo) {
  MadeUpCuda cuda;
  VerbsPair pair(
      {.size = {.slots = 2, .hop_payload_bytes_max = kBytesMax, .reply_payload_bytes_max = kBytesMax}, .cuda = &cuda});
  uint64_t step = 0;
  for (const size_t bytes : {size_t{0}, size_t{1}, kOneWriteBytesMax - 64, kOneWriteBytesMax - 63, kBytesMax}) {
    SCOPED_TRACE(bytes);
    const uint64_t writes = pair.fabric.writes();
    ASSERT_NO_FATAL_FAILURE(Bounce(&pair, 0, ++step, bytes, bytes));
    const uint64_t pieces = (bytes + (1 << 20) - 1) >> 20;
    EXPECT_EQ(hop_writes_, bytes <= kOneWriteBytesMax - 64 ? 1 : pieces + 1);
    EXPECT_EQ(pair.fabric.writes() - writes - hop_writes_, pieces + 1);
  }
  pair.ExpectClean();
}

// What a GPU that needs it is asked for, once for each reply with a payload, when that is there.
TEST_F(VerbsLengthTest, AGpuIsFlushedAfterEachReply) {
  for (const int ordering : {0, kCudaWritesOrderingOwner}) {
    MadeUpCuda cuda;
    cuda.attributes[CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering] = ordering;
    VerbsPair pair({.size = {.slots = 2, .hop_payload_bytes_max = kBytesMax, .reply_payload_bytes_max = kBytesMax},
                    .cuda = &cuda});
    uint64_t step = 0, flushes = 0;
    size_t bytes = 0;
    cuda.on_flush = [&] {
      ++flushes;
      EXPECT_TRUE(HasPattern(pair.engine->ReceiveArea(0), bytes, step + 1)) << bytes;
    };
    for (const size_t length : {size_t{0}, size_t{1}, kBytesMax}) {
      bytes = length;
      ASSERT_NO_FATAL_FAILURE(Bounce(&pair, 0, ++step, 64, bytes));
      EXPECT_EQ(flushes, ordering == 0 ? step - 1 : 0);
    }
    EXPECT_TRUE(cuda.violations().empty());
    pair.ExpectClean();
  }
}

TEST_F(VerbsLengthTest, AGpuThatDoesNotFlushLosesTheLink) {
  MadeUpCuda cuda;
  cuda.attributes[CudaDeviceAttribute::kGpuDirectRdmaWritesOrdering] = 0;
  VerbsPair pair({.size = {.slots = 1, .hop_payload_bytes_max = 64, .reply_payload_bytes_max = 64}, .cuda = &cuda});
  cuda.failures["cuFlushGPUDirectRDMAWrites"] = CudaResult::kNotSupported;
  HopHeader hop = Hop(0, 1);
  hop.payload_bytes = 64;
  pair.engine->PostHop(hop);
  pair.fabric.Settle();
  const std::byte* payload = nullptr;
  ASSERT_EQ(pair.home->PollHop(&hop, &payload), LinkPoll::kMessage) << pair.home->lost_cause();
  ReplyHeader reply = ReplyTo(hop);
  reply.payload_bytes = 64;
  pair.home->PostReply(reply);
  pair.fabric.Settle();
  EXPECT_EQ(pair.engine->PollReply(&reply), LinkPoll::kLost);
  EXPECT_NE(pair.engine->lost_cause().find("cuFlushGPUDirectRDMAWrites failed"), std::string::npos)
      << pair.engine->lost_cause();
}

TEST_F(VerbsLengthTest, AChainHasSixteenPiecesAtMostUnlessThePortTakesLess) {
  constexpr size_t kLarge = 40 << 20;
  for (const uint32_t port_max : {1u << 30, 1u << 20}) {
    VerbsPair pair({.size = {.slots = 1, .hop_payload_bytes_max = kLarge, .reply_payload_bytes_max = 0},
                    .fabric = {.max_msg_bytes = port_max}});
    ASSERT_NO_FATAL_FAILURE(Bounce(&pair, 0, 1, kLarge, 0));
    EXPECT_EQ(hop_writes_, port_max == 1u << 20 ? 41u : 17u);
    pair.ExpectClean();
  }
}

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
