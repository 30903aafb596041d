#ifndef FASTDECODE_RDMA_SHM_SHM_LAYOUT_H_
#define FASTDECODE_RDMA_SHM_SHM_LAYOUT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "numa/cache_line.h"
#include "numa/parker.h"
#include "rdma/link.h"
#include "rdma/shm/control_ring.h"
#include "rdma/shm/published_line.h"
#include "rdma/wire.h"

namespace fastdecode {

// The two shared regions of an shm link. Each lies on the node of the end that reads it and is allocated by that end's
// process; both are zero at the start. What lies where follows from the LinkSize alone, so nothing in a region says it:
//
//   region  = one line of its own | control ring indices | control ring | slot 0 | slot 1 | ...
//   slot    = line with header and sequence word | payload
// and in the home's region, behind the slots, if there is a bulk channel:
//   bulk    = line with the number of segments written | segment 0 | segment 1 | ...
//   segment = line with its length | bytes
//
// The views below do no bounds checks of their own: a slot must be < size.slots.

using SlotLine = PublishedLine<>;
static_assert(sizeof(HopHeader) <= SlotLine::kHeaderWordsMax * sizeof(uint64_t));
static_assert(sizeof(ReplyHeader) <= SlotLine::kHeaderWordsMax * sizeof(uint64_t));

// What both regions have in common.
// Owns: nothing.
class ShmRegion {
 public:
  ShmRegion(std::byte* base, size_t payload_bytes_max, size_t control_ring_bytes)
      : base_(base),
        slots_offset_(kControlRingOffset + control_ring_bytes),
        slot_bytes_(SlotBytes(payload_bytes_max)) {}

  ShmRingIndices* control_indices() const { return reinterpret_cast<ShmRingIndices*>(base_ + kControlIndicesOffset); }
  ShmRingPolicy::Data control_data() const { return ShmRingPolicy::Data(base_ + kControlRingOffset); }
  SlotLine* line(int slot) const { return reinterpret_cast<SlotLine*>(SlotBase(slot)); }
  std::byte* payload(int slot) const { return SlotBase(slot) + kPayloadOffsetInSlot; }

 protected:
  static constexpr size_t kControlIndicesOffset = kCacheLineBytes;
  static constexpr size_t kControlRingOffset = kControlIndicesOffset + sizeof(ShmRingIndices);
  static constexpr size_t kPayloadOffsetInSlot = sizeof(SlotLine);
  static_assert(kControlRingOffset % kCacheLineBytes == 0 && kPayloadOffsetInSlot % kCacheLineBytes == 0);

  static constexpr size_t SlotBytes(size_t payload_bytes_max) {
    return kPayloadOffsetInSlot + (payload_bytes_max + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
  }
  static constexpr size_t RegionBytes(int slots, size_t payload_bytes_max, size_t control_ring_bytes) {
    return kControlRingOffset + control_ring_bytes + slots * SlotBytes(payload_bytes_max);
  }

  std::byte* own_line() const { return base_; }

 private:
  std::byte* SlotBase(int slot) const { return base_ + slots_offset_ + slot * slot_bytes_; }

  std::byte* base_;
  size_t slots_offset_;
  size_t slot_bytes_;
};

// Read by the home: hop slots with HopHeader and rows, the ring engine -> home, bulk segments, the word that the home
// parks on.
class HomeRegion : public ShmRegion {
 public:
  static size_t Bytes(const LinkSize& size) {
    return SlotsEnd(size) + kCacheLineBytes + static_cast<size_t>(size.bulk_segments) * SegmentStride(size);
  }

  // `base`: Bytes(size) bytes, aligned to a cache line.
  HomeRegion(std::byte* base, const LinkSize& size)
      : ShmRegion(base, size.hop_payload_bytes_max, size.control_ring_bytes),
        bulk_(base + SlotsEnd(size)),
        segment_stride_(SegmentStride(size)) {}

  ParkWord* park_word() const { return reinterpret_cast<ParkWord*>(own_line()); }
  // Segments written since the link was made.
  std::atomic<uint64_t>* bulk_written() const { return reinterpret_cast<std::atomic<uint64_t>*>(bulk_); }
  std::atomic<uint64_t>* segment_bytes(uint64_t segment) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(SegmentBase(segment));
  }
  std::byte* segment(uint64_t segment) const { return SegmentBase(segment) + kCacheLineBytes; }

 private:
  static size_t SlotsEnd(const LinkSize& size) {
    return RegionBytes(size.slots, size.hop_payload_bytes_max, size.control_ring_bytes);
  }
  static size_t SegmentStride(const LinkSize& size) { return SlotBytes(size.bulk_segment_bytes_max); }
  std::byte* SegmentBase(uint64_t segment) const { return bulk_ + kCacheLineBytes + segment * segment_stride_; }

  std::byte* bulk_;
  size_t segment_stride_;
};
static_assert(sizeof(ParkWord) == kCacheLineBytes);

// Read by the engine: reply slots with ReplyHeader and o (the fixed receive region of home and micro-batch), the ring
// home -> engine, the home's progress and the count of bulk segments that it has freed.
class EngineRegion : public ShmRegion {
 public:
  static size_t Bytes(const LinkSize& size) {
    return RegionBytes(size.slots, size.reply_payload_bytes_max, size.control_ring_bytes);
  }

  EngineRegion(std::byte* base, const LinkSize& size)
      : ShmRegion(base, size.reply_payload_bytes_max, size.control_ring_bytes) {}

  std::atomic<uint64_t>* progress() const { return reinterpret_cast<std::atomic<uint64_t>*>(own_line()); }
  // Bulk segments that the home has freed since the link was made.
  std::atomic<uint64_t>* bulk_freed() const { return progress() + 1; }
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_SHM_LAYOUT_H_
