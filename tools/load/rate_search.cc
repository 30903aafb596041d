#include "tools/load/rate_search.h"

#include <algorithm>
#include <cmath>

namespace fastdecode::load {

namespace {

constexpr double kRateMin = 1e-3, kRateMax = 1e6;
// Of a short run.
constexpr double kProbeSeconds = 20;
constexpr size_t kProbeRequestsMin = 20;
// More runs than a search needs whose answers do not contradict each other.
constexpr size_t kRunsMax = 200;

// One end of the interval that is searched.
struct Bound {
  double rate = 0;
  bool sure = false;  // a run of all requests says so
};

class Search {
 public:
  Search(const RateSearchOptions& options, const MeasureRate& measure) : options_(options), measure_(measure) {}

  RateSearchResult Run() {
    result_.complete = Bracket() && Narrow();
    if (low_.sure) result_.rate = low_.rate;
    return std::move(result_);
  }

 private:
  // False: it was interrupted.
  bool Test(double rate, size_t requests, bool* reached) {
    std::optional<RatePoint> point = measure_(rate, requests);
    if (!point.has_value()) return false;
    *reached = point->reached;
    result_.points.push_back(std::move(*point));
    return true;
  }

  // From the start to the first rate that fails, or down to one that does not.
  bool Bracket() {
    double rate = options_.start;
    for (; rate <= kRateMax; rate *= 2) {
      const size_t probe = std::max(kProbeRequestsMin, static_cast<size_t>(rate * kProbeSeconds));
      const size_t requests = std::min(options_.requests, probe);
      bool reached = false;
      if (!Test(rate, requests, &reached)) return false;
      const bool sure = requests == options_.requests;
      if (!reached) {
        high_ = {rate, sure};
        break;
      }
      low_ = {rate, sure};
    }
    if (low_.rate == 0) low_ = {high_.rate / 2, false};
    if (high_.rate == 0) high_ = {rate, false};
    return true;
  }

  // Until both ends are sure, and close.
  bool Narrow() {
    while (low_.rate >= kRateMin && high_.rate <= 2 * kRateMax && result_.points.size() < kRunsMax) {
      const bool close = high_.rate <= low_.rate * (1 + options_.precision);
      if (close && low_.sure && high_.sure) return true;
      const double rate = !close ? std::sqrt(low_.rate * high_.rate) : !low_.sure ? low_.rate : high_.rate;
      bool reached = false;
      if (!Test(rate, options_.requests, &reached)) return false;
      if (reached) {
        low_ = {rate, true};
        if (high_.rate <= rate) high_ = {2 * rate, false};
      } else {
        high_ = {rate, true};
        if (low_.rate >= rate) low_ = {rate / 2, false};
      }
    }
    return true;
  }

  const RateSearchOptions& options_;
  const MeasureRate& measure_;
  RateSearchResult result_;
  Bound low_, high_;
};

}  // namespace

RateSearchResult FindMaxRate(const RateSearchOptions& options, const MeasureRate& measure) {
  return Search(options, measure).Run();
}

}  // namespace fastdecode::load
