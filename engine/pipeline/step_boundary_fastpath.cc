// FAST PATH (docs/FAST_PATH.md)
// The step boundary: what happens between two steps of a micro-batch. Sequences leave and join, rows are composed,
// rosters go out. Never waits for the desk.
#include <algorithm>
#include <cstring>

#include "engine/pipeline/pipeline.h"

namespace fastdecode {

namespace {

// Who ended a sequence that is marked as cancelled.
LeaveKind HowCancelled(const Sequence& sequence) {
  return sequence.stopped.load(std::memory_order_relaxed) ? kLeaveStopped : kLeaveCancelled;
}

}  // namespace

// Room for everything that all micro-batches can say until their next boundary: a token and an end per member and per
// follower; and before that, once per sequence, the end or the pause of one that leaves at this boundary, or the ends
// of a sweep. Without it no new step starts.
size_t Pipeline::EventRoomFor(size_t followers) const {
  return 3 * size_t{options_.limits.active()} + 2 * followers + kMaxHomes;
}

bool Pipeline::EventsHaveRoom() const {
  return events_.capacity() - events_.SizeApprox() >= EventRoomFor(batcher_.following_count());
}

// Whether no home is far behind with its control messages. One to which prompts are pushed may have no rows in a step
// that joins and drops sequences of its, which then does not wait for it; and over a fabric it gives room back only
// between its hops.
bool Pipeline::HomesKeepUp() {
  const size_t most = 2 * size_t{options_.limits.active()};
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (port.alive && port.pending.size() > most && !FlushPending(port) && port.pending.size() > most) return false;
  }
  return true;
}

// Composes the next step. False: nobody has a row, or the desk is behind with the events, or a home with its
// control messages.
bool Pipeline::BeginStep(int m) {
  MicroBatch& batch = batches_[m];
  if (!EventsHaveRoom()) {
    if (batch.held_since_ns == 0) batch.held_since_ns = Now();
    batch.no_rows = false;
    return false;
  }
  if (!HomesKeepUp()) {
    batch.held_since_ns = 0;
    batch.no_rows = false;
    return false;
  }
  // A micro-batch that looks in vain turn after turn does not read the clock in each of them.
  uint64_t start_ns = record_.on() || !batch.no_rows ? Now() : 0;
  const uint64_t preemptions = batcher_.preemptions();
  batcher_.DropLeavers(m, &changes_);
  ApplyChanges(m, &start_ns);
  SettlePushed(m);
  batcher_.Rearrange(m, &changes_);
  batcher_.TakeIn(m, &changes_, recent_ns_);
  ApplyChanges(m, &start_ns);
  // What is not posted yet lies where the next chunks' rows would.
  const uint32_t rows = batcher_.ComposeRows(m, &changes_, /*hold_pushes=*/!batch.pushes.empty());
  ApplyChanges(m, &start_ns);
#ifndef NDEBUG
  batcher_.CheckInvariants();
#endif
  statistics_.preemptions.Add(batcher_.preemptions() - preemptions);
  if (rows == 0) {
    batcher_.costs().NoteIdle(m);
    batch.finished_ns = 0;
    batch.no_rows = true;
    batch.held_since_ns = 0;
    return false;
  }
  batch.table.step = ++batch.step;
  FillTable(m);
  batch.step_start_ns = Now();
  statistics_.rows.Add(rows);
  if (start_ns == 0) start_ns = batch.step_start_ns;
  batch.timer.Begin(start_ns);
  if (record_.on()) RecordBegin(m, start_ns);
  ++in_steps_;
  batch.no_rows = parked_ = false;
  batch.held_since_ns = 0;
  return true;
}

// Tells homes, record and desk of what the batcher has changed. *start_ns: the boundary's time, 0: not read yet.
void Pipeline::ApplyChanges(int m, uint64_t* start_ns) {
  for (const BoundaryChange& change : changes_) {
    Sequence* const sequence = change.sequence;
    switch (change.kind) {
      case BoundaryChange::Kind::kLeft:
        ReleaseSeats(m, change);
        NoteLeft(m, change);
        break;
      case BoundaryChange::Kind::kJoined:
        NoteJoined(m, change, start_ns);
        break;
      case BoundaryChange::Kind::kSettled:
        if (change.seat.told) TellHome(ControlKind::kRelease, change.seat, 0);
        break;
      case BoundaryChange::Kind::kCut:
        TellCut(change.seat, change.kept_tokens);
        break;
      case BoundaryChange::Kind::kMoved: {
        const int to = sequence->micro_batch;
        ++sequence->times.moves;
        if (record_.on()) record_.Move({m, batches_[m].step}, {to, batches_[to].step + 1}, *sequence, Now());
        break;
      }
    }
  }
  changes_.Clear();
}

// The homes that know a sequence which has left return its pages.
void Pipeline::ReleaseSeats(int m, const BoundaryChange& change) {
  if (change.seat.told) TellCut(change.seat, change.kept_tokens);
  if (change.push_seat.home < 0) return;
  DropPushes(m, *change.sequence);
  if (change.push_seat.told) TellHome(ControlKind::kRelease, change.push_seat, 0);
}

// The same for changes outside of a boundary, in which at most one sequence has left.
void Pipeline::TellOfPages(int m) {
  for (const BoundaryChange& change : changes_) {
    if (change.kind == BoundaryChange::Kind::kCut) TellCut(change.seat, change.kept_tokens);
    if (change.kind == BoundaryChange::Kind::kLeft) ReleaseSeats(m, change);
  }
  changes_.Clear();
}

void Pipeline::NoteLeft(int m, const BoundaryChange& change) {
  Sequence* const sequence = change.sequence;
  const StepRecorder::Where where = {m, batches_[m].step};
  if (change.reason == LeaveReason::kHomeLost) return NoteHomeLost(where, change);
  if (change.reason == LeaveReason::kPreempted) {
    ++sequence->times.preemptions;
    ready_unchecked_ |= batcher_.HomesMissing();  // it may have been at a home that takes it no more
    sequence->preempted_ns = Now();
    if (record_.on()) record_.Leave(where, *sequence, change.seat.home, kLeavePreempted, sequence->preempted_ns);
    return;
  }
  // Acquire: pairs with the desk's release; whether it was a stop string is seen.
  const bool cancelled = sequence->cancelled.load(std::memory_order_acquire);
  if (record_.on()) {
    record_.Leave(where, *sequence, change.seat.home, cancelled ? HowCancelled(*sequence) : kLeaveFailed, Now());
  }
  EndSequence(sequence, cancelled ? FinishReason::kCancelled : sequence->fail_reason,
              cancelled ? -1 : sequence->fail_home);
}

// Its home was lost, or the one that its prompt was pushed to.
void Pipeline::NoteHomeLost(StepRecorder::Where where, const BoundaryChange& change) {
  Sequence* const sequence = change.sequence;
  const int home = homes_[change.seat.home].alive ? change.push_seat.home : change.seat.home;
  ++sequence->times.recoveries;
  statistics_.recoveries.Add(1);
  ready_unchecked_ = true;
  sequence->preempted_ns = Now();
  if (record_.on()) record_.LeaveLost(where, *sequence, home, sequence->LastLossNs(), sequence->preempted_ns);
  if (!sequence->tells_pauses) return;
  PipelineEvent event;
  event.kind = PipelineEvent::Kind::kPaused;
  event.home = static_cast<int16_t>(home);
  event.sequence = sequence;
  event.time_ns = sequence->LastLossNs();
  Say(event);
}

// All that was stored when its home was lost is stored again.
void Pipeline::NoteRecovered(Sequence* sequence, uint64_t now_ns) {
  Recovery& recovery = sequence->recovery;
  sequence->times.recovery_ns += now_ns - recovery.lost_ns;
  sequence->times_so_far.Store(sequence->times);
  statistics_.recovered.Add(1);
  statistics_.recovery_ns.Add(now_ns - recovery.lost_ns);
  statistics_.recovery_queue_ns.Add(recovery.joined_ns - recovery.lost_ns);
  recovery.lost_ns = 0;
}

void Pipeline::NoteJoined(int m, const BoundaryChange& change, uint64_t* start_ns) {
  Sequence* const sequence = change.sequence;
  if (*start_ns == 0) *start_ns = Now();
  NoteHit(change);
  sequence->times.queue_ns += *start_ns - sequence->timed_until_ns;
  sequence->timed_until_ns = *start_ns;
  sequence->times_so_far.Store(sequence->times);
  if (sequence->recovery.lost_ns != 0) sequence->recovery.joined_ns = *start_ns;
  if (record_.on()) record_.Join({m, batches_[m].step + 1}, *sequence, Now());
  if (sequence->is_pushed()) Reserve(sequence);
  if (sequence->fill_tokens == 0) return;
  TellHome(ControlKind::kFill, sequence->seat, sequence->fill_tokens);
  sequence->seat.told = true;
}

// A sequence that has joined begins with what was found of it, which counts when it comes to its first home.
void Pipeline::NoteHit(const BoundaryChange& change) {
  Sequence& sequence = *change.sequence;
  const PrefixHit& hit = change.hit;
  if (hit.tokens > 0) TellFork(hit.source_number, sequence.seat, hit.tokens);
  if (!batcher_.cache().on() || !sequence.prefix.enabled()) return;
  const bool is_first = sequence.length == sequence.prompt_tokens && sequence.preempted_ns == 0;
  if (!is_first) return;
  sequence.times.cached_tokens = hit.tokens;
  statistics_.prefix_tokens.Add(sequence.prompt_tokens);
  statistics_.home_cached_tokens[sequence.seat.home].Add(hit.tokens);
}

bool Pipeline::NobodyHadRows() const {
  for (const MicroBatch& batch : batches_) {
    if (!batch.no_rows) return false;
  }
  return true;
}

// What was before the step, and what it is made of.
void Pipeline::RecordBegin(int m, uint64_t start_ns) {
  const MicroBatch& batch = batches_[m];
  const StepRecorder::Where where = {m, batch.step};
  if (batch.held_since_ns != 0) record_.Held(where, batch.held_since_ns, start_ns);
  if (in_steps_ == 0 && NobodyHadRows() && quiet_since_ns_ != 0) record_.Idle(quiet_since_ns_, start_ns, parked_);
  record_.Compose(where, start_ns, batch.step_start_ns, static_cast<uint32_t>(batch.table.rows),
                  batcher_.Members(m).size());
  const uint64_t page_bytes = PageBytes(options_.shape.attention());
  for (int h = 0; h < home_limit_; ++h) {
    if (batch.home_rows[h] == 0) continue;
    const uint64_t tokens = batch.home_tokens[h];
    record_.Share(where, batch.step_start_ns, h, batch.home_rows[h], tokens, tokens * page_bytes / kPageTokens);
  }
}

// Where the logits of a prompt's position are wanted; null: they are not, or not any more. They are complete before the
// first token, and from then on a caller may be told that its request has ended: whoever is computed again after a
// preemption must leave them alone.
float* Pipeline::PromptLogitsAt(const Sequence& sequence, uint32_t position) const {
  const bool complete = sequence.length > sequence.prompt_tokens;
  if (sequence.prompt_logits == nullptr || complete || position >= sequence.prompt_tokens) return nullptr;
  return sequence.prompt_logits + static_cast<size_t>(position) * options_.vocab;
}

// Whether the row at a position is to say how likely the prompt's next token is. Complete before the first token, as
// the logits are, and left alone from then on.
bool Pipeline::WantsLogprobBehind(const Sequence& sequence, uint32_t position) {
  const bool complete = sequence.length > sequence.prompt_tokens;
  return !sequence.sampling.prompt_ids.empty() && !complete && position + 1 < sequence.prompt_tokens;
}

void Pipeline::FillTable(int m) {
  MicroBatch& batch = batches_[m];
  StepTable& table = batch.table;
  batch.home_rows.fill(0);
  batch.home_tokens.fill(0);
  batch.load = {};
  batch.home_work_ns.fill(0);
  batch.stages_busy_ns = batch.attend_ns = batch.hop_overhead_ns = batch.hop_bound_ns = 0;
  batch.has_chunks = false;
  batch.whole = true;
  batch.sampled.Clear();
  table.rows = 0;
  table.logit_rows = 0;
  uint32_t push_rows = 0;
  uint64_t attended_tokens = 0, hopped_tokens = 0;
  for (Sequence* sequence : batcher_.Members(m)) {
    const bool pushed = sequence->is_pushed();
    if (pushed && sequence->rows > 0) {
      batch.pushes.Append({sequence, push_rows, sequence->rows, sequence->computed});
      ++sequence->push.chunks_open;
    }
    for (uint32_t i = 0; i < sequence->rows; ++i) {
      const uint32_t position = sequence->computed + i;
      const int row = table.rows++;
      table.tokens[row] = sequence->log.tokens[position];
      table.positions[row] = static_cast<int32_t>(position);
      table.homes[row] = static_cast<uint16_t>(sequence->seat.home);
      table.home_rows[row] = batch.home_rows[sequence->seat.home]++;
      table.push_rows[row] = pushed ? push_rows++ : StepTable::kNoPushRow;
      const bool last = position + 1 == sequence->length;
      if (last || PromptLogitsAt(*sequence, position) != nullptr || WantsLogprobBehind(*sequence, position)) {
        AddLogitRow(batch, sequence, static_cast<uint32_t>(row), position);
      }
      if (!last) continue;
      for (Sequence* f = sequence->next_follower; f != nullptr; f = f->next_follower) {
        AddLogitRow(batch, f, static_cast<uint32_t>(row), position);
      }
    }
    if (sequence->rows == 0) continue;
    const uint64_t tokens = sequence->computed + sequence->rows;
    attended_tokens += tokens;
    if (!homes_[sequence->seat.home].attends_in_stage) hopped_tokens += tokens;
    batch.home_tokens[sequence->seat.home] += tokens;
    HomeLoad& load = batch.load.homes[static_cast<size_t>(sequence->seat.home)];
    ++load.sequences;
    load.tokens += static_cast<double>(tokens);
    if (sequence->rows == 1) continue;
    batch.has_chunks = true;
    load.pairs += sequence->rows * (sequence->computed + (sequence->rows + 1) / 2.0);
  }
  batch.load.rows = table.rows;
  if (push_rows > 0) {
    batch.push_step = batch.step;
    batch.push_layers = 0;
  }
  const uint64_t page_bytes = options_.shape.layers * PageBytes(options_.shape.attention());
  statistics_.kv_bytes_attended.Add(attended_tokens * page_bytes / kPageTokens);
  statistics_.kv_bytes_hopped.Add(hopped_tokens * page_bytes / kPageTokens);
}

void Pipeline::AddLogitRow(MicroBatch& batch, Sequence* sequence, uint32_t row, uint32_t position) {
  LogitRow& logit = batch.table.logits[batch.table.logit_rows++];
  const bool in_prompt = WantsLogprobBehind(*sequence, position);
  logit.row = row;
  logit.sample = in_prompt || position + 1 == sequence->length;
  logit.logits_out = PromptLogitsAt(*sequence, position);
  batch.sampled.Append(logit.sample ? sequence : nullptr);
  if (!logit.sample) return;
  SampleArgs& args = logit.args;
  args = SampleArgs{};
  args.vocab = options_.vocab;
  args.position = position + 1;
  if (in_prompt) {  // nothing else may be drawn
    args.params = &sequence->sampling.prompt_params;
    args.allowed = {&sequence->sampling.prompt_ids[position + 1], 1};
    const auto top = static_cast<size_t>(args.params->logprobs);
    if (top > 0) args.top_logprobs = sequence->log.prompt_top_logprobs.data() + (position + 1) * top;
    return;
  }
  const uint32_t generated = sequence->length - sequence->prompt_tokens;
  args.params = &sequence->sampling.params;
  args.bias = sequence->sampling.bias;
  if (sequence->sampling.history.output_counts != nullptr) args.history = &sequence->sampling.history;
  if (generated < sequence->sampling.min_tokens) args.banned = sequence->sampling.stop_tokens;
  if (sequence->sampling.params.logprobs > 0) {
    args.top_logprobs =
        sequence->log.top_logprobs.data() + static_cast<size_t>(generated) * sequence->sampling.params.logprobs;
  }
}

// False: some message did not fit; the micro-batch stays where it is and the others go on.
bool Pipeline::SendRosters(int m) {
  MicroBatch& batch = batches_[m];
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (!port.alive || batch.home_rows[h] == 0) continue;
    if (!FlushPending(port)) return false;
    if (batcher_.RosterChanged(m, h) && !SendRoster(m, h)) return false;
    WakeHome(port);
  }
  return true;
}

// Behind the first message of a busy period and no later: a home that sleeps gives no room back, so that what comes
// behind could fill the link before the ring.
void Pipeline::WakeHome(HomePort& port) {
  if (!port.idle_said) return;
  port.idle_said = false;
  port.link->RingHome();
}

bool Pipeline::SendRoster(int m, int home) {
  HomePort& port = homes_[home];
  RosterMessage message;
  message.micro_batch = static_cast<uint32_t>(m);
  message.version = port.roster_version[m] + 1;
  std::byte* out = roster_buffer_.data() + sizeof(message);
  for (const Sequence* sequence : batcher_.MembersAt(m, home)) {
    if (sequence->rows == 0) continue;
    const RosterEntry entry{sequence->seat.number, batches_[m].step, sequence->computed, sequence->rows,
                            sequence->prompt_tokens};
    std::memcpy(out, &entry, sizeof(entry));
    out += sizeof(entry);
    ++message.entries;
  }
  std::memcpy(roster_buffer_.data(), &message, sizeof(message));
  if (!port.link->TrySendControl(roster_buffer_.data(), static_cast<size_t>(out - roster_buffer_.data()))) return false;
  ++port.roster_version[m];
  batcher_.RosterSent(m, home);
  for (Sequence* sequence : batcher_.MembersAt(m, home)) sequence->seat.told |= sequence->rows > 0;
  return true;
}

// The home that its prompt is pushed to awaits it.
void Pipeline::Reserve(Sequence* sequence) {
  sequence->push.seat.told = true;
  sequence->push.reservation = ++homes_[sequence->push.seat.home].reservations;
  sequence->push.chunks_open = 0;
  sequence->push.last_segment = 0;
  TellHome(ControlKind::kReserve, sequence->push.seat, sequence->length);
}

void Pipeline::TellHome(ControlKind kind, const Seat& seat, uint32_t tokens) {
  HomePort& port = homes_[seat.home];
  if (!port.alive) return;
  SequenceMessage message;
  message.kind = static_cast<uint32_t>(kind);
  message.tokens = tokens;
  message.sequence = seat.number;
  port.pending.Append(PendingMessage(message));
}

// The first tokens of a sequence stay, or none do.
void Pipeline::TellCut(const Seat& seat, uint32_t tokens) {
  TellHome(tokens > 0 ? ControlKind::kTruncate : ControlKind::kRelease, seat, tokens);
}

// A sequence begins with the first tokens of the one that its home knows by `number`.
void Pipeline::TellFork(uint64_t number, const Seat& fork, uint32_t tokens) {
  HomePort& port = homes_[fork.home];
  if (!port.alive) return;
  ForkMessage message;
  message.tokens = tokens;
  message.sequence = number;
  message.new_sequence = fork.number;
  port.pending.Append(PendingMessage(message));
}

bool Pipeline::FlushPending(HomePort& port) {
  size_t sent = 0;
  while (sent < port.pending.size() && port.link->TrySendControl(&port.pending[sent], port.pending[sent].bytes())) {
    ++sent;
    WakeHome(port);
  }
  port.pending.EraseFront(sent);
  return port.pending.empty();
}

void Pipeline::EndWaiting(Sequence* sequence, FinishReason reason) {
  const uint64_t now_ns = Now();
  sequence->times.queue_ns += now_ns - sequence->timed_until_ns;
  sequence->timed_until_ns = now_ns;
  const LeaveKind how = reason == FinishReason::kCancelled ? HowCancelled(*sequence) : kLeaveFailed;
  if (record_.on()) record_.Leave({}, *sequence, -1, how, now_ns);
  EndSequence(sequence, reason, -1);
}

// Waiting sequences that were cancelled, or that no living home could hold for too long, end here. There may be
// thousands, so they are only looked at when something happened that may end one; and more may end than there is room
// for events: the rest stays for the next sweep.
void Pipeline::SweepReady(uint64_t now_ns) {
  if (batcher_.ready_count() == 0 || !EventsHaveRoom()) return;
  // Acquire: pairs with NoteCancel's release; the flags set before it are seen.
  const uint64_t cancels = cancels_.load(std::memory_order_acquire);
  if (cancels != cancels_seen_ || ready_unchecked_ || stop_.load(std::memory_order_relaxed)) {
    batcher_.EndReadyIf(
        [this](Sequence* s) { return s->cancelled.load(std::memory_order_acquire) && EventsHaveRoom(); },
        [this](Sequence* s) { EndWaiting(s, FinishReason::kCancelled); });
    if (!EventsHaveRoom()) return;
    cancels_seen_ = cancels;
  }
  if (!ready_unchecked_ && now_ns < look_again_ns_) return;
  look_again_ns_ = UINT64_MAX;
  batcher_.EndReadyIf([this, now_ns](Sequence* s) { return MustEnd(s, now_ns) && EventsHaveRoom(); },
                      [this](Sequence* s) { EndWaiting(s, FinishReason::kNoHome); });
  ready_unchecked_ = !EventsHaveRoom();
}

// Whether no living home could hold it, even empty, for as long as it may wait for a lost one to come back.
bool Pipeline::MustEnd(Sequence* waiting, uint64_t now_ns) {
  if (batcher_.FitsSomewhere(*waiting)) {
    waiting->no_home_since_ns = 0;
    return false;
  }
  if (!batcher_.HomesMissing()) return true;
  if (waiting->no_home_since_ns == 0) waiting->no_home_since_ns = now_ns;
  const uint64_t end_ns = waiting->no_home_since_ns + options_.recover_ns;
  if (now_ns >= end_ns) return true;
  look_again_ns_ = std::min(look_again_ns_, end_ns);
  return false;
}

}  // namespace fastdecode
