#ifndef FASTDECODE_NUMA_TEAM_BARRIER_H_
#define FASTDECODE_NUMA_TEAM_BARRIER_H_

#include <atomic>
#include <cstdint>

#include "numa/cache_line.h"
#include "numa/spin.h"

namespace fastdecode {

// Where some threads wait for each other, any number of times: a team's, or some of a team's.
// Thread: the `threads` that come, each as often as the others. No system call but as the poll mode says.
class TeamBarrier {
 public:
  TeamBarrier(int threads, PollMode mode) : threads_(static_cast<uint64_t>(threads)), mode_(mode) {}

  // Returns when all have come, and then each sees what all wrote before.
  void Await() {
    if (threads_ == 1) return;
    // Arrivals are counted for ever: the k-th time opens at k * N. Acq_rel, and an acquire load below: the increments
    // form a release sequence, so who sees the count at k * N sees what each of the N wrote before arriving.
    const uint64_t opens_at = (arrived_.value.fetch_add(1, std::memory_order_acq_rel) / threads_ + 1) * threads_;
    PollBackoff backoff(mode_, PollBackoff::kPollsForTeam);
    while (arrived_.value.load(std::memory_order_acquire) < opens_at) backoff.Idle();
  }

 private:
  const uint64_t threads_;
  const PollMode mode_;
  CacheAligned<std::atomic<uint64_t>> arrived_{};  // since construction
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_TEAM_BARRIER_H_
