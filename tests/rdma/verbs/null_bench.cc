// What a hop and its reply cost in software: build, post, poll, validate at both ends, over a provider that does
// nothing but copy. A figure, not a test.
//
//   rdma_verbs_null_bench [LOOPS [PAYLOAD_BYTES]]          ns a round trip (two messages, four ends of them)
//
// Instructions a message, exactly: run it with two loop counts and divide the difference,
//   for n in 1000 11000; do
//     valgrind --tool=callgrind --callgrind-out-file=/dev/null rdma_verbs_null_bench $n 2>&1 | grep Collected
//   done
// The difference / 10000 is instructions a round trip and an empty poll, the null provider's own included; half of it
// is a little more than what a message costs.

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "numa/clock.h"
#include "tests/rdma/verbs/null_provider.h"

namespace fastdecode {
namespace {

void RoundTrip(VerbsPair* pair, uint64_t step, uint32_t payload_bytes) {
  HopHeader hop;
  hop.step = step;
  hop.rows = 1;
  hop.payload_bytes = payload_bytes;
  pair->engine->PostHop(hop);
  const std::byte* payload = nullptr;
  ReplyHeader reply;
  FD_CHECK(pair->home->PollHop(&hop, &payload) == LinkPoll::kMessage, "no hop");
  reply.step = hop.step;
  reply.payload_bytes = payload_bytes;
  pair->home->PostReply(reply);
  FD_CHECK(pair->engine->PollReply(&reply) == LinkPoll::kMessage, "no reply");
}

int Run(uint64_t loops, uint32_t payload_bytes) {
  VerbsPair pair({.size = {.slots = 2,
                           .hop_payload_bytes_max = payload_bytes,
                           .reply_payload_bytes_max = payload_bytes,
                           .control_ring_bytes = kControlRingBytesMin}});
  const NullProvider provider(&pair);
  constexpr int kRounds = 10;
  double best_ns = 1e30, sum_ns = 0;
  uint64_t step = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t start_ns = NowNs();
    for (uint64_t i = 0; i < loops / kRounds; ++i) RoundTrip(&pair, ++step, payload_bytes);
    const double ns =
        static_cast<double>(NowNs() - start_ns) / static_cast<double>(std::max<uint64_t>(loops / kRounds, 1));
    best_ns = std::min(best_ns, ns);
    sum_ns += ns;
  }
  ReplyHeader reply;
  const uint64_t start_ns = NowNs();
  for (uint64_t i = 0; i < loops; ++i) FD_CHECK(pair.engine->PollReply(&reply) == LinkPoll::kEmpty, "a reply");
  const double empty_ns = static_cast<double>(NowNs() - start_ns) / static_cast<double>(loops);
  std::printf("%u bytes: round trip %.1f ns at best, %.1f ns on average; a message half of it; an empty poll %.1f ns\n",
              payload_bytes, best_ns, sum_ns / kRounds, empty_ns);
  return 0;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  const uint64_t loops = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2'000'000;
  const uint64_t payload_bytes = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (loops < 10 || payload_bytes > fastdecode::kPayloadBytesMax) {
    std::fprintf(stderr, "usage: rdma_verbs_null_bench [LOOPS (10 or more) [PAYLOAD_BYTES]]\n");
    return 2;
  }
  return fastdecode::Run(loops, static_cast<uint32_t>(payload_bytes));
}
