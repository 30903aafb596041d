#include "numa/clock.h"

#include <cpuid.h>

namespace fastdecode {

namespace {

struct ClockPair {
  uint64_t ticks;
  uint64_t ns;
};

// Both clocks at one instant: of several attempts the one with the least time between the two tick readings, so that
// an interrupt in between does not count.
ClockPair ReadBoth() {
  ClockPair best = {};
  uint64_t best_width = UINT64_MAX;
  for (int attempt = 0; attempt < 16; ++attempt) {
    const uint64_t before = NowTicks();
    const uint64_t ns = clock_internal::ReadClockNs(CLOCK_MONOTONIC_RAW);
    const uint64_t after = NowTicks();
    if (after - before < best_width) {
      best_width = after - before;
      best = {before + (after - before) / 2, ns};
    }
  }
  return best;
}

double MeasureTicksPerSecond() {
  if (!clock_internal::kUseTsc) return 1e9;
  const ClockPair first = ReadBoth();
  const timespec pause = {0, 10'000'000};
  nanosleep(&pause, nullptr);
  const ClockPair second = ReadBoth();
  return static_cast<double>(second.ticks - first.ticks) * 1e9 / static_cast<double>(second.ns - first.ns);
}

}  // namespace

bool clock_internal::HasInvariantTsc() {
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & (1u << 8)) != 0;
}

TickClock::TickClock(double ticks_per_second)
    : ticks_per_second_(ticks_per_second),
      ns_per_tick_q32_(static_cast<uint64_t>(1e9 / ticks_per_second * 4294967296.0 + 0.5)),
      ticks_per_ns_q32_(static_cast<uint64_t>(ticks_per_second / 1e9 * 4294967296.0 + 0.5)) {}

const TickClock& TickClock::Get() {
  static const TickClock clock(MeasureTicksPerSecond());
  return clock;
}

}  // namespace fastdecode
