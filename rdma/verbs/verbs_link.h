#ifndef FASTDECODE_RDMA_VERBS_VERBS_LINK_H_
#define FASTDECODE_RDMA_VERBS_VERBS_LINK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rdma/link.h"
#include "rdma/peer_channel.h"
#include "rdma/verbs/verbs_bulk.h"
#include "rdma/verbs/verbs_channel.h"
#include "rdma/verbs/verbs_end.h"
#include "rdma/verbs/verbs_liveness.h"

namespace fastdecode {

// A link's end over RDMA verbs, of a connected VerbsEnd and the channel to the peer's process over which it was
// connected. The peer must be connected too before anything is posted.
// Errors: those of VerbsLiveness::Create. REQUIRES: end->connected(), and its role fits.
absl::StatusOr<std::unique_ptr<EngineLink>> MakeVerbsEngineLink(std::unique_ptr<VerbsEnd> end, uint64_t epoch,
                                                                std::unique_ptr<PeerChannel> channel);
absl::StatusOr<std::unique_ptr<HomeLink>> MakeVerbsHomeLink(std::unique_ptr<VerbsEnd> end, uint64_t epoch,
                                                            std::unique_ptr<PeerChannel> channel);

// What both ends are made of. Destroyed from below: the channels, the watch (which closes the connection), and last the
// device's objects, whose destruction ends every access to their memory.
// Owns: all of it.
struct VerbsParts {
  const std::unique_ptr<VerbsEnd> end;
  const std::unique_ptr<VerbsLiveness> liveness;
  const std::unique_ptr<VerbsBulk> bulk;  // null: the link has no bulk channel
  VerbsChannel channel;
};

// The engine's end. Owns: see VerbsParts. Thread: see EngineLink. Bounded: a poll takes what can be in flight.
class VerbsEngineLink final : public EngineLink {
 public:
  VerbsEngineLink(std::unique_ptr<VerbsEnd> end, uint64_t epoch, std::unique_ptr<VerbsLiveness> liveness);
  ~VerbsEngineLink() override;

  // verbs_link_fastpath.cc
  std::byte* SendArea(int slot) override;
  const std::byte* ReceiveArea(int slot) override;
  void PostHop(const HopHeader& header) override;
  LinkPoll PollReply(ReplyHeader* out) override;
  bool TrySendControl(const void* message, size_t bytes) override;
  LinkPoll PollControl(void* buffer, size_t* bytes) override;
  std::byte* BulkArea() override;
  void PostBulk(size_t bytes) override;
  uint64_t BulkFreed() override;
  void RingHome() override;
  bool AreasOnGpu() const override { return parts_.end->on_gpu(); }
  uint64_t Progress() const override { return parts_.liveness->PeerProgress(); }
  LinkLine line() const override { return parts_.end->device().Line(); }
  bool lost() const override { return parts_.liveness->lost(); }

  // verbs_link.cc
  void MarkLost(const char* cause) override { parts_.liveness->MarkLost(cause); }
  std::string lost_cause() const override { return parts_.liveness->cause(); }
  uint64_t epoch() const override { return epoch_; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return parts_.liveness->peer_name(); }
  std::string Describe() const override { return parts_.end->Describe(); }
  int liveness_fd() const override { return parts_.liveness->fd(); }
  void CheckPeer() override { parts_.liveness->Check(); }

 private:
  LinkPoll TakeReply(const VerbsChannel::Arrival& arrival, ReplyHeader* out);
  LinkPoll Lose(int slot, const char* defect);

  // Constant after construction.
  const LinkSize size_;
  const uint64_t epoch_;
  const GpuDevice* const flush_;  // after each reply; null: none

  // The pipeline thread only.
  VerbsParts parts_;
  uint32_t open_slots_ = 0;                // bit per slot: hop posted, reply not yet seen
  std::array<HopHeader, kMaxSlots> hops_;  // the open one, or the last
};

// The home's end. Owns: see VerbsParts. Thread: see HomeLink. Bounded: a poll takes what can be in flight.
class VerbsHomeLink final : public HomeLink {
 public:
  VerbsHomeLink(std::unique_ptr<VerbsEnd> end, uint64_t epoch, std::unique_ptr<VerbsLiveness> liveness);
  ~VerbsHomeLink() override;

  // verbs_link_fastpath.cc
  LinkPoll PollHop(HopHeader* out, const std::byte** payload) override;
  std::byte* ReplyArea(int slot) override;
  void PostReply(const ReplyHeader& header) override;
  LinkPoll PollControl(void* buffer, size_t* bytes) override;
  bool TrySendControl(const void* message, size_t bytes) override;
  LinkPoll PollBulk(const std::byte** segment, size_t* bytes) override;
  void FreeBulk() override;
  void AddProgress(uint64_t items) override { parts_.liveness->AddProgress(items); }
  bool lost() const override { return parts_.liveness->lost(); }

  // verbs_link.cc
  void Arm() override;
  void Disarm() override {}
  void Sleep(uint64_t timeout_ns) override;
  void MarkLost(const char* cause) override { parts_.liveness->MarkLost(cause); }
  std::string lost_cause() const override { return parts_.liveness->cause(); }
  uint64_t epoch() const override { return epoch_; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return parts_.liveness->peer_name(); }
  std::string Describe() const override { return parts_.end->Describe(); }
  int liveness_fd() const override { return parts_.liveness->fd(); }
  void CheckPeer() override { parts_.liveness->Check(); }

 private:
  LinkPoll TakeHop(const VerbsChannel::Arrival& arrival, HopHeader* out, const std::byte** payload);
  LinkPoll Lose(int slot, const char* defect);
  void TakeNotificationEvents();

  // Constant after construction.
  const LinkSize size_;
  const uint64_t epoch_;

  // The leader only.
  VerbsParts parts_;
  uint32_t open_slots_ = 0;  // bit per slot: hop seen, not yet replied to
  uint64_t polls_seen_ = 0;  // of the channel, when PollBulk last looked
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_LINK_H_
