#ifndef FASTDECODE_ENGINE_RPART_PEER_SESSION_H_
#define FASTDECODE_ENGINE_RPART_PEER_SESSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/hop_work.h"
#include "engine/rpart/link_waker.h"
#include "engine/rpart/micro_batch.h"
#include "engine/rpart/page_account.h"
#include "engine/rpart/peer.h"
#include "engine/rpart/push_work.h"
#include "engine/rpart/sequence_table.h"
#include "engine/rpart/served_peers.h"
#include "engine/rpart/workspace.h"
#include "kernels/isa.h"
#include "rdma/link.h"

namespace fastdecode {

// What a session is made of, besides its link.
struct PeerSessionOptions {
  std::string home_name;
  int node = -1;    // of the workspace
  int threads = 1;  // of the team
  Isa isa = Isa::kNone;
  uint32_t sequences_max = 0;
  uint32_t pages = 0;          // granted
  KvPool* pool = nullptr;      // of the home
  ParkWord* leader = nullptr;  // that the leader of several peers sleeps on; null: it sleeps on the link itself
};

// One peer of a home, from its link's making to its loss. Its number space of sequences is its own.
// Owns: the link, the peer's sequences, rosters and page account, what the team computes its hops in; not the pages.
// Thread: made and destroyed by the control thread; in between the leader's, from Begin to End. The first section may
// be called by the control thread meanwhile.
// Bounded: everything is allocated before Begin; hops allocate nothing.
class PeerSession {
 public:
  enum class Outcome : uint8_t { kNothing, kWorked, kLost };

  // What a session's hops are computed in; of the options the team alone. Errors: those of TeamWorkspace::Create.
  // REQUIRES: ValidateShape(shape).
  static absl::StatusOr<TeamWorkspace> MakeWorkspace(const PeerSessionOptions& options, const RPartShape& shape);
  // `workspace`: made for these options and this shape.
  PeerSession(const PeerSessionOptions& options, const RPartShape& shape, const PeerRequest& peer,
              std::unique_ptr<HomeLink> link, TeamWorkspace workspace);

  const PeerRequest& peer() const { return peer_; }
  const RPartShape& shape() const { return shape_; }
  uint32_t pages() const { return account_.granted(); }
  HomeLink& link() const { return *link_; }
  // All that the peer had here is dropped, and the leader does not touch the session any more.
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // REQUIRES: ended().
  const std::string& end_cause() const { return end_cause_; }
  // The peer is told that the home drains. Once it says that it has left, its link is lost.
  void AskToLeave() { asked_to_leave_.store(true, std::memory_order_relaxed); }

  // --- The leader.
  // `served` has the team and outlives the service.
  void Begin(ServedPeers* served);
  // One look at every hop and control message that may have come. kLost: call End.
  Outcome Turn();
  // One look at the bulk channel: stores a segment at most, so that no hop waits for more. kLost as above.
  Outcome TakeSegment();
  // The peer said that nothing is in flight, and nothing came since: its link's ring announces the next.
  bool idle() const { return idle_; }
  LinkWaker* waker() const { return waker_.get(); }
  // Drops all that the peer has here. The control thread may destroy the session at once.
  void End();

  // --- The same by parts, for whoever needs no link to ask for them (StageHome). The leader.
  // No message will need memory. REQUIRES: none came yet.
  void MakeSpares() { table_.MakeSpares(); }
  // A control message. What makes no sense loses the link.
  void ApplyControl(std::span<const std::byte> message);
  const Roster& roster(int micro_batch) const { return micro_batches_[static_cast<size_t>(micro_batch)]->roster(); }
  // Gets a hop ready to be worked on: then each thread does its share of work(). Null, or what is wrong with it.
  const char* BeginHop(const HopHeader& header, const std::byte* rows, std::byte* o);
  HopWork& work() { return work_; }
  // All threads have done theirs. Null, or the first of the hop's entries that could not be computed.
  const StepEntry* EndHop(const HopHeader& header);

 private:
  // A bulk segment that is held.
  struct Segment {
    const std::byte* data = nullptr;  // null: none is
    PushHeader header;
  };
  // A hop that came before its roster.
  struct WaitingHop {
    bool waiting = false;
    HopHeader header;
    const std::byte* rows = nullptr;
    ShortDuration idle;
    uint64_t seen_ticks = 0;
  };

  // peer_session_fastpath.cc
  void TakeHop(const HopHeader& header, const std::byte* rows);
  void RunWaitingHops();
  void RunHop(const WaitingHop& hop);
  const char* ComputeHop(const WaitingHop& hop, ReplyHeader* reply);
  void ZeroBadRows(std::span<const StepEntry> entries, std::byte* o) const;

  // peer_control.cc
  absl::Status Apply(std::span<const std::byte> message);
  absl::Status ApplySequence(ControlKind kind, std::span<const std::byte> message);
  absl::Status ApplyRoster(std::span<const std::byte> message);
  absl::StatusOr<KvSequence*> BeginSequence(const char* what, uint64_t sequence, uint32_t tokens);
  absl::Status Fill(uint64_t sequence, uint32_t tokens);
  absl::Status Reserve(uint64_t sequence, uint32_t tokens);
  absl::Status HandOver(const HandOverMessage& message);
  HandOverOutcome TryHandOver(const HandOverMessage& message);
  void SendStats(uint32_t idle);
  void SayDraining();
  absl::Status OnEngineLeft();

  // peer_bulk.cc
  absl::Status CheckSegment(size_t bytes) const;
  absl::Status StoreSegment();

  // Constant after construction.
  const RPartShape shape_;
  const PeerRequest peer_;
  const std::unique_ptr<HomeLink> link_;
  const std::unique_ptr<LinkWaker> waker_;  // null: the leader sleeps on the link itself
  const TeamWorkspace workspace_;

  // The leader only.
  ServedPeers* served_ = nullptr;
  PageAccount account_;
  SequenceTable table_;
  std::vector<std::unique_ptr<MicroBatch>> micro_batches_;
  std::vector<WaitingHop> waiting_;  // [micro-batch]
  uint32_t waiting_count_ = 0;
  bool idle_ = false;
  HopWork work_;
  uint64_t reservations_ = 0;  // that were read
  Segment segment_;
  PushWork push_work_;
  LeaderTicks leader_ticks_;  // of the hop in work
  ShortDuration last_post_;   // posting the last reply
  StatsMessage stats_;
  bool stats_changed_ = true;      // since they were sent
  uint64_t stats_sent_ticks_ = 0;  // when
  std::vector<std::byte> control_buffer_;
  bool draining_said_ = false;

  std::atomic<bool> asked_to_leave_{false};  // set by the control thread
  std::string end_cause_;                    // the leader's, until ended_
  std::atomic<bool> ended_{false};           // set by the leader
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_PEER_SESSION_H_
