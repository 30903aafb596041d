#ifndef FASTDECODE_RDMA_VERBS_VERBS_WIRE_H_
#define FASTDECODE_RDMA_VERBS_VERBS_WIRE_H_

#include <arpa/inet.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "numa/cache_line.h"
#include "numa/check.h"
#include "rdma/link.h"
#include "rdma/wire.h"

namespace fastdecode {

// What crosses a verbs link besides headers and payload.

enum class MessageKind : uint8_t {
  kNone = 0,
  kHop = 1,      // engine -> home: a slot's line and rows have been written
  kReply = 2,    // home -> engine: a slot's line and o have been written
  kControl = 3,  // the next message of the control ring has been written
  kRing = 4,     // wakes a home that parked; nothing was written
  kCredit = 5,   // never announced: the credit line is polled
};

// The 32 bits that announce a message: kind, slot (0 where there is none), and the low bits of the count of messages of
// that slot, or of control and ring messages together.
class ImmData {
 public:
  ImmData(MessageKind kind, int slot, uint64_t sequence)
      : kind_(static_cast<uint8_t>(kind)), slot_(static_cast<uint8_t>(slot)), low_(static_cast<uint16_t>(sequence)) {
    FD_CHECK(slot >= 0 && slot < kMaxSlots, "slot out of range");
  }
  // From a completion: the peer may have sent any bits. `wire` is in network byte order, as in ibv_wc.
  static ImmData FromWire(uint32_t wire) {
    const uint32_t bits = ntohl(wire);
    ImmData data;
    data.kind_ = static_cast<uint8_t>(bits >> 24);
    data.slot_ = static_cast<uint8_t>(bits >> 16);
    data.low_ = static_cast<uint16_t>(bits);
    return data;
  }
  uint32_t ToWire() const { return htonl(uint32_t{kind_} << 24 | uint32_t{slot_} << 16 | low_); }

  MessageKind kind() const { return static_cast<MessageKind>(kind_); }
  int slot() const { return slot_; }
  bool MatchesSequence(uint64_t sequence) const { return low_ == static_cast<uint16_t>(sequence); }

 private:
  ImmData() = default;

  uint8_t kind_ = 0;
  uint8_t slot_ = 0;
  uint16_t low_ = 0;
};

// Names a work request in its completion: what it was, and how many had been posted to its queue when it was in.
class WrId {
 public:
  static constexpr uint64_t kPostedMax = (uint64_t{1} << 48) - 1;

  WrId(MessageKind kind, int slot, uint64_t posted)
      : bits_(static_cast<uint64_t>(kind) << 56 | static_cast<uint64_t>(slot) << 48 | posted) {
    FD_CHECK(slot >= 0 && slot < kMaxSlots && posted <= kPostedMax, "work request id");
  }
  static WrId FromBits(uint64_t bits) { return WrId(bits); }

  uint64_t bits() const { return bits_; }
  MessageKind kind() const { return static_cast<MessageKind>(bits_ >> 56); }
  int slot() const { return static_cast<int>(bits_ >> 48 & 0xff); }
  uint64_t posted() const { return bits_ & kPostedMax; }

 private:
  explicit WrId(uint64_t bits) : bits_(bits) {}

  uint64_t bits_;
};

// The first cache line of a slot; the payload follows it.
struct MessageLine {
  static constexpr size_t kHeaderBytesMax = 40;

  std::byte header[kHeaderBytesMax];  // HopHeader or ReplyHeader
  uint64_t sequence;                  // the slot's messages, this one included: an older line is never taken for new
  uint32_t checksum;                  // CRC32C of header, sequence and payload, if the link has checksums; else 0
  uint32_t reserved[3];
};
static_assert(sizeof(MessageLine) == kCacheLineBytes && std::is_trivially_copyable_v<MessageLine>);
static_assert(sizeof(HopHeader) <= MessageLine::kHeaderBytesMax && sizeof(ReplyHeader) <= MessageLine::kHeaderBytesMax);
static_assert(offsetof(MessageLine, sequence) == 40 && offsetof(MessageLine, checksum) == 48);

// Before each message in the control ring.
struct ControlWord {
  uint32_t bytes;  // of the message, without padding
  uint32_t tag;    // CRC32C of count and message if the link has checksums; else the low bits of the count
};
static_assert(sizeof(ControlWord) == 8);

// What the reader of a control ring has consumed since the link was made. Written by the peer, word by word at once;
// both only count up, so that the two may be of different age.
struct CreditLine {
  alignas(kCacheLineBytes) uint64_t bytes;
  uint64_t messages;
};
static_assert(sizeof(CreditLine) == kCacheLineBytes);
inline constexpr size_t kCreditBytes = 2 * sizeof(uint64_t);

// Control and ring messages that a sender may have out without credit.
inline constexpr uint64_t kControlWindow = 64;
// A line and payload of up to so many bytes go as one write; a longer one as a chain that ends with the notification.
inline constexpr size_t kOneWriteBytesMax = 8 << 10;

// What one end's `in` region holds, and the peer's `out` region mirrors:
//   slots: line, payload, padded to 64 bytes   one memory region, may be written in relaxed order
//   control ring, credit line                  another one, written in order
class RegionLayout {
 public:
  RegionLayout() = default;
  RegionLayout(const LinkSize& size, size_t payload_bytes_max)
      : slots_(size.slots),
        payload_bytes_max_(payload_bytes_max),
        slot_bytes_(sizeof(MessageLine) + RoundUp(payload_bytes_max, kCacheLineBytes)),
        ring_offset_(RoundUp(slots_bytes(), kRegionAlignment)),
        ring_bytes_(size.control_ring_bytes) {}

  int slots() const { return slots_; }
  size_t payload_bytes_max() const { return payload_bytes_max_; }
  size_t message_bytes_max() const { return sizeof(MessageLine) + payload_bytes_max_; }
  size_t slots_bytes() const { return static_cast<size_t>(slots_) * slot_bytes_; }
  size_t line_offset(int slot) const { return static_cast<size_t>(slot) * slot_bytes_; }
  size_t payload_offset(int slot) const { return line_offset(slot) + sizeof(MessageLine); }
  size_t ring_offset() const { return ring_offset_; }
  size_t ring_bytes() const { return ring_bytes_; }
  size_t credit_offset() const { return ring_offset_ + ring_bytes_; }
  size_t control_bytes() const { return ring_bytes_ + sizeof(CreditLine); }
  size_t bytes() const { return ring_offset_ + control_bytes(); }

 private:
  static constexpr size_t kRegionAlignment = 4096;
  static constexpr size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

  int slots_ = 0;
  size_t payload_bytes_max_ = 0;
  size_t slot_bytes_ = 0;
  size_t ring_offset_ = 0;
  size_t ring_bytes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_WIRE_H_
