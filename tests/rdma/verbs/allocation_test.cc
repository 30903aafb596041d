// Replaces operator new for this whole program, to count.

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "tests/rdma/link_suite.h"
#include "tests/rdma/verbs/null_provider.h"

namespace {
uint64_t g_allocations = 0;
}  // namespace

// NOLINTBEGIN
void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++g_allocations;
  return std::malloc(bytes);
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND

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
      const uint64_t before = g_allocations;
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
      EXPECT_EQ(g_allocations, before);
      EXPECT_EQ(messages, 4000u) << pair.engine->lost_cause() << pair.home->lost_cause();
    }
    pair.ExpectClean();
  }
}

}  // namespace
}  // namespace fastdecode
