// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_PIPELINE_STEP_TIMES_H_
#define FASTDECODE_ENGINE_PIPELINE_STEP_TIMES_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace fastdecode {

// Where the time of steps went. The places are apart from each other and add up: total_ns is the sum of the six below
// it, to the nanosecond. A step lasts from the end of the one before, or from when the sequence joined its micro-batch,
// to the end of its last stage; so wait_ns has the time between two steps, too.
struct StepTimes {
  uint64_t steps = 0;
  uint64_t total_ns = 0;
  // Stages of the S-Part but for the last one, from their start until they are seen to be over. Where threads take
  // turns on their cores, waiting for a turn within a stage is part of it; on a GPU, waiting for other micro-batches'
  // kernels is. So is attention at homes that are attended to within stages, unless other homes have hops meanwhile.
  uint64_t s_ns = 0;
  // Waiting for the S-Part or for a core: from when a hop's last reply may have come in at the earliest until the next
  // stage starts, since another micro-batch had the S-Part or another thread the core; and between two steps, whatever
  // held the micro-batch, the sequence's place in it, or its pushed prompt.
  uint64_t wait_ns = 0;
  // The home whose reply was the last, at work: from when it saw the hop, and so had its core's turn, until its last
  // thread was done.
  uint64_t home_ns = 0;
  // The rest of the hop, there and back. What went by while the pipeline did not look, and so may have been either, is
  // in wait_ns. Without a reply, since the home was lost, all of the hop.
  uint64_t wire_ns = 0;
  // Between two steps: tokens are judged, sequences leave and join, rows are composed, rosters go out.
  uint64_t boundary_ns = 0;
  // The last stage: the last layer's output and MLP, the head, and the sampling of all rows, which nobody tells apart
  // while nothing is recorded.
  uint64_t sampling_ns = 0;

  void Add(const StepTimes& other) {
    steps += other.steps;
    total_ns += other.total_ns;
    s_ns += other.s_ns;
    wait_ns += other.wait_ns;
    home_ns += other.home_ns;
    wire_ns += other.wire_ns;
    boundary_ns += other.boundary_ns;
    sampling_ns += other.sampling_ns;
  }
  bool operator==(const StepTimes&) const = default;
};

// Where the time of a sequence went since it was submitted. With every step's end
// queue_ns + prefill.total_ns + decode.total_ns is the time since then.
struct SequenceTimes {
  StepTimes prefill;         // steps that computed prompt tokens, or, after a preemption, several known tokens again
  StepTimes decode;          // the others: one row each, of the newest token
  uint64_t queue_ns = 0;     // in no micro-batch: from submission, or the end of the last step before a preemption or
                             // a recovery
  uint32_t preemptions = 0;  // its pages went to another sequence
  uint32_t moves = 0;        // to another micro-batch
  uint32_t recoveries = 0;   // its home was lost
  // So many of its prompt's tokens were stored at its first home when it came there: others had computed them.
  uint32_t cached_tokens = 0;
  uint64_t recovery_ns = 0;  // from the losses of its home until it was where it had been, or ended

  bool operator==(const SequenceTimes&) const = default;
};

// A sequence's times for whoever reads them while they go on. A reader sees those of one moment.
// Thread: one writer, any readers. A reader tries again while the writer is at it, which is some nanoseconds a step.
class SharedTimes {
 public:
  void Store(const SequenceTimes& times) {
    const Words words = std::bit_cast<Words>(times);
    const uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Release: who sees a new word sees that it is being written.
    for (size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  SequenceTimes Load() const {
    for (;;) {
      Words words;
      const uint32_t version = version_.load(std::memory_order_acquire);
      // Acquire: pairs with the stores, and the version is looked at again after them.
      for (size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (version % 2 == 0 && version_.load(std::memory_order_relaxed) == version) {
        return std::bit_cast<SequenceTimes>(words);
      }
    }
  }

 private:
  using Words = std::array<uint64_t, sizeof(SequenceTimes) / sizeof(uint64_t)>;

  std::atomic<uint32_t> version_{0};  // odd while the words are written
  std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words_{};
};

// Adds up where the time of one micro-batch's steps goes, one step at a time: from a step's beginning on every moment
// belongs to the place that it is told of next, so that the places add up whatever happens.
// Thread: the pipeline's. Reads no clock: all times are given.
class StepTimer {
 public:
  // Its boundary begins.
  void Begin(uint64_t now_ns) {
    times_ = StepTimes{.steps = 1};
    begin_ns_ = at_ns_ = now_ns;
  }
  // What went by since the last call was the boundary, a stage, or the last stage.
  void EndBoundary(uint64_t now_ns) { Spend(&times_.boundary_ns, now_ns); }
  void EndStage(uint64_t now_ns, bool last) { Spend(last ? &times_.sampling_ns : &times_.s_ns, now_ns); }
  // Its hops begin where the stage ended: maybe none.
  void BeginHop() {
    came_ns_ = at_ns_;
    home_ns_ = 0;
  }
  // A reply is seen. polled_ns: when there was none yet; 0: nobody looked. It came in after that, and not before the
  // home had worked, so that the last one is the one that comes last by these bounds.
  void TakeReply(uint64_t work_ns, uint64_t polled_ns, uint64_t now_ns) {
    const uint64_t home_ns = std::min(work_ns, now_ns - at_ns_);
    const uint64_t came_ns = std::max(polled_ns, at_ns_ + home_ns);
    if (came_ns < came_ns_ || (came_ns == came_ns_ && home_ns <= home_ns_)) return;
    came_ns_ = came_ns;
    home_ns_ = home_ns;
  }
  void LoseReply(uint64_t now_ns) {
    if (now_ns <= came_ns_) return;
    came_ns_ = now_ns;
    home_ns_ = 0;
  }
  // The stage behind them starts.
  void EndHop(uint64_t now_ns) {
    Spend(&times_.home_ns, at_ns_ + home_ns_);
    Spend(&times_.wire_ns, came_ns_);
    Spend(&times_.wait_ns, now_ns);
  }
  // The step is over; its tokens have been judged.
  void Finish(uint64_t now_ns) {
    Spend(&times_.boundary_ns, now_ns);
    times_.total_ns = now_ns - begin_ns_;
  }
  void EndJudging(uint64_t now_ns) {
    last_end_ns_ = at_ns_;
    judged_ns_ = now_ns;
  }

  // The step's times, which is over, and what went by before it, to a sequence whose times are known until since_ns.
  // REQUIRES: EndJudging has not been called since Finish.
  void AddTo(StepTimes* times, uint64_t since_ns) const {
    times->Add(times_);
    const uint64_t before_ns = begin_ns_ - since_ns;
    const uint64_t judging_ns = since_ns == last_end_ns_ ? judged_ns_ - last_end_ns_ : 0;
    times->total_ns += before_ns;
    times->boundary_ns += judging_ns;
    times->wait_ns += before_ns - judging_ns;
  }

 private:
  void Spend(uint64_t* place_ns, uint64_t until_ns) {
    *place_ns += until_ns - at_ns_;
    at_ns_ = until_ns;
  }

  StepTimes times_;
  uint64_t begin_ns_ = 0;
  uint64_t at_ns_ = 0;    // until then places were told
  uint64_t came_ns_ = 0;  // of the hop's last reply, so far: at the earliest...
  uint64_t home_ns_ = 0;  // ...and how long its home worked
  // The step before: its end, and when its tokens had been judged.
  uint64_t last_end_ns_ = 0;
  uint64_t judged_ns_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_STEP_TIMES_H_
