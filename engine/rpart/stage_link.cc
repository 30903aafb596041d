#include "engine/rpart/stage_link.h"

#include "engine/rpart/peer_session.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

// Areas begin at pages of their own.
size_t RoundUpToPage(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

size_t SendBytes(const LinkSize& size) { return RoundUpToPage(size.hop_payload_bytes_max); }
size_t SlotBytes(const LinkSize& size) { return SendBytes(size) + RoundUpToPage(size.reply_payload_bytes_max); }

}  // namespace

size_t StagePair::Bytes(const RPartShape& shape) {
  const LinkSize size = LinkSizeFor(shape, /*push=*/false);
  return static_cast<size_t>(size.slots) * SlotBytes(size);
}

StagePair::StagePair(const RPartShape& shape, Arena memory)
    : size(LinkSizeFor(shape, /*push=*/false)),
      arena(std::move(memory)),
      send_bytes(SendBytes(size)),
      slot_bytes(SlotBytes(size)) {
  FD_CHECK(arena.bytes() >= Bytes(shape), "memory for all areas");
}

std::string StageEngineLink::Describe() const { return "no link: the S-Part's threads attend within its stages"; }

bool StageEngineLink::TrySendControl(const void* message, size_t bytes) {
  if (lost()) return false;
  pair_->session->ApplyControl({static_cast<const std::byte*>(message), bytes});
  return !lost();
}

LinkPoll StageEngineLink::PollControl(void* buffer, size_t* bytes) {
  if (lost()) return LinkPoll::kLost;
  pair_->session->Turn();  // it says what has changed
  return pair_->outbox.TryTake(buffer, bytes) ? LinkPoll::kMessage : LinkPoll::kEmpty;
}

void StageHomeLink::PostReply(const ReplyHeader& /*header*/) {
  FD_CHECK(false, "a home that attends in stages has no hops");
}

bool StageHomeLink::TrySendControl(const void* message, size_t bytes) {
  return !lost() && pair_->outbox.TryPut(message, bytes);
}

}  // namespace fastdecode
