#include "tools/fabric_echo.h"

#include <algorithm>
#include <cstring>

#include "engine/fastdecode.hpp"
#include "kernels/read_stream.h"
#include "numa/clock.h"
#include "numa/spin.h"

namespace fastdecode {

namespace {

constexpr uint64_t kReplyTimeoutNs = 30'000'000'000;

// Every cache line.
uint64_t Read(const std::byte* data, size_t bytes) {
  uint64_t sum = ReadStream(data, bytes);
  for (size_t at = bytes / 512 * 512; at < bytes; at += 64) sum ^= static_cast<uint64_t>(data[at]);
  return sum;
}

}  // namespace

LinkSize EchoLinkSize(size_t bytes_max) {
  LinkSize size;
  size.slots = 1;
  size.hop_payload_bytes_max = bytes_max;
  size.reply_payload_bytes_max = bytes_max;
  return size;
}

void EchoHops(HomeLink* link, bool touch, const std::atomic<bool>* stop) {
  volatile uint64_t sink = 0;
  HopHeader hop;
  const std::byte* payload = nullptr;
  while (!stop->load(std::memory_order_relaxed)) {
    const LinkPoll outcome = link->PollHop(&hop, &payload);
    if (outcome == LinkPoll::kLost) return;
    if (outcome == LinkPoll::kEmpty) {
      CpuRelax();
      continue;
    }
    ReplyHeader reply;
    reply.step = hop.step;
    reply.layer = hop.layer;
    reply.micro_batch = hop.micro_batch;
    // The asker's wish; a link carries no more than was agreed.
    reply.payload_bytes =
        static_cast<uint32_t>(std::min<size_t>(hop.roster_version, link->size().reply_payload_bytes_max));
    if (touch) {
      sink = sink ^ Read(payload, hop.payload_bytes);
      std::memset(link->ReplyArea(hop.micro_batch), static_cast<int>(hop.step & 0xff), reply.payload_bytes);
    }
    link->PostReply(reply);
  }
}

std::vector<uint64_t> MeasureEcho(EngineLink* link, const EchoPoint& point, int warm_up, int rounds, bool touch) {
  volatile uint64_t sink = 0;
  std::vector<uint64_t> ticks;
  ticks.reserve(static_cast<size_t>(rounds));
  HopHeader hop;
  hop.rows = 1;
  hop.payload_bytes = static_cast<uint32_t>(point.bytes);
  hop.roster_version = static_cast<uint32_t>(point.reply_bytes);
  for (int n = 0; n < warm_up + rounds; ++n) {
    hop.step = static_cast<uint64_t>(n) + 1;
    const uint64_t start = NowTicks();
    if (touch) std::memset(link->SendArea(0), static_cast<int>(hop.step & 0xff), point.bytes);
    link->PostHop(hop);
    ReplyHeader reply;
    uint32_t polls = 0;
    LinkPoll outcome;
    while ((outcome = link->PollReply(&reply)) == LinkPoll::kEmpty) {
      CpuRelax();
      if (++polls % (1 << 20) == 0 && TickClock::Get().ToNs(NowTicks() - start) > kReplyTimeoutNs) {
        link->MarkLost("no reply within 30 s");
      }
    }
    if (outcome == LinkPoll::kLost) {
      throw Error(FD_UNAVAILABLE, link->peer_name() + ": " + link->lost_cause());
    }
    if (touch) sink = sink ^ Read(link->ReceiveArea(0), reply.payload_bytes);
    const uint64_t end = NowTicks();
    if (n >= warm_up) ticks.push_back(end - start);
  }
  for (uint64_t& value : ticks) value = TickClock::Get().ToNs(value);
  return ticks;
}

}  // namespace fastdecode
