#ifndef FASTDECODE_TOOLS_LATENCY_MACHINE_CPU_COUNTERS_H_
#define FASTDECODE_TOOLS_LATENCY_MACHINE_CPU_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/doctor/sys_root.h"

namespace fastdecode {

// What the kernel counts of each core since it was started: from /proc/interrupts, /proc/softirqs and /proc/stat.

// By cause, as people say it: "timer interrupts", "TLB shootdowns", "interrupts of nvme0q1"; of softirqs "NET_RX".
using CauseCounts = std::map<std::string, uint64_t>;

struct CoreCounters {
  CauseCounts interrupts;
  CauseCounts softirqs;
  uint64_t stolen_ns = 0;   // by the hypervisor; in steps of 10 ms, as the next one
  uint64_t handled_ns = 0;  // in interrupts and softirqs, as far as the kernel measures or samples that
};

// [core] of those that are online; empty where /proc is not readable.
using MachineCounters = std::map<int, CoreCounters>;
MachineCounters ReadMachineCounters(const SysRoot& root);

// What was added between two readings; causes of which there were none are left out. A counter that has less than
// before has gone round at 2^32.
CauseCounts Since(const CauseCounts& before, const CauseCounts& after);
CoreCounters Since(const CoreCounters& before, const CoreCounters& after);
// Cores that are in both.
MachineCounters Since(const MachineCounters& before, const MachineCounters& after);

uint64_t Total(const CauseCounts& counts);
// "45 timer interrupts, 3 TLB shootdowns": the `most` most frequent ones, most frequent first; of the others "and 7
// more". "" for none.
std::string DescribeCauses(const CauseCounts& counts, size_t most);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_MACHINE_CPU_COUNTERS_H_
