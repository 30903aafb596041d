#ifndef FASTDECODE_NUMA_CORE_TURN_H_
#define FASTDECODE_NUMA_CORE_TURN_H_

#include <atomic>
#include <cstdint>

#include "numa/cache_line.h"

namespace fastdecode {

// The turns of one core that several polling threads of this process share: a ticket lock whose waiters sleep. Only the
// thread that has the turn polls or works; the others do not compete with it, whatever the kernel's scheduler takes for
// fair. (Threads that call sched_yield instead compete: under CFS and early EEVDF a thread that has only polled is owed
// the CPU time that the others worked, and gets it.)
// Thread: any. Bounded: fewer than 2^32 threads wait at once.
class CoreTurns {
 public:
  // Waits until the calling thread has the turn. Turns are given in order of arrival.
  void Take();
  // Gives the turn to the thread that has waited for the longest, if one waits. REQUIRES: the caller has the turn.
  void Give();
  // Gives the turn to every thread that waits, and waits until it comes back. False, at once: none waits. REQUIRES: the
  // caller has the turn.
  bool PassOn();

 private:
  void Await(uint32_t ticket);

  alignas(kCacheLineBytes) std::atomic<uint32_t> next_ticket_{0};
  std::atomic<uint32_t> serving_{0};  // the ticket that has the turn; a futex, on which waiters sleep
};

// The calling thread's place among those that share a core. A thread has the turn from the constructor's return to the
// destructor, except inside PassOn and while it sleeps (FutexPolicy::Wait and VerbsHomeLink::Sleep give
// the turn away).
// Cost: two system calls and a context switch for each pass to another thread, 1.7 us on Zen 5; nothing if none waits.
// Owns: nothing; the turns of a core belong to the process. Thread: the one that makes it; at most one at a time.
class CoreTurn {
 public:
  // `core`: the OS number of the PU that the thread is pinned to; -1: it shares no core, and all of this does nothing.
  explicit CoreTurn(int core);
  ~CoreTurn();
  CoreTurn(const CoreTurn&) = delete;
  CoreTurn& operator=(const CoreTurn&) = delete;

  // Lets every other thread that waits for this core have a turn, then returns. False, at once: no other thread waits,
  // or the calling thread shares no core.
  static bool PassOn();

  // The calling thread sleeps or blocks for another reason meanwhile, without the turn.
  class Away {
   public:
    Away();
    ~Away();
    Away(const Away&) = delete;
    Away& operator=(const Away&) = delete;
  };
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_CORE_TURN_H_
