#ifndef FASTDECODE_ENGINE_RPART_HOME_H_
#define FASTDECODE_ENGINE_RPART_HOME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/home_loop.h"
#include "engine/rpart/messages.h"
#include "engine/rpart/peer.h"
#include "engine/rpart/peer_session.h"
#include "engine/rpart/stage_home.h"
#include "engine/rpart/workspace.h"
#include "kernels/isa.h"
#include "numa/arena.h"
#include "numa/log.h"
#include "numa/pinned_thread.h"
#include "numa/spin.h"
#include "numa/ticket_team.h"
#include "rdma/link.h"
#include "rdma/link_monitor.h"

namespace fastdecode {

struct HomeOptions {
  std::string name = "home";      // of threads and in messages
  int node = -1;                  // os_index of the NUMA node that holds the KV; -1: anywhere
  std::vector<int> cores = {-1};  // OS numbers of the team's PUs, the leader's first; -1: not pinned
  uint64_t kv_bytes = 0;          // of KV memory, taken and touched at once
  PollMode poll = PollMode::kSpin;
  bool park = true;                  // false: keeps polling while the engine is idle (--poll always)
  Isa isa = Isa::kNone;              // kNone: the best that this CPU has
  uint32_t peers = 1;                // served at once, at most kPeersMax
  uint32_t sequences_max = 1 << 16;  // of one peer
  LinkMonitor* monitor = nullptr;    // watches the peers' links while they are attached; may be null; outlives the home
  Logger* logger = nullptr;          // may be null; outlives the home
};

// KV memory of one NUMA node and the team of threads that computes attention next to it, at the service of one peer or
// several, which share one model and the pool: each has pages reserved for it, and what it does not use of them nobody
// else does. While it has peers the memory is cut into pages of their shape; when the last one has gone, the next may
// bring another shape.
// Owns: the arena; while peers are attached also their sessions (with their links), the leader and the team.
// Thread: one control thread calls everything; the team's threads run in between.
class Home {
 public:
  // Takes and touches the KV memory; what a page is, only a peer's shape says.
  // Errors: InvalidArgument (no cores, no bytes, peers out of range, an ISA that this CPU has not); FailedPrecondition
  // (CPU too old); those of Arena::Create.
  static absl::StatusOr<std::unique_ptr<Home>> Create(HomeOptions options);
  // Detaches all.
  ~Home();

  // Whether a peer of this shape could be served. Errors: those of ValidateShape; ResourceExhausted if not one page
  // fits.
  absl::Status CheckShape(const RPartShape& shape) const;
  // The home as a peer of this shape sees it that has all pages. REQUIRES: CheckShape(shape) is ok.
  HomeDescription Describe(const RPartShape& shape) const;
  // What this peer would get now: Describe() with the pages that would be reserved for it, which are as many as it
  // wants or as are free. Sessions that have ended but are not detached count as gone.
  // Errors, whose texts go on after the home's name: FailedPrecondition that says who is served, if these are
  // `peers`, or what about the model differs from theirs; ResourceExhausted with the pages asked for, free and in all.
  // REQUIRES: CheckShape(shape) is ok.
  absl::StatusOr<HomeDescription> Offer(const RPartShape& shape, const PeerRequest& peer) const;

  // What the team computes a peer's hops in: to be had before the peer is told that it is served.
  // Errors: those of TeamWorkspace::Create. REQUIRES: CheckShape(shape) is ok.
  absl::StatusOr<TeamWorkspace> MakeWorkspace(const RPartShape& shape) const;
  // Starts to serve the peer at the other end of the link, whose size is LinkSizeFor(shape), as offered, in a workspace
  // of the same shape. Sessions that have ended are detached.
  // Errors: those of Offer; InvalidArgument if shape and link do not fit; ResourceExhausted if a thread cannot be
  // started. The link is then lost, for that reason.
  // REQUIRES: CheckShape(shape) is ok.
  absl::Status Attach(const RPartShape& shape, std::unique_ptr<HomeLink> link, const PeerRequest& peer,
                      TeamWorkspace workspace);
  // All of it. Errors: those of CheckShape and MakeWorkspace, too.
  absl::Status Attach(const RPartShape& shape, std::unique_ptr<HomeLink> link, const PeerRequest& peer = {});

  // Starts to serve an engine of this process whose S-Part attends here within its stages, with `threads` threads of
  // `team`: a link to stage_home(). Errors: those of StageHome::Create. REQUIRES: CheckShape(shape) is ok, nobody is
  // attached, and team outlives the service.
  absl::StatusOr<std::unique_ptr<EngineLink>> AttachInStages(const RPartShape& shape, TicketTeam* team, int threads);
  // Null: nobody is attached so.
  StageHome* stage_home() const { return stage_home_.get(); }

  // Those attached, in order of arrival; each ended() as soon as its link is lost and all that it had here is dropped.
  // Valid until Attach or Detach.
  const std::vector<std::unique_ptr<PeerSession>>& sessions() const { return sessions_; }
  // Whether any has not ended.
  bool serving() const;

  // Ends the service of one peer, if it has not ended by itself, while the others go on. Returns why it ended.
  std::string Detach(PeerSession* session);
  // Ends the service of all peers. Returns why that of the last one ended, empty if nobody was attached. REQUIRES: no
  // pipeline uses the link of AttachInStages any more.
  std::string Detach();

  const HomeOptions& options() const { return options_; }
  // Of the KV memory, for people.
  std::string DescribeMemory() const { return memory_; }

 private:
  Home(HomeOptions options, Arena arena);
  PeerSessionOptions SessionOptions() const;
  void DetachEnded();
  void StartLoop(const RPartShape& shape);
  void WarnOfUnpinned() const;
  void StopLoopIfUnused();

  // Constant after construction.
  const HomeOptions options_;
  const Arena arena_;
  const std::string memory_;  // what the arena is, said once: it takes long, and peers wait for their answers
  const double read_rate_;    // of the arena by the team's cores, bytes a second
  const uint64_t id_;         // random

  // The control thread's. Sessions go before the loop, whose words their wakers ring.
  std::unique_ptr<HomeLoop> loop_;  // null: no session
  PinnedThread leader_;
  std::vector<std::unique_ptr<PeerSession>> sessions_;
  std::unique_ptr<StageHome> stage_home_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_HOME_H_
