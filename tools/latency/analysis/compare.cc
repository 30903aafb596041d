#include "tools/latency/analysis/compare.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/latency/machine/provenance.h"

namespace fastdecode {

namespace {

constexpr std::array<std::pair<const char*, double>, 3> kPercentiles = {{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}}};

// ---- What is compared

ComparedStatistic CompareRow(const SavedDistribution& a, const SavedDistribution& b, std::optional<double> share,
                             const CompareOptions& options) {
  ComparedStatistic row;
  const auto take = [&](const SavedDistribution& of, std::optional<double>* ns, bool* at_least) {
    *ns = StatisticOf(of, share);
    if (*ns) return false;
    *ns = AtLeast(of, share);
    *at_least = ns->has_value();
    return *at_least || (!share && of.unfinished > 0);
  };
  const bool a_unfinished = take(a, &row.a_ns, &row.a_at_least), b_unfinished = take(b, &row.b_ns, &row.b_at_least);
  const ChangeVerdict open = a_unfinished || b_unfinished ? ChangeVerdict::kUnfinished : ChangeVerdict::kNoDifference;
  const std::optional<Change> change = CompareStatistic(a, b, share, options);
  if (!change) {
    if (open == ChangeVerdict::kUnfinished) row.verdict = open;
    return row;
  }
  row.change = *change;
  row.verdict = change->low > 0 ? ChangeVerdict::kSlower : change->high < 0 ? ChangeVerdict::kFaster : open;
  return row;
}

void CompareMetric(const std::string& metric, const std::string& where, bool counts, const SavedDistribution& a,
                   const SavedDistribution& b, const CompareOptions& options, Comparison* out) {
  if ((a.count == 0 && a.unfinished == 0) || (b.count == 0 && b.unfinished == 0)) return;
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
    const bool felt = phase.name == "token" || phase.name == "step" || a.command == "kernel";
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
    case ChangeVerdict::kUnfinished:
      return "too few ended";
    case ChangeVerdict::kUnknown:
      break;
  }
  return "too few samples";
}

bool Comparison::failed() const {
  return std::any_of(rows.begin(), rows.end(), [](const ComparedStatistic& row) { return row.failed; });
}

bool Comparison::judged() const {
  return std::any_of(rows.begin(), rows.end(), [](const ComparedStatistic& row) { return row.counts && row.judged(); });
}

absl::StatusOr<Comparison> Compare(const SavedResult& a, const SavedResult& b, const CompareOptions& options) {
  Comparison comparison;
  CompareRequests(a, b, options, &comparison);
  ComparePhases(a, b, options, &comparison);
  if (comparison.rows.empty()) return absl::FailedPreconditionError("the two have no figure in common");
  CompareProvenance(a, b, &comparison);
  for (const std::string& warning : a.warnings) comparison.warnings.push_back("A: " + warning);
  for (const std::string& warning : b.warnings) comparison.warnings.push_back("B: " + warning);
  return comparison;
}

}  // namespace fastdecode
