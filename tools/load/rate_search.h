#ifndef FASTDECODE_TOOLS_LOAD_RATE_SEARCH_H_
#define FASTDECODE_TOOLS_LOAD_RATE_SEARCH_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "tools/load/goodput.h"

namespace fastdecode::load {

// Runs of fewer requests find too high a rate.
inline constexpr size_t kSearchRequests = 1200;

// One rate at which a load was run.
struct RatePoint {
  double rate = 0;      // requests a second
  size_t requests = 0;  // that were planned
  bool cut = false;     // the run ended early: it could not reach the target any more, or it was
  bool interrupted = false;
  Attainment attainment;
  bool reached = false;    // the target
  bool overlapped = true;  // some requests were in flight together
};

struct RateSearchOptions {
  double start = 0.25;                // the first rate
  double precision = 0.05;            // the rate found and the lowest that fails differ by no more
  size_t requests = kSearchRequests;  // of a run that counts
};

struct RateSearchResult {
  double rate = 0;                // the highest that reached the target; 0: none did
  bool complete = false;          // else it was interrupted, and the rate is what was found so far
  std::vector<RatePoint> points;  // in the order in which they were run
};

// Runs so many requests at that rate. Nothing: it was interrupted.
using MeasureRate = std::function<std::optional<RatePoint>(double rate, size_t requests)>;

// Finds the highest rate at which a load reaches its target. Short runs at doubled rates find where to look, which may
// be wrong in both directions; only runs of all requests decide: one at the rate that is found, and one above it. Where
// most requests of a run miss though no two were in flight together, no lower rate would help: the answer is 0.
RateSearchResult FindMaxRate(const RateSearchOptions& options, const MeasureRate& measure);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_RATE_SEARCH_H_
