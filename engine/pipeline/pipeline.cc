#include "engine/pipeline/pipeline.h"

#include <algorithm>
#include <cstring>

#include "numa/check.h"
#include "numa/ticket_team.h"

namespace fastdecode {

namespace {
constexpr uint64_t kParkedCheckNs = 100'000'000;  // a parked pipeline still looks for lost links now and then
constexpr uint64_t kAnswerNsMax = 1'000'000'000;  // then a home's answer is not looked for any more
constexpr int kMessagesPerLookMax = 8;            // of a home, so that one that sends without end holds nothing up
}  // namespace

Pipeline::Pipeline(const PipelineOptions& options, SPart* spart, ParkWord* desk_word)
    : options_(options),
      stages_(spart),
      device_home_(spart->device_home()),
      desk_parker_(desk_word),
      batcher_(options.limits),
      changes_(2 * size_t{options.limits.active()}),
      record_(options.record),
      commands_(8192),
      events_(options.event_capacity) {
  const BatchLimits& limits = options.limits;
  FD_CHECK(EventsHaveRoom() && size_t{limits.ready_max} + limits.active() < options.event_capacity / 2,
           "the event queue is too small for the limits");
  roster_buffer_.resize(sizeof(RosterMessage) + size_t{limits.sequences_max} * sizeof(RosterEntry));
  FD_CHECK(roster_buffer_.size() <= kControlMessageBytesMax, "a roster does not fit a control message");
  answer_buffer_.resize(kControlMessageBytesMax);
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
    // What a home may be behind by when a boundary begins (HomesKeepUp), and until the next one of each place a
    // release, a fill or reservation of who takes it, and that one's release.
    port.pending = FixedVector<SequenceMessage>(5 * size_t{limits.active()});
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

bool Pipeline::Quiet() const {
  return batcher_.active_count() == 0 && batcher_.ready_count() == 0 && commands_.SizeApprox() == 0;
}

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
    if (stop_.load(std::memory_order_acquire) && commands_.SizeApprox() == 0) return;
    if (!options_.park || statistics_.answers_due.load(std::memory_order_relaxed) > 0) continue;
    const uint64_t now_ns = options_.now_ns();
    if (quiet_since_ns == 0) quiet_since_ns = now_ns;
    if (now_ns - quiet_since_ns <= options_.park_after_ns) continue;
    ParkUntilWoken();
    backoff.Reset();
  }
}

// Nothing is in flight: tell the homes so, let the S threads sleep, and sleep until a command comes.
void Pipeline::ParkUntilWoken() {
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (!port.alive || port.idle_said || !port.pending.empty()) continue;
    const IdleMessage idle;
    port.idle_said = port.link->TrySendControl(&idle, sizeof(idle));
  }
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

void Pipeline::AskHomes() {
  const uint64_t now_ns = Now(), ask = statistics_.asks.load(std::memory_order_relaxed) + 1;
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (!port.alive || port.attends_in_stage) continue;
    port.ask_wanted = ask;
    port.asked_ns = now_ns;
    port.awaited = true;
    TakeAnswers(h);
    SendAsk(h);
  }
  CountAwaited();
  statistics_.asks.store(ask, std::memory_order_release);
}

// One message at a time: an answer is then that to the message, however late it comes, and a home that gives none finds
// one in its ring. Who has no room for it is not asked.
void Pipeline::SendAsk(int home) {
  HomePort& port = homes_[home];
  if (port.answer_owed || !port.awaited) return;
  FlushPending(port);  // what was released is free
  IdleMessage request;
  request.kind = static_cast<uint32_t>(ControlKind::kStatsRequest);
  port.awaited = port.answer_owed = port.link->TrySendControl(&request, sizeof(request));
  port.ask_sent = port.ask_wanted;
  if (port.awaited && port.idle_said) port.link->RingHome();  // it stays idle: the next roster rings again
}

void Pipeline::TakeAnswers(int home) {
  HomePort& port = homes_[home];
  for (int i = 0; i < kMessagesPerLookMax; ++i) {
    size_t bytes = 0;
    if (port.link->PollControl(answer_buffer_.data(), &bytes) != LinkPoll::kMessage) return;
    StatsMessage answer;
    if (bytes != sizeof(answer)) continue;
    std::memcpy(&answer, answer_buffer_.data(), sizeof(answer));
    if (answer.kind != static_cast<uint32_t>(ControlKind::kStats) || !port.answer_owed) continue;
    const uint64_t answered = port.ask_sent;
    port.answer_owed = false;
    if (answered == port.ask_wanted) port.awaited = false;
    SendAsk(home);
    const uint64_t used = answer.pages_total - answer.pages_free;
    if (used > UINT32_MAX || answer.pages_held > UINT32_MAX) continue;
    statistics_.home_pages[home].Store({static_cast<uint32_t>(used), static_cast<uint32_t>(answer.pages_held)},
                                       answered);
  }
}

void Pipeline::LookForAnswers(uint64_t now_ns) {
  for (int h = 0; h < home_limit_; ++h) {
    HomePort& port = homes_[h];
    if (port.awaited && port.alive) TakeAnswers(h);
    if (!port.alive || now_ns - port.asked_ns > kAnswerNsMax) port.awaited = false;
  }
  CountAwaited();
}

void Pipeline::CountAwaited() {
  int due = 0;
  for (int h = 0; h < home_limit_; ++h) due += homes_[h].awaited;
  statistics_.answers_due.store(due, std::memory_order_release);
}

}  // namespace fastdecode
