#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_COMPARE_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/latency/export/saved_result.h"

namespace fastdecode {

// Two results against each other: what became slower, and whether that may be chance.

struct CompareOptions {
  double threshold = 0.05;  // slower by more than this, for certain, is a failure
  double confidence = 0.95;
  int resamples = 2000;
  uint64_t seed = 1;          // equal seeds give equal intervals
  bool phases_count = false;  // a slower phase is a failure too, not only slower requests, tokens and steps
};

// A percentile (0.5, 0.9, 0.99) or the mean (no share). Nothing: it was withheld.
std::optional<double> StatisticOf(const SavedDistribution& of, std::optional<double> share);

// What a percentile that lies among those that had not ended is not less than. Nothing: it does not, or it is a mean.
std::optional<double> AtLeast(const SavedDistribution& of, std::optional<double> share);

// How a statistic of B differs from that of A, as a share of A's.
struct Change {
  double change = 0;  // 0.1: B is 10 % larger; of what they are not less than, if that is all that is known of one
  double low = 0, high = 0;  // the interval; -1: A's is only known not to be less, infinite: B's
};

// Of a percentile (0.5, 0.9, 0.99) or of the mean (no share). The interval is by parametric bootstrap (Efron and
// Tibshirani, An Introduction to the Bootstrap, 1993, 6.5): each resample draws what two other runs would give, after
// the uncertainty of each (uncertainty.h), which allows for what samples of one run have in common. Nothing: one of
// them has too few samples, is 0, or so uncertain that it may as well be.
std::optional<Change> CompareStatistic(const SavedDistribution& a, const SavedDistribution& b,
                                       std::optional<double> share, const CompareOptions& options);

enum class ChangeVerdict { kNoDifference, kSlower, kFaster, kUnfinished, kUnknown };
// "no difference seen", "slower", "faster", "too few ended", "too few samples".
const char* ChangeVerdictName(ChangeVerdict verdict);

struct ComparedStatistic {
  std::string metric;     // "ttft", "token", "attend"
  std::string where;      // "intended", "home 1"
  std::string statistic;  // "p50", "p90", "p99", "mean"
  bool counts = false;    // towards failure
  std::optional<double> a_ns, b_ns;
  bool a_at_least = false, b_at_least = false;  // it is not less than that: it lies among those that had not ended
  Change change;                                // meaningless if not judged()
  ChangeVerdict verdict = ChangeVerdict::kUnknown;
  bool failed = false;  // counts, and the interval lies beyond the threshold

  bool judged() const { return verdict != ChangeVerdict::kUnknown && verdict != ChangeVerdict::kUnfinished; }
};

struct Comparison {
  std::vector<ComparedStatistic> rows;
  std::vector<std::string> only_a, only_b;  // metrics that the other has not
  // What is not the same of the machines and commands: what, in A, in B.
  struct Difference {
    std::string what, a, b;
  };
  std::vector<Difference> differences;
  std::vector<std::string> warnings;  // of both files, after "A: " or "B: "

  bool failed() const;
  // Of something that counts both have enough samples.
  bool judged() const;
};

// Of results of `latency kernel`, which have neither requests nor tokens, phases count. FailedPrecondition: there is
// nothing that both have samples of.
absl::StatusOr<Comparison> Compare(const SavedResult& a, const SavedResult& b, const CompareOptions& options);

// For people, in lines of at most `width` columns (60 at least).
std::string FormatComparison(const Comparison& comparison, const CompareOptions& options, size_t width);
nlohmann::json ToJson(const Comparison& comparison, const CompareOptions& options);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_COMPARE_H_
