#include "tools/latency/fabric_echo.h"

#include <algorithm>
#include <cstring>

#include <fastdecode/fastdecode.hpp>
#include "kernels/memory_stream.h"
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

bool TakeBulk(HomeLink* link, bool touch) {
  volatile uint64_t sink = 0;
  const std::byte* segment = nullptr;
  size_t bytes = 0;
  if (link->PollBulk(&segment, &bytes) != LinkPoll::kMessage) return false;
  if (touch) sink = sink ^ Read(segment, bytes);
  link->FreeBulk();
  return true;
}

// Until poll() says anything but kEmpty. Throws Error if that is kLost.
template <class Poll>
void Await(EngineLink* link, Poll&& poll) {
  const uint64_t start = NowTicks();
  uint32_t polls = 0;
  LinkPoll outcome;
  while ((outcome = poll()) == LinkPoll::kEmpty) {
    CpuRelax();
    if (++polls % (1 << 20) == 0 && TickClock::Get().ToNs(NowTicks() - start) > kReplyTimeoutNs) {
      link->MarkLost("nothing came back within 30 s");
    }
  }
  if (outcome == LinkPoll::kLost) throw Error(FD_UNAVAILABLE, link->peer_name() + ": " + link->lost_cause());
}

}  // namespace

LinkSize EchoLinkSize(size_t bytes_max) {
  LinkSize size;
  size.slots = 1;
  size.hop_payload_bytes_max = bytes_max;
  size.reply_payload_bytes_max = bytes_max;
  size.bulk_segments = 16;
  size.bulk_segment_bytes_max = kBulkSegmentBytesMax;
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
      if (!TakeBulk(link, touch)) CpuRelax();
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
    Await(link, [&] { return link->PollReply(&reply); });
    if (touch) sink = sink ^ Read(link->ReceiveArea(0), reply.payload_bytes);
    const uint64_t end = NowTicks();
    if (n >= warm_up) ticks.push_back(end - start);
  }
  for (uint64_t& value : ticks) value = TickClock::Get().ToNs(value);
  return ticks;
}

std::vector<uint64_t> MeasureBulk(EngineLink* link, size_t bytes, int windows, bool touch) {
  std::vector<uint64_t> times;
  times.reserve(static_cast<size_t>(windows));
  for (int window = 0; window < windows + 1; ++window) {  // the first fills the way
    const uint64_t start = NowTicks();
    for (int i = 0; i < kBulkWindow; ++i) {
      std::byte* area = nullptr;
      Await(link, [&] {
        area = link->BulkArea();
        return area != nullptr ? LinkPoll::kMessage : link->lost() ? LinkPoll::kLost : LinkPoll::kEmpty;
      });
      if (touch) std::memset(area, i, bytes);
      link->PostBulk(bytes);
    }
    if (window > 0) times.push_back(TickClock::Get().ToNs(NowTicks() - start));
  }
  return times;
}

}  // namespace fastdecode
