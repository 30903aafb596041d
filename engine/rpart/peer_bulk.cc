#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "engine/rpart/peer_session.h"

// What a peer sends over the bulk channel, stored by the leader and its team between hops.

namespace fastdecode {

PeerSession::Outcome PeerSession::TakeSegment() {
  absl::Status sound;
  if (segment_.data == nullptr) {
    size_t bytes = 0;
    const LinkPoll poll = link_->PollBulk(&segment_.data, &bytes);
    if (poll != LinkPoll::kMessage) {
      segment_.data = nullptr;
      return poll == LinkPoll::kLost ? Outcome::kLost : Outcome::kNothing;
    }
    segment_.header = {};
    // A copy, which the peer cannot change any more.
    if (bytes > kPushRowsOffset) std::memcpy(&segment_.header, segment_.data, sizeof(PushHeader));
    sound = CheckSegment(bytes);
  }
  if (sound.ok()) {
    // Its reservation was sent before it, but control has not been polled since.
    if (segment_.header.reservation > reservations_) return link_->lost() ? Outcome::kLost : Outcome::kNothing;
    sound = StoreSegment();
  }
  segment_.data = nullptr;
  link_->FreeBulk();
  if (!sound.ok()) link_->MarkLost(std::string(sound.message()).c_str());
  served_->AddProgress(1);
  served_->empty_since_ticks = 0;
  return Outcome::kWorked;
}

// By itself.
absl::Status PeerSession::CheckSegment(size_t bytes) const {
  const PushHeader& push = segment_.header;
  if (bytes <= kPushRowsOffset) {
    return absl::InvalidArgumentError(
        absl::StrFormat("bulk segment: %d bytes have no row behind a header of %d", bytes, kPushRowsOffset));
  }
  if (push.reservation == 0) return absl::InvalidArgumentError("bulk segment: reservation 0, they count from 1");
  if (push.layer >= shape_.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("bulk segment: layer %d, the model has %d", push.layer, shape_.layers));
  }
  if (push.first_position >= shape_.max_context || push.tokens > shape_.max_context - push.first_position) {
    return absl::InvalidArgumentError(
        absl::StrFormat("bulk segment: sequence %d has first_position %d and tokens %d, max_context is %d",
                        push.sequence, push.first_position, push.tokens, shape_.max_context));
  }
  if (bytes - kPushRowsOffset != push.tokens * shape_.kv_row_bytes()) {
    return absl::InvalidArgumentError(absl::StrFormat("bulk segment: %d bytes for %d tokens, not %d", bytes,
                                                      push.tokens,
                                                      kPushRowsOffset + push.tokens * shape_.kv_row_bytes()));
  }
  return absl::OkStatus();
}

absl::Status PeerSession::StoreSegment() {
  const PushHeader& push = segment_.header;
  KvSequence* const sequence = table_.Find(push.sequence);
  // Released since; it may have come back under the same number.
  if (sequence == nullptr || sequence->reservation != push.reservation) return absl::OkStatus();
  uint32_t& stored = sequence->stored_tokens[push.layer];
  const uint32_t end = push.first_position + push.tokens;
  if (push.first_position > stored) {
    return absl::InvalidArgumentError(
        absl::StrFormat("bulk segment: sequence %d goes on at position %d of layer %d, but %d tokens are stored",
                        push.sequence, push.first_position, push.layer, stored));
  }
  if (end <= stored) return absl::OkStatus();  // sent again
  if (table_.Grow(sequence, stored, end - stored) == GrowOutcome::kNoPage) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("bulk segment: tokens up to %d of sequence %d need more than the %d free pages", end,
                        push.sequence, account_.free()));
  }
  push_work_.sequence = sequence;
  push_work_.layer = static_cast<int>(push.layer);
  push_work_.write_from = stored;
  push_work_.end = end;
  push_work_.row_bytes = shape_.kv_row_bytes();
  push_work_.rows = segment_.data + kPushRowsOffset + (stored - push.first_position) * push_work_.row_bytes;
  served_->team->Run(&PushWork::RunShare, &push_work_);
  stored = end;
  return absl::OkStatus();
}

}  // namespace fastdecode
