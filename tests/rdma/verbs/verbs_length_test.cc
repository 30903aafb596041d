// Messages of every length over a verbs link and made-up adapters, without threads.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "rdma/verbs/verbs_link.h"
#include "tests/rdma/link_messages.h"
#include "tests/rdma/verbs/verbs_pair.h"

namespace fastdecode {
namespace {

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

}  // namespace
}  // namespace fastdecode
