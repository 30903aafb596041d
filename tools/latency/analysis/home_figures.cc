#include "tools/latency/analysis/home_figures.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace fastdecode {
namespace {

struct Sums {
  size_t hops = 0, hops_with_others = 0, last = 0;
  double waited_for_ns = 0, work_ns = 0, kv_bytes = 0;
  double busy_ns = 0;  // of steps that were not recorded whole too
};

void AddHop(const HopTimes& hop, Sums* sums) {
  ++sums->hops;
  sums->work_ns += static_cast<double>(hop.work_ns());
  sums->kv_bytes += static_cast<double>(hop.kv_bytes);
  sums->waited_for_ns += static_cast<double>(hop.waited_for_ns);
  if (hop.homes < 2) return;
  ++sums->hops_with_others;
  if (hop.last) ++sums->last;
}

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace

std::vector<HomeFigures> MeasureHomes(const Recording& recording, const Timeline& timeline) {
  const size_t homes = static_cast<size_t>(timeline.homes);
  std::vector<Sums> sums(homes);
  for (const HopTimes& hop : timeline.hops) AddHop(hop, &sums[static_cast<size_t>(hop.home)]);
  for (const fd_record_event& event : recording.events) {
    if (!IsHop(event, timeline.homes) || event.end_ns <= timeline.start_ns || event.end_ns > timeline.end_ns) continue;
    const uint64_t work_ns =
        uint64_t{event.prepare_ns} + event.append_ns + event.attend_ns + event.merge_ns + event.wait_ns;
    // What it did before the beginning of what is looked at is not of it.
    sums[static_cast<size_t>(event.home)].busy_ns +=
        static_cast<double>(std::min(work_ns, event.end_ns - timeline.start_ns));
  }
  double kv_bytes = 0;
  for (const Sums& one : sums) kv_bytes += one.kv_bytes;
  const uint64_t span_ns = timeline.end_ns - timeline.start_ns;
  std::vector<HomeFigures> all;
  for (size_t home = 0; home < homes; ++home) {
    const Sums& of = sums[home];
    HomeFigures figures;
    figures.home = static_cast<int>(home);
    figures.name = recording.HomeName(figures.home);
    figures.hops = of.hops;
    figures.last_share = Ratio(static_cast<double>(of.last), static_cast<double>(of.hops_with_others));
    figures.waited_for_ns = Ratio(of.waited_for_ns, static_cast<double>(of.hops));
    figures.busy_share = Ratio(of.busy_ns, static_cast<double>(span_ns));
    figures.kv_share = Ratio(of.kv_bytes, kv_bytes);
    figures.gb_per_s = Ratio(of.kv_bytes, of.work_ns);
    figures.min_round_trip_ns = static_cast<double>(timeline.least_rest_ns[home]);
    const ClockRelation& clock = timeline.clocks[home];
    if (clock.known) {
      figures.clock_offset_ns = clock.At(timeline.start_ns + span_ns / 2);
      figures.clock_drift_ppm = clock.drift_ppm;
      figures.clock_bound_ns = clock.bound_ns;
    }
    all.push_back(figures);
  }
  return all;
}

}  // namespace fastdecode
