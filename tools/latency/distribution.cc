#include "tools/latency/distribution.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "numa/check.h"

namespace fastdecode {

namespace {

// A hair's breadth, for shares such as 0.9 that no double is.
constexpr double kHair = 1e-12;

}  // namespace

std::vector<double> ReachedShares(const std::vector<uint64_t>& samples_ns, double sample_weight,
                                  const std::vector<uint64_t>& unfinished_ns, double unfinished_weight) {
  double at_risk = sample_weight * static_cast<double>(samples_ns.size()) +
                   unfinished_weight * static_cast<double>(unfinished_ns.size());
  std::vector<double> reached;
  reached.reserve(samples_ns.size());
  double longer = 1;  // share of all that take longer than the samples so far
  size_t gone = 0;
  for (const uint64_t ns : samples_ns) {
    for (; gone < unfinished_ns.size() && unfinished_ns[gone] < ns; ++gone) at_risk -= unfinished_weight;
    longer *= std::max(0.0, 1 - sample_weight / at_risk);
    at_risk -= sample_weight;
    reached.push_back(1 - longer);
  }
  return reached;
}

size_t NearestRank(double share, size_t count) {
  const double rank = std::ceil(share * static_cast<double>(count) * (1 - kHair));
  return rank < 1 ? 0 : static_cast<size_t>(rank) - 1;
}

bool EnoughBeyond(double share, double count) {
  return std::min(share, 1 - share) * count * (1 + 1e-9) >= static_cast<double>(Distribution::kBeyondMin);
}

Distribution::Distribution(std::vector<uint64_t> samples_ns, std::vector<uint64_t> unfinished_ns)
    : ns_(std::move(samples_ns)), unfinished_ns_(std::move(unfinished_ns)) {
  const BlockStatistics blocks = TakeBlocks(&ns_);
  std::sort(ns_.begin(), ns_.end());
  MeasureUncertainties(blocks);
  std::sort(unfinished_ns_.begin(), unfinished_ns_.end());
  if (!unfinished_ns_.empty()) reached_ = ReachedShares(ns_, 1, unfinished_ns_, 1);
  MeasureMean();
}

// Before the unfinished ones take part: of the blocks they do not.
void Distribution::MeasureUncertainties(const BlockStatistics& blocks) {
  if (ns_.empty()) return;
  for (const uint64_t ns : ns_) sum_ns_ += static_cast<double>(ns);
  const auto percentile = [this](double share) { return static_cast<double>(Quantile(share)); };
  uncertainties_.mean = JudgeBlocks(blocks.mean, sum_ns_ / static_cast<double>(ns_.size()));
  uncertainties_.p50 = JudgeBlocks(blocks.p50, percentile(0.5));
  uncertainties_.p90 = JudgeBlocks(blocks.p90, percentile(0.9));
  uncertainties_.p99 = JudgeBlocks(blocks.p99, percentile(0.99));
}

void Distribution::MeasureMean() {
  if (ns_.empty()) return;
  const double mean_ns = sum_ns_ / static_cast<double>(ns_.size());
  double squares = 0;
  for (const uint64_t ns : ns_) squares += (static_cast<double>(ns) - mean_ns) * (static_cast<double>(ns) - mean_ns);
  if (ns_.size() > 1) stdev_ns_ = std::sqrt(squares / static_cast<double>(ns_.size() - 1));
  mean_ns_ = mean_ns;
  if (reached_.empty()) return;
  mean_ns_ = (1 - reached_.back()) * static_cast<double>(std::max(ns_.back(), unfinished_ns_.back()));
  double before = 0;
  for (size_t i = 0; i < ns_.size(); before = reached_[i++]) {
    mean_ns_ += (reached_[i] - before) * static_cast<double>(ns_[i]);
  }
}

bool Distribution::mean_known() const { return !ns_.empty() && (reached_.empty() || reached_.back() > 1 - kHair); }

// Of the smallest sample that the share does not exceed; count() if there is none.
size_t Distribution::Index(double share) const {
  if (!reached_.empty()) {
    return static_cast<size_t>(std::lower_bound(reached_.begin(), reached_.end(), share - kHair) - reached_.begin());
  }
  return NearestRank(share, ns_.size());
}

bool Distribution::EnoughBeyond(double share, uint64_t ns) const {
  const auto lasted = std::lower_bound(unfinished_ns_.begin(), unfinished_ns_.end(), ns);
  return fastdecode::EnoughBeyond(share, static_cast<double>(ns_.size() + (unfinished_ns_.end() - lasted)));
}

std::optional<uint64_t> Distribution::Percentile(double share) const {
  const size_t index = Index(share);
  if (index >= ns_.size() || !EnoughBeyond(share, ns_[index])) return std::nullopt;
  return ns_[index];
}

std::optional<uint64_t> Distribution::AtLeast(double share) const {
  const uint64_t last_ns = ns_.empty() ? 0 : ns_.back();
  if (Index(share) < ns_.size() || !EnoughBeyond(share, last_ns)) return std::nullopt;
  // Whatever the others will take, all take as long as they have so far.
  std::vector<uint64_t> all;
  all.reserve(ns_.size() + unfinished_ns_.size());
  std::merge(ns_.begin(), ns_.end(), unfinished_ns_.begin(), unfinished_ns_.end(), std::back_inserter(all));
  const size_t rank = static_cast<size_t>(std::ceil(share * static_cast<double>(all.size()) * (1 - kHair)));
  return std::max(last_ns, all[std::clamp<size_t>(rank, 1, all.size()) - 1]);
}

uint64_t Distribution::Quantile(double share) const {
  FD_CHECK(!ns_.empty(), "a quantile of nothing");
  return ns_[std::min(Index(share), ns_.size() - 1)];
}

}  // namespace fastdecode
