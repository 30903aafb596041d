#ifndef FASTDECODE_NUMA_CLOCK_H_
#define FASTDECODE_NUMA_CLOCK_H_

#include <time.h>
#include <x86intrin.h>

#include <cstdint>

namespace fastdecode {

namespace clock_internal {

// True if the CPU says that its time stamp counter ticks at one rate in every power state (CPUID 80000007H:EDX[8]).
bool HasInvariantTsc();

inline const bool kUseTsc = HasInvariantTsc();

inline uint64_t ReadClockNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace clock_internal

// Monotonic ns since an arbitrary start that all processes of this host share. About 20 ns a call.
inline uint64_t NowNs() { return clock_internal::ReadClockNs(CLOCK_MONOTONIC); }

// The cheapest clock of this machine in ticks of unknown length: the TSC where it is invariant, else
// CLOCK_MONOTONIC_RAW. Differences go through TickClock. Does not order the instructions around it.
inline uint64_t NowTicks() {
  return clock_internal::kUseTsc ? __rdtsc() : clock_internal::ReadClockNs(CLOCK_MONOTONIC_RAW);
}

// The length of a tick, measured once.
// Thread: any; immutable after the first Get(), which takes about 10 ms. Call Get() at start-up, before the data path
// does.
class TickClock {
 public:
  static const TickClock& Get();

  // Neither overflows below 500 years, nor loses more than a part in 2^32 beyond the calibration's some ppm.
  uint64_t ToNs(uint64_t ticks_delta) const { return Scale(ticks_delta, ns_per_tick_q32_); }
  uint64_t ToTicks(uint64_t ns) const { return Scale(ns, ticks_per_ns_q32_); }

  double ticks_per_second() const { return ticks_per_second_; }
  bool uses_tsc() const { return clock_internal::kUseTsc; }

 private:
  explicit TickClock(double ticks_per_second);

  static uint64_t Scale(uint64_t value, uint64_t factor_q32) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(value) * factor_q32) >> 32);
  }

  double ticks_per_second_;
  uint64_t ns_per_tick_q32_;  // 32.32 fixed point
  uint64_t ticks_per_ns_q32_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_CLOCK_H_
