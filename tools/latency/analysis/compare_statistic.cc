// How a statistic of two distributions differs, and what of that chance can do.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "tools/latency/analysis/compare.h"

namespace fastdecode {

namespace {

// What other runs of the same thing would give, one after the other.
class OtherRuns {
 public:
  OtherRuns(double of_this_ns, const Uncertainty& uncertainty)
      : of_this_ns_(of_this_ns), error_ns_(uncertainty.error_ns), t_(uncertainty.freedom) {}

  double Draw(std::mt19937_64* random) { return std::max(0.0, of_this_ns_ + error_ns_ * t_(*random)); }

 private:
  const double of_this_ns_, error_ns_;
  std::student_t_distribution<double> t_;
};

const Uncertainty& UncertaintyOf(const SavedDistribution& of, std::optional<double> share) {
  if (!share) return of.uncertainty.mean;
  return *share == 0.5 ? of.uncertainty.p50 : *share == 0.9 ? of.uncertainty.p90 : of.uncertainty.p99;
}

// A file may say anything.
bool IsKnown(const Uncertainty& uncertainty) {
  return uncertainty.freedom > 0 && std::isfinite(uncertainty.freedom) && uncertainty.error_ns >= 0 &&
         std::isfinite(uncertainty.error_ns);
}

}  // namespace

std::optional<double> StatisticOf(const SavedDistribution& of, std::optional<double> share) {
  if (of.samples_ns.empty()) return std::nullopt;
  if (!share) return of.mean_ns;
  const std::optional<uint64_t> value = *share == 0.5 ? of.p50_ns : *share == 0.9 ? of.p90_ns : of.p99_ns;
  return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
}

std::optional<Change> CompareStatistic(const SavedDistribution& a, const SavedDistribution& b,
                                       std::optional<double> share, const CompareOptions& options) {
  const std::optional<double> of_a = StatisticOf(a, share), of_b = StatisticOf(b, share);
  if (!of_a || !of_b || !(*of_a > 0)) return std::nullopt;
  if (!IsKnown(UncertaintyOf(a, share)) || !IsKnown(UncertaintyOf(b, share))) return std::nullopt;
  std::mt19937_64 random(options.seed);
  OtherRuns like_a(*of_a, UncertaintyOf(a, share)), like_b(*of_b, UncertaintyOf(b, share));
  std::vector<double> changes;
  for (int i = 0; i < options.resamples; ++i) {
    const double from_a = like_a.Draw(&random), from_b = like_b.Draw(&random);
    changes.push_back(from_a > 0 ? from_b / from_a - 1 : HUGE_VAL);
  }
  std::sort(changes.begin(), changes.end());
  const double outside = (1 - options.confidence) / 2;
  const auto at = [&](double part) {
    return changes[static_cast<size_t>(std::lround(part * static_cast<double>(changes.size() - 1)))];
  };
  // So uncertain that A may as well be nothing: there is no saying how many times as much B is.
  if (!std::isfinite(at(1 - outside))) return std::nullopt;
  return Change{*of_b / *of_a - 1, at(outside), at(1 - outside)};
}

}  // namespace fastdecode
