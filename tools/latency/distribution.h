#ifndef FASTDECODE_TOOLS_LATENCY_DISTRIBUTION_H_
#define FASTDECODE_TOOLS_LATENCY_DISTRIBUTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fastdecode {

// Durations, all kept: what it says of them is exact. Percentiles are by nearest rank (the smallest sample that at least
// the given share of all does not exceed), never interpolated, so that each is a duration that happened.
// Thread: immutable. Bounded: by its samples, 8 bytes each.
class Distribution {
 public:
  // A percentile below which fewer samples lie, or above which, is another name for an extreme: it is withheld.
  static constexpr size_t kBeyondMin = 5;

  Distribution() = default;
  explicit Distribution(std::vector<uint64_t> samples_ns);

  size_t count() const { return ns_.size(); }
  bool empty() const { return ns_.empty(); }
  // REQUIRES: not empty.
  uint64_t min_ns() const { return ns_.front(); }
  uint64_t max_ns() const { return ns_.back(); }
  double mean_ns() const { return mean_ns_; }
  double stdev_ns() const { return stdev_ns_; }  // of the sample; 0 for one
  double sum_ns() const { return mean_ns_ * static_cast<double>(ns_.size()); }
  // Nothing: fewer than kBeyondMin samples lie on one of its sides. share in (0, 1).
  std::optional<uint64_t> Percentile(double share) const;
  // The same, however few samples there are. REQUIRES: not empty, share in [0, 1].
  uint64_t Quantile(double share) const;

  const std::vector<uint64_t>& sorted_ns() const { return ns_; }

 private:
  std::vector<uint64_t> ns_;  // ascending
  double mean_ns_ = 0;
  double stdev_ns_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_DISTRIBUTION_H_
