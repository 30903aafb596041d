#include "engine/pipeline/pipeline.h"

#include <algorithm>
#include <cstring>

#include "numa/check.h"
#include "numa/ticket_team.h"

namespace fastdecode {

namespace {
constexpr uint64_t kParkedCheckNs = 100'000'000;  // a parked pipeline still looks for lost links now and then
}  // namespace

Pipeline::Pipeline(const PipelineOptions& options, SPart* spart, ParkWord* desk_word)
    : options_(options),
      stages_(spart),
      device_home_(spart->device_home()),
      desk_parker_(desk_word),
      batcher_(options.limits),
      changes_(4 * size_t{options.limits.active()} + options.limits.cached_max),
      record_(options.record),
      commands_(8192),
      events_(options.event_capacity) {
  const BatchLimits& limits = options.limits;
  FD_CHECK(EventsHaveRoom() && size_t{limits.ready_max} + limits.active() < options.event_capacity / 2,
           "the event queue is too small for the limits");
  roster_buffer_.resize(sizeof(RosterMessage) + size_t{limits.sequences_max} * sizeof(RosterEntry));
  FD_CHECK(roster_buffer_.size() <= kControlMessageBytesMax, "a roster does not fit a control message");
  control_buffer_.resize(kControlMessageBytesMax);
  batches_.resize(limits.micro_batches);
  for (MicroBatch& batch : batches_) {
    batch.table.tokens.resize(limits.rows_max);
    batch.table.positions.resize(limits.rows_max);
    batch.table.homes.resize(limits.rows_max);
    batch.table.home_rows.resize(limits.rows_max);
    batch.table.push_rows.resize(limits.rows_max);
    batch.table.logits.resize(limits.rows_max);
    batch.table.home_areas.resize(kMaxHomes);
    batch.sampled = FixedVector<Sequence*>(limits.rows_max);
    batch.pushes = FixedVector<Push>(limits.sequences_max);
  }
  for (HomePort& port : homes_) {
    // What a home may be behind by when a boundary begins (HomesKeepUp), and until the next one, for each place: who
    // leaves with the end of a step, who leaves at the boundary, and who joins, each with a cached prefix that makes
    // room; and a cut of each one that is kept.
    port.pending = FixedVector<PendingMessage>(10 * size_t{limits.active()} + limits.cached_max);
  }
}

Pipeline::~Pipeline() { Stop(); }

void Pipeline::Start() {
  thread_ = std::make_unique<PinnedThread>("fd-pipeline", options_.core, [this] { Run(); });
}

void Pipeline::Stop() {
  if (thread_ == nullptr) return;
  stop_.store(true, std::memory_order_release);
  Wake();
  thread_.reset();
}

void Pipeline::Wake() { own_parker_.RingAfterRelease(); }

bool Pipeline::Quiet() const { return batcher_.active_count() == 0 && batcher_.ready_count() == 0 && !HasCommands(); }

void Pipeline::Run() {
  SetFlushDenormals();
  const CoreTurn turn(options_.poll == PollMode::kTurns ? options_.core : -1);
  PollBackoff backoff(options_.poll);
  uint64_t quiet_since_ns = 0;
  for (;;) {
    // Acquire: pairs with Stop's release store.
    if (stop_.load(std::memory_order_acquire)) batcher_.CancelAll();
    if (TurnOnce()) {
      backoff.Reset();
      quiet_since_ns = 0;
      continue;
    }
    backoff.Idle();
    if (!Quiet()) continue;
    // Acquire: pairs with Stop's release store; all commands sent before it are seen by the check above on the next
    // turn.
    if (stop_.load(std::memory_order_acquire) && !HasCommands()) return;
    if (!options_.park) continue;
    const uint64_t now_ns = options_.now_ns();
    if (quiet_since_ns == 0) quiet_since_ns = now_ns;
    if (now_ns - quiet_since_ns <= options_.park_after_ns) continue;
    // What homes answer comes within a few microseconds, and is listened to before the pipeline sleeps.
    SayIdle();
    if (now_ns - quiet_since_ns <= 2 * options_.park_after_ns) continue;
    ParkUntilWoken();
    backoff.Reset();
  }
}

// Nothing is in flight: the homes may sleep.
void Pipeline::SayIdle() {
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (!port.alive || port.idle_said || !port.pending.empty()) continue;
    const IdleMessage idle;
    port.idle_said = port.link->TrySendControl(&idle, sizeof(idle));
  }
}

// Lets the S threads sleep, and sleeps until a command comes.
void Pipeline::ParkUntilWoken() {
  stages_->Park();
  own_parker_.Arm();
  if (Quiet() && !stop_.load(std::memory_order_acquire)) {
    statistics_.parks.Add(1);
    parked_ = true;
    own_parker_.Sleep(kParkedCheckNs);
  } else {
    own_parker_.Disarm();
  }
}

}  // namespace fastdecode
