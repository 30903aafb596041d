#ifndef FASTDECODE_NUMA_TICKET_TEAM_H_
#define FASTDECODE_NUMA_TICKET_TEAM_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "numa/cache_line.h"
#include "numa/check.h"
#include "numa/pinned_thread.h"
#include "numa/spin.h"
#include "numa/team_barrier.h"

namespace fastdecode {

// Denormal results and inputs of SSE/AVX arithmetic become zero on the calling thread; they would cost 100 cycles each.
// A team's helpers do this themselves; whoever is thread 0 calls it once.
void SetFlushDenormals();

// Threads that do one unit of work together, again and again: thread 0 is the caller, the others are helpers that spin
// on a ticket. No locks, no allocation and, unless parked, yielding or taking turns, no system call between
// construction and destruction. With one thread all of it is inline and free. Owns: N-1 pinned helper threads. Thread:
// one owner thread calls everything but Barrier, which all N call from inside work. Bounded: one unit of work at a
// time.
class TicketTeam {
 public:
  // Runs the share of thread `thread_index` (0 <= thread_index < thread_count). Must not throw.
  using Work = void (*)(void* context, int thread_index, int thread_count);

  // One thread per entry of `cores` (OS numbers of PUs, -1 for not pinned); cores[0] is the owner's, which is not
  // moved. Helper i is called "NAME-i". Throws as PinnedThread does. REQUIRES: at least one entry.
  TicketTeam(const std::string& name, const std::vector<int>& cores, PollMode mode);
  // REQUIRES: Done().
  ~TicketTeam();

  TicketTeam(const TicketTeam&) = delete;
  TicketTeam& operator=(const TicketTeam&) = delete;

  // All N shares; returns when all are done, with all that the work wrote visible.
  void Run(Work work, void* context) {
    Start(work, context);
    work(context, 0, thread_count_);
    Wait();
  }

  // Releases the helpers only. The owner must do thread 0's share itself, and see Done() or Wait() before the next
  // Start and before anything that `context` points to goes away. REQUIRES: Done().
  void Start(Work work, void* context) {
    if (helper_count_ == 0) return;
    FD_CHECK(Done(), "the team is still at its last unit of work");
    release_.work = work;
    release_.context = context;
    ++units_;
    // Release: the helpers' acquire load of the ticket sees work and context, and all that the owner wrote before.
    release_.ticket.store(units_, std::memory_order_release);
    if (parked_) WakeHelpers();
  }

  // Whether all helpers have finished what the last Start gave them.
  bool Done() const {
    // Acquire: pairs with each helper's acq_rel increment (a release sequence of read-modify-writes, so that the last
    // value carries them all); the owner sees what every helper wrote.
    return finished_.value.load(std::memory_order_acquire) == units_ * helper_count_;
  }

  // Polls until Done().
  void Wait() {
    PollBackoff backoff(mode_, PollBackoff::kPollsForTeam);
    while (!Done()) backoff.Idle();
  }

  // From inside work, by every one of the N threads: returns when all have come, and then each sees what all wrote
  // before. May be called any number of times in one unit of work, by all threads equally often.
  void Barrier(int /*thread_index*/) { barrier_.Await(); }

  // Sends the helpers to sleep until the next Start; the owner says so when no work is in sight. REQUIRES: Done().
  void Park();
  bool parked() const { return parked_; }
  PollMode poll_mode() const { return mode_; }

  int thread_count() const { return thread_count_; }
  // Helpers whose core was refused by the kernel and who therefore float. 0 if all is well.
  int unpinned_count() const { return unpinned_count_; }
  // Why, an errno: PinnedThread::pin_error of the last of them.
  int pin_error() const { return pin_error_; }

 private:
  // Written by the owner, read by the helpers.
  struct alignas(kCacheLineBytes) Release {
    std::atomic<uint64_t> ticket{0};
    std::atomic<uint32_t> parked{0};  // futex: helpers sleep while it is 1
    Work work = nullptr;              // null: end
    void* context = nullptr;
  };

  TicketTeam(int thread_count, PollMode mode);  // still without helpers
  void HelperLoop(int thread_index, int core);
  uint64_t AwaitTicketAfter(uint64_t last_ticket);
  void WakeHelpers();

  // Constant after construction.
  const int thread_count_;
  const uint64_t helper_count_;
  const PollMode mode_;
  int unpinned_count_ = 0;
  int pin_error_ = 0;

  // Owner only.
  uint64_t units_ = 0;  // of work released so far
  bool parked_ = false;

  Release release_;
  CacheAligned<std::atomic<uint64_t>> finished_{};  // shares done by helpers since construction; helpers
  TeamBarrier barrier_;                             // all threads

  std::vector<PinnedThread> helpers_;  // last: joined before the rest goes away
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_TICKET_TEAM_H_
