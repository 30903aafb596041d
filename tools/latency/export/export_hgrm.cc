#include "tools/latency/export/export_hgrm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace fastdecode {

namespace {

constexpr double kTicksPerHalf = 5;

// The share to report after this one: half of what is left to 1 at the last power of two has kTicksPerHalf steps.
double NextShare(double share) {
  const double halvings = std::floor(std::log2(1 / (1 - share)) + 1e-9);
  return share + 1 / (kTicksPerHalf * std::exp2(halvings + 1));
}

}  // namespace

void WriteHgrm(const Distribution& ns, std::ostream& out) {
  char line[160];
  std::snprintf(line, sizeof(line), "%12s %14s %10s %14s\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
  out << line;
  const std::vector<uint64_t>& sorted = ns.sorted_ns();
  for (double share = 0; !ns.empty(); share = NextShare(share)) {
    const uint64_t value = ns.Quantile(share);
    const size_t below = static_cast<size_t>(std::upper_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
    const double ms = static_cast<double>(value) * 1e-6;
    if (below == sorted.size()) {
      std::snprintf(line, sizeof(line), "%12.6f %14.12f %10zu %14s\n", ms, 1.0, below, "inf");
      out << line;
      break;
    }
    std::snprintf(line, sizeof(line), "%12.6f %14.12f %10zu %14.2f\n", ms, share, below, 1 / (1 - share));
    out << line;
  }
  std::snprintf(line, sizeof(line), "#[Mean    = %12.6f, StdDeviation   = %12.6f]\n", ns.mean_ns() * 1e-6,
                ns.stdev_ns() * 1e-6);
  out << line;
  std::snprintf(line, sizeof(line), "#[Max     = %12.6f, Total count    = %12zu]\n",
                ns.empty() ? 0 : static_cast<double>(ns.max_ns()) * 1e-6, ns.count());
  out << line;
  std::snprintf(line, sizeof(line), "#[Buckets = %12zu, SubBuckets     = %12d]\n", ns.count(), 1);
  out << line;
  if (ns.unfinished() > 0) out << "#[Unfinished, which percentiles allow for = " << ns.unfinished() << "]\n";
}

const Distribution* FindDistribution(const LatencyResult& result, const std::string& name) {
  if (!result.requests.empty()) {
    const RequestFigures& requests = result.requests.front();
    if (name == "ttft") return &requests.ttft_ns;
    if (name == "tpot") return &requests.tpot_ns;
    if (name == "itl") return &requests.itl_ns;
    if (name == "e2e") return &requests.e2e_ns;
  }
  for (const Phase& phase : result.phases) {
    if (name == phase.name || name == phase.name + "@" + phase.where) return &phase.ns;
  }
  return nullptr;
}

}  // namespace fastdecode
