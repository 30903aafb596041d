#include "tools/latency/analysis/clock_relation.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastdecode {
namespace {

constexpr double kDriftMax = 1e-3;
// Of the recording: one limit of each kind is kept of each, the tightest.
constexpr size_t kStretchesMax = 64;
// A home's durations are right within 0.05 %, and in whole ns.
constexpr double kWorkError = 5e-4;

// The clocks' difference lies above (or below) value_ns at that moment.
struct Limit {
  double at_ns = 0;  // from the middle
  double value_ns = 0;
};

// All that is known of the line offset + drift * at.
struct Limits {
  std::vector<Limit> low, high;
  double half_span_ns = 0;

  double LowestOffset(double drift) const {
    double offset = -std::numeric_limits<double>::infinity();
    for (const Limit& limit : low) offset = std::max(offset, limit.value_ns - drift * limit.at_ns);
    return offset;
  }
  double HighestOffset(double drift) const {
    double offset = std::numeric_limits<double>::infinity();
    for (const Limit& limit : high) offset = std::min(offset, limit.value_ns - drift * limit.at_ns);
    return offset;
  }
  // What lies between them is convex in drift: the widest place is found by bisection, and what is allowed around it.
  double Width(double drift) const { return HighestOffset(drift) - LowestOffset(drift); }
};

// The drift in [from, to] where `value`, which rises up to it and falls beyond, is largest.
template <typename Function>
double ArgMax(double from, double to, const Function& value) {
  for (int i = 0; i < 80; ++i) {
    const double left = from + (to - from) / 3, right = to - (to - from) / 3;
    if (value(left) < value(right)) {
      from = left;
    } else {
      to = right;
    }
  }
  return (from + to) / 2;
}

// How far from `inside`, where the limits leave room, towards `outside` they still do.
double LastAllowed(const Limits& limits, double inside, double outside) {
  if (limits.Width(outside) >= 0) return outside;
  for (int i = 0; i < 80; ++i) {
    const double drift = (inside + outside) / 2;
    (limits.Width(drift) >= 0 ? inside : outside) = drift;
  }
  return inside;
}

// The tightest limits of each stretch, judged along a line of that drift, so that a stretch's length does not matter.
Limits Collect(const std::vector<ClockReading>& readings, uint64_t first_ns, uint64_t last_ns, double drift) {
  const size_t stretches = std::min(readings.size(), kStretchesMax);
  const double span_ns = static_cast<double>(last_ns - first_ns);
  const double middle_ns = span_ns / 2;
  const int64_t reference = readings.front().difference_ns;
  struct Best {
    Limit low, high;
    bool set = false;
  };
  std::vector<Best> best(stretches);
  for (const ClockReading& reading : readings) {
    const double seen = static_cast<double>(reading.seen_ns - first_ns);
    const size_t stretch = span_ns == 0 ? 0 : static_cast<size_t>(seen / span_ns * static_cast<double>(stretches));
    const double difference = static_cast<double>(WrapClock(reading.difference_ns - reference));
    const double round_trip = static_cast<double>(reading.seen_ns - reading.posted_ns);
    const double work = static_cast<double>(reading.work_ns);
    const Limit low = {seen - middle_ns, difference};
    const Limit high = {seen - round_trip - middle_ns, difference + round_trip - work * (1 - kWorkError) + 1};
    Best& kept = best[std::min(stretch, stretches - 1)];
    const auto level = [drift](const Limit& limit) { return limit.value_ns - drift * limit.at_ns; };
    if (!kept.set || level(low) > level(kept.low)) kept.low = low;
    if (!kept.set || level(high) < level(kept.high)) kept.high = high;
    kept.set = true;
  }
  Limits limits;
  limits.half_span_ns = middle_ns;
  for (const Best& kept : best) {
    if (!kept.set) continue;
    limits.low.push_back(kept.low);
    limits.high.push_back(kept.high);
  }
  return limits;
}

// The limits of a bent clock contradict each other: the line that does so least, and how far everything lies from it.
// A stretch in which they bend may hide its own width beside.
void FitBent(const Limits& limits, double drift, ClockRelation* relation) {
  relation->drift_ppm = drift * 1e6;
  relation->offset_ns = (limits.LowestOffset(drift) + limits.HighestOffset(drift)) / 2;
  relation->bent_ns = -limits.Width(drift) / 2;
  double distance = 0, width = 0;
  for (size_t i = 0; i < limits.low.size(); ++i) {
    const auto beside = [&](const Limit& limit) { return limit.value_ns - relation->offset_ns - drift * limit.at_ns; };
    const double low = beside(limits.low[i]), high = beside(limits.high[i]);
    distance = std::max({distance, std::abs(low), std::abs(high)});
    width = std::max(width, std::abs(high - low));
  }
  relation->bound_ns = distance + width;
}

void FitRelation(const Limits& limits, double widest_drift, ClockRelation* relation) {
  const double from = LastAllowed(limits, widest_drift, -kDriftMax);
  const double to = LastAllowed(limits, widest_drift, kDriftMax);
  // What the line can be at most and at least at both ends; in between the truth lies between these.
  double most[2], least[2];
  for (const int end : {0, 1}) {
    const double at = end == 0 ? -limits.half_span_ns : limits.half_span_ns;
    const auto high = [&](double drift) { return limits.HighestOffset(drift) + drift * at; };
    const auto low = [&](double drift) { return -limits.LowestOffset(drift) - drift * at; };
    most[end] = high(ArgMax(from, to, high));
    least[end] = -low(ArgMax(from, to, low));
  }
  double middle[2] = {(most[0] + least[0]) / 2, (most[1] + least[1]) / 2};
  const bool may_not_drift = limits.Width(0) >= 0;
  if (may_not_drift) middle[0] = middle[1] = (limits.LowestOffset(0) + limits.HighestOffset(0)) / 2;
  relation->offset_ns = (middle[0] + middle[1]) / 2;
  if (!may_not_drift) relation->drift_ppm = 1e6 * (middle[1] - middle[0]) / (2 * limits.half_span_ns);
  for (const int end : {0, 1}) {
    relation->bound_ns = std::max({relation->bound_ns, most[end] - middle[end], middle[end] - least[end]});
  }
}

}  // namespace

ClockRelation RelateClocks(const std::vector<ClockReading>& readings) {
  ClockRelation relation;
  if (readings.empty()) return relation;
  uint64_t first_ns = readings.front().posted_ns, last_ns = readings.front().seen_ns;
  for (const ClockReading& reading : readings) {
    first_ns = std::min(first_ns, reading.posted_ns);
    last_ns = std::max(last_ns, reading.seen_ns);
  }
  Limits limits = Collect(readings, first_ns, last_ns, 0);
  const auto width = [&limits](double drift) { return limits.Width(drift); };
  double drift = ArgMax(-kDriftMax, kDriftMax, width);
  limits = Collect(readings, first_ns, last_ns, drift);
  drift = ArgMax(-kDriftMax, kDriftMax, width);

  relation.known = true;
  relation.middle_ns = first_ns + (last_ns - first_ns) / 2;
  relation.likely_drift_ppm = drift * 1e6;
  relation.likely_offset_ns = (limits.LowestOffset(drift) + limits.HighestOffset(drift)) / 2;
  if (limits.Width(drift) < 0) {
    FitBent(limits, drift, &relation);
  } else {
    FitRelation(limits, drift, &relation);
  }
  const double turn = 4294967296.0;
  for (double* offset_ns : {&relation.offset_ns, &relation.likely_offset_ns}) {
    *offset_ns += static_cast<double>(readings.front().difference_ns);
    *offset_ns -= turn * std::floor(*offset_ns / turn + 0.5);
  }
  return relation;
}

}  // namespace fastdecode
