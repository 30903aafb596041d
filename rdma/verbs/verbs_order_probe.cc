#include "rdma/verbs/verbs_order_probe.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "numa/clock.h"
#include "numa/spin.h"
#include "rdma/verbs/verbs_memory_fastpath.h"

namespace fastdecode {

namespace {

constexpr uint64_t kProbeMagic = 0x65626f7270444646;
constexpr uint64_t kNewsNs = 10'000'000;

// Of a round's message: one write, the longest one write, a chain; a different word everywhere, and each time.
size_t PayloadBytes(int round, size_t payload_bytes_max) {
  constexpr size_t kLengths[] = {
      64, 1024, kOneWriteBytesMax - sizeof(MessageLine), kOneWriteBytesMax, 20 << 10, OrderProbe::kPayloadBytesMax};
  const size_t bytes = std::min(kLengths[static_cast<size_t>(round) % std::size(kLengths)], payload_bytes_max);
  return bytes / sizeof(uint64_t) * sizeof(uint64_t);
}
uint64_t Pattern(int round, size_t word) {
  return (static_cast<uint64_t>(round) << 32 | word) * 0x9e3779b97f4a7c15 + kProbeMagic;
}

}  // namespace

absl::Status OrderProbe::RunAsEngine() {
  absl::Status status;
  for (int round = 0; round < kRounds && status.ok(); ++round) {
    Send(round, size.hop_payload_bytes_max);
    status = Await(round, size.reply_payload_bytes_max);
  }
  return status;
}

absl::Status OrderProbe::RunAsHome() {
  absl::Status status;
  for (int round = 0; round < kRounds && status.ok(); ++round) {
    status = Await(round, size.hop_payload_bytes_max);
    if (status.ok()) Send(round, size.reply_payload_bytes_max);
  }
  return status;
}

void OrderProbe::Send(int round, size_t payload_bytes_max) {
  const int slot = round % size.slots;
  const size_t bytes = PayloadBytes(round, payload_bytes_max);
  for (size_t word = 0; word < bytes / sizeof(uint64_t); ++word) {
    const uint64_t value = Pattern(round, word);
    std::memcpy(channel->out_payload(slot) + word * sizeof(value), &value, sizeof(value));
  }
  const uint64_t header[] = {kProbeMagic, static_cast<uint64_t>(round)};
  channel->PostSlot(slot, header, std::size(header), bytes);
}

absl::Status OrderProbe::Await(int round, size_t payload_bytes_max) {
  VerbsChannel::Arrival arrival;
  PollBackoff backoff(PollMode::kYield);
  uint64_t news_ns = NowNs();
  const uint64_t end_ns = std::min(deadline_ns, news_ns + round_ns_max);
  while (!channel->NextArrival(&arrival)) {
    const uint64_t now_ns = NowNs();
    if (now_ns - news_ns > kNewsNs) {
      liveness->Check();
      news_ns = now_ns;
    }
    if (liveness->lost()) return absl::UnavailableError(liveness->cause());
    if (now_ns > end_ns) return Lose(absl::DeadlineExceededError("the order probe took too long"));
    backoff.Idle();
  }
  const size_t bytes = PayloadBytes(round, payload_bytes_max);
  const auto late = [&](const std::string& what) {
    return Lose(absl::FailedPreconditionError(
        absl::StrCat("notification by flag: in round ", round, " of the order probe a flag came before ", what,
                     " of a message of ", bytes, " bytes: this path does not keep the order; notify by completion")));
  };
  MessageLine line;
  if (channel->TakeLine(arrival, &line) != nullptr) return late("the line");
  // From its end, which was sent last and is the likeliest to be late.
  std::byte* const payload = channel->in_payload(arrival.slot);
  for (size_t word = bytes / sizeof(uint64_t); word-- > 0;) {
    if (LoadWord(payload + word * sizeof(uint64_t), std::memory_order_relaxed) == Pattern(round, word)) continue;
    return late(absl::StrCat("byte ", word * sizeof(uint64_t)));
  }
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) StoreWord(payload + at, 0);  // as it was found
  const bool expected = arrival.slot == round % size.slots && line.words[0] == kProbeMagic &&
                        line.words[1] == static_cast<uint64_t>(round);
  return expected ? absl::OkStatus() : Lose(absl::FailedPreconditionError("the peer does not run the order probe"));
}

absl::Status OrderProbe::Lose(absl::Status status) {
  liveness->MarkLost(std::string(status.message()).c_str());
  return status;
}

}  // namespace fastdecode
