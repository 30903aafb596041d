#ifndef FASTDECODE_ENGINE_RPART_STAGE_LINK_H_
#define FASTDECODE_ENGINE_RPART_STAGE_LINK_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "engine/rpart/home_outbox.h"
#include "engine/rpart/in_stage_link.h"
#include "engine/rpart/messages.h"
#include "numa/arena.h"
#include "rdma/link.h"
#include "rdma/loss_record.h"

namespace fastdecode {

class PeerSession;

// What the two ends of a stage link share. Owns: the areas.
struct StagePair {
  // What the areas take.
  static size_t Bytes(const RPartShape& shape);
  StagePair(const RPartShape& shape, Arena memory);
  std::byte* SendArea(int slot) const { return Area(slot); }
  std::byte* ReceiveArea(int slot) const { return Area(slot) + send_bytes; }

  const LinkSize size;
  const Arena arena;
  const size_t send_bytes, slot_bytes;  // of one slot
  LossRecord loss;
  // Thread: the pipeline's.
  HomeOutbox outbox;               // to the engine
  PeerSession* session = nullptr;  // that applies what the engine says; set before the first message

 private:
  std::byte* Area(int slot) const {
    return reinterpret_cast<std::byte*>(arena.data()) + static_cast<size_t>(slot) * slot_bytes;
  }
};

// A link without a way, between an engine and a home whose KV the engine's S-Part attends to within its stages
// (AttendsInStage). Control messages are applied as they are sent, on the sender's thread; what the home says waits
// until the engine asks for it; there are no hops. Nothing can get lost on the way: the link is lost if somebody says
// so, or if a message makes no sense.
class StageEngineLink final : public InStageLink {
 public:
  explicit StageEngineLink(std::shared_ptr<StagePair> pair) : pair_(std::move(pair)) {}

  bool lost() const override { return pair_->loss.lost(); }
  std::string lost_cause() const override { return pair_->loss.cause(); }
  void MarkLost(const char* cause) override { pair_->loss.Set(cause); }
  const LinkSize& size() const override { return pair_->size; }
  std::string peer_name() const override { return "home in this process"; }
  std::string Describe() const override;

  std::byte* SendArea(int slot) override { return pair_->SendArea(slot); }
  const std::byte* ReceiveArea(int slot) override { return pair_->ReceiveArea(slot); }
  bool TrySendControl(const void* message, size_t bytes) override;
  LinkPoll PollControl(void* buffer, size_t* bytes) override;

 private:
  const std::shared_ptr<StagePair> pair_;
};

// The home's end, through which its session speaks.
class StageHomeLink final : public HomeLink {
 public:
  explicit StageHomeLink(std::shared_ptr<StagePair> pair) : pair_(std::move(pair)) {}

  bool lost() const override { return pair_->loss.lost(); }
  std::string lost_cause() const override { return pair_->loss.cause(); }
  void MarkLost(const char* cause) override { pair_->loss.Set(cause); }
  uint64_t epoch() const override { return 0; }
  const LinkSize& size() const override { return pair_->size; }
  std::string peer_name() const override { return "engine in this process"; }
  std::string Describe() const override { return "no link"; }

  LinkPoll PollHop(HopHeader* /*out*/, const std::byte** /*payload*/) override { return Poll(); }
  std::byte* ReplyArea(int slot) override { return pair_->ReceiveArea(slot); }
  void PostReply(const ReplyHeader& header) override;
  LinkPoll PollControl(void* /*buffer*/, size_t* /*bytes*/) override { return Poll(); }
  bool TrySendControl(const void* message, size_t bytes) override;
  LinkPoll PollBulk(const std::byte** /*segment*/, size_t* /*bytes*/) override { return Poll(); }
  void FreeBulk() override {}
  void Arm() override {}
  void Disarm() override {}
  void Sleep(uint64_t /*timeout_ns*/) override {}
  void AddProgress(uint64_t /*items*/) override {}

 private:
  LinkPoll Poll() const { return lost() ? LinkPoll::kLost : LinkPoll::kEmpty; }

  const std::shared_ptr<StagePair> pair_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_STAGE_LINK_H_
