#include "tools/load/rate_search.h"

#include <algorithm>
#include <cmath>

namespace fastdecode::load {

namespace {

constexpr double kRateMin = 1e-3, kRateMax = 1e6;
// How long a short run is.
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
    result_.complete = Bracket() && Narrow() && result_.points.size() < kRunsMax;
    if (low_.sure) result_.rate = low_.rate;
    return std::move(result_);
  }

 private:
  // False: it was interrupted.
  bool Test(double rate, size_t requests, bool* reached) {
    std::optional<RatePoint> point = measure_(rate, requests);
    if (!point.has_value()) return false;
    *reached = point->reached;
    is_hopeless_ |=
        !point->reached && !point->overlapped && 2 * point->attainment.attained <= point->attainment.requests;
    result_.points.push_back(std::move(*point));
    return true;
  }

  // From the start up to the first rate that fails; if that is the start, down to one that does not.
  bool Bracket() {
    double rate = options_.start;
    for (; rate <= kRateMax && high_.rate == 0; rate *= 2) {
      const size_t probe = std::max(kProbeRequestsMin, static_cast<size_t>(rate * kProbeSeconds));
      if (!TestEnd(rate, std::min(options_.requests, probe))) return false;
    }
    if (high_.rate == 0) high_ = {rate, false};
    return low_.rate > 0 || is_hopeless_ || GoDown();
  }

  // Short runs find a lower rate than the start. Before, all requests say that it fails: below it runs take longer and
  // longer.
  bool GoDown() {
    if (!high_.sure && !TestEnd(high_.rate, options_.requests)) return false;
    for (double rate = high_.rate / 2; low_.rate == 0 && rate >= kRateMin && !is_hopeless_; rate /= 2) {
      if (!TestEnd(rate, std::min(options_.requests, kProbeRequestsMin))) return false;
    }
    return true;
  }

  // The rate becomes the lower or the upper end.
  bool TestEnd(double rate, size_t requests) {
    bool reached = false;
    if (!Test(rate, requests, &reached)) return false;
    (reached ? low_ : high_) = {rate, requests == options_.requests};
    if (low_.rate >= high_.rate && reached && high_.rate > 0) high_ = {2 * rate, false};
    return true;
  }

  // Until both ends are sure, and close.
  bool Narrow() {
    while (!is_hopeless_ && low_.rate >= kRateMin && high_.rate <= 2 * kRateMax && result_.points.size() < kRunsMax) {
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
  bool is_hopeless_ = false;  // requests miss that have the server for themselves
};

}  // namespace

RateSearchResult FindMaxRate(const RateSearchOptions& options, const MeasureRate& measure) {
  return Search(options, measure).Run();
}

}  // namespace fastdecode::load
