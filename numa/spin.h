#ifndef FASTDECODE_NUMA_SPIN_H_
#define FASTDECODE_NUMA_SPIN_H_

#include <emmintrin.h>
#include <sched.h>
#include <time.h>

#include <cstdint>

#include "numa/clock.h"
#include "numa/core_turn.h"

namespace fastdecode {

enum class PollMode {
  kSpin,   // the thread has a core to itself and never enters the kernel
  kYield,  // other processes use the core, too: after kEmptyPollsBeforeYield empty polls every further one gives the
           // core away, and after a long time of that naps
  kWatch,  // as kSpin while the core is the thread's own; for a second after it was taken away for long, as kYield
  kTurns,  // threads of this process share the core and take turns on it (CoreTurn): every empty poll passes the turn
           // on, without a pause, and after kEmptyPollsBeforeYield of them also gives the core to other processes
};

// One empty poll's pause: lets the sibling hyperthread run and saves the pipeline flush when the awaited line changes.
inline void CpuRelax() { _mm_pause(); }

// What a thread does between two empty polls.
// Two pinned spinners on one core otherwise need 8 ms for a round trip (a scheduler slice each way); with the yield 3
// us. But who yields for long keeps its share of the core, which is taken from what it waits for: so it naps. Who else
// will come to run on a core is not known beforehand (a worker's engine on the same host, say): a thread that watches
// finds out by two looks at the clock that lie further apart than polls do; so it says when it has slept or worked in
// between (Reset). REQUIRES: TickClock::Get() was called at the start. Thread: one.
class PollBackoff {
 public:
  static constexpr uint32_t kEmptyPollsBeforeYield = 256;
  static constexpr uint32_t kPollsForTeam = 256;

  // `polls_before_pass`: a thread that takes turns keeps its turn for so many empty polls. Where it waits for threads
  // of its own team, which are at work on other cores, nobody else is likely to have work for this one.
  explicit PollBackoff(PollMode mode, uint32_t polls_before_pass = 0)
      : mode_(mode), polls_before_pass_(polls_before_pass) {}

  // After an empty poll.
  void Idle() {
    ++empty_polls_;
    if (mode_ == PollMode::kTurns) {
      IdleInTurn();
      return;
    }
    if (mode_ == PollMode::kWatch && (SharesCore() || empty_polls_ % kPollsBetweenLooks == 0)) Look();
    const bool yields = mode_ == PollMode::kYield || (mode_ == PollMode::kWatch && SharesCore());
    if (!yields || empty_polls_ <= kEmptyPollsBeforeYield) {
      CpuRelax();
    } else if (mode_ != PollMode::kYield || !WaitsForLong()) {
      sched_yield();
    } else {
      constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 50'000};
      nanosleep(&kNap, nullptr);
    }
  }

  // After a poll that found something, or a sleep.
  void Reset() { empty_polls_ = looked_ticks_ = waits_since_ticks_ = 0; }

  // Whether this thread, watching, has seen its core given to others within the last second.
  static bool SharesCore() { return shared_until_ticks_ != 0; }

 private:
  static constexpr uint32_t kPollsBetweenLooks = 16;
  static constexpr uint64_t kTakenNs = 500'000;  // looks lie microseconds apart, interrupts take less
  static constexpr uint64_t kYieldNs = 1'000'000'000;
  static constexpr uint64_t kLongNs = 1'000'000;  // a nap makes such a wait some 5 % longer, and a longer one less

  void IdleInTurn() {
    if (empty_polls_ > polls_before_pass_ + kEmptyPollsBeforeYield) sched_yield();
    if (empty_polls_ <= polls_before_pass_ || !CoreTurn::PassOn()) CpuRelax();
  }

  // From the first yield on.
  bool WaitsForLong() {
    const uint64_t now = NowTicks();
    if (waits_since_ticks_ == 0) waits_since_ticks_ = now;
    return now - waits_since_ticks_ > TickClock::Get().ToTicks(kLongNs);
  }

  // Whether the core was taken away since the last look.
  void Look() {
    const TickClock& clock = TickClock::Get();
    const uint64_t now = NowTicks();
    if (now >= shared_until_ticks_) shared_until_ticks_ = 0;
    if (looked_ticks_ != 0 && now - looked_ticks_ > clock.ToTicks(kTakenNs)) {
      shared_until_ticks_ = now + clock.ToTicks(kYieldNs);
    }
    looked_ticks_ = now;
  }

  static inline thread_local uint64_t shared_until_ticks_ = 0;  // 0: the core is the thread's own

  PollMode mode_;
  uint32_t polls_before_pass_;
  uint32_t empty_polls_ = 0;
  uint64_t looked_ticks_ = 0;
  uint64_t waits_since_ticks_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_SPIN_H_
