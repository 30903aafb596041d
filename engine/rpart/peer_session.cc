#include "engine/rpart/peer_session.h"

#include <system_error>
#include <utility>

#include "numa/check.h"

namespace fastdecode {

namespace {

// The limits are those of layers without a window, if there are any: they need most.
PlanLimits LimitsOf(const PeerSessionOptions& options, const RPartShape& shape) {
  const AttentionShape attention = shape.has_layers(/*with_window=*/false) ? shape.attention() : shape.attention(0);
  return PlanLimitsFor(attention, shape.max_rows, options.threads, shape.max_context,
                       SelectAttention(options.isa, attention));
}

std::unique_ptr<LinkWaker> MakeWaker(const PeerSessionOptions& options, HomeLink* link) {
  if (options.leader == nullptr) return nullptr;
  try {
    return std::make_unique<LinkWaker>(options.home_name, link, options.leader);
  } catch (const std::system_error& error) {
    link->MarkLost(error.what());  // a link that is only closed tells its peer nothing
    throw;
  }
}

}  // namespace

absl::StatusOr<TeamWorkspace> PeerSession::MakeWorkspace(const PeerSessionOptions& options, const RPartShape& shape) {
  return TeamWorkspace::Create(shape.attention(), static_cast<size_t>(options.threads), options.node,
                               LimitsOf(options, shape).workspace_floats());
}

PeerSession::PeerSession(const PeerSessionOptions& options, const RPartShape& shape, const PeerRequest& peer,
                         std::unique_ptr<HomeLink> link, TeamWorkspace workspace)
    : shape_(shape),
      peer_(peer),
      link_(std::move(link)),
      waker_(MakeWaker(options, link_.get())),
      workspace_(std::move(workspace)),
      account_(options.pool, options.pages),
      table_(&account_, static_cast<int>(shape.layers), shape.max_context, options.sequences_max),
      waiting_(shape.micro_batches),
      control_buffer_(kControlMessageBytesMax) {
  for (uint32_t i = 0; i < shape.micro_batches; ++i) {
    micro_batches_.push_back(std::make_unique<MicroBatch>(i, shape, LimitsOf(options, shape)));
  }
  work_.shape = shape;
  work_.kernels = SelectAttention(options.isa, shape.attention());
  work_.pool = options.pool;
  work_.workspace = &workspace_;
  work_.leader = &leader_ticks_;
  push_work_.attention = shape.attention();
  push_work_.append = work_.kernels.append;
  push_work_.pool = options.pool;
}

void PeerSession::Begin(ServedPeers* served) {
  served_ = served;
  work_.served = served;
}

void PeerSession::End() {
  table_.ReleaseAll();
  FD_CHECK(account_.used() == 0, "a page leaked");
  end_cause_ = link_->lost_cause();
  // Release: who sees the end sees the cause, and that nothing is left of the peer.
  ended_.store(true, std::memory_order_release);
}

PeerSession* ServedPeers::Find(const PeerId& id) const {
  for (size_t i = 0; i < count; ++i) {
    const PeerId& each = sessions[i]->peer().id;
    if (each.engine_id == id.engine_id && each.role == id.role) return sessions[i];
  }
  return nullptr;
}

}  // namespace fastdecode
