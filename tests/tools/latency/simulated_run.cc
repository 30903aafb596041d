#include "tests/tools/latency/simulated_run.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tests/tools/latency/simulated_setup.h"

namespace fastdecode {

namespace {

constexpr double kPollHomeNs = 30;  // a look at one home
constexpr double kPostHopNs = 600;
constexpr double kComposeNs = 3000, kComposeRowNs = 60, kRostersNs = 2000, kFinishNs = 1500, kFinishRowNs = 80;
constexpr double kSubmitNs = 15e3;   // until the pipeline has a request
constexpr double kDeliverNs = 25e3;  // until a caller can take a token
constexpr double kParkAfterNs = 300e3;

struct Batch {
  enum class State { kBoundary, kStage, kHop };
  State state = State::kBoundary;
  uint32_t step = 0;
  int stage = 0;
  double stage_start = 0, stage_over = 0;  // over: as far as the pipeline can see
  int homes_missing = 0;
  std::vector<bool> open;  // [homes] a hop is
  double held_since = 0;
  uint32_t rows = 0, sequences = 0;
  std::vector<uint32_t> home_rows, home_sequences;
  std::vector<double> home_kv_bytes;
};

// The pipeline thread, with all that it talks to.
class Pipeline {
 public:
  Pipeline(const SimulatedRun& run, Recording* recording);
  void Run();

 private:
  void TurnOnce();
  void RecordStarts();
  bool PollHomes();
  bool Advance(int m);
  bool BeginStep(int m);
  void CountRows(int m, const std::vector<SimulatedSequence>& members);
  void StartStage(int m);
  void EndStage(int m);
  void RunParts(int m);
  void RunPart(int m, fd_stage_part part, int layer, double ns);
  void AddPart(int m, fd_stage_part part, int layer, double start);
  void PostHops(int m);
  void FinishStep(int m);
  void WaitForSomething();
  void WaitForRequests(double until);

  void GoOnLosing();
  double NextOfLoss() const { return loss_.empty() ? kNever : loss_.front().at; }
  void RecordLeaving(int m);
  bool EventsHaveRoom();
  double DeliveredAt(double at);
  double NextReply();
  SimulatedCore* StolenCore();  // or none

  double Work(double ns) { return now_ = core_.RunNoisy(now_, ns); }
  SimulatedCore& stage_core() { return run_.gpu ? gpu_ : core_; }
  fd_record_event Event(fd_record_kind kind, int m, double start) const;
  void Add(const fd_record_event& event);

  const SimulatedRun& run_;
  Recording* const recording_;
  SimulatedCore core_, gpu_;
  double gpu_free_ = 0;
  std::vector<SimulatedHome> homes_;
  std::vector<double> looked_;  // [homes] when the pipeline last looked in vain
  std::vector<Batch> batches_;
  SimulatedLoad load_;
  std::deque<double> untaken_;  // when the scheduler takes tokens that are in the event queue, ascending
  double now_ = kSimulatedStartNs - kSimulatedLeadNs;
  int turn_ = 0;
  std::deque<SimulatedLoss> loss_;  // what is still to happen
  double lost_ns_ = 0;
};

Pipeline::Pipeline(const SimulatedRun& run, Recording* recording)
    : run_(run),
      recording_(recording),
      core_(run.noise, run.seed * 1000 + 1),
      gpu_(run.noise, run.seed * 1000 + 4),
      looked_(static_cast<size_t>(run.homes), 0),
      batches_(static_cast<size_t>(run.micro_batches)),
      load_(run.requests, run.micro_batches, HomeWeights(run), run.seed * 1000 + 2),
      loss_(PlanLoss(run)) {
  for (int h = 0; h < run.homes; ++h) homes_.push_back(MakeHome(run, h));
  if (SimulatedCore* stolen = StolenCore()) stolen->Steal(PlanThefts(run));
}

SimulatedCore* Pipeline::StolenCore() {
  using enum SimulatedFaults::Core;
  SimulatedHome& home = homes_[static_cast<size_t>(std::max(0, run_.faults.stolen_home))];
  const SimulatedFaults::Core stolen = run_.faults.stolen;
  if (stolen == kPipeline) return &core_;
  if (stolen == kLeader) return &home.leader();
  return stolen == kHelper ? &home.helper() : nullptr;
}

void Pipeline::Run() {
  load_.WarmUp(now_);
  const double end = kSimulatedStartNs + run_.seconds * 1e9;
  while (now_ < end) TurnOnce();
  RecordStarts();
}

// The scheduler's part, which nothing waits for.
void Pipeline::RecordStarts() {
  recording_->end_ns = static_cast<uint64_t>(now_);
  const std::vector<IntendedStart> starts = load_.StartsUntil(now_ - kSubmitNs);
  for (const IntendedStart& start : starts) {
    fd_record_event submit = {};
    submit.kind = FD_RECORD_SUBMIT;
    submit.id = start.id;
    submit.start_ns = start.submit_ns;
    submit.end_ns = start.submit_ns + static_cast<uint64_t>(kSubmitNs);
    submit.home = -1;
    Add(submit);
  }
  if (run_.requests.arrivals_per_s > 0) recording_->intended = starts;
}

void Pipeline::TurnOnce() {
  while (NextOfLoss() <= now_) GoOnLosing();
  const int count = run_.micro_batches;
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    moved |= PollHomes();
    moved |= Advance((turn_ + i) % count);
  }
  turn_ = (turn_ + 1) % count;
  if (!moved) WaitForSomething();
}

void Pipeline::GoOnLosing() {
  using enum SimulatedLoss::What;
  const SimulatedLoss::What what = loss_.front().what;
  loss_.pop_front();
  const int lost = run_.faults.lost_home;
  const auto index = static_cast<size_t>(lost);
  if (what == kDies) return homes_[index].Die();
  load_.SetAway(lost, what == kIsKnown);
  if (what == kIsBack) return homes_[index].BeginAnew();
  lost_ns_ = now_;
  for (Batch& batch : batches_) {
    if (index >= batch.open.size() || !batch.open[index]) continue;
    batch.open[index] = false;
    --batch.homes_missing;
  }
}

void Pipeline::RecordLeaving(int m) {
  for (const SimulatedSequence& sequence : load_.left()) {
    fd_record_event leave = Event(FD_RECORD_LEAVE, m, lost_ns_);
    leave.id = sequence.id;
    leave.home = static_cast<int16_t>(sequence.home);
    leave.part = FD_LEAVE_HOME_LOST;
    leave.count = sequence.generated;
    Add(leave);
  }
}

bool Pipeline::PollHomes() {
  bool moved = false;
  for (size_t h = 0; h < homes_.size(); ++h) {
    now_ = core_.Run(now_, kPollHomeNs);
    while (homes_[h].NextStart() <= now_) homes_[h].ServeNext();
    SimulatedHop hop;
    while (homes_[h].TakeReply(now_, &hop)) {
      moved = true;
      hop.polled = looked_[h];
      fd_record_event event = homes_[h].Describe(hop, now_);
      Add(event);
      Batch& batch = batches_[static_cast<size_t>(hop.micro_batch)];
      batch.open[h] = false;
      --batch.homes_missing;
    }
    looked_[h] = now_;
  }
  return moved;
}

bool Pipeline::Advance(int m) {
  Batch& batch = batches_[static_cast<size_t>(m)];
  const bool started = batch.state != Batch::State::kStage;
  if (batch.state == Batch::State::kBoundary) {
    if (!BeginStep(m)) return false;
    batch.stage = 0;
    StartStage(m);
  } else if (batch.state == Batch::State::kHop) {
    if (batch.homes_missing > 0) return false;
    ++batch.stage;
    StartStage(m);
  }
  if (now_ < batch.stage_over) return started;
  EndStage(m);
  if (batch.stage == run_.layers) {
    FinishStep(m);
    batch.state = Batch::State::kBoundary;
  } else {
    PostHops(m);
    batch.state = Batch::State::kHop;
  }
  return true;
}

bool Pipeline::BeginStep(int m) {
  Batch& batch = batches_[static_cast<size_t>(m)];
  if (!EventsHaveRoom()) {
    if (batch.held_since == 0) batch.held_since = now_;
    return false;
  }
  const double start = now_;
  const std::vector<SimulatedSequence>& members = load_.Compose(m, now_);
  RecordLeaving(m);
  if (members.empty()) return false;
  ++batch.step;
  if (batch.held_since > 0) Add(Event(FD_RECORD_HELD, m, batch.held_since));
  batch.held_since = 0;
  CountRows(m, members);
  Work(kComposeNs + kComposeRowNs * batch.rows);
  for (const SimulatedSequence& sequence : load_.joined()) {
    fd_record_event join = Event(FD_RECORD_JOIN, m, sequence.left > 0 ? sequence.left : sequence.submitted);
    join.part = sequence.left > 0 ? 1 : 0;
    join.id = sequence.id;
    join.home = static_cast<int16_t>(sequence.home);
    join.rows = sequence.prompt;
    Add(join);
  }
  fd_record_event compose = Event(FD_RECORD_COMPOSE, m, start);
  compose.count = batch.sequences;
  Add(compose);
  for (int h = 0; h < run_.homes; ++h) {
    const auto home = static_cast<size_t>(h);
    if (batch.home_rows[home] == 0) continue;
    fd_record_event share = Event(FD_RECORD_SHARE, m, now_);
    share.home = static_cast<int16_t>(h);
    share.rows = batch.home_rows[home];
    share.bytes = static_cast<uint64_t>(batch.home_kv_bytes[home]);
    share.count = static_cast<uint32_t>(batch.home_kv_bytes[home] / run_.kv_bytes_per_token);
    Add(share);
  }
  const double composed = now_;
  Work(kRostersNs);
  Add(Event(FD_RECORD_ROSTERS, m, composed));
  return true;
}

void Pipeline::CountRows(int m, const std::vector<SimulatedSequence>& members) {
  Batch& batch = batches_[static_cast<size_t>(m)];
  batch.rows = batch.sequences = 0;
  batch.home_rows.assign(homes_.size(), 0);
  batch.open.resize(homes_.size());
  batch.home_sequences.assign(homes_.size(), 0);
  batch.home_kv_bytes.assign(homes_.size(), 0);
  for (const SimulatedSequence& sequence : members) {
    if (sequence.rows == 0) continue;
    const auto home = static_cast<size_t>(sequence.home);
    batch.rows += sequence.rows;
    ++batch.sequences;
    batch.home_rows[home] += sequence.rows;
    ++batch.home_sequences[home];
    batch.home_kv_bytes[home] += (sequence.computed + sequence.rows) * run_.kv_bytes_per_token;
  }
}

// A GPU's work lies in the future: until it is over the pipeline goes on.
void Pipeline::StartStage(int m) {
  Batch& batch = batches_[static_cast<size_t>(m)];
  batch.state = Batch::State::kStage;
  batch.stage_start = now_;
  if (!run_.gpu) {
    RunParts(m);
    batch.stage_over = now_;
    return;
  }
  const double back = now_;
  now_ = std::max(now_ + run_.signal_ns, gpu_free_);
  AddPart(m, FD_STAGE_SIGNAL, batch.stage, back);
  RunParts(m);
  gpu_free_ = now_;
  batch.stage_over = now_ + run_.signal_ns;
  now_ = back;
}

void Pipeline::EndStage(int m) {
  const Batch& batch = batches_[static_cast<size_t>(m)];
  if (run_.gpu) AddPart(m, FD_STAGE_SIGNAL, batch.stage, batch.stage_over - run_.signal_ns);
  fd_record_event event = Event(FD_RECORD_STAGE, m, batch.stage_start);
  event.layer = static_cast<uint16_t>(batch.stage);
  Add(event);
}

void Pipeline::RunParts(int m) {
  const int stage = batches_[static_cast<size_t>(m)].stage;
  RunPart(m, FD_STAGE_REST, std::max(0, stage - 1), run_.rest_ns);
  if (stage > 0) {
    RunPart(m, FD_STAGE_O, stage - 1, run_.o_ns);
    RunPart(m, FD_STAGE_REST, stage - 1, run_.rest_ns);
    RunPart(m, FD_STAGE_GATE_UP, stage - 1, run_.gate_up_ns);
    RunPart(m, FD_STAGE_DOWN, stage - 1, run_.down_ns);
    RunPart(m, FD_STAGE_REST, stage - 1, run_.rest_ns);
  }
  if (stage < run_.layers) {
    RunPart(m, FD_STAGE_QKV, stage, run_.qkv_ns);
    RunPart(m, FD_STAGE_REST, stage, run_.rest_ns);
  } else {
    RunPart(m, FD_STAGE_LOGITS, stage, run_.logits_ns);
  }
}

void Pipeline::RunPart(int m, fd_stage_part part, int layer, double ns) {
  const double start = now_;
  const bool gemm = part == FD_STAGE_QKV || part == FD_STAGE_O || part == FD_STAGE_GATE_UP || part == FD_STAGE_DOWN;
  const double ratio = gemm && layer == run_.faults.slow_layer ? run_.faults.gemm_ratio : 1;
  now_ = stage_core().RunNoisy(now_, ns * ratio * (1 + 0.01 * batches_[static_cast<size_t>(m)].rows));
  AddPart(m, part, layer, start);
}

void Pipeline::AddPart(int m, fd_stage_part part, int layer, double start) {
  fd_record_event event = Event(FD_RECORD_STAGE_PART, m, start);
  event.layer = static_cast<uint16_t>(layer);
  event.part = static_cast<uint16_t>(part);
  Add(event);
}

void Pipeline::PostHops(int m) {
  Batch& batch = batches_[static_cast<size_t>(m)];
  const double start = now_;
  batch.homes_missing = 0;
  for (size_t h = 0; h < homes_.size(); ++h) {
    if (batch.home_rows[h] == 0 || load_.IsAway(static_cast<int>(h))) continue;
    // It is posted when the call begins, as far as the record goes.
    SimulatedHop hop;
    hop.posted = now_;
    hop.step = batch.step;
    hop.layer = batch.stage;
    hop.micro_batch = m;
    hop.rows = batch.home_rows[h];
    hop.sequences = batch.home_sequences[h];
    hop.kv_bytes = batch.home_kv_bytes[h];
    hop.payload_bytes = static_cast<uint64_t>(hop.rows * (run_.row_bytes_out + run_.row_bytes_back));
    while (homes_[h].NextStart() <= now_) homes_[h].ServeNext();
    homes_[h].Post(hop);
    batch.open[h] = true;
    ++batch.homes_missing;
    Work(kPostHopNs);
  }
  fd_record_event post = Event(FD_RECORD_POST, m, start);
  post.layer = static_cast<uint16_t>(batch.stage);
  post.count = static_cast<uint32_t>(batch.homes_missing);
  Add(post);
}

void Pipeline::FinishStep(int m) {
  Batch& batch = batches_[static_cast<size_t>(m)];
  std::vector<SimulatedSequence>& members = load_.members(m);
  const double start = now_;
  Work(kFinishNs + kFinishRowNs * batch.sequences);
  uint32_t tokens = 0;
  for (size_t i = 0; i < members.size();) {
    SimulatedSequence& sequence = members[i];
    sequence.computed += sequence.rows;
    // What a lost home's rows have come to means nothing.
    if (sequence.rows == 0 || load_.IsAway(sequence.home) || sequence.computed < sequence.prompt + sequence.generated) {
      ++i;
      continue;
    }
    ++tokens;
    fd_record_event token = Event(FD_RECORD_TOKEN, m, now_);
    token.id = sequence.id;
    token.home = static_cast<int16_t>(sequence.home);
    token.count = sequence.generated++;
    Add(token);
    const double delivered = DeliveredAt(now_);
    fd_record_event deliver = token;
    deliver.kind = FD_RECORD_DELIVER;
    deliver.end_ns = static_cast<uint64_t>(delivered);
    Add(deliver);
    if (sequence.generated < sequence.output) {
      ++i;
      continue;
    }
    fd_record_event leave = token;
    leave.kind = FD_RECORD_LEAVE;
    leave.part = FD_LEAVE_FINISHED;
    leave.count = sequence.generated;
    Add(leave);
    load_.Leave(m, i, delivered + kDeliverNs);
  }
  fd_record_event finish = Event(FD_RECORD_FINISH, m, start);
  finish.count = tokens;
  Add(finish);
}

// Nothing moves before a reply, the scheduler or a request comes.
void Pipeline::WaitForSomething() {
  const double reply = NextReply();
  bool in_flight = false;
  double stage_over = kNever;
  for (const Batch& batch : batches_) {
    in_flight |= batch.state != Batch::State::kBoundary;
    if (batch.state == Batch::State::kStage) stage_over = std::min(stage_over, batch.stage_over);
  }
  if (!in_flight && load_.Empty() && EventsHaveRoom())
    return WaitForRequests(std::min(load_.NextArrival(now_), NextOfLoss()));
  double until = std::min({reply, stage_over, load_.NextArrival(now_), NextOfLoss()});
  if (!EventsHaveRoom()) until = std::min(until, untaken_.front());
  // It looks in even turns, but not while its core is away.
  const double turns = std::max(0.0, std::floor((until - now_) / run_.look_ns));
  double look = now_ + turns * run_.look_ns;
  while (look > now_ && core_.Awake(look) > look) look -= run_.look_ns;
  look = std::max(look, now_);
  for (double& looked : looked_) looked = std::max(looked, look);
  now_ = core_.Awake(look + run_.look_ns);
}

void Pipeline::WaitForRequests(double until) {
  const double start = now_;
  now_ = core_.Awake(std::max(now_, until));
  fd_record_event idle = Event(FD_RECORD_IDLE, 0, start);
  idle.part = now_ - start > kParkAfterNs;
  Add(idle);
}

// Homes go on only as far as it takes: what is posted after the reply may still overtake a hop that has not come.
double Pipeline::NextReply() {
  for (;;) {
    double reply = kNever, start = kNever;
    SimulatedHome* first = nullptr;
    for (SimulatedHome& home : homes_) {
      reply = std::min(reply, home.NextReply());
      if (home.NextStart() >= start) continue;
      start = home.NextStart();
      first = &home;
    }
    if (first == nullptr || reply <= start) return reply;
    first->ServeNext();
  }
}

double Pipeline::DeliveredAt(double at) {
  double taken = at + kDeliverNs * (0.5 + core_.Uniform());
  const double pause = kSimulatedStartNs + run_.faults.pause_at_s * 1e9;
  if (taken > pause && taken < pause + run_.faults.pause_ns) taken = pause + run_.faults.pause_ns;
  if (!untaken_.empty()) taken = std::max(taken, untaken_.back() + 500);
  untaken_.push_back(taken);
  return taken;
}

bool Pipeline::EventsHaveRoom() {
  while (!untaken_.empty() && untaken_.front() <= now_) untaken_.pop_front();
  return static_cast<double>(untaken_.size()) <= run_.events_room_steps * run_.requests.sequences;
}

fd_record_event Pipeline::Event(fd_record_kind kind, int m, double start) const {
  const Batch& batch = batches_[static_cast<size_t>(m)];
  fd_record_event event = {};
  event.kind = static_cast<uint8_t>(kind);
  event.start_ns = static_cast<uint64_t>(start);
  event.end_ns = static_cast<uint64_t>(now_);
  event.home = -1;
  event.micro_batch = static_cast<uint8_t>(m);
  event.step = batch.step;
  event.rows = batch.rows;
  return event;
}

void Pipeline::Add(const fd_record_event& event) {
  if (static_cast<double>(event.end_ns) >= kSimulatedStartNs) recording_->events.push_back(event);
}

}  // namespace

Recording Simulate(const SimulatedRun& run) {
  Recording recording;
  recording.engine = DescribeEngine(run);
  Pipeline(run, &recording).Run();
  std::stable_sort(recording.events.begin(), recording.events.end(),
                   [](const fd_record_event& a, const fd_record_event& b) { return a.end_ns < b.end_ns; });
  recording.end_ns = std::max(recording.end_ns, recording.events.back().end_ns);
  return recording;
}

}  // namespace fastdecode
