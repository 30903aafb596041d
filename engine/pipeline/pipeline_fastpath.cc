// FAST PATH (docs/FAST_PATH.md)
// The pipeline's turn: poll the homes, and move each micro-batch as far as it goes. Nothing here (nor in
// step_boundary_fastpath.cc) allocates, locks, logs or enters the kernel.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "engine/pipeline/pipeline.h"

namespace fastdecode {

namespace {
constexpr uint64_t kHousekeepingNs = 200'000;
constexpr int kCommandsPerTurnMax = 16;
constexpr int kMessagesPerTurnMax = 8;  // of a home, so that one that sends without end holds nothing up
}  // namespace

bool Pipeline::TurnOnce() {
  bool moved = DrainCommands();
  ListenToHomes();
  const int count = static_cast<int>(batches_.size());
  for (int i = 0; i < count; ++i) {
    const int m = (turn_ + i) % count;
    // Replies first: a stage takes long, and whatever came in meanwhile goes on before a new step begins.
    moved |= PollHomes();
    moved |= Advance(m);
  }
  moved |= PushSegment();
  turn_ = (turn_ + 1) % count;
  const uint64_t now_ns = Now();
  if (now_ns >= housekept_ns_ + kHousekeepingNs) Housekeep(now_ns);
  RingDesk();
  return moved;
}

// The only system call of a step, and only if the desk sleeps.
void Pipeline::RingDesk() {
  if (!events_since_ring_) return;
  events_since_ring_ = false;
  desk_parker_.RingAfterRelease();
}

// Whether there is a place for a sequence and its followers, and for all that may be said of them. While there is none,
// the commands behind it wait, too: until sequences end, or the next sweep.
bool Pipeline::HasPlaceFor(const Sequence& sequence) const {
  const uint32_t followers = CountFollowers(sequence);
  return batcher_.CanEnqueue(followers) && EventRoomFor(batcher_.following_count() + followers) <= events_.capacity();
}

bool Pipeline::DrainCommands() {
  int taken = 0;
  for (; taken < kCommandsPerTurnMax; ++taken) {
    if (!command_held_ && !commands_.TryPop(&command_)) break;
    const PipelineCommand& command = command_;
    command_held_ = command.kind == PipelineCommand::Kind::kAdd && !HasPlaceFor(*command.sequence);
    if (command_held_) break;
    switch (command.kind) {
      case PipelineCommand::Kind::kAdd:
        command.sequence->timed_until_ns = command.sequence->submit_ns;
        batcher_.Enqueue(command.sequence);
        ready_unchecked_ = true;
        break;
      case PipelineCommand::Kind::kAddHome:
        AddHome(command);
        break;
      case PipelineCommand::Kind::kRemoveHome:
        if (homes_[command.home].alive) homes_[command.home].link->MarkLost("removed");
        break;
      case PipelineCommand::Kind::kExpectHome:
        batcher_.ExpectHome(command.home, true);
        break;
      case PipelineCommand::Kind::kForgetHome:
        batcher_.ExpectHome(command.home, false);
        ready_unchecked_ = true;  // nobody need wait for it
        break;
    }
  }
  return taken > 0;
}

bool Pipeline::PollHomes() {
  bool moved = false;
  ReplyHeader reply;
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (!port.alive || port.attends_in_stage) continue;
    // At most one reply a slot can be waiting.
    for (size_t i = 0; i < batches_.size(); ++i) {
      const LinkPoll poll = port.link->PollReply(&reply);
      if (poll == LinkPoll::kEmpty) {
        port.polled_ns = recent_ns_;
        break;
      }
      moved = true;
      if (poll == LinkPoll::kLost) {
        LoseHome(h);
        break;
      }
      OnReply(h, reply);
      if (!port.alive) break;
    }
  }
  return moved;
}

// What homes say that no hop waits for.
void Pipeline::ListenToHomes() {
  for (int h = 0; h < home_limit_; ++h) {
    if (homes_[h].alive) Listen(h);
  }
}

void Pipeline::Listen(int home) {
  HomePort& port = homes_[home];
  for (int i = 0; i < kMessagesPerTurnMax; ++i) {
    size_t bytes = 0;
    const LinkPoll poll = port.link->PollControl(control_buffer_.data(), &bytes);
    if (poll == LinkPoll::kLost) LoseHome(home);
    if (poll != LinkPoll::kMessage) return;
    if (OnMessage(home, {control_buffer_.data(), bytes})) continue;
    port.link->MarkLost("a control message that makes no sense to an engine");
    LoseHome(home);
    return;
  }
}

// False: it makes no sense.
bool Pipeline::OnMessage(int home, std::span<const std::byte> message) {
  uint32_t kind = 0;
  if (message.size() < sizeof(kind)) return false;
  std::memcpy(&kind, message.data(), sizeof(kind));
  switch (static_cast<ControlKind>(kind)) {
    case ControlKind::kStats: {
      StatsMessage stats;
      if (message.size() != sizeof(stats)) return false;
      std::memcpy(&stats, message.data(), sizeof(stats));
      if (stats.pages_free > stats.pages_total || std::max(stats.pages_total, stats.pages_held) > UINT32_MAX) {
        return false;
      }
      const auto used = static_cast<uint32_t>(stats.pages_total - stats.pages_free);
      statistics_.home_pages[home].Store({used, static_cast<uint32_t>(stats.pages_held), Now()});
      return true;
    }
    case ControlKind::kHandedOver: {  // by another engine of the home, which this one has not agreed to
      HandedOverMessage given;
      if (message.size() != sizeof(given)) return false;
      std::memcpy(&given, message.data(), sizeof(given));
      SequenceMessage release;
      release.kind = static_cast<uint32_t>(ControlKind::kRelease);
      release.sequence = given.sequence;
      return homes_[home].link->TrySendControl(&release, sizeof(release));
    }
    case ControlKind::kDraining: {
      const bool sound = message.size() == sizeof(DrainingMessage) && !homes_[home].draining;
      homes_[home].draining = true;
      batcher_.CloseHome(home);
      ready_unchecked_ = true;
      return sound;
    }
    default:
      return false;
  }
}

void Pipeline::OnReply(int home, const ReplyHeader& reply) {
  HomePort& port = homes_[home];
  const int m = reply.micro_batch;
  if (m >= static_cast<int>(batches_.size()) || !port.open[m] || reply.step != batches_[m].step ||
      reply.layer != batches_[m].stage) {
    port.link->MarkLost("a reply that belongs to no open hop");
    LoseHome(home);
    return;
  }
  if (reply.status == HopStatus::kBadHop) {
    port.link->MarkLost("the home refused a hop: header and roster do not fit together");
    LoseHome(home);
    return;
  }
  MicroBatch& batch = batches_[m];
  const bool whole = reply.payload_bytes == batch.home_rows[home] * options_.shape.reply_row_bytes();
  if (!whole || (reply.status == HopStatus::kBadRow && !FailRow(m, home, reply.failing_row))) {
    port.link->MarkLost("a reply whose rows are not the hop's");
    LoseHome(home);
    return;
  }
  port.open[m] = false;
  --batch.homes_missing;
  const uint64_t now_ns = Now();
  port.progress_seen_ns = now_ns;  // what the home itself says of it comes with its heartbeats, over a fabric
  batch.timer.TakeReply(reply.work_ns, port.polled_ns, now_ns);
  statistics_.hop_ns.Add(now_ns - batch.hop_start_ns);
  statistics_.r_busy_ns[home].Add(reply.work_ns);
  batch.home_work_ns[home] += reply.work_ns;
  statistics_.home_hops[home].Add(1);
  const uint64_t hop_ns = now_ns - batch.hop_start_ns, overhead_ns = hop_ns - std::min(hop_ns, uint64_t{reply.work_ns});
  statistics_.hop_overhead_ns.Add(overhead_ns);
  // A reply that came while the S-Part attended itself lay there unseen.
  uint64_t& least_ns = reply.work_ns > batch.hop_attend_ns ? batch.hop_overhead_ns : batch.hop_bound_ns;
  if (least_ns == 0 || overhead_ns < least_ns) least_ns = overhead_ns;
  statistics_.home_last_reply_ns[home].store(now_ns, std::memory_order_relaxed);
  statistics_.home_work_ns[home].Add(reply.work_ns);
  if (!record_.on()) return;
  const uint64_t hop_bytes = batch.home_rows[home] * options_.shape.hop_row_bytes();
  record_.Hop(reply, home, port.posted_ns[m], now_ns, port.polled_ns, batch.home_rows[home],
              hop_bytes + reply.payload_bytes);
}

// Moves one micro-batch until it waits for something: replies, room for control messages, an asynchronous stage, or
// until its step is over, so that the other micro-batches come first before a new step begins.
bool Pipeline::Advance(int m) {
  MicroBatch& batch = batches_[m];
  bool moved = false;
  for (;;) {
    switch (batch.state) {
      case State::kBoundary:
        if (!BeginStep(m)) return moved;
        batch.state = State::kRosters;
        break;
      case State::kRosters:
        if (!SendRosters(m)) return moved;
        batch.stage = 0;
        StartStage(m);
        break;
      case State::kStage:
        if (!batch.s_part_failed) {
          const StageState state = stages_->PollStage(m);
          if (state == StageState::kRunning) return moved;
          if (state == StageState::kFailed) FailStep(m);
        }
        EndStage(m);
        if (batch.stage == options_.layers) {
          FinishStep(m);
          RingDesk();  // now: another micro-batch's stage may run in this turn
          return true;
        }
        PostHops(m);
        // With no hop to wait for, the next stage would run within StartStage, and others' replies would lie there.
        if (batch.homes_missing == 0 && in_steps_ > 1 && !stages_->asynchronous()) return true;
        break;
      case State::kHop:
        if (batch.homes_missing > 0) return moved;
        ++batch.stage;
        StartStage(m);
        break;
    }
    moved = true;
  }
}

void Pipeline::StartStage(int m) {
  MicroBatch& batch = batches_[m];
  batch.state = State::kStage;
  batch.stage_start_ns = Now();
  if (batch.stage == 0) {
    batch.timer.EndBoundary(batch.stage_start_ns);
  } else {
    batch.timer.EndHop(batch.stage_start_ns);
  }
  if (stages_open_++ == 0) s_busy_since_ns_ = batch.stage_start_ns;
  const bool record = record_.on();
  if (record && batch.stage == 0) record_.Rosters({m, batch.step}, batch.step_start_ns, batch.stage_start_ns);
  batch.trace.count = 0;
  batch.table.trace = record ? &batch.trace : nullptr;
  // Here and nowhere else, because the table must not change under a running stage.
  for (int h = 0; h < home_limit_; ++h) {
    if (!homes_[h].alive) batch.table.home_areas[h] = {};
  }
  if (!batch.s_part_failed) stages_->StartStage(m, batch.stage, batch.table);
}

// The S-Part has given the step up. Its sequences end with the step; until then the homes, which are in the middle of
// it, get hops of whatever lies in the send areas. Who sits it out goes on, and so do rows that an earlier step left to
// be pushed.
void Pipeline::FailStep(int m) {
  MicroBatch& batch = batches_[m];
  batch.s_part_failed = true;
  if (batch.push_step == batch.step) batch.pushes.Clear();
  for (Sequence* sequence : batcher_.Members(m)) {
    if (sequence->rows > 0) sequence->Fail(FinishReason::kSPartFailed, -1);
  }
}

// How long the S-Part has attended itself since it was last asked.
uint64_t Pipeline::TakeAttendTime(int m) {
  const uint64_t attend_ns = std::exchange(batches_[m].table.attend_ns, 0);
  batches_[m].attend_ns += attend_ns;
  statistics_.stage_attend_ns.Add(attend_ns);
  return attend_ns;
}

void Pipeline::EndStage(int m) {
  MicroBatch& batch = batches_[m];
  batch.stage_end_ns = Now();
  batch.timer.EndStage(batch.stage_end_ns, /*last=*/batch.stage == options_.layers);
  const uint64_t busy_ns = batch.stage_end_ns - s_busy_since_ns_;
  statistics_.s_busy_ns.Add(busy_ns);
  s_busy_since_ns_ = batch.stage_end_ns;
  --stages_open_;
  statistics_.stage_ns.Add(batch.stage_end_ns - batch.stage_start_ns);
  const uint64_t attend_ns = TakeAttendTime(m);
  if (batch.stage > 0 && batch.stage < options_.layers) {
    batch.stages_busy_ns += busy_ns - std::min(busy_ns, attend_ns);
    statistics_.layer_stages.Add(1);
    statistics_.layer_stage_ns.Add(batch.stage_end_ns - batch.stage_start_ns);
  }
  if (batch.push_step == batch.step) batch.push_layers = batch.stage;
  if (batch.table.trace == nullptr) return;
  record_.Stage({m, batch.step}, batch.stage, batch.stage_start_ns, batch.stage_end_ns, batch.table.rows, batch.trace);
}

void Pipeline::PostHops(int m) {
  MicroBatch& batch = batches_[m];
  batch.state = State::kHop;
  batch.homes_missing = 0;
  batch.hop_start_ns = batch.stage_end_ns;
  batch.timer.BeginHop();
  const bool record = record_.on();
  HopHeader header;
  header.step = batch.step;
  header.layer = static_cast<uint16_t>(batch.stage);
  header.micro_batch = static_cast<uint8_t>(m);
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (!port.alive || port.attends_in_stage || batch.home_rows[h] == 0) continue;
    header.roster_version = port.roster_version[m];
    header.rows = batch.home_rows[h];
    header.payload_bytes = static_cast<uint32_t>(header.rows * options_.shape.hop_row_bytes());
    if (!HasOpen(port)) port.progress_seen_ns = batch.hop_start_ns;  // its clock starts with the first open hop
    port.open[m] = true;
    port.posted_ns[m] = record && batch.homes_missing > 0 ? Now() : batch.hop_start_ns;
    ++batch.homes_missing;
    port.link->PostHop(header);
    statistics_.hops.Add(1);
    statistics_.home_posts[h].Add(1);
  }
  if (record) record_.Post({m, batch.step}, batch.stage, batch.hop_start_ns, Now(), batch.homes_missing);
  batch.hop_attend_ns = 0;
  if (batch.homes_missing == 0 || batch.s_part_failed) return;
  stages_->AttendMeanwhile(m, batch.stage, batch.table);
  batch.hop_attend_ns = TakeAttendTime(m);
}

// The row's sequence ends at the step boundary; its rows go on as zeros until then. False: the home has no such row.
bool Pipeline::FailRow(int m, int home, uint32_t failing_row) {
  uint32_t row = 0;
  for (Sequence* sequence : batcher_.MembersAt(m, home)) {
    if (failing_row < row + sequence->rows) {
      sequence->Fail(FinishReason::kBadRow, home);
      return true;
    }
    row += sequence->rows;
  }
  return false;
}

// A lost home counts as in: its open hops close, its areas vanish from the tables of the stages to come (o reads as
// zero, nothing is sent), and its sequences leave at their step boundaries, to be computed again at another home.
void Pipeline::LoseHome(int home) {
  HomePort& port = homes_[home];
  const uint64_t now_ns = Now();
  if (HasOpen(port)) statistics_.loss_detection_ns.Add(now_ns - port.progress_seen_ns);
  port.alive = false;
  port.paused = batcher_.LoseHome(home, now_ns);
  ready_unchecked_ = true;
  for (size_t m = 0; m < batches_.size(); ++m) {
    batches_[m].whole = false;
    if (!port.open[m]) continue;
    port.open[m] = false;
    --batches_[m].homes_missing;
    batches_[m].timer.LoseReply(now_ns);
  }
}

// Whether the home has something to do: control messages that find no room among it.
bool Pipeline::HasOpen(const HomePort& port) const {
  bool open = !port.pending.empty() || (port.segments > 0 && port.link->BulkFreed() < port.segments);
  for (const bool hop : port.open) open |= hop;
  return open;
}

void Pipeline::CheckProgress(int home, uint64_t now_ns, uint64_t unseen_ns) {
  HomePort& port = homes_[home];
  const uint64_t progress = port.link->Progress();
  port.progress_seen_ns = std::min(now_ns, port.progress_seen_ns + unseen_ns);
  if (!HasOpen(port) || progress != port.progress) {
    port.progress = progress;
    port.progress_seen_ns = now_ns;
    return;
  }
  if (now_ns - port.progress_seen_ns > options_.hop_timeout_ns) {
    port.link->MarkLost("no progress within the hop timeout");
    LoseHome(home);
  }
}

void Pipeline::Housekeep(uint64_t now_ns) {
  // A process that stood still, stopped or with its machine, has not seen its homes do nothing: no look counts for more
  // than a quarter of the timeout.
  const uint64_t since_last_ns = now_ns - housekept_ns_, look_ns_max = options_.hop_timeout_ns / 4;
  const uint64_t unseen_ns = since_last_ns > look_ns_max ? since_last_ns - look_ns_max : 0;
  housekept_ns_ = now_ns;
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (!port.alive) continue;
    if (port.link->lost()) {
      LoseHome(h);
      continue;
    }
    CheckProgress(h, now_ns, unseen_ns);
    statistics_.home_pages_used[h].store(batcher_.ledger().pages_needed(h), std::memory_order_relaxed);
    statistics_.home_pages_cached[h].store(batcher_.pages_cached(h), std::memory_order_relaxed);
    FlushPending(port);
    if (port.draining) LeaveDraining(h);
  }
  ReportLostHomes();
  SweepReady(now_ns);
  statistics_.active_sequences.store(static_cast<uint32_t>(batcher_.active_count()), std::memory_order_relaxed);
  statistics_.ready_sequences.store(static_cast<uint32_t>(batcher_.ready_count()), std::memory_order_relaxed);
}

// A home that drains is told when nothing is there any more, and nothing will come. It ends the link.
void Pipeline::LeaveDraining(int home) {
  HomePort& port = homes_[home];
  if (!port.draining_told && EventsHaveRoom()) {
    SayOfHome(PipelineEvent::Kind::kHomeDrains, home);
    port.draining_told = true;
  }
  if (port.told_left || !port.pending.empty()) return;
  const bool left = batcher_.LeaveHome(home, options_.limits.active(), &changes_);
  TellOfPages(0);
  if (!left || !port.pending.empty()) return;
  const LeftMessage message;
  port.told_left = port.link->TrySendControl(&message, sizeof(message));
  if (port.told_left) WakeHome(port);
}

void Pipeline::SayOfHome(PipelineEvent::Kind kind, int home) {
  PipelineEvent event;
  event.kind = kind;
  event.home = static_cast<int16_t>(home);
  event.sequences = homes_[home].paused;
  event.time_ns = options_.now_ns();
  Say(event);
}

// REQUIRES: there is room (EventRoomFor).
void Pipeline::Say(const PipelineEvent& event) {
  FD_CHECK(events_.TryPush(event), "the event queue had room");
  events_since_ring_ = true;
}

// A lost home whose last sequence has left: nothing here refers to its link any more, and its owner may destroy it.
void Pipeline::ReportLostHomes() {
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (port.link == nullptr || port.alive || batcher_.sequences_at(h) != 0 || !EventsHaveRoom()) continue;
    SayOfHome(PipelineEvent::Kind::kHomeLost, h);
    port.link = nullptr;
  }
}

void Pipeline::AddHome(const PipelineCommand& command) {
  HomePort& port = homes_[command.home];
  FD_CHECK(port.link == nullptr, "the home's index is in use");
  port.link = command.link;
  port.alive = true;
  port.attends_in_stage = command.link->AttendsInStage();
  port.pending.Clear();
  port.roster_version.fill(0);
  port.open.fill(false);
  port.progress = command.link->Progress();
  port.progress_seen_ns = options_.now_ns();
  port.idle_said = port.draining = port.draining_told = port.told_left = false;
  port.reservations = port.segments = 0;
  port.paused = 0;
  statistics_.home_pages[command.home].Forget();
  PushRole push = PushRole::kNothing;
  if (port.attends_in_stage) {
    if (device_home_ != nullptr && device_home_->PushedRows(0, 0) != nullptr) push = PushRole::kComputes;
  } else if (command.link->size().bulk_segments > 0) {
    push = PushRole::kStores;
  }
  batcher_.AddHome(command.home, command.pages, command.read_mb_per_s, push, port.attends_in_stage);
  ready_unchecked_ = true;  // it may have come back smaller
  if (command.home >= home_limit_) home_limit_ = command.home + 1;
  for (size_t m = 0; m < batches_.size(); ++m) {
    batches_[m].table.home_areas[command.home] = {command.link->SendArea(static_cast<int>(m)),
                                                  command.link->ReceiveArea(static_cast<int>(m))};
  }
}

}  // namespace fastdecode
