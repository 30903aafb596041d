#ifndef FASTDECODE_ENGINE_RPART_STAGE_HOME_H_
#define FASTDECODE_ENGINE_RPART_STAGE_HOME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "engine/rpart/kv_pool.h"
#include "engine/rpart/peer_session.h"
#include "engine/rpart/served_peers.h"
#include "engine/rpart/stage_link.h"
#include "numa/team_barrier.h"
#include "numa/ticket_team.h"

namespace fastdecode {

struct StageHomeOptions {
  PeerSessionOptions session;  // its threads are so many of the team's; pages, pool and leader are the home's to set
  std::span<std::byte> kv_memory;
  TicketTeam* team = nullptr;  // the S-Part's; outlives the home
};

// A home without a team of its own: threads of the S-Part attend to its sequences between two stages (decision 0029).
// It has the pages, books, plans and kernels of a home that serves one engine, and its session; messages come and go
// over a link without a way (StageLink).
//
// Owns: the pool's accounts, the session; not the KV memory, not the team.
// Thread: Create and the destructor the control thread's, while no pipeline knows the link; Begin and End the pipeline
// thread's, as the link's; RunShare each thread that attends, between these two.
// Bounded: as a home; steps allocate nothing.
class StageHome {
 public:
  // Errors: those of TeamWorkspace::Create and Arena::Create. REQUIRES: ValidateShape(shape), and a page fits.
  static absl::StatusOr<std::unique_ptr<StageHome>> Create(const StageHomeOptions& options, const RPartShape& shape);
  // Drops all that is here.
  ~StageHome();

  // The engine's end, once.
  std::unique_ptr<EngineLink> TakeLink() { return std::move(engine_link_); }

  // Prepares attention of one layer of the micro-batch's step, whose `rows` rows lie in the link's send area.
  // REQUIRES: the roster that was sent last names them, in this order. stage_home_fastpath.cc
  void Begin(int micro_batch, uint64_t step, int layer, uint32_t rows);
  // The share of thread `thread` of those that attend here. o is whole once all have done theirs.
  void RunShare(int thread) { HopWork::RunShare(&session_->work(), thread, threads_); }
  // All have. stage_home_fastpath.cc
  void End();

 private:
  StageHome(const StageHomeOptions& options, const RPartShape& shape, std::shared_ptr<StagePair> pair,
            TeamWorkspace workspace);

  const int threads_;
  const RPartShape shape_;
  KvPool pool_;
  TeamBarrier barrier_;
  ServedPeers served_;
  const std::shared_ptr<StagePair> pair_;
  std::unique_ptr<EngineLink> engine_link_;  // null: taken
  std::unique_ptr<PeerSession> session_;
  HopHeader header_;  // of the hop in work
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_STAGE_HOME_H_
