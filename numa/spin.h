#ifndef FASTDECODE_NUMA_SPIN_H_
#define FASTDECODE_NUMA_SPIN_H_

#include <emmintrin.h>
#include <sched.h>

#include <cstdint>

namespace fastdecode {

enum class PollMode {
  kSpin,   // the thread has a core to itself and never enters the kernel
  kYield,  // threads share cores: after kEmptyPollsBeforeYield empty polls every further one gives the core away
};

// One empty poll's pause: lets the sibling hyperthread run and saves the pipeline flush when the awaited line changes.
inline void CpuRelax() { _mm_pause(); }

// What a thread does between two empty polls.
// Two pinned spinners on one core otherwise need 8 ms for a round trip (a scheduler slice each way); with the yield 3
// us. Thread: one.
class PollBackoff {
 public:
  static constexpr uint32_t kEmptyPollsBeforeYield = 256;

  explicit PollBackoff(PollMode mode) : mode_(mode) {}

  // After an empty poll.
  void Idle() {
    if (mode_ == PollMode::kYield && ++empty_polls_ > kEmptyPollsBeforeYield) {
      empty_polls_ = kEmptyPollsBeforeYield;
      sched_yield();
      return;
    }
    CpuRelax();
  }

  // After a poll that found something.
  void Reset() { empty_polls_ = 0; }

 private:
  PollMode mode_;
  uint32_t empty_polls_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_SPIN_H_
