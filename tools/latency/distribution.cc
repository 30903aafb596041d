#include "tools/latency/distribution.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "numa/check.h"

namespace fastdecode {

Distribution::Distribution(std::vector<uint64_t> samples_ns) : ns_(std::move(samples_ns)) {
  if (ns_.empty()) return;
  std::sort(ns_.begin(), ns_.end());
  double sum = 0;
  for (const uint64_t ns : ns_) sum += static_cast<double>(ns);
  mean_ns_ = sum / static_cast<double>(ns_.size());
  if (ns_.size() < 2) return;
  double squares = 0;
  for (const uint64_t ns : ns_) squares += (static_cast<double>(ns) - mean_ns_) * (static_cast<double>(ns) - mean_ns_);
  stdev_ns_ = std::sqrt(squares / static_cast<double>(ns_.size() - 1));
}

std::optional<uint64_t> Distribution::Percentile(double share) const {
  const double count = static_cast<double>(ns_.size());
  // A hair's breadth, for shares such as 0.9 that no double is.
  const double side = std::min(share, 1 - share) * count * (1 + 1e-9);
  if (side < static_cast<double>(kBeyondMin)) return std::nullopt;
  return Quantile(share);
}

uint64_t Distribution::Quantile(double share) const {
  FD_CHECK(!ns_.empty(), "a quantile of nothing");
  const double rank = std::ceil(share * static_cast<double>(ns_.size()) * (1 - 1e-12));
  const size_t index = rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
  return ns_[std::min(index, ns_.size() - 1)];
}

}  // namespace fastdecode
