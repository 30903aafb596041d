#ifndef FASTDECODE_RDMA_FAULT_LINK_H_
#define FASTDECODE_RDMA_FAULT_LINK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "numa/clock.h"
#include "rdma/link.h"

namespace fastdecode {

// What goes wrong, and how often. Shares are probabilities from 0 to 1, per hop or per reply.
struct FaultOptions {
  uint64_t seed = 1;

  double delay_share = 0;            // a reply is held back ...
  uint64_t delay_ns = 0;             // ... for so long
  uint32_t delay_polls = 0;          // ... and for so many polls
  double reorder_share = 0;          // a reply is held back until another has passed it, or kReorderPollsMax polls
  double drop_hop_share = 0;         // the home never sees the hop
  double drop_reply_share = 0;       // the engine never sees the reply
  double duplicate_share = 0;        // a reply comes twice
  double corrupt_hop_share = 0;      // one bit of the hop's header flips
  double corrupt_reply_share = 0;    // one bit of the reply's header flips
  double corrupt_payload_share = 0;  // one bit of the hop's rows flips
  uint64_t cut_after_hops = 0;       // the link is lost when the next hop is posted; 0: never
  double cut_share = 0;              // the link is lost when the hop is posted
};

// Faults from a command line: "seed=1,drop=0.001,delay=0.01:200us,cut=5000". Keys: seed, delay (SHARE:DURATION with ns,
// us, ms or polls), reorder, drop (hops), drop-reply, duplicate, corrupt (hop headers), corrupt-reply, corrupt-payload,
// cut, cut-share. Errors: InvalidArgument naming option and value.
absl::StatusOr<FaultOptions> ParseFaultOptions(const std::string& option, const std::string& text);

// How often each fault struck.
struct FaultCounts {
  uint64_t hops = 0;
  uint64_t replies = 0;
  uint64_t delayed = 0;
  uint64_t reordered = 0;
  uint64_t dropped_hops = 0;
  uint64_t dropped_replies = 0;
  uint64_t duplicated = 0;
  uint64_t corrupted_hops = 0;
  uint64_t corrupted_replies = 0;
  uint64_t corrupted_payloads = 0;
};

// An engine's end that wraps one of any provider and spoils what passes, the same way for the same seed, epoch and
// traffic: the links of one engine meet their faults at different times.
// What it lets through obeys EngineLink's contract: a reply that does not belong to the slot's open hop loses the link.
// For tests only.
// Owns: the wrapped link. Thread: as EngineLink. Bounded: holds back at most kHeldMax replies.
class FaultLink final : public EngineLink {
 public:
  static constexpr uint32_t kReorderPollsMax = 1000;
  using ClockFunction = uint64_t (*)();

  FaultLink(std::unique_ptr<EngineLink> link, const FaultOptions& options, ClockFunction now_ns = NowNs);

  void PostHop(const HopHeader& header) override;
  LinkPoll PollReply(ReplyHeader* out) override;

  std::byte* SendArea(int slot) override { return link_->SendArea(slot); }
  const std::byte* ReceiveArea(int slot) override { return link_->ReceiveArea(slot); }
  bool TrySendControl(const void* message, size_t bytes) override { return link_->TrySendControl(message, bytes); }
  LinkPoll PollControl(void* buffer, size_t* bytes) override { return link_->PollControl(buffer, bytes); }
  std::byte* BulkArea() override { return link_->BulkArea(); }
  void PostBulk(size_t bytes) override { link_->PostBulk(bytes); }
  uint64_t BulkFreed() override { return link_->BulkFreed(); }
  void RingHome() override { link_->RingHome(); }
  uint64_t Progress() const override { return link_->Progress(); }
  LinkLine line() const override { return link_->line(); }
  bool lost() const override { return link_->lost(); }
  std::string lost_cause() const override { return link_->lost_cause(); }
  void MarkLost(const char* cause) override { link_->MarkLost(cause); }
  uint64_t epoch() const override { return link_->epoch(); }
  const LinkSize& size() const override { return link_->size(); }
  std::string peer_name() const override { return link_->peer_name(); }
  std::string Describe() const override { return link_->Describe(); }
  int liveness_fd() const override { return link_->liveness_fd(); }
  int peer_process_fd() const override { return link_->peer_process_fd(); }
  void CheckPeer() override { link_->CheckPeer(); }
  bool AreasOnGpu() const override { return link_->AreasOnGpu(); }
  bool PeerMayStillWrite() const override { return link_->PeerMayStillWrite(); }

  // Pipeline thread.
  const FaultCounts& counts() const { return counts_; }

 private:
  // For each slot: its reply, the duplicate of that, and the duplicate of the one before, if the next poll is to
  // deliver it.
  static constexpr size_t kHeldMax = 3 * kMaxSlots;

  struct HeldReply {
    ReplyHeader reply;
    uint64_t due_ns = 0;
    uint64_t due_poll = 0;
    bool waits_for_another = false;  // until another reply was delivered
  };

  bool Happens(double share);
  void FlipBit(void* bytes, size_t count);
  void CorruptHop(HopHeader* header);
  void TakeIn(const ReplyHeader& reply);
  bool Due(const HeldReply& held) const;
  LinkPoll Deliver(size_t index, ReplyHeader* out);
  void Cut();

  const std::unique_ptr<EngineLink> link_;
  const FaultOptions options_;
  const ClockFunction now_ns_;

  // The pipeline thread only.
  std::mt19937_64 random_;
  FaultCounts counts_;
  uint64_t polls_ = 0;
  uint32_t open_slots_ = 0;                     // as the engine sees it: hop posted, no reply delivered
  std::array<HopHeader, kMaxSlots> open_hops_;  // as the engine posted them
  std::array<HeldReply, kHeldMax> held_;        // in order of arrival
  size_t held_count_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_FAULT_LINK_H_
