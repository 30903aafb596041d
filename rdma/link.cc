#include "rdma/link.h"

#include "absl/strings/str_format.h"

namespace fastdecode {

namespace {

bool IsPowerOfTwo(size_t value) { return value != 0 && (value & (value - 1)) == 0; }

}  // namespace

absl::Status CheckLinkSize(const LinkSize& size) {
  if (size.slots < 1 || size.slots > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrFormat("link slots: %d is not 1 to %d", size.slots, kMaxSlots));
  }
  if (size.hop_payload_bytes_max > kPayloadBytesMax || size.reply_payload_bytes_max > kPayloadBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("link payload: hop %d or reply %d bytes is more than %d",
                                                      size.hop_payload_bytes_max, size.reply_payload_bytes_max,
                                                      kPayloadBytesMax));
  }
  if (!IsPowerOfTwo(size.control_ring_bytes) || size.control_ring_bytes < kControlRingBytesMin ||
      size.control_ring_bytes > kControlRingBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat("link control ring: %d bytes is not a power of two from %d to %d",
                                                      size.control_ring_bytes, kControlRingBytesMin,
                                                      kControlRingBytesMax));
  }
  if (size.bulk_segments < 0 || size.bulk_segments > kBulkSegmentsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("link bulk segments: %d is not 0 to %d", size.bulk_segments, kBulkSegmentsMax));
  }
  const bool has_bulk = size.bulk_segments > 0;
  if (has_bulk ? size.bulk_segment_bytes_max == 0 || size.bulk_segment_bytes_max > kBulkSegmentBytesMax
               : size.bulk_segment_bytes_max != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "link bulk segment: %d bytes is not %s", size.bulk_segment_bytes_max,
        has_bulk ? absl::StrFormat("1 to %d", kBulkSegmentBytesMax) : "0, where there is no bulk channel"));
  }
  return absl::OkStatus();
}

}  // namespace fastdecode
