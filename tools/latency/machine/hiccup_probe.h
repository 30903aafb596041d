#ifndef FASTDECODE_TOOLS_LATENCY_MACHINE_HICCUP_PROBE_H_
#define FASTDECODE_TOOLS_LATENCY_MACHINE_HICCUP_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/doctor/sys_root.h"
#include "tools/latency/machine/cpu_counters.h"

namespace fastdecode {

// How steadily cores run: a thread on each reads the clock in a loop, and where two readings lie far apart, something
// else has had the core.

// Who had it. kInterrupt and kBelow are told apart by InterruptMark.
enum class HiccupCause : uint8_t {
  kThreads,    // the kernel let others run: the thread was preempted
  kInterrupt,  // the kernel handled an interrupt
  kEither,     // too long for one on a virtual machine, though there was one: the hypervisor may have had the core
  kBelow,      // no interrupt: the hypervisor, or the firmware (SMI)
  kUnknown,    // this processor leaves no marks
};
inline constexpr size_t kHiccupCauses = 5;
const char* HiccupCauseName(HiccupCause cause);

struct Hiccup {
  uint64_t start_ns = 0;  // since the measurement began
  uint64_t length_ns = 0;
  HiccupCause cause = HiccupCause::kUnknown;
};

// The measurement of one core.
struct HiccupCore {
  int core = -1;
  bool pinned = false;  // false: the kernel refused, and the figures are of no core
  uint64_t elapsed_ns = 0;
  double turn_ns = 0;           // mean time between two readings where nothing happened
  std::vector<Hiccup> hiccups;  // by time; the first kHiccupsMax
  uint64_t not_kept = 0;        // of the others only this and lost_ns are known
  uint64_t lost_ns = 0;         // sum of all
  // What the kernel counted meanwhile.
  CoreCounters counters;
  bool timed = false;      // the next one is known
  uint64_t waited_ns = 0;  // for the core
  uint64_t preemptions = 0;
  std::optional<uint64_t> migrations;
  std::optional<uint64_t> smis;  // system management interrupts
  std::string smi_note;          // why those are not known

  // How long something that happens at a random moment waits for the core, at most, in the given share of all moments;
  // 0 where the core was there at once. share in (0, 1).
  double WaitNs(double share) const;
};
inline constexpr size_t kHiccupsMax = size_t{1} << 20;

struct HiccupOptions {
  std::vector<int> cores;
  uint64_t duration_ns = 10'000'000'000;
  uint64_t threshold_ns = 2'000;  // longer ones are hiccups
  bool hypervisor = false;        // this is a virtual machine
};

// Takes the asked time and some ms, less if stop() becomes true; it is called all the time by every probe. The calling
// thread sleeps meanwhile, and is not woken. Each probe has 24 MiB.
std::vector<HiccupCore> MeasureHiccups(const HiccupOptions& options, bool (*stop)());

// How many SMIs the core has had. NotFound: no such counter; PermissionDenied; both say of what.
absl::StatusOr<uint64_t> ReadSmiCount(const SysRoot& root, int core);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_MACHINE_HICCUP_PROBE_H_
