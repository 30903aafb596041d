#ifndef FASTDECODE_RDMA_WIRE_H_
#define FASTDECODE_RDMA_WIRE_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace fastdecode {

// What crosses a link on the hop channel. Both ends run on little-endian machines; every field is copied out of shared
// memory before it is validated, and validated before it is used.

inline constexpr uint32_t kProtocolVersion = 8;

// Engine -> home: one hop of one micro-batch. `payload_bytes` of rows follow in the slot's payload area.
struct HopHeader {
  uint64_t epoch = 0;           // of the link; anything else is a stale message
  uint64_t step = 0;            // counts the steps of the micro-batch, from 1
  uint32_t roster_version = 0;  // the roster that says whose rows these are
  uint32_t rows = 0;            // > 0
  uint32_t payload_bytes = 0;
  uint16_t layer = 0;
  uint8_t micro_batch = 0;  // = the slot
  uint8_t reserved = 0;
};
static_assert(sizeof(HopHeader) == 32 && std::is_trivially_copyable_v<HopHeader>);

// The header as the words that lie in memory, by arithmetic: a copy through memory would read in wide pieces what was
// written in narrow ones a moment ago, and the CPU stalls on each (a quarter of what a header-only hop costs).
inline std::array<uint64_t, 4> ToWords(const HopHeader& hop) {
  return {
      hop.epoch, hop.step, hop.roster_version | uint64_t{hop.rows} << 32,
      hop.payload_bytes | uint64_t{hop.layer} << 32 | uint64_t{hop.micro_batch} << 48 | uint64_t{hop.reserved} << 56};
}
inline void FromWords(const std::array<uint64_t, 4>& words, HopHeader* hop) {
  hop->epoch = words[0];
  hop->step = words[1];
  hop->roster_version = static_cast<uint32_t>(words[2]);
  hop->rows = static_cast<uint32_t>(words[2] >> 32);
  hop->payload_bytes = static_cast<uint32_t>(words[3]);
  hop->layer = static_cast<uint16_t>(words[3] >> 32);
  hop->micro_batch = static_cast<uint8_t>(words[3] >> 48);
  hop->reserved = static_cast<uint8_t>(words[3] >> 56);
}

// How a hop ended at the home. One bit that flips makes none of another: a request does not end by it.
enum class HopStatus : uint8_t {
  kOk = 0b000,
  kBadRow = 0b011,  // `failing_row` cannot be computed (position out of order, no page left): one sequence ends
  kBadHop = 0b101,  // header or roster do not fit together: the link ends
};

// A duration in two bytes, so that many fit a header: exact below 2^11 ns, within 1/4096 of itself up to 2^42 ns (73
// minutes), and that where it is longer.
class ShortDuration {
 public:
  static constexpr int kFractionBits = 11;

  constexpr ShortDuration() = default;
  static constexpr ShortDuration FromNs(uint64_t ns) {
    constexpr uint64_t kNsMax = (uint64_t{1} << 42) - 1;
    if (ns > kNsMax) ns = kNsMax;
    if (ns < (1u << kFractionBits)) return FromBits(static_cast<uint16_t>(ns));
    const int shift = std::bit_width(ns) - 1 - kFractionBits;
    return FromBits(static_cast<uint16_t>(((shift + 1) << kFractionBits) +
                                          static_cast<int>((ns >> shift) & ((1u << kFractionBits) - 1))));
  }
  static constexpr ShortDuration FromBits(uint16_t bits) {
    ShortDuration duration;
    duration.bits_ = bits;
    return duration;
  }
  // The middle of what it may have been.
  constexpr uint64_t ToNs() const {
    if (bits_ < (1u << kFractionBits)) return bits_;
    const int shift = (bits_ >> kFractionBits) - 1;
    const uint64_t low = (uint64_t{1} << kFractionBits) + (bits_ & ((1u << kFractionBits) - 1));
    return (low << shift) + ((uint64_t{1} << shift) >> 1);
  }
  constexpr uint16_t bits() const { return bits_; }

 private:
  uint16_t bits_ = 0;
};

// Home -> engine: o of that hop, and where the home's time went, by its own clock. Durations that are parts of work_ns
// are those of the team's leader; attention is what they leave of it.
struct ReplyHeader {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t failing_row = 0;  // with kBadRow
  uint32_t payload_bytes = 0;
  uint32_t work_ns = 0;       // hop seen -> last thread finished
  uint32_t end_clock_ns = 0;  // the home's monotonic clock then, modulo 2^32
  uint16_t layer = 0;
  uint8_t micro_batch = 0;
  HopStatus status = HopStatus::kOk;
  ShortDuration idle;     // polled in vain before this hop came; 0: it may have waited for the leader
  ShortDuration prepare;  // hop seen -> team at work: pages and plan
  ShortDuration append;   // k and v to their pages
  ShortDuration merge;    // of several hands: partials merged, o written
  ShortDuration wait;     // leader finished -> last thread finished
  ShortDuration post;     // posting the reply before this one
};
static_assert(sizeof(ReplyHeader) == 48 && std::is_trivially_copyable_v<ReplyHeader>);

inline std::array<uint64_t, 6> ToWords(const ReplyHeader& reply) {
  return {reply.epoch,
          reply.step,
          reply.failing_row | uint64_t{reply.payload_bytes} << 32,
          reply.work_ns | uint64_t{reply.end_clock_ns} << 32,
          reply.layer | uint64_t{reply.micro_batch} << 16 | uint64_t{static_cast<uint8_t>(reply.status)} << 24 |
              uint64_t{reply.idle.bits()} << 32 | uint64_t{reply.prepare.bits()} << 48,
          reply.append.bits() | uint64_t{reply.merge.bits()} << 16 | uint64_t{reply.wait.bits()} << 32 |
              uint64_t{reply.post.bits()} << 48};
}
inline void FromWords(const std::array<uint64_t, 6>& words, ReplyHeader* reply) {
  const auto duration = [](uint64_t word, int shift) {
    return ShortDuration::FromBits(static_cast<uint16_t>(word >> shift));
  };
  reply->epoch = words[0];
  reply->step = words[1];
  reply->failing_row = static_cast<uint32_t>(words[2]);
  reply->payload_bytes = static_cast<uint32_t>(words[2] >> 32);
  reply->work_ns = static_cast<uint32_t>(words[3]);
  reply->end_clock_ns = static_cast<uint32_t>(words[3] >> 32);
  reply->layer = static_cast<uint16_t>(words[4]);
  reply->micro_batch = static_cast<uint8_t>(words[4] >> 16);
  reply->status = static_cast<HopStatus>(words[4] >> 24 & 0xff);
  reply->idle = duration(words[4], 32);
  reply->prepare = duration(words[4], 48);
  reply->append = duration(words[5], 0);
  reply->merge = duration(words[5], 16);
  reply->wait = duration(words[5], 32);
  reply->post = duration(words[5], 48);
}

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_WIRE_H_
