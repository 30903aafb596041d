#ifndef FASTDECODE_NUMA_PARKER_H_
#define FASTDECODE_NUMA_PARKER_H_

#include <atomic>
#include <cstdint>

#include "numa/cache_line.h"

namespace fastdecode {

// The word that a sleeper and its ringers share. May lie in memory shared between processes; zero bytes are its initial
// state. One sleeper, any number of ringers.
struct alignas(kCacheLineBytes) ParkWord {
  std::atomic<uint32_t> state{0};  // kAwake or kArmed
};
static_assert(sizeof(ParkWord) == kCacheLineBytes && std::atomic<uint32_t>::is_always_lock_free);

// Linux futexes that work across processes, and the atomics of the word; Relacy brings its own (tests/numa).
struct FutexPolicy {
  using Word = std::atomic<uint32_t>;
  static constexpr uint64_t kForever = UINT64_MAX;

  // Sleeps if *word == expected, until woken, interrupted, or timeout_ns has passed. May wake for no reason.
  // A thread that shares its core (CoreTurn) gives its turn away meanwhile.
  static void Wait(Word* word, uint32_t expected, uint64_t timeout_ns);
  static void Wake(Word* word, int sleepers_max);
};

// How a polling thread goes to sleep and is rung awake, with no wake-up lost.
//
//   sleeper                                          ringer
//     parker.Arm();                                    publish work;
//     poll once more;                                  parker.Ring();
//     if found: parker.Disarm();
//     else parker.Sleep(timeout_ns), then poll;
//
// Each side stores and then loads what the other stored; one of the two must see the other's store. Two ways to that:
//
// Ring() costs one load while nobody sleeps. REQUIRES that work is published by a seq_cst store (or read-modify-write)
// and that the poll between Arm and Sleep loads it seq_cst. Observers: the sleeper (word, then work) and the ringer
// (work, then word). All four accesses are in the one seq_cst order, so not both loads come before the other's store.
//
// RingAfterRelease() costs one locked instruction and asks nothing of the work's orders beyond release and acquire.
// Observers: the ringer's read-modify-write and Arm's are ordered on the word itself. If Arm is first, the ringer reads
// kArmed and wakes; if the ringer is first, Arm (acquire) reads from it (release) and the poll after it sees the work.
//
// Owns: nothing; the word must outlive it. Thread: Arm, Disarm, Sleep by the sleeper; Ring* by anyone but the sleeper.
template <class Policy>
class BasicParker {
 public:
  static constexpr uint32_t kAwake = 0;
  static constexpr uint32_t kArmed = 1;
  static constexpr uint64_t kForever = Policy::kForever;

  explicit BasicParker(typename Policy::Word* word) : word_(word) {}

  void Arm() { word_->exchange(kArmed, std::memory_order_seq_cst); }

  // Takes back an Arm. Acq_rel exchange, not a store: a store would end the release sequence of a ringer that wrote
  // since Arm, and the next Arm would not see that ringer's work.
  void Disarm() { word_->exchange(kAwake, std::memory_order_acq_rel); }

  // After Arm and a poll in vain. Returns when rung, after timeout_ns, or for no reason: poll again in any case.
  // Disarms.
  void Sleep(uint64_t timeout_ns) {
    Policy::Wait(word_, kArmed, timeout_ns);
    Disarm();
  }

  void Ring() {
    if (word_->load(std::memory_order_seq_cst) != kAwake) WakeSleeper();
  }

  void RingAfterRelease() {
    // fetch_add of 0: a read-modify-write that leaves the word alone.
    if (word_->fetch_add(0, std::memory_order_acq_rel) != kAwake) WakeSleeper();
  }

 private:
  void WakeSleeper() {
    // The exchange lets one of several ringers pay for the system call. The sleeper cannot miss it: the kernel compares
    // the word again before it sleeps. Acq_rel: as RingAfterRelease, for a sleeper that arms once more meanwhile.
    if (word_->exchange(kAwake, std::memory_order_acq_rel) == kArmed) Policy::Wake(word_, 1);
  }

  typename Policy::Word* word_;
};

class Parker : public BasicParker<FutexPolicy> {
 public:
  explicit Parker(ParkWord* word) : BasicParker(&word->state) {}
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_PARKER_H_
