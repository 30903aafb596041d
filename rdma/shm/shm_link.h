#ifndef FASTDECODE_RDMA_SHM_SHM_LINK_H_
#define FASTDECODE_RDMA_SHM_SHM_LINK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "rdma/link.h"
#include "rdma/loss_record.h"
#include "rdma/shm/shm_layout.h"

namespace fastdecode {

// What one end of an shm link stands on: the memory of both regions, and the way to the peer. In-process links and
// links between processes differ in this alone. Thread: any.
class ShmBacking {
 public:
  virtual ~ShmBacking() = default;

  virtual LossRecord* loss() = 0;
  // This end is lost or about to go: the peer is to know. Called at most once; never blocks.
  virtual void TellPeer(const char* cause) = 0;
  virtual std::string peer_name() const = 0;

  virtual int liveness_fd() const { return -1; }
  virtual int peer_process_fd() const { return -1; }
  // See LinkEnd::CheckPeer: true with the cause if the peer has gone or has given up.
  virtual bool PeerGone(std::string* cause) { return false; }
  // See LinkEnd. In one process the memory lives as long as either end.
  virtual bool PeerMayStillWrite() const { return false; }
};

// The shared memory of a link, as its two ends see it.
struct ShmRegions {
  HomeRegion home;
  EngineRegion engine;
};

// The engine's end over shared memory.
// Owns: its backing. Thread: see EngineLink. Bounded: a poll reads at most one line a slot.
class ShmEngineLink final : public EngineLink {
 public:
  // REQUIRES: CheckLinkSize(size) is ok; the regions are those of `size`, zero, and live as long as the backing.
  ShmEngineLink(const LinkSize& size, uint64_t epoch, const ShmRegions& regions, std::unique_ptr<ShmBacking> backing);
  ~ShmEngineLink() override;

  // shm_link_fastpath.cc
  std::byte* SendArea(int slot) override;
  const std::byte* ReceiveArea(int slot) override;
  void PostHop(const HopHeader& header) override;
  LinkPoll PollReply(ReplyHeader* out) override;
  bool TrySendControl(const void* message, size_t bytes) override;
  LinkPoll PollControl(void* buffer, size_t* bytes) override;
  std::byte* BulkArea() override;
  void PostBulk(size_t bytes) override;
  uint64_t BulkFreed() override;
  uint64_t Progress() const override;
  bool lost() const override { return loss_->lost(); }

  // shm_link.cc
  void RingHome() override;
  void MarkLost(const char* cause) override;
  std::string lost_cause() const override { return loss_->cause(); }
  uint64_t epoch() const override { return epoch_; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return backing_->peer_name(); }
  std::string Describe() const override { return "shared memory"; }
  int liveness_fd() const override { return backing_->liveness_fd(); }
  int peer_process_fd() const override { return backing_->peer_process_fd(); }
  void CheckPeer() override;
  bool PeerMayStillWrite() const override { return backing_->PeerMayStillWrite(); }

 private:
  struct Slot {
    HopHeader hop;      // the open one, or the last
    uint64_t hops = 0;  // posted; = the sequence word of the open hop and of its reply
  };

  LinkPoll TakeReply(int slot, uint64_t sequence, ReplyHeader* out);
  LinkPoll Lose(int slot, const char* defect);

  // Constant after construction.
  const LinkSize size_;
  const uint64_t epoch_;
  const std::unique_ptr<ShmBacking> backing_;
  LossRecord* const loss_;
  const ShmRegions regions_;

  // The pipeline thread only.
  uint32_t open_slots_ = 0;  // bit per slot: hop posted, reply not yet seen
  int next_slot_ = 0;        // where the next poll starts, so that no slot starves
  std::array<Slot, kMaxSlots> slots_;
  uint64_t bulk_written_ = 0;  // segments
  uint64_t bulk_freed_ = 0;    // of them, as far as is known
  ShmRingWriter control_out_;
  ShmRingReader control_in_;
};

// The home's end over shared memory.
// Owns: its backing. Thread: see HomeLink. Bounded: a poll reads at most one line a slot.
class ShmHomeLink final : public HomeLink {
 public:
  // As ShmEngineLink.
  ShmHomeLink(const LinkSize& size, uint64_t epoch, const ShmRegions& regions, std::unique_ptr<ShmBacking> backing);
  ~ShmHomeLink() override;

  // shm_link_fastpath.cc
  LinkPoll PollHop(HopHeader* out, const std::byte** payload) override;
  std::byte* ReplyArea(int slot) override;
  void PostReply(const ReplyHeader& header) override;
  LinkPoll PollControl(void* buffer, size_t* bytes) override;
  bool TrySendControl(const void* message, size_t bytes) override;
  LinkPoll PollBulk(const std::byte** segment, size_t* bytes) override;
  void FreeBulk() override;
  void AddProgress(uint64_t items) override;
  bool lost() const override { return loss_->lost(); }

  // shm_link.cc
  void Arm() override;
  void Disarm() override;
  void Sleep(uint64_t timeout_ns) override;
  void MarkLost(const char* cause) override;
  std::string lost_cause() const override { return loss_->cause(); }
  uint64_t epoch() const override { return epoch_; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return backing_->peer_name(); }
  std::string Describe() const override { return "shared memory"; }
  int liveness_fd() const override { return backing_->liveness_fd(); }
  int peer_process_fd() const override { return backing_->peer_process_fd(); }
  void CheckPeer() override;
  bool PeerMayStillWrite() const override { return backing_->PeerMayStillWrite(); }

 private:
  LinkPoll TakeHop(int slot, uint64_t sequence, HopHeader* out, const std::byte** payload);
  LinkPoll Lose(int slot, const char* defect);

  // Constant after construction.
  const LinkSize size_;
  const uint64_t epoch_;
  const std::unique_ptr<ShmBacking> backing_;
  LossRecord* const loss_;
  const ShmRegions regions_;

  // The leader only.
  uint32_t open_slots_ = 0;  // bit per slot: hop seen, not yet replied to
  int next_slot_ = 0;
  std::array<uint64_t, kMaxSlots> hops_ = {};  // per slot: seen; = the sequence word of the last one
  uint64_t progress_ = 0;                      // the shared word is written, never read back
  uint64_t bulk_given_ = 0;                    // segments
  uint64_t bulk_freed_ = 0;                    // of them
  ShmRingReader control_in_;
  ShmRingWriter control_out_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_SHM_LINK_H_
