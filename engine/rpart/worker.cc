#include "engine/rpart/worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

// How late Stop and the end of a service are noticed at most.
constexpr uint64_t kTurnNs = 100'000'000;

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(WorkerOptions options) {
  if (options.homes.empty()) return absl::InvalidArgumentError("a worker needs at least one home");
  if (options.homes.size() > kHomesPerWorkerMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d homes are more than the %d of a worker", options.homes.size(), kHomesPerWorkerMax));
  }
  absl::StatusOr<std::unique_ptr<Listener>> listener = ListenAt(options.listen, options.fabric);
  if (!listener.ok()) return listener.status();
  std::unique_ptr<Worker> worker(new Worker(std::move(options), *std::move(listener)));
  if (absl::Status bad = worker->MakeHomes(); !bad.ok()) return bad;
  return worker;
}

Worker::Worker(WorkerOptions options, std::unique_ptr<Listener> listener)
    : options_(std::move(options)), listener_(std::move(listener)) {}

absl::Status Worker::MakeHomes() {
  for (HomeOptions options : options_.homes) {
    Log(LogLevel::kInfo,
        absl::StrFormat("%s takes %.2f GiB of memory", options.name, static_cast<double>(options.kv_bytes) * 0x1p-30));
    options.monitor = &monitor_;
    absl::StatusOr<std::unique_ptr<Home>> home = Home::Create(std::move(options));
    if (!home.ok()) return home.status();
    homes_.push_back(*std::move(home));
  }
  return absl::OkStatus();
}

Worker::~Worker() {
  for (size_t i = 0; i < homes_.size(); ++i) {
    while (!homes_[i]->sessions().empty()) Free(i, homes_[i]->sessions().front().get());
  }
}

void Worker::Run() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    if (draining_.load(std::memory_order_relaxed) && drain_until_ns_ == 0) BeginToDrain();
    absl::StatusOr<std::unique_ptr<PendingLink>> pending = listener_->AcceptProposal(kTurnNs);
    for (size_t i = 0; i < homes_.size(); ++i) FreeEnded(i);
    if (drain_until_ns_ != 0 && MayEnd()) return;
    if (pending.ok()) {
      Decide(pending->get());
    } else if (!absl::IsDeadlineExceeded(pending.status())) {
      Log(LogLevel::kWarning, std::string(pending.status().message()));
    }
  }
}

void Worker::Decide(PendingLink* pending) {
  const LinkProposal& proposal = pending->proposal();
  const auto refuse = [&](const std::string& why) {
    // An engine that has left one home of this worker asks for it again and again.
    Log(drain_until_ns_ != 0 ? LogLevel::kInfo : LogLevel::kWarning,
        absl::StrFormat("refused engine %d (%s): %s", proposal.peer.engine_id, pending->peer_name(), why));
    pending->Refuse(why);
  };
  RPartShape shape;
  PeerRequest peer;
  peer.process = pending->peer_name();
  if (const absl::Status refusal = CheckProposal(proposal, &shape, &peer); !refusal.ok()) {
    return refuse(std::string(refusal.message()));
  }
  MakeWay(proposal.home_index, proposal.peer);
  const absl::StatusOr<HomeDescription> offer = homes_[proposal.home_index]->Offer(shape, peer);
  if (!offer.ok()) {
    return refuse(absl::StrFormat("home %d %s", proposal.home_index, offer.status().message()));
  }
  if (const absl::Status failure = Serve(pending, *offer, shape, peer); !failure.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("cannot serve ", peer.Describe(), ": ", std::string(failure.message())));
    return;
  }
  Log(LogLevel::kInfo,
      absl::StrFormat("%s serves %s: %d pages, %d layers, %d KV heads", homes_[proposal.home_index]->options().name,
                      peer.Describe(), offer->pages, shape.layers, shape.kv_heads));
}

// Engines that come from now on are refused.
void Worker::BeginToDrain() {
  drain_until_ns_ = NowNs() + options_.grace_ns;
  size_t engines = 0;
  for (const std::unique_ptr<Home>& home : homes_) {
    for (const std::unique_ptr<PeerSession>& session : home->sessions()) session->AskToLeave();
    engines = std::max(engines, home->sessions().size());
  }
  Log(LogLevel::kInfo,
      absl::StrFormat("draining: %d engine%s %s to leave, for %.0f s at most", engines, engines == 1 ? "" : "s",
                      engines == 1 ? "has" : "have", static_cast<double>(options_.grace_ns) * 1e-9));
}

// Whether all engines have left, or had time enough for that.
bool Worker::MayEnd() const {
  bool served = false;
  for (const std::unique_ptr<Home>& home : homes_) served |= !home->sessions().empty();
  return !served || NowNs() >= drain_until_ns_;
}

absl::Status Worker::CheckProposal(const LinkProposal& proposal, RPartShape* shape, PeerRequest* peer) const {
  if (drain_until_ns_ != 0) return absl::UnavailableError("this worker is draining and takes no more engines");
  if (proposal.home_index >= homes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("home index %d: this worker has %d homes", proposal.home_index, homes_.size()));
  }
  PeerDemand demand;
  if (absl::Status status = DecodeProposal(proposal.shape, shape, &demand); !status.ok()) return status;
  peer->id = proposal.peer;
  peer->pages_wanted = demand.pages_wanted;
  if (absl::Status status = homes_[proposal.home_index]->CheckShape(*shape); !status.ok()) return status;
  if (options_.model_shape.has_value()) {
    const std::string difference = DescribeModelDifference(*options_.model_shape, *shape);
    if (!difference.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("another model: at the worker (here) and the engine (there), ", difference));
    }
  }
  return CheckLinkCarries(*shape, proposal.size);
}

// A peer that died a moment ago must not keep the next one out, nor its own successor.
void Worker::MakeWay(size_t index, const PeerId& id) {
  const Home& home = *homes_[index];
  for (size_t i = home.sessions().size(); i-- > 0;) {
    PeerSession* const session = home.sessions()[i].get();
    const PeerId& served = session->peer().id;
    session->link().CheckPeer();
    if (served.engine_id == id.engine_id && served.role == id.role) {
      session->link().MarkLost("the engine has come again, with a new link");
    }
    if (session->link().lost()) Free(index, session);
  }
}

absl::Status Worker::Serve(PendingLink* pending, const HomeDescription& offer, const RPartShape& shape,
                           PeerRequest peer) {
  const uint32_t index = pending->proposal().home_index;
  Home& home = *homes_[index];
  // Before the engine is accepted: from then on it counts on the home.
  absl::StatusOr<TeamWorkspace> workspace = home.MakeWorkspace(shape);
  if (!workspace.ok()) {
    pending->Refuse(absl::StrFormat("home %d: %s", index, workspace.status().message()));
    return workspace.status();
  }
  LinkAcceptance acceptance;
  acceptance.homes = static_cast<uint32_t>(homes_.size());
  acceptance.answer.assign(reinterpret_cast<const char*>(&offer), sizeof(offer));
  absl::StatusOr<std::unique_ptr<HomeLink>> link = pending->Accept(acceptance, home.options().node);
  if (!link.ok()) return link.status();
  FreeEnded(index);                 // and says so
  peer.pages_wanted = offer.pages;  // what it was told, though another peer may have gone since
  if (absl::Status status = home.Attach(shape, *std::move(link), peer, *std::move(workspace)); !status.ok()) {
    return status;
  }
  const HomeLink& served = home.sessions().back()->link();
  Log(LogLevel::kInfo,
      absl::StrFormat("link of %s to %s: %s", home.options().name, peer.Describe(), served.Describe()));
  return absl::OkStatus();
}

void Worker::FreeEnded(size_t index) {
  const Home& home = *homes_[index];
  for (size_t i = home.sessions().size(); i-- > 0;) {
    if (home.sessions()[i]->ended()) Free(index, home.sessions()[i].get());
  }
}

void Worker::Free(size_t index, PeerSession* session) {
  Home& home = *homes_[index];
  const std::string who = session->peer().Describe();
  const std::string cause = home.Detach(session);
  Log(LogLevel::kInfo, absl::StrFormat("%s no longer serves %s: %s", home.options().name, who, cause));
}

void Worker::Log(LogLevel level, const std::string& message) {
  if (options_.logger != nullptr) options_.logger->Log(level, message);
}

}  // namespace fastdecode
