#include <gtest/gtest.h>

#include "tests/allocation_count.h"
#include "tests/rdma/link_messages.h"
#include "tests/rdma/verbs/null_provider.h"

namespace fastdecode {
namespace {

TEST(VerbsAllocationTest, HopsAndControlMessagesAllocateNothing) {
  constexpr size_t kBytesMax = 3 << 20;
  for (const bool checksum : {false, true}) {
    VerbsPair pair({.size = {.slots = 2,
                             .hop_payload_bytes_max = kBytesMax,
                             .reply_payload_bytes_max = kBytesMax,
                             .control_ring_bytes = kControlRingBytesMin},
                    .checksum = checksum});
    {
      const NullProvider provider(&pair);
      char buffer[4096] = {};
      size_t bytes = 0;
      uint64_t messages = 0;
      const uint64_t before = AllocationCount();
      for (uint64_t step = 1; step <= 2000; ++step) {
        HopHeader hop;
        const std::byte* payload = nullptr;
        hop.step = step;
        hop.rows = 1;
        hop.micro_batch = static_cast<uint8_t>(step % 2);
        hop.payload_bytes = step % 100 == 0 ? kBytesMax : static_cast<uint32_t>(step);
        pair.engine->TrySendControl(buffer, 1 + step % 900);
        pair.engine->PostHop(hop);
        pair.engine->RingHome();
        ASSERT_EQ(pair.home->PollHop(&hop, &payload), LinkPoll::kMessage);
        messages += pair.home->PollControl(buffer, &bytes) == LinkPoll::kMessage;
        pair.home->TrySendControl(buffer, 1 + step % 500);
        ReplyHeader reply;
        reply.step = step;
        reply.micro_batch = hop.micro_batch;
        reply.payload_bytes = hop.payload_bytes;
        pair.home->AddProgress(1);
        pair.home->PostReply(reply);
        ASSERT_EQ(pair.engine->PollReply(&reply), LinkPoll::kMessage);
        messages += pair.engine->PollControl(buffer, &bytes) == LinkPoll::kMessage;
      }
      EXPECT_EQ(AllocationCount(), before);
      EXPECT_EQ(messages, 4000u) << pair.engine->lost_cause() << pair.home->lost_cause();
    }
    pair.ExpectClean();
  }
}

}  // namespace
}  // namespace fastdecode
