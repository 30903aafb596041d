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
  return absl::OkStatus();
}

}  // namespace fastdecode
