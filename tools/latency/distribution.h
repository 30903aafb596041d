#ifndef FASTDECODE_TOOLS_LATENCY_DISTRIBUTION_H_
#define FASTDECODE_TOOLS_LATENCY_DISTRIBUTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tools/latency/uncertainty.h"

namespace fastdecode {

// Durations, all kept: what it says of them is exact. Percentiles are by nearest rank (the smallest sample that at least
// the given share of all does not exceed), never interpolated, so that each is a duration that happened.
//
// Some may not have ended when the recording did. Of these it is known that they take longer than they have so far, and
// percentiles are those of Kaplan and Meier (Nonparametric estimation from incomplete observations, Journal of the
// American Statistical Association 53, 1958): each counts among those that take longer than a duration as long as it has
// lasted that long itself, and beyond it is not counted. Without such ones that is the nearest rank.
// Thread: immutable. Bounded: by its samples, 8 bytes each.
class Distribution {
 public:
  // A percentile below which fewer samples lie, or above which, is another name for an extreme: it is withheld.
  static constexpr size_t kBeyondMin = 5;

  Distribution() = default;
  // `samples_ns`: in the order in which they happened (of requests: in which these began), which uncertainties() needs.
  // `unfinished_ns`: how long they have taken so far, in any order.
  explicit Distribution(std::vector<uint64_t> samples_ns, std::vector<uint64_t> unfinished_ns = {});

  size_t count() const { return ns_.size(); }  // of those that ended
  bool empty() const { return ns_.empty(); }
  size_t unfinished() const { return unfinished_ns_.size(); }
  // Of those that ended. REQUIRES: not empty.
  uint64_t min_ns() const { return ns_.front(); }
  uint64_t max_ns() const { return ns_.back(); }
  double stdev_ns() const { return stdev_ns_; }  // of the sample; 0 for one
  double sum_ns() const { return sum_ns_; }
  // Of all: nobody knows it if some have lasted longer than all that ended; it is at least this then.
  double mean_ns() const { return mean_ns_; }
  bool mean_known() const;
  // Nothing: fewer than kBeyondMin samples lie on one of its sides, or it lies among those that have not ended.
  // share in (0, 1).
  std::optional<uint64_t> Percentile(double share) const;
  // What a percentile that lies among those that have not ended is not less than. Nothing: it does not, or there are too
  // few samples.
  std::optional<uint64_t> AtLeast(double share) const;
  // Percentile(), however few samples there are; the largest that ended, if it lies among those that have not. REQUIRES:
  // not empty, share in [0, 1].
  uint64_t Quantile(double share) const;

  const std::vector<uint64_t>& sorted_ns() const { return ns_; }
  const std::vector<uint64_t>& unfinished_ns() const { return unfinished_ns_; }  // ascending
  // What another run may give, by those that ended.
  const Uncertainties& uncertainties() const { return uncertainties_; }

 private:
  size_t Index(double share) const;
  // Of all, as far as they say something of durations from `ns` on.
  bool EnoughBeyond(double share, uint64_t ns) const;
  void MeasureUncertainties(const BlockStatistics& blocks);
  void MeasureMean();

  std::vector<uint64_t> ns_;             // ascending
  std::vector<uint64_t> unfinished_ns_;  // ascending
  std::vector<double> reached_;          // [count] the share of all that a sample is not exceeded by; none unfinished: empty
  double sum_ns_ = 0, mean_ns_ = 0;
  double stdev_ns_ = 0;
  Uncertainties uncertainties_;
};

// Which of so many sorted samples is a percentile by nearest rank. REQUIRES: count > 0, share in [0, 1].
size_t NearestRank(double share, size_t count);
// False: a percentile of so many is withheld.
bool EnoughBeyond(double share, double count);

// The shares of all that the samples are not exceeded by, after Kaplan and Meier, each in [0, 1] and none less than the
// one before. Each sample stands for so many, and each of those that have not ended too. REQUIRES: both ascending.
std::vector<double> ReachedShares(const std::vector<uint64_t>& samples_ns, double sample_weight,
                                  const std::vector<uint64_t>& unfinished_ns, double unfinished_weight);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_DISTRIBUTION_H_
