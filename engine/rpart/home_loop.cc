#include "engine/rpart/home_loop.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/rpart/random_kv.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

// A parked leader looks around this often even if nobody rings.
constexpr uint64_t kSleepNsMax = 1'000'000'000;

PlanLimits LimitsOf(const HomeLoopOptions& options, const RPartShape& shape) {
  const int threads = static_cast<int>(options.cores.size());
  return {shape.max_rows, threads, PartialWorkspaceFloats(shape.attention(), threads, shape.max_context)};
}

// False unless the message is a whole T.
template <class T>
bool Read(std::span<const std::byte> message, T* out) {
  if (message.size() != sizeof(T)) return false;
  std::memcpy(out, message.data(), sizeof(T));
  return true;
}

absl::Status WrongSize(const char* what, size_t bytes, size_t expected) {
  return absl::InvalidArgumentError(absl::StrFormat("%s message: %d bytes, not %d", what, bytes, expected));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HomeLoop>> HomeLoop::Create(const HomeLoopOptions& options, const RPartShape& shape,
                                                           std::unique_ptr<HomeLink> link) {
  const PlanLimits limits = LimitsOf(options, shape);
  absl::StatusOr<TeamWorkspace> workspace =
      TeamWorkspace::Create(shape.attention(), options.cores.size(), options.node, limits.partial_floats);
  if (!workspace.ok()) return workspace.status();
  return std::unique_ptr<HomeLoop>(new HomeLoop(options, shape, std::move(link), *std::move(workspace)));
}

HomeLoop::HomeLoop(const HomeLoopOptions& options, const RPartShape& shape, std::unique_ptr<HomeLink> link,
                   TeamWorkspace workspace)
    : options_(options),
      shape_(shape),
      link_(std::move(link)),
      workspace_(std::move(workspace)),
      pool_(shape.attention(), static_cast<int>(shape.layers), options.kv_memory),
      table_(&pool_, static_cast<int>(shape.layers), shape.max_context, options.sequences_max),
      waiting_(shape.micro_batches),
      control_buffer_(kControlMessageBytesMax) {
  for (uint32_t i = 0; i < shape.micro_batches; ++i) {
    micro_batches_.push_back(std::make_unique<MicroBatch>(i, shape, LimitsOf(options, shape)));
  }
  work_.shape = shape;
  work_.attention = shape.attention();
  work_.kernels = SelectAttention(options.isa, shape.attention());
  work_.pool = &pool_;
  work_.workspace = &workspace_;
  work_.link = link_.get();
}

std::string HomeLoop::Serve() {
  SetFlushDenormals();
  team_ = std::make_unique<TicketTeam>(options_.name, options_.cores, options_.poll);
  work_.team = team_.get();
  if (options_.logger != nullptr && team_->unpinned_count() > 0) {
    options_.logger->Warning(absl::StrFormat("%s: %d of %d threads could not be pinned to their cores", options_.name,
                                             team_->unpinned_count(), team_->thread_count()));
  }
  PollBackoff backoff(options_.poll);
  for (Outcome outcome = Turn(); outcome != Outcome::kLost; outcome = Turn()) {
    if (outcome == Outcome::kWorked) {
      backoff.Reset();
    } else if (idle_ && options_.park) {
      Park();
    } else {
      backoff.Idle();
    }
  }
  team_.reset();
  table_.ReleaseAll();
  FD_CHECK(pool_.free() == pool_.total(), "a page leaked");
  return link_->lost_cause();
}

// Sleeps until the engine rings. The ring comes after the message that it is for, so whatever ends the sleep, the next
// turns find it; only they end the idle time.
void HomeLoop::Park() {
  team_->Park();
  link_->Arm();
  if (Turn() == Outcome::kNothing) {
    link_->Sleep(kSleepNsMax);
  } else {
    link_->Disarm();
  }
}

void HomeLoop::ApplyControl(std::span<const std::byte> message) {
  const absl::Status status = Apply(message);
  // The engine's and our view of the sequences have parted: nothing after this can be right.
  if (!status.ok()) link_->MarkLost(std::string(status.message()).c_str());
  empty_since_ticks_ = 0;
}

absl::Status HomeLoop::Apply(std::span<const std::byte> message) {
  uint32_t kind = 0;
  if (message.size() < sizeof(kind)) return WrongSize("control", message.size(), sizeof(kind));
  std::memcpy(&kind, message.data(), sizeof(kind));
  const ControlKind control = static_cast<ControlKind>(kind);
  if (control != ControlKind::kIdle && control != ControlKind::kStatsRequest) idle_ = false;
  switch (control) {
    case ControlKind::kRoster:
      return ApplyRoster(message);
    case ControlKind::kRelease:
    case ControlKind::kTruncate:
    case ControlKind::kFill: {
      SequenceMessage body;
      if (!Read(message, &body)) return WrongSize("sequence", message.size(), sizeof(body));
      if (control == ControlKind::kTruncate) return table_.Truncate(body.sequence, body.tokens);
      if (control == ControlKind::kFill) return Fill(body.sequence, body.tokens);
      table_.Release(body.sequence);
      return absl::OkStatus();
    }
    case ControlKind::kFork: {
      ForkMessage body;
      if (!Read(message, &body)) return WrongSize("fork", message.size(), sizeof(body));
      return table_.Fork(body.sequence, body.tokens, body.new_sequence);
    }
    case ControlKind::kIdle:
    case ControlKind::kStatsRequest: {
      IdleMessage body;
      if (!Read(message, &body)) return WrongSize("idle", message.size(), sizeof(body));
      if (control == ControlKind::kStatsRequest) SendStats();
      if (control == ControlKind::kIdle) idle_ = waiting_count_ == 0;
      return absl::OkStatus();
    }
    case ControlKind::kStats:
      break;  // goes the other way only
  }
  return absl::InvalidArgumentError(absl::StrFormat("control message of unknown kind %d", kind));
}

absl::Status HomeLoop::ApplyRoster(std::span<const std::byte> message) {
  RosterMessage header;
  if (message.size() < sizeof(header)) return WrongSize("roster", message.size(), sizeof(header));
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.micro_batch >= micro_batches_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("roster: micro_batch %d, there are %d", header.micro_batch, micro_batches_.size()));
  }
  Roster& roster = micro_batches_[header.micro_batch]->roster();
  if (const absl::Status status = roster.Replace(message); !status.ok()) return status;
  // Sequences are made here and not by the hop, which must not allocate.
  for (const RosterEntry& entry : roster.entries()) {
    if (table_.FindOrCreate(entry.sequence) == nullptr) {
      return absl::ResourceExhaustedError(absl::StrFormat("roster of micro-batch %d: sequence %d is one more than %d",
                                                          header.micro_batch, entry.sequence, options_.sequences_max));
    }
  }
  return absl::OkStatus();
}

// For measuring: a sequence of random tokens, without the prefill that would make one.
absl::Status HomeLoop::Fill(uint64_t id, uint32_t tokens) {
  if (tokens == 0 || tokens > shape_.max_context) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fill: sequence %d with %d tokens, allowed is 1 to %d", id, tokens, shape_.max_context));
  }
  KvSequence* const sequence = table_.FindOrCreate(id);
  if (sequence == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("fill: sequence %d is one more than %d", id, options_.sequences_max));
  }
  if (sequence->StoredTokensMax() > 0) {
    return absl::InvalidArgumentError(absl::StrFormat("fill: sequence %d has tokens already", id));
  }
  if (table_.Grow(sequence, 0, tokens) == GrowOutcome::kNoPage) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("fill: %d tokens of sequence %d need more than the %d free pages", tokens, id, pool_.free()));
  }
  RandomKv random(work_.attention, work_.kernels, &pool_);
  // Page by page, so that the link's progress shows that we are alive.
  for (uint32_t page = 0; page * kPageTokens < tokens; ++page) {
    random.FillPage(team_.get(), *sequence, page, std::min<uint32_t>(kPageTokens, tokens - page * kPageTokens));
    link_->AddProgress(1);
  }
  sequence->stored_tokens.assign(shape_.layers, tokens);
  return absl::OkStatus();
}

// Dropped if there is no room, never waited for.
void HomeLoop::SendStats() {
  stats_.sequences = table_.size();
  stats_.pages_total = pool_.total();
  stats_.pages_free = pool_.free();
  link_->TrySendControl(&stats_, sizeof(stats_));
}

}  // namespace fastdecode
