#ifndef FASTDECODE_TOOLS_LATENCY_MACHINE_INTERRUPTIONS_H_
#define FASTDECODE_TOOLS_LATENCY_MACHINE_INTERRUPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/doctor/sys_root.h"
#include "tools/latency/machine/cpu_counters.h"

namespace fastdecode {

// How much the machine took from the threads of a process while it was measured: by what the kernel counts before and
// after.

struct ThreadCounters {
  int tid = 0;
  std::string name;
  int core = -1;             // that it is pinned to; -1: none
  bool timed = false;        // the kernel counts the next two
  uint64_t ran_ns = 0;       // on a core
  uint64_t waited_ns = 0;    // ready to run, and others were running
  uint64_t preemptions = 0;  // times that others were let run though it was not done
};

struct MachineSnapshot {
  int pid = 0;
  uint64_t time_ns = 0;                 // CLOCK_MONOTONIC
  std::vector<ThreadCounters> threads;  // by tid; empty: not readable
  MachineCounters cores;
};

// `pid` 0: this process. Never fails. Some ms on a large machine: not while something is measured on this core.
MachineSnapshot TakeSnapshot(const SysRoot& root, int pid);

struct Interruptions {
  // The machine took more than kTakenShareMax of the time of a core that a thread is pinned to: the figures are also of
  // that. False where the kernel does not say; then a warning does.
  bool interrupted = false;
  // A sentence for each such core; for each core that several busy threads are pinned to, as they wait for each other;
  // and for threads that are not pinned and waited long.
  std::vector<std::string> warnings;

  // More than what the tick of a kernel with 1000 Hz takes.
  static constexpr double kTakenShareMax = 0.002;
};

// REQUIRES: both of the same process.
Interruptions FindInterruptions(const MachineSnapshot& before, const MachineSnapshot& after);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_MACHINE_INTERRUPTIONS_H_
