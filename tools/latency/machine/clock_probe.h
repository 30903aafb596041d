#ifndef FASTDECODE_TOOLS_LATENCY_MACHINE_CLOCK_PROBE_H_
#define FASTDECODE_TOOLS_LATENCY_MACHINE_CLOCK_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/doctor/sys_root.h"

namespace fastdecode {

// How good the clock is that all figures come from (NowTicks, numa/clock.h).

// How far the clocks of two cores may be apart, by the quickest of many round trips between them: the second core read
// its clock somewhere within it.
struct ClockOffset {
  int from = -1, to = -1;  // cores
  double offset_ns = 0;    // to - from
  double bound_ns = 0;     // the offset is right within this: half of the round trip
  uint64_t rounds = 0;     // 0: a core could not be had, and nothing is known

  bool ShownToDiffer() const { return rounds > 0 && (offset_ns > bound_ns || offset_ns < -bound_ns); }
};

// What a reading of a clock costs, and how fine it is.
struct ClockCost {
  double call_ns = 0;      // median
  double step_ns = 0;      // smallest difference above 0 between two readings in a row
  uint64_t backwards = 0;  // readings below the one before
};

struct ClockFacts {
  bool tsc = false;               // NowTicks reads the TSC, as the processor says that it is invariant
  std::string source, available;  // the kernel's; "" if not readable
  uint64_t elapsed_ns = 0;        // of the comparison of rates, by CLOCK_MONOTONIC_RAW
  double ticks_per_second = 0;    // over that time
  double calibration_ppm = 0;     // by how much TickClock's 10 ms at start-up are off
  double drift_ppm = 0;           // spread of the rate over tenths of the time
  double slew_ppm = 0;            // of CLOCK_MONOTONIC, by which NowNs goes, against CLOCK_MONOTONIC_RAW
  ClockCost ticks, ns;            // NowTicks, NowNs
  std::vector<ClockOffset> offsets;
};

struct ClockOptions {
  std::vector<int> cores;
  uint64_t duration_ns = 2'000'000'000;  // of the comparison of rates
};
// All pairs of so many cores are compared; of more, each with the first.
inline constexpr size_t kAllPairsCoresMax = 12;

ClockFacts ExamineClock(const ClockOptions& options, const SysRoot& root);

// `read_far` is the clock of the second core. Takes 20 ms, or as many as two cores need for a few round trips.
ClockOffset MeasureClockOffset(int from, int to, uint64_t (*read_far)());

// What is wrong, in sentences; empty: nothing.
std::vector<std::string> ClockWarnings(const ClockFacts& facts);
// For people, in lines of at most `width` columns (60 at least).
std::string FormatClock(const ClockFacts& facts, size_t width);
nlohmann::json ToJson(const ClockFacts& facts);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_MACHINE_CLOCK_PROBE_H_
