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

// What is known of a statistic: itself, or what it is not less than.
struct Side {
  Side(const SavedDistribution& of, std::optional<double> share)
      : ns(StatisticOf(of, share)), uncertainty(UncertaintyOf(of, share)) {
    if (ns) return;
    ns = AtLeast(of, share);
    at_least = ns.has_value();
    uncertainty = {/*error_ns=*/0, /*freedom=*/1};
  }

  std::optional<double> ns;
  bool at_least = false;
  Uncertainty uncertainty;
};

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

std::optional<double> AtLeast(const SavedDistribution& of, std::optional<double> share) {
  if (!share) return std::nullopt;
  const SavedDistribution::AtLeast& known = of.at_least_ns;
  const std::optional<uint64_t> value = *share == 0.5 ? known.p50 : *share == 0.9 ? known.p90 : known.p99;
  return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
}

std::optional<Change> CompareStatistic(const SavedDistribution& a, const SavedDistribution& b,
                                       std::optional<double> share, const CompareOptions& options) {
  const Side of_a(a, share), of_b(b, share);
  if (!of_a.ns || !of_b.ns || !(*of_a.ns > 0) || (of_a.at_least && of_b.at_least)) return std::nullopt;
  if (!IsKnown(of_a.uncertainty) || !IsKnown(of_b.uncertainty)) return std::nullopt;
  std::mt19937_64 random(options.seed);
  OtherRuns like_a(*of_a.ns, of_a.uncertainty), like_b(*of_b.ns, of_b.uncertainty);
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
  return Change{*of_b.ns / *of_a.ns - 1, of_a.at_least ? -1 : at(outside), of_b.at_least ? HUGE_VAL : at(1 - outside)};
}

}  // namespace fastdecode
