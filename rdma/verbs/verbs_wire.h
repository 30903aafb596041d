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
  kBulk = 6,     // engine -> home, on the bulk queue pair: the next segment has been written
};

// The 32 bits that announce a message: kind, slot (0 where there is none), and the low bits of the count of messages of
// that slot, of control and ring messages together, or of bulk segments.
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

// The first cache line of a slot, word by word (see ToWords): header | sequence | checksum.
struct MessageLine {
  static constexpr size_t kHeaderWordsMax = 6;
  static constexpr size_t kSequenceWord = 6;  // the slot's messages, this one included: no old line is taken for new
  static constexpr size_t kChecksumWord = 7;  // CRC32C of what is before it and the payload, if there are checksums
  static constexpr size_t kChecksummedBytes = kChecksumWord * sizeof(uint64_t);

  uint64_t words[8];
};
static_assert(sizeof(MessageLine) == kCacheLineBytes && std::is_trivially_copyable_v<MessageLine>);
static_assert(sizeof(HopHeader) <= MessageLine::kHeaderWordsMax * sizeof(uint64_t));
static_assert(sizeof(ReplyHeader) <= MessageLine::kHeaderWordsMax * sizeof(uint64_t));

// Before each message in the control ring.
struct ControlWord {
  uint32_t bytes;  // of the message, without padding
  uint32_t tag;    // CRC32C of count and message if the link has checksums; else the low bits of the count
};
static_assert(sizeof(ControlWord) == 8);

// What a reader has consumed since the link was made: of the control ring, and of the bulk segments. Written by the
// peer, word by word at once; all only count up, so that they may be of different age.
struct CreditLine {
  alignas(kCacheLineBytes) uint64_t bytes;
  uint64_t messages;
  uint64_t segments;
};
static_assert(sizeof(CreditLine) == kCacheLineBytes);
inline constexpr size_t kCreditBytes = 3 * sizeof(uint64_t);

// Control and ring messages that a sender may have out without credit.
inline constexpr uint64_t kControlWindow = 64;
// A line and payload of up to so many bytes go as one write; a longer payload as a chain that ends with the line.
inline constexpr size_t kOneWriteBytesMax = 8 << 10;

inline constexpr size_t RoundUpTo(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Where what an end receives lies in its `in` region:
//   slots: line, payload, padded to 64 bytes   one memory region, may be written in relaxed order
//   control ring, credit line                  another one, written in order
// or, where the payload lies apart from it, in memory of its own (of a GPU):
//   slots: line                                ...
//   control ring, credit line                  ...
// The `out` region, from which it sends, is laid out in the same way for the messages of the other direction; a message
// may lie apart at one end and not at the other.
class RegionLayout {
 public:
  RegionLayout() = default;
  RegionLayout(const LinkSize& size, size_t payload_bytes_max, bool payload_apart)
      : slots_(size.slots),
        payload_bytes_max_(payload_bytes_max),
        payload_apart_(payload_apart),
        payload_stride_(RoundUpTo(payload_bytes_max, kCacheLineBytes) + (payload_apart ? 0 : sizeof(MessageLine))),
        ring_offset_(RoundUpTo(slots_bytes(), kRegionAlignment)),
        ring_bytes_(size.control_ring_bytes) {}

  int slots() const { return slots_; }
  size_t payload_bytes_max() const { return payload_bytes_max_; }
  bool payload_apart() const { return payload_apart_; }
  // Whether a message of so much payload can be received as one write.
  bool OneWrite(size_t payload_bytes) const {
    return !payload_apart_ && sizeof(MessageLine) + payload_bytes <= kOneWriteBytesMax;
  }

  size_t slots_bytes() const { return static_cast<size_t>(slots_) * line_stride(); }
  size_t line_offset(int slot) const { return static_cast<size_t>(slot) * line_stride(); }
  // In the region, or in the memory apart.
  size_t payload_offset(int slot) const {
    return static_cast<size_t>(slot) * payload_stride_ + (payload_apart_ ? 0 : sizeof(MessageLine));
  }
  size_t ring_offset() const { return ring_offset_; }
  size_t ring_bytes() const { return ring_bytes_; }
  size_t credit_offset() const { return ring_offset_ + ring_bytes_; }
  size_t control_bytes() const { return ring_bytes_ + sizeof(CreditLine); }
  // Of the region, and of the memory apart (0: there is none).
  size_t bytes() const { return ring_offset_ + control_bytes(); }
  size_t apart_bytes() const { return payload_apart_ ? static_cast<size_t>(slots_) * payload_stride_ : 0; }

 private:
  static constexpr size_t kRegionAlignment = 4096;

  size_t line_stride() const { return payload_apart_ ? sizeof(MessageLine) : payload_stride_; }

  int slots_ = 0;
  size_t payload_bytes_max_ = 0;
  bool payload_apart_ = false;
  size_t payload_stride_ = 0;
  size_t ring_offset_ = 0;
  size_t ring_bytes_ = 0;
};

// Behind the bytes of each bulk segment: which it is, so that what lay there before is never taken for it; with
// checksums the CRC32C of its number and its bytes.
struct BulkTrailer {
  uint64_t tag;
};
static_assert(sizeof(BulkTrailer) == 8);

// Where segments and their trailers lie, at the home. The engine has the segments in the same places.
class BulkLayout {
 public:
  BulkLayout() = default;
  explicit BulkLayout(const LinkSize& size)
      : segments_(static_cast<uint64_t>(size.bulk_segments)), segment_bytes_max_(size.bulk_segment_bytes_max) {}

  uint64_t segments() const { return segments_; }
  size_t segment_bytes_max() const { return segment_bytes_max_; }
  size_t offset(uint64_t index) const { return index % segments_ * stride(); }
  size_t bytes() const { return segments_ * stride(); }

 private:
  size_t stride() const { return RoundUpTo(segment_bytes_max_ + sizeof(BulkTrailer), kCacheLineBytes); }

  uint64_t segments_ = 0;
  size_t segment_bytes_max_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_WIRE_H_
