#include "tools/latency/machine/clock_probe.h"

#include <emmintrin.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "numa/cache_line.h"
#include "numa/clock.h"
#include "numa/pinned_thread.h"
#include "numa/spin.h"

namespace fastdecode {

namespace {

constexpr uint64_t kPairNs = 20'000'000;
constexpr uint64_t kRoundsMin = 10;
// Should a core be busy with others: two threads that each wait for their turn need some ms a round trip.
constexpr uint64_t kPairNsMax = 2'000'000'000;
constexpr int kParts = 10;  // of the comparison of rates

// ---- Rates

struct Moment {
  uint64_t ticks = 0, raw_ns = 0, ns = 0;
};

// All three at once: the quickest of several readings, so that no interrupt lies between them.
Moment ReadMoment() {
  Moment best;
  uint64_t best_width = UINT64_MAX;
  for (int attempt = 0; attempt < 64; ++attempt) {
    const uint64_t before = NowTicks();
    const uint64_t raw_ns = clock_internal::ReadClockNs(CLOCK_MONOTONIC_RAW);
    const uint64_t between = NowTicks();
    const uint64_t ns = NowNs();
    const uint64_t after = NowTicks();
    if (after - before >= best_width) continue;
    best_width = after - before;
    // NowNs a little after, by what lies between the middles of the two readings.
    const uint64_t later_ns = TickClock::Get().ToNs((between + after) / 2 - (before + between) / 2);
    best = {before + (between - before) / 2, raw_ns, ns - later_ns};
  }
  return best;
}

double TicksPerSecond(const Moment& from, const Moment& to) {
  return static_cast<double>(to.ticks - from.ticks) * 1e9 / static_cast<double>(to.raw_ns - from.raw_ns);
}

void CompareRates(uint64_t duration_ns, ClockFacts* facts) {
  std::vector<Moment> moments = {ReadMoment()};
  for (int part = 0; part < kParts; ++part) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(duration_ns / kParts));
    moments.push_back(ReadMoment());
  }
  const Moment& first = moments.front();
  const Moment& last = moments.back();
  facts->elapsed_ns = last.raw_ns - first.raw_ns;
  facts->ticks_per_second = TicksPerSecond(first, last);
  facts->calibration_ppm = (TickClock::Get().ticks_per_second() / facts->ticks_per_second - 1) * 1e6;
  facts->slew_ppm =
      (static_cast<double>(last.ns - first.ns) / static_cast<double>(last.raw_ns - first.raw_ns) - 1) * 1e6;
  double low = facts->ticks_per_second, high = low;
  for (size_t i = 1; i < moments.size(); ++i) {
    const double rate = TicksPerSecond(moments[i - 1], moments[i]);
    low = std::min(low, rate);
    high = std::max(high, rate);
  }
  facts->drift_ppm = (high - low) / facts->ticks_per_second * 1e6;
}

// ---- Costs

template <class Read>
ClockCost MeasureCost(const Read& read, double ns_per_unit) {
  constexpr int kBatches = 201, kCalls = 1000;
  ClockCost cost;
  std::vector<double> per_call;
  uint64_t smallest = UINT64_MAX;
  for (int batch = 0; batch < kBatches; ++batch) {
    const uint64_t start = NowTicks();
    uint64_t last = read();
    for (int call = 0; call < kCalls; ++call) {
      const uint64_t now = read();
      if (now < last) ++cost.backwards;
      if (now > last) smallest = std::min(smallest, now - last);
      last = now;
    }
    per_call.push_back(static_cast<double>(NowTicks() - start) / (kCalls + 1));
  }
  std::nth_element(per_call.begin(), per_call.begin() + kBatches / 2, per_call.end());
  cost.call_ns = per_call[kBatches / 2] * 1e9 / TickClock::Get().ticks_per_second();
  cost.step_ns = smallest == UINT64_MAX ? 0 : static_cast<double>(smallest) * ns_per_unit;
  return cost;
}

// ---- Cores against each other

// What two cores pass to each other. The number of a round goes there, the far clock comes back.
struct Ball {
  alignas(kCacheLineBytes) std::atomic<uint64_t> there{0};
  alignas(kCacheLineBytes) std::atomic<uint64_t> back{0};
  uint64_t far_ticks = 0;  // under `back`
};

constexpr uint64_t kStop = UINT64_MAX;

// Not before what was read before it: processors read the TSC ahead of a load that they still wait for.
uint64_t ReadAfterLoads(uint64_t (*read)()) {
  _mm_lfence();
  return read();
}

void Return(Ball* ball, uint64_t (*read_far)()) {
  uint64_t seen = 0;
  while (true) {
    uint64_t round;
    for (int polls = 0; (round = ball->there.load(std::memory_order_acquire)) == seen; ++polls) {
      if (polls % 1024 == 1023) std::this_thread::yield();
      CpuRelax();
    }
    if (round == kStop) return;
    seen = round;
    ball->far_ticks = ReadAfterLoads(read_far);
    ball->back.store(round, std::memory_order_release);
  }
}

void Throw(Ball* ball, ClockOffset* out) {
  const TickClock& clock = TickClock::Get();
  const uint64_t begin = NowTicks();
  uint64_t best = UINT64_MAX;
  int64_t best_offset = 0;
  for (uint64_t round = 1;; ++round) {
    const uint64_t start = NowTicks();
    ball->there.store(round, std::memory_order_release);
    for (int polls = 0; ball->back.load(std::memory_order_acquire) != round; ++polls) {
      if (polls % 1024 == 1023) std::this_thread::yield();
      CpuRelax();
    }
    const uint64_t end = ReadAfterLoads(&NowTicks);
    if (end - start < best) {
      best = end - start;
      best_offset = static_cast<int64_t>(ball->far_ticks - start) - static_cast<int64_t>(best / 2);
    }
    out->rounds = round;
    const uint64_t elapsed_ns = clock.ToNs(end - begin);
    if ((elapsed_ns > kPairNs && round >= kRoundsMin) || elapsed_ns > kPairNsMax) break;
  }
  ball->there.store(kStop, std::memory_order_release);
  const double ns_per_tick = 1e9 / clock.ticks_per_second();
  out->offset_ns = static_cast<double>(best_offset) * ns_per_tick;
  out->bound_ns = static_cast<double>(best) / 2 * ns_per_tick;
}

}  // namespace

ClockOffset MeasureClockOffset(int from, int to, uint64_t (*read_far)()) {
  ClockOffset offset;
  offset.from = from;
  offset.to = to;
  Ball ball;
  PinnedThread far("fd-clock", to, [&] { Return(&ball, read_far); });
  PinnedThread near("fd-clock", from, [&] { Throw(&ball, &offset); });
  near.Join();
  far.Join();
  if (!near.pinned() || !far.pinned()) offset.rounds = 0;
  return offset;
}

ClockFacts ExamineClock(const ClockOptions& options, const SysRoot& root) {
  constexpr char kFolder[] = "/sys/devices/system/clocksource/clocksource0/";
  ClockFacts facts;
  facts.tsc = TickClock::Get().uses_tsc();
  facts.source = root.Text(std::string(kFolder) + "current_clocksource").value_or("");
  facts.available = root.Text(std::string(kFolder) + "available_clocksource").value_or("");
  facts.ticks = MeasureCost([] { return NowTicks(); }, 1e9 / TickClock::Get().ticks_per_second());
  facts.ns = MeasureCost([] { return NowNs(); }, 1);
  CompareRates(options.duration_ns, &facts);
  const std::vector<int>& cores = options.cores;
  for (size_t i = 0; i < cores.size(); ++i) {
    if (i > 0 && cores.size() > kAllPairsCoresMax) break;
    for (size_t j = i + 1; j < cores.size(); ++j) {
      facts.offsets.push_back(MeasureClockOffset(cores[i], cores[j], [] { return NowTicks(); }));
    }
  }
  return facts;
}

}  // namespace fastdecode
