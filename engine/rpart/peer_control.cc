#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "engine/rpart/peer_session.h"
#include "engine/rpart/random_kv.h"
#include "numa/clock.h"

// What a peer says over the control channel, applied by the leader.

namespace fastdecode {

namespace {

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

void PeerSession::ApplyControl(std::span<const std::byte> message) {
  const absl::Status status = Apply(message);
  // The engine's and our view of the sequences have parted: nothing after this can be right.
  if (!status.ok()) link_->MarkLost(std::string(status.message()).c_str());
  served_->empty_since_ticks = 0;
}

absl::Status PeerSession::Apply(std::span<const std::byte> message) {
  uint32_t kind = 0;
  if (message.size() < sizeof(kind)) return WrongSize("control", message.size(), sizeof(kind));
  std::memcpy(&kind, message.data(), sizeof(kind));
  const ControlKind control = static_cast<ControlKind>(kind);
  if (control != ControlKind::kIdle) {
    idle_ = false;
    stats_changed_ = true;
  }
  switch (control) {
    case ControlKind::kRoster:
      return ApplyRoster(message);
    case ControlKind::kRelease:
    case ControlKind::kTruncate:
    case ControlKind::kFill:
    case ControlKind::kReserve:
      return ApplySequence(control, message);
    case ControlKind::kFork: {
      ForkMessage body;
      if (!Read(message, &body)) return WrongSize("fork", message.size(), sizeof(body));
      return table_.Fork(body.sequence, body.tokens, body.new_sequence);
    }
    case ControlKind::kIdle: {
      IdleMessage body;
      if (!Read(message, &body)) return WrongSize("idle", message.size(), sizeof(body));
      idle_ = waiting_count_ == 0;
      SendStats(/*idle=*/1);
      return absl::OkStatus();
    }
    case ControlKind::kHandOver: {
      HandOverMessage body;
      if (!Read(message, &body)) return WrongSize("hand-over", message.size(), sizeof(body));
      return HandOver(body);
    }
    case ControlKind::kLeft: {
      LeftMessage body;
      if (!Read(message, &body)) return WrongSize("left", message.size(), sizeof(body));
      return OnEngineLeft();
    }
    case ControlKind::kStats:
    case ControlKind::kDraining:
    case ControlKind::kHandOverAnswer:
    case ControlKind::kHandedOver:
      break;  // go the other way only
  }
  return absl::InvalidArgumentError(absl::StrFormat("control message of unknown kind %d", kind));
}

absl::Status PeerSession::ApplySequence(ControlKind kind, std::span<const std::byte> message) {
  SequenceMessage body;
  if (!Read(message, &body)) return WrongSize("sequence", message.size(), sizeof(body));
  if (kind == ControlKind::kTruncate) return table_.Truncate(body.sequence, body.tokens);
  if (kind == ControlKind::kFill) return Fill(body.sequence, body.tokens);
  if (kind == ControlKind::kReserve) return Reserve(body.sequence, body.tokens);
  table_.Release(body.sequence);
  return absl::OkStatus();
}

absl::Status PeerSession::ApplyRoster(std::span<const std::byte> message) {
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
                                                          header.micro_batch, entry.sequence, table_.sequences_max()));
    }
  }
  return absl::OkStatus();
}

// An empty sequence with pages for so many tokens. `what` names the message.
absl::StatusOr<KvSequence*> PeerSession::BeginSequence(const char* what, uint64_t id, uint32_t tokens) {
  if (tokens == 0 || tokens > shape_.max_context) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: sequence %d with %d tokens, allowed is 1 to %d", what, id, tokens, shape_.max_context));
  }
  KvSequence* const sequence = table_.FindOrCreate(id);
  if (sequence == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: sequence %d is one more than %d", what, id, table_.sequences_max()));
  }
  if (sequence->StoredTokensMax() > 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: sequence %d has tokens already", what, id));
  }
  if (table_.Grow(sequence, 0, tokens) == GrowOutcome::kNoPage) {
    return absl::ResourceExhaustedError(absl::StrFormat("%s: %d tokens of sequence %d need more than the %d free pages",
                                                        what, tokens, id, account_.free()));
  }
  return sequence;
}

// For measuring: a sequence of random tokens, without the prefill that would make one.
absl::Status PeerSession::Fill(uint64_t id, uint32_t tokens) {
  const absl::StatusOr<KvSequence*> begun = BeginSequence("fill", id, tokens);
  if (!begun.ok()) return begun.status();
  KvSequence* const sequence = *begun;
  RandomKv random(work_.attention, work_.kernels, work_.pool);
  // Page by page, so that progress shows that we are alive.
  for (uint32_t page = 0; page * kPageTokens < tokens; ++page) {
    random.FillPage(served_->team, *sequence, page, tokens);
    served_->AddProgress(1);
  }
  sequence->stored_tokens.assign(shape_.layers, tokens);
  return absl::OkStatus();
}

// Its segments may have come already, and wait for this.
absl::Status PeerSession::Reserve(uint64_t id, uint32_t tokens) {
  if (link_->size().bulk_segments == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("reserve: sequence %d, but the link has no bulk channel", id));
  }
  const absl::StatusOr<KvSequence*> begun = BeginSequence("reserve", id, tokens);
  if (begun.ok()) (*begun)->reservation = ++reservations_;
  return begun.status();
}

absl::Status PeerSession::HandOver(const HandOverMessage& message) {
  HandOverAnswer answer;
  answer.sequence = message.sequence;
  answer.outcome = TryHandOver(message);
  if (link_->TrySendControl(&answer, sizeof(answer))) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("hand-over of sequence %d: the engine does not read its answers", message.sequence));
}

// Changes nothing unless it is done. The receiver's messages are ours to apply, so that it is told first and cannot be
// faster than the rest.
HandOverOutcome PeerSession::TryHandOver(const HandOverMessage& message) {
  const KvSequence* const sequence = table_.Find(message.sequence);
  if (sequence == nullptr) return HandOverOutcome::kNoSequence;
  const uint32_t tokens = sequence->StoredTokensMax();
  if (sequence->StoredTokensMin() != tokens) return HandOverOutcome::kMidStep;
  PeerSession* const to = served_->Find({message.engine_id, message.role});
  if (to == nullptr || to == this || to->link_->lost()) return HandOverOutcome::kNoPeer;
  SequenceTable& table = to->table_;
  if (tokens > table.max_context()) return HandOverOutcome::kTooLong;
  if (table.Find(message.new_sequence) != nullptr) return HandOverOutcome::kIdTaken;
  if (table.size() >= table.sequences_max()) return HandOverOutcome::kBusy;
  const uint32_t missing = to->account_.CountMissing(sequence->pages) + sequence->pieces;
  if (missing > to->account_.free()) return HandOverOutcome::kNoPages;
  HandedOverMessage told;
  told.tokens = tokens;
  told.sequence = message.new_sequence;
  if (!to->link_->TrySendControl(&told, sizeof(told))) {
    // Any thread may have lost the link since it was asked above.
    return to->link_->lost() ? HandOverOutcome::kNoPeer : HandOverOutcome::kBusy;
  }
  table_.MoveTo(&table, message.sequence, message.new_sequence);
  return HandOverOutcome::kDone;
}

// Where there is no room it is tried again in the next turn.
void PeerSession::SayDraining() {
  const DrainingMessage draining;
  draining_said_ = link_->TrySendControl(&draining, sizeof(draining));
}

absl::Status PeerSession::OnEngineLeft() {
  if (!draining_said_) return absl::InvalidArgumentError("left: the home does not drain");
  if (table_.size() > 0) {
    return absl::InvalidArgumentError(absl::StrFormat("left: of the engine's sequences %d are here", table_.size()));
  }
  link_->MarkLost("the home drains, and the engine has left it");
  return absl::OkStatus();
}

// Dropped if there is no room, never waited for: it is said again when something has changed.
void PeerSession::SendStats(uint32_t idle) {
  stats_changed_ = false;
  stats_sent_ticks_ = NowTicks();
  stats_.idle = idle;
  stats_.sequences = table_.size();
  stats_.pages_total = account_.granted();
  stats_.pages_free = account_.free();
  stats_.pages_held = account_.pool().held();
  link_->TrySendControl(&stats_, sizeof(stats_));
}

}  // namespace fastdecode
