#include "engine/rpart/worker.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/rpart/rpart_shape.h"

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
  std::vector<std::unique_ptr<Home>> homes;
  for (const HomeOptions& home_options : options.homes) {
    absl::StatusOr<std::unique_ptr<Home>> home = Home::Create(home_options);
    if (!home.ok()) return home.status();
    homes.push_back(*std::move(home));
  }
  absl::StatusOr<std::unique_ptr<UnixListener>> listener = UnixListener::Listen(options.listen_path);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<Worker>(new Worker(std::move(options), std::move(homes), *std::move(listener)));
}

Worker::Worker(WorkerOptions options, std::vector<std::unique_ptr<Home>> homes, std::unique_ptr<UnixListener> listener)
    : options_(std::move(options)),
      homes_(std::move(homes)),
      listener_(std::move(listener)),
      engine_ids_(homes_.size()) {}

Worker::~Worker() {
  for (size_t i = 0; i < homes_.size(); ++i) FreeHome(i);
}

void Worker::Run() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    absl::StatusOr<std::unique_ptr<PendingLink>> pending = listener_->AcceptProposal(kTurnNs);
    FreeEndedHomes();
    if (pending.ok()) {
      Decide(pending->get());
    } else if (!absl::IsDeadlineExceeded(pending.status())) {
      Log(LogLevel::kWarning, std::string(pending.status().message()));
    }
  }
}

void Worker::Decide(PendingLink* pending) {
  const LinkProposal& proposal = pending->proposal();
  const std::string who = absl::StrFormat("engine %d (%s)", proposal.peer.engine_id, pending->peer_name());
  RPartShape shape;
  if (const absl::Status refusal = CheckProposal(proposal, &shape); !refusal.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("refused ", who, ": ", std::string(refusal.message())));
    pending->Refuse(std::string(refusal.message()));
    return;
  }
  if (const absl::Status failure = Serve(pending, shape); !failure.ok()) {
    Log(LogLevel::kWarning, absl::StrCat("cannot serve ", who, ": ", std::string(failure.message())));
    return;
  }
  Log(LogLevel::kInfo,
      absl::StrFormat("%s serves %s: %d pages, %d layers, %d KV heads", homes_[proposal.home_index]->options().name,
                      who, homes_[proposal.home_index]->Describe(shape).pages, shape.layers, shape.kv_heads));
}

absl::Status Worker::CheckProposal(const LinkProposal& proposal, RPartShape* shape) {
  if (proposal.home_index >= homes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("home index %d: this worker has %d homes", proposal.home_index, homes_.size()));
  }
  if (proposal.shape.size() != sizeof(*shape)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("R-Part shape of %d bytes, not %d", proposal.shape.size(), sizeof(*shape)));
  }
  std::memcpy(shape, proposal.shape.data(), sizeof(*shape));
  Home& home = *homes_[proposal.home_index];
  // A peer that died a moment ago must not keep the next one out.
  if (home.serving()) home.link()->CheckPeer();
  if (home.serving() && !home.link()->lost()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("home %d already serves engine %d", proposal.home_index, engine_ids_[proposal.home_index]));
  }
  if (absl::Status status = home.CheckShape(*shape); !status.ok()) return status;
  if (options_.model_shape.has_value()) {
    const std::string difference = DescribeModelDifference(*options_.model_shape, *shape);
    if (!difference.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("another model: at the worker (here) and the engine (there), ", difference));
    }
  }
  return CheckLinkCarries(*shape, proposal.size);
}

absl::Status Worker::Serve(PendingLink* pending, const RPartShape& shape) {
  const uint32_t index = pending->proposal().home_index;
  const uint64_t engine_id = pending->proposal().peer.engine_id;
  FreeHome(index);
  Home& home = *homes_[index];
  const HomeDescription description = home.Describe(shape);
  LinkAcceptance acceptance;
  acceptance.homes = static_cast<uint32_t>(homes_.size());
  acceptance.answer.assign(reinterpret_cast<const char*>(&description), sizeof(description));
  absl::StatusOr<std::unique_ptr<HomeLink>> link = pending->Accept(acceptance, home.options().node);
  if (!link.ok()) return link.status();
  if (absl::Status status = home.Attach(shape, *std::move(link)); !status.ok()) return status;
  engine_ids_[index] = engine_id;
  monitor_.Add(home.link());
  return absl::OkStatus();
}

void Worker::FreeEndedHomes() {
  for (size_t i = 0; i < homes_.size(); ++i) {
    if (!homes_[i]->serving()) FreeHome(i);
  }
}

void Worker::FreeHome(size_t index) {
  Home& home = *homes_[index];
  if (home.link() == nullptr) return;
  monitor_.Remove(home.link());
  const std::string cause = home.Detach();
  Log(LogLevel::kInfo, absl::StrFormat("%s is free: engine %d: %s", home.options().name, engine_ids_[index], cause));
}

void Worker::Log(LogLevel level, const std::string& message) {
  if (options_.logger != nullptr) options_.logger->Log(level, message);
}

}  // namespace fastdecode
