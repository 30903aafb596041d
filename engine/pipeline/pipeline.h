#ifndef FASTDECODE_ENGINE_PIPELINE_PIPELINE_H_
#define FASTDECODE_ENGINE_PIPELINE_PIPELINE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/pipeline/batcher.h"
#include "engine/pipeline/fixed_vector.h"
#include "engine/pipeline/sequence.h"
#include "engine/pipeline/statistics.h"
#include "engine/pipeline/step_recorder.h"
#include "engine/pipeline/step_times.h"
#include "engine/rpart/messages.h"
#include "engine/spart/spart.h"
#include "numa/clock.h"
#include "numa/parker.h"
#include "numa/pinned_thread.h"
#include "numa/spin.h"
#include "numa/spsc_queue.h"
#include "rdma/link.h"

namespace fastdecode {

struct PipelineOptions {
  BatchLimits limits;
  int layers = 0;
  int vocab = 0;
  RPartShape shape;  // for payload sizes and KV bytes
  int core = -1;     // of the pipeline thread; -1: not pinned
  PollMode poll = PollMode::kSpin;
  bool park = true;                          // false: keep polling with nothing in flight
  uint64_t park_after_ns = 300'000;          // with nothing in flight
  uint64_t hop_timeout_ns = 10'000'000'000;  // a home with an open hop and no progress for so long is lost
  uint64_t recover_ns = 120'000'000'000;     // a sequence that no living home could hold waits for one so long
  size_t event_capacity = 1 << 16;           // a power of two
  EventWriter record;                        // what somebody may read of each step
  uint64_t (*now_ns)() = NowNs;              // tests bring their own time
};

// The loop that keeps K micro-batches in flight between one S-Part and many homes. One step of a micro-batch:
// compose at the step boundary -> stage 0 -> hop 0 -> stage 1 -> ... -> hop L-1 -> stage L -> sampled tokens ->
// boundary.
//
// Owns: the pipeline thread, the step tables, the batcher. Links, S-Part and sequences are lent to it.
// Thread: Run() is the pipeline thread; nothing else touches links, S-Part or members. Others talk to it by TryCommand
//         (one producer), TryEvent (one consumer), Wake, lost links and Sequence::cancelled.
// Bounded: every queue by a fixed capacity; a step starts only when the event queue has room for all that it can say,
//          so that a slow desk stops new steps and never blocks a running one.
class Pipeline {
 public:
  // `desk_word`: rung after events, at most once a step and once a turn. Everything must outlive the pipeline.
  Pipeline(const PipelineOptions& options, SPart* spart, ParkWord* desk_word);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  void Start();
  // Returns when the thread has ended. Sequences still inside end with kCancelled events first.
  void Stop();

  // One producer. False: the queue is full. Follow with Wake().
  bool TryCommand(const PipelineCommand& command) { return commands_.TryPush(command); }
  // After commands, cancels and MarkLost: a parked pipeline looks again.
  void Wake();
  // One consumer.
  bool TryEvent(PipelineEvent* out) { return events_.TryPop(out); }
  bool HasEvents() const { return events_.SizeApprox() > 0; }
  // Sequences were cancelled (their flags are set): waiting ones end at once.
  void NoteCancel() { cancels_.fetch_add(1, std::memory_order_release); }

  const PipelineStatistics& statistics() const { return statistics_; }
  // Why sequences ended with kSPartFailed, for people. Any thread.
  std::string s_part_failure() const { return stages_->failure(); }

  // The data path, one event at a time: public for tests that drive it without the thread.
  // Does what can be done now; false: nothing moved.
  bool TurnOnce();
  bool Quiet() const;  // no sequence inside, no command waiting
  const Batcher& batcher() const { return batcher_; }

 private:
  enum class State : uint8_t {
    kBoundary,  // between two steps
    kRosters,   // composed; rosters still have to go out
    kStage,     // in the S-Part
    kHop,       // at the homes
  };

  // A control message about one sequence.
  union PendingMessage {
    PendingMessage() : sequence() {}
    explicit PendingMessage(const SequenceMessage& message) : sequence(message) {}
    explicit PendingMessage(const ForkMessage& message) : fork(message) {}
    // Both begin with their kind.
    size_t bytes() const {
      return sequence.kind == static_cast<uint32_t>(ControlKind::kFork) ? sizeof(fork) : sizeof(sequence);
    }
    SequenceMessage sequence;
    ForkMessage fork;
  };

  struct HomePort {
    EngineLink* link = nullptr;
    bool alive = false;
    bool attends_in_stage = false;           // no hops
    FixedVector<PendingMessage> pending{0};  // control that must go out before the next roster
    std::array<uint32_t, kMaxSlots> roster_version{};
    std::array<bool, kMaxSlots> open{};  // a hop is in flight
    std::array<uint64_t, kMaxSlots> posted_ns{};
    uint64_t polled_ns = 0;  // it had no reply then, or some time later
    uint64_t progress = 0;
    uint64_t progress_seen_ns = 0;
    bool idle_said = false;
    bool draining = false;       // the home has said so
    bool draining_told = false;  // and the desk knows
    bool told_left = false;      // the home knows that nothing of this engine is there any more
    uint64_t reservations = 0;   // that it was told of, or will be
    uint64_t segments = 0;       // posted
    uint32_t paused = 0;         // sequences that lost it
  };

  // Rows of a chunk whose K and V are to be pushed.
  struct Push {
    Sequence* sequence = nullptr;
    uint32_t first_row = 0;  // of DeviceHome::PushedRows
    uint32_t rows = 0;
    uint32_t first_position = 0;
    int layer = 0;     // of the next segment...
    uint32_t row = 0;  // ...and its first row, of these
  };

  struct MicroBatch {
    State state = State::kBoundary;
    int stage = 0;
    uint64_t step = 0;
    uint64_t step_start_ns = 0;
    uint64_t stage_start_ns = 0;
    uint64_t stage_end_ns = 0;
    uint64_t hop_start_ns = 0;
    bool no_rows = false;                            // since its last step, when it looked
    uint64_t held_since_ns = 0;                      // could not begin since the events were not taken; 0: is not
    bool s_part_failed = false;                      // in this step: no stage of it is started any more
    int homes_missing = 0;                           // replies outstanding in this hop
    std::array<uint32_t, kMaxHomes> home_rows{};     // rows of this step, per home
    std::array<uint64_t, kMaxHomes> home_tokens{};   // that they attend to
    MicroBatchLoad load;                             // the same, for the step model
    bool has_chunks = false;                         // of prompts, in this step
    bool whole = true;                               // no home was lost in this step
    uint64_t stages_busy_ns = 0;                     // this step's whole layers, in the S-Part...
    uint64_t attend_ns = 0;                          // ...of all its stages, attention to sequences of StageHomes...
    std::array<uint64_t, kMaxHomes> home_work_ns{};  // ...and its hops, at the homes...
    uint64_t hop_overhead_ns = 0;                    // ...and outside, that of the fastest hop; 0: none is known...
    uint64_t hop_bound_ns = 0;                       // ...but one that took no longer than this; 0: nor that
    uint64_t hop_attend_ns = 0;                      // the S-Part attended for so long while the last hops were out
    uint64_t finished_ns = 0;                        // of the last step, if this one followed at once; 0: it did not
    StepTimer timer;
    StageTrace trace;
    StepTable table;
    FixedVector<Sequence*> sampled{0};  // of table.logits[i], null if that row is not sampled
    FixedVector<Push> pushes{0};        // that are not all posted; of one step
    uint64_t push_step = 0;             // which that is, or was
    int push_layers = 0;                // whose rows are there
  };

  void Run();
  bool HasCommands() const { return command_held_ || commands_.SizeApprox() > 0; }
  void SayIdle();
  void ParkUntilWoken();

  // --- one turn
  bool HasPlaceFor(const Sequence& sequence) const;
  bool DrainCommands();
  bool PollHomes();
  void ListenToHomes();
  void Listen(int home);
  bool OnMessage(int home, std::span<const std::byte> message);
  bool Advance(int m);
  void RingDesk();
  void Housekeep(uint64_t now_ns);
  void CheckProgress(int home, uint64_t now_ns, uint64_t unseen_ns);

  // --- step boundary (step_boundary_fastpath.cc, step_end_fastpath.cc)
  bool BeginStep(int m);
  void FillTable(int m);
  float* PromptLogitsAt(const Sequence& sequence, uint32_t position) const;
  static bool WantsLogprobBehind(const Sequence& sequence, uint32_t position);
  void AddLogitRow(MicroBatch& batch, Sequence* sequence, uint32_t row, uint32_t position);
  bool SendRosters(int m);
  bool SendRoster(int m, int home);
  bool FlushPending(HomePort& port);
  void WakeHome(HomePort& port);
  void FinishStep(int m);
  void NoteCosts(int m, uint64_t now_ns);
  uint64_t TakeAttendTime(int m);
  void AddTimes(const MicroBatch& batch, Sequence* sequence, uint64_t now_ns);
  void FailStep(int m);
  void TakePromptLogprob(Sequence* sequence, const LogitRow& logit);
  void AcceptToken(Sequence* sequence, const LogitRow& logit, uint64_t now_ns);
  std::optional<FinishReason> TakeToken(StepRecorder::Where where, Sequence* sequence, const LogitRow& logit,
                                        uint64_t now_ns);
  void StartFollower(Sequence* leader, const LogitRow& logit, uint64_t now_ns);
  void EndSequence(Sequence* sequence, FinishReason reason, int home);
  void SayFinished(Sequence* sequence, FinishReason reason, int home);
  void EndWaiting(Sequence* sequence, FinishReason reason);
  void TellHome(ControlKind kind, const Seat& seat, uint32_t tokens);
  void TellFork(uint64_t number, const Seat& fork, uint32_t tokens);
  void TellCut(const Seat& seat, uint32_t tokens);
  void Reserve(Sequence* sequence);
  size_t EventRoomFor(size_t followers) const;
  bool EventsHaveRoom() const;
  bool HomesKeepUp();
  void ApplyChanges(int m, uint64_t* start_ns);
  void ReleaseSeats(int m, const BoundaryChange& change);
  void TellOfPages(int m);
  void NoteHit(const BoundaryChange& change);
  void NoteLeft(int m, const BoundaryChange& change);
  void NoteHomeLost(StepRecorder::Where where, const BoundaryChange& change);
  void NoteRecovered(Sequence* sequence, uint64_t now_ns);
  void NoteJoined(int m, const BoundaryChange& change, uint64_t* start_ns);
  void RecordBegin(int m, uint64_t start_ns);
  bool NobodyHadRows() const;
  void SweepReady(uint64_t now_ns);
  bool MustEnd(Sequence* waiting, uint64_t now_ns);

  // --- pushed prompts (push_fastpath.cc)
  bool PushSegment();
  bool PostSegment(int m, Push* push);
  void DropPushes(int m, const Sequence& sequence);
  void SettlePushed(int m);

  // --- stages and hops
  uint64_t Now() { return recent_ns_ = options_.now_ns(); }
  void StartStage(int m);
  void EndStage(int m);
  void PostHops(int m);
  void OnReply(int home, const ReplyHeader& reply);
  bool FailRow(int m, int home, uint32_t row);
  void LoseHome(int home);
  bool HasOpen(const HomePort& port) const;
  void ReportLostHomes();
  void LeaveDraining(int home);
  void SayOfHome(PipelineEvent::Kind kind, int home);
  void Say(const PipelineEvent& event);
  void AddHome(const PipelineCommand& command);

  // Constant after construction.
  const PipelineOptions options_;
  StageRunner* const stages_;
  DeviceHome* const device_home_;  // null: none
  Parker desk_parker_;

  // Pipeline thread only.
  Batcher batcher_;
  BoundaryChanges changes_;  // of the batcher, until they are applied
  std::vector<MicroBatch> batches_;
  std::array<HomePort, kMaxHomes> homes_;
  int home_limit_ = 0;                     // indices in use lie below
  int turn_ = 0;                           // the micro-batch that is looked at first
  PipelineCommand command_;                // the last one
  bool command_held_ = false;              // for which there is no place yet
  std::vector<std::byte> roster_buffer_;   // one roster message
  std::vector<std::byte> control_buffer_;  // one message of a home
  uint64_t cancels_seen_ = 0;
  bool ready_unchecked_ = false;  // since the last whole sweep a sequence came, or a home went, came or was given up
  uint64_t look_again_ns_ = UINT64_MAX;  // when the first of those that no living home could hold has waited enough
  uint64_t housekept_ns_ = 0;            // the last time
  bool events_since_ring_ = false;
  uint64_t recent_ns_ = 0;        // when the clock was last read
  int in_steps_ = 0;              // micro-batches between boundaries
  int stages_open_ = 0;           // several at once where the S-Part is asynchronous
  uint64_t s_busy_since_ns_ = 0;  // until then it is counted; with stages_open_ > 0
  uint64_t quiet_since_ns_ = 0;   // no step since then; with in_steps_ == 0
  bool parked_ = false;           // and parked
  StepRecorder record_;

  // Between threads.
  SpscQueue<PipelineCommand> commands_;
  SpscQueue<PipelineEvent> events_;
  ParkWord own_word_;
  Parker own_parker_{&own_word_};
  std::atomic<uint64_t> cancels_{0};
  std::atomic<bool> stop_{false};
  PipelineStatistics statistics_;

  std::unique_ptr<PinnedThread> thread_;  // last: joined first
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_PIPELINE_H_
