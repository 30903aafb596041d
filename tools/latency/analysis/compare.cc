#include "tools/latency/analysis/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/latency/machine/provenance.h"

namespace fastdecode {

namespace {

constexpr std::array<std::pair<const char*, double>, 3> kPercentiles = {{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}}};

// ---- Resampling

// The sample at a place in [0, 1) among all. Of a file that holds but some, each from the middle of an equal share, it
// is read between those.
double SampleAt(const SavedDistribution& of, double place) {
  const double kept = static_cast<double>(of.samples_ns.size());
  const size_t last = of.samples_ns.size() - 1;
  if (of.samples_ns.size() == of.count) {
    return static_cast<double>(of.samples_ns[std::min(static_cast<size_t>(place * kept), last)]);
  }
  const double at = std::clamp(place * kept - 0.5, 0.0, static_cast<double>(last));
  const size_t below = std::min(static_cast<size_t>(at), last);
  const double from = static_cast<double>(of.samples_ns[below]);
  const double to = static_cast<double>(of.samples_ns[std::min(below + 1, last)]);
  return from + (to - from) * (at - static_cast<double>(below));
}

// A percentile of a resample, without drawing it. The k-th smallest of n numbers drawn evenly from [0, 1) has the Beta
// distribution (k, n + 1 - k), and where that falls among the samples is the k-th smallest of n of them.
std::vector<double> ResamplePercentile(const SavedDistribution& of, double share, int resamples,
                                       std::mt19937_64* random) {
  const double n = static_cast<double>(of.count);
  const double k = std::clamp(std::ceil(share * n * (1 - 1e-12)), 1.0, n);
  std::gamma_distribution<double> below(k), above(n + 1 - k);
  std::vector<double> values;
  for (int i = 0; i < resamples; ++i) {
    const double x = below(*random), y = above(*random);
    values.push_back(SampleAt(of, x / (x + y)));
  }
  return values;
}

std::vector<double> ResampleMean(const SavedDistribution& of, int resamples, std::mt19937_64* random) {
  std::vector<double> values;
  if (of.samples_ns.size() < of.count) {  // thousands: their mean is as good as normal
    std::normal_distribution<double> mean(*of.mean_ns,
                                          of.stdev_ns.value_or(0) / std::sqrt(static_cast<double>(of.count)));
    for (int i = 0; i < resamples; ++i) values.push_back(mean(*random));
    return values;
  }
  const uint64_t count = of.samples_ns.size();
  for (int i = 0; i < resamples; ++i) {
    double sum = 0;
    for (uint64_t drawn = 0; drawn < count; ++drawn) {
      // 32 random bits times the count, of which the upper ones: even enough for some thousand samples.
      sum += static_cast<double>(of.samples_ns[(((*random)() >> 32) * count) >> 32]);
    }
    values.push_back(sum / static_cast<double>(count));
  }
  return values;
}

std::optional<double> StatisticOf(const SavedDistribution& of, std::optional<double> share) {
  if (of.samples_ns.empty()) return std::nullopt;
  if (!share) return of.mean_ns;
  const std::optional<uint64_t> value = *share == 0.5 ? of.p50_ns : *share == 0.9 ? of.p90_ns : of.p99_ns;
  return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
}

// ---- What is compared

// A mean of one or two says nothing of chance.
constexpr uint64_t kMeanCountMin = 5;

ComparedStatistic CompareRow(const SavedDistribution& a, const SavedDistribution& b, std::optional<double> share,
                             const CompareOptions& options) {
  ComparedStatistic row;
  row.a_ns = StatisticOf(a, share);
  row.b_ns = StatisticOf(b, share);
  const std::optional<Change> change = CompareStatistic(a, b, share, options);
  if (!change) return row;
  row.change = *change;
  row.verdict = change->low > 0    ? ChangeVerdict::kSlower
                : change->high < 0 ? ChangeVerdict::kFaster
                                   : ChangeVerdict::kNoDifference;
  return row;
}

void CompareMetric(const std::string& metric, const std::string& where, bool counts, const SavedDistribution& a,
                   const SavedDistribution& b, const CompareOptions& options, Comparison* out) {
  if (a.count == 0 || b.count == 0) return;
  const auto add = [&](const char* statistic, std::optional<double> share) {
    ComparedStatistic row = CompareRow(a, b, share, options);
    row.metric = metric;
    row.where = where;
    row.statistic = statistic;
    row.counts = counts;
    row.failed = counts && row.verdict == ChangeVerdict::kSlower && row.change.low > options.threshold;
    out->rows.push_back(std::move(row));
  };
  for (const auto& [name, share] : kPercentiles) add(name, share);
  add("mean", std::nullopt);
}

const SavedRequests* FindRequests(const SavedResult& result, const std::string& start) {
  for (const SavedRequests& requests : result.requests) {
    if (requests.start == start) return &requests;
  }
  return nullptr;
}

// By intended starts if both know them.
void CompareRequests(const SavedResult& a, const SavedResult& b, const CompareOptions& options, Comparison* out) {
  for (const char* start : {"intended", "submitted"}) {
    const SavedRequests* in_a = FindRequests(a, start);
    const SavedRequests* in_b = FindRequests(b, start);
    if (in_a == nullptr || in_b == nullptr) continue;
    CompareMetric("ttft", start, true, in_a->ttft_ns, in_b->ttft_ns, options, out);
    CompareMetric("tpot", "", true, in_a->tpot_ns, in_b->tpot_ns, options, out);
    CompareMetric("itl", "", true, in_a->itl_ns, in_b->itl_ns, options, out);
    CompareMetric("e2e", start, true, in_a->e2e_ns, in_b->e2e_ns, options, out);
    return;
  }
}

std::string PhaseName(const SavedPhase& phase) { return absl::StrCat(phase.name, ", ", phase.where); }

void ComparePhases(const SavedResult& a, const SavedResult& b, const CompareOptions& options, Comparison* out) {
  for (const SavedPhase& phase : a.phases) {
    const SavedPhase* other = b.FindPhase(phase.name, phase.where);
    if (other == nullptr) {
      out->only_a.push_back(PhaseName(phase));
      continue;
    }
    const bool felt = phase.name == "token" || phase.name == "step";
    CompareMetric(phase.name, phase.where, felt || options.phases_count, phase.ns, other->ns, options, out);
  }
  for (const SavedPhase& phase : b.phases) {
    if (a.FindPhase(phase.name, phase.where) == nullptr) out->only_b.push_back(PhaseName(phase));
  }
}

// What explains a change besides the change that one wanted to measure. Time and load are never the same.
void CompareProvenance(const SavedResult& a, const SavedResult& b, Comparison* out) {
  const auto of_a = DescribeProvenance(a.provenance), of_b = DescribeProvenance(b.provenance);
  for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
    if (of_a[i].first == "time" || of_a[i].first == "load" || of_a[i].second == of_b[i].second) continue;
    out->differences.push_back({of_a[i].first, of_a[i].second, of_b[i].second});
  }
}

}  // namespace

const char* ChangeVerdictName(ChangeVerdict verdict) {
  switch (verdict) {
    case ChangeVerdict::kNoDifference:
      return "no difference seen";
    case ChangeVerdict::kSlower:
      return "slower";
    case ChangeVerdict::kFaster:
      return "faster";
    case ChangeVerdict::kUnknown:
      break;
  }
  return "too few samples";
}

bool Comparison::failed() const {
  return std::any_of(rows.begin(), rows.end(), [](const ComparedStatistic& row) { return row.failed; });
}

std::optional<Change> CompareStatistic(const SavedDistribution& a, const SavedDistribution& b,
                                       std::optional<double> share, const CompareOptions& options) {
  const std::optional<double> of_a = StatisticOf(a, share), of_b = StatisticOf(b, share);
  if (!of_a || !of_b || !(*of_a > 0)) return std::nullopt;
  if (!share && std::min(a.count, b.count) < kMeanCountMin) return std::nullopt;
  std::mt19937_64 random(options.seed);
  const auto resample = [&](const SavedDistribution& of) {
    return share ? ResamplePercentile(of, *share, options.resamples, &random)
                 : ResampleMean(of, options.resamples, &random);
  };
  const std::vector<double> from_a = resample(a), from_b = resample(b);
  std::vector<double> changes;
  for (size_t i = 0; i < from_a.size(); ++i) {
    if (from_a[i] > 0) changes.push_back(from_b[i] / from_a[i] - 1);
  }
  if (changes.empty()) return std::nullopt;
  std::sort(changes.begin(), changes.end());
  const double outside = (1 - options.confidence) / 2;
  const auto at = [&](double part) {
    return changes[static_cast<size_t>(std::lround(part * static_cast<double>(changes.size() - 1)))];
  };
  return Change{*of_b / *of_a - 1, at(outside), at(1 - outside)};
}

absl::StatusOr<Comparison> Compare(const SavedResult& a, const SavedResult& b, const CompareOptions& options) {
  Comparison comparison;
  CompareRequests(a, b, options, &comparison);
  ComparePhases(a, b, options, &comparison);
  if (std::all_of(comparison.rows.begin(), comparison.rows.end(),
                  [](const ComparedStatistic& row) { return row.verdict == ChangeVerdict::kUnknown; })) {
    return absl::FailedPreconditionError("the two have no figure in common that both have enough samples of");
  }
  CompareProvenance(a, b, &comparison);
  for (const std::string& warning : a.warnings) comparison.warnings.push_back("A: " + warning);
  for (const std::string& warning : b.warnings) comparison.warnings.push_back("B: " + warning);
  return comparison;
}

}  // namespace fastdecode
