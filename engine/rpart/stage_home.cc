#include "engine/rpart/stage_home.h"

#include <utility>

#include "numa/arena.h"
#include "numa/check.h"

namespace fastdecode {

absl::StatusOr<std::unique_ptr<StageHome>> StageHome::Create(const StageHomeOptions& options, const RPartShape& shape) {
  absl::StatusOr<TeamWorkspace> workspace = PeerSession::MakeWorkspace(options.session, shape);
  if (!workspace.ok()) return workspace.status();
  ArenaOptions areas;
  areas.bytes = StagePair::Bytes(shape);
  areas.node = options.session.node;
  absl::StatusOr<Arena> memory = Arena::Create(areas);
  if (!memory.ok()) return memory.status();
  auto pair = std::make_shared<StagePair>(shape, *std::move(memory));
  return std::unique_ptr<StageHome>(new StageHome(options, shape, std::move(pair), *std::move(workspace)));
}

StageHome::StageHome(const StageHomeOptions& options, const RPartShape& shape, std::shared_ptr<StagePair> pair,
                     TeamWorkspace workspace)
    : threads_(options.session.threads),
      shape_(shape),
      pool_(shape.attention(), static_cast<int>(shape.layers), options.kv_memory),
      barrier_(options.session.threads, options.team->poll_mode()),
      pair_(std::move(pair)),
      engine_link_(std::make_unique<StageEngineLink>(pair_)) {
  PeerSessionOptions session = options.session;
  session.pages = pool_.total();
  session.pool = &pool_;
  session_ = std::make_unique<PeerSession>(session, shape, PeerRequest{}, std::make_unique<StageHomeLink>(pair_),
                                           std::move(workspace));
  session_->MakeSpares();             // the pipeline's thread applies messages
  session_->work().leader = nullptr;  // no reply says where the time went
  served_.team = options.team;
  served_.part = &barrier_;
  served_.sessions[0] = session_.get();
  served_.links[0] = &session_->link();
  served_.count = 1;
  session_->Begin(&served_);
  pair_->session = session_.get();
}

StageHome::~StageHome() {
  pair_->loss.Set("the home was stopped");
  session_->End();
  FD_CHECK(pool_.free() == pool_.total(), "a page leaked");
}

}  // namespace fastdecode
