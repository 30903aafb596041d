#ifndef FASTDECODE_TESTS_ENGINE_PIPELINE_SIM_LINK_H_
#define FASTDECODE_TESTS_ENGINE_PIPELINE_SIM_LINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "rdma/link.h"
#include "tests/engine/pipeline/home_model.h"

namespace fastdecode {

// How a SimLink behaves. Shares are probabilities.
struct SimLinkOptions {
  double work_share = 0.7;           // a Turn does something
  double late_reply_share = 0.3;     // a poll sees nothing yet
  double refuse_share = 0;           // a control message finds no room
  size_t control_messages_max = 64;  // in the ring
  bool tells_progress = true;        // false: only by its replies
  bool in_stage = false;   // attends when the S-Part asks it to: no hops, and control messages are applied as they come
  double pages_share = 0;  // with a hop, a home says its page counts
  double control_share = 1;  // with no hop to do, a home looks at its control messages; else when a roster makes it
};

// An engine's end and the home behind it in one, driven one event at a time. Moves bytes as late as is allowed, in
// whatever order is allowed, and overwrites what the other side must not read any more. Thread: one.
class SimLink final : public EngineLink {
 public:
  SimLink(const RPartShape& shape, uint32_t pages, const SimLinkOptions& options, uint64_t seed);

  // The home and the wire do one thing, or nothing.
  void Turn();
  // Of a home that attends within stages: the rows of a step, of which the first is at this position, as they are sent.
  void Attend(int micro_batch, uint32_t layer, uint32_t rows, uint32_t first_position);
  // Applies all control messages that have come.
  void DrainControl();

  // --- faults
  // The home does nothing any more, without anybody noticing.
  void Hang() { hung_ = true; }
  void Resume() { hung_ = false; }
  // What the next reply says is changed before the engine sees it.
  void ChangeNextReply(std::function<void(ReplyHeader*)> change) { change_ = std::move(change); }
  // The next reply comes twice.
  void RepeatNextReply() { repeat_ = true; }
  void RefuseControl(bool refuse) { refuse_all_ = refuse; }

  // What it says of held pages from now on.
  void SetHeld(uint64_t pages) { held_ = pages; }
  // It counts its pages now, as a home does now and then while it works.
  void SayPages();
  // How often it has said them.
  uint64_t pages_said() const { return pages_said_; }
  // It says that it drains. Once the engine says that it has left, the link is lost.
  void Drain();
  // The engine will find these bytes as a control message.
  void Say(const void* message, size_t bytes);

  // Room for control messages of every size, so that sending one allocates nothing from here on.
  void TakeMemory();

  HomeModel& home() { return home_; }
  // What the pipeline did wrong, as seen from here; empty if nothing.
  const std::string& violation() const { return violation_; }
  uint64_t control_messages() const { return control_count_; }
  bool has_open_hop() const;

  // --- EngineLink
  std::byte* SendArea(int slot) override { return slots_[slot].send.data(); }
  const std::byte* ReceiveArea(int slot) override { return slots_[slot].receive.data(); }
  void PostHop(const HopHeader& header) override;
  LinkPoll PollReply(ReplyHeader* out) override;
  bool TrySendControl(const void* message, size_t bytes) override;
  bool AttendsInStage() const override { return options_.in_stage; }
  LinkPoll PollControl(void* buffer, size_t* bytes) override;
  std::byte* BulkArea() override { return nullptr; }
  void PostBulk(size_t bytes) override { Violate("a bulk segment on a link without a bulk channel"); }
  uint64_t BulkFreed() override { return 0; }
  void RingHome() override { asleep_ = false; }
  uint64_t Progress() const override { return options_.tells_progress ? progress_ : 0; }
  bool lost() const override { return lost_; }
  std::string lost_cause() const override { return cause_; }
  void MarkLost(const char* cause) override;
  uint64_t epoch() const override { return 1; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return "simulated home"; }
  std::string Describe() const override { return "no memory but its own"; }

 private:
  enum class SlotState : uint8_t { kFree, kPosted, kDone };
  struct Slot {
    SlotState state = SlotState::kFree;
    HopHeader hop;
    ReplyHeader reply;
    std::vector<std::byte> send;
    std::vector<std::byte> receive;
    std::vector<std::byte> o;  // at the home, until the reply is seen
  };

  bool Happens(double share);
  // A slot in this state, any of them; -1: none.
  int PickSlot(SlotState state);
  bool ApplyControl();
  void RunHop(Slot& slot);
  void Violate(const std::string& what);

  const RPartShape shape_;
  const SimLinkOptions options_;
  const LinkSize size_;
  HomeModel home_;
  std::mt19937_64 random_;
  std::vector<Slot> slots_;
  std::vector<std::vector<std::byte>> control_;  // a ring: sent and not applied
  size_t control_head_ = 0;
  size_t control_used_ = 0;
  std::deque<std::vector<std::byte>> said_;  // and not read
  uint64_t pages_said_ = 0;
  uint64_t held_ = 0;
  std::function<void(ReplyHeader*)> change_;
  std::string violation_;
  std::string cause_;
  uint64_t control_count_ = 0;
  uint64_t progress_ = 0;
  ReplyHeader last_reply_;
  bool repeat_ = false;      // the next reply
  bool repeat_due_ = false;  // last_reply_ is to come again
  bool refuse_all_ = false;
  bool hung_ = false;
  bool asleep_ = false;  // until it is rung: the engine said that it is idle
  bool lost_ = false;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_PIPELINE_SIM_LINK_H_
