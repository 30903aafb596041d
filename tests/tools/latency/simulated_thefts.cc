#include <algorithm>
#include <random>
#include <vector>

#include "tests/tools/latency/simulated_run.h"

namespace fastdecode {

std::vector<SimulatedTheft> PlanThefts(const SimulatedRun& run) {
  const SimulatedFaults& faults = run.faults;
  std::mt19937_64 random(run.seed * 1000 + 5);
  std::uniform_real_distribution<double> share(0, 1);
  std::exponential_distribution<double> gap(1);
  std::vector<SimulatedTheft> thefts;
  double start = kSimulatedStartNs - kSimulatedLeadNs - share(random) * faults.stolen_period_ns;
  while (start < kSimulatedStartNs + run.seconds * 1e9 + kSimulatedLeadNs) {
    const double ns = faults.stolen_ns + share(random) * std::max(0.0, faults.stolen_ns_max - faults.stolen_ns);
    thefts.push_back({start, start + ns});
    const double until_next_ns = faults.stolen_period_ns - ns;
    start += ns + (faults.stolen_at_random ? gap(random) : 1) * until_next_ns;
  }
  return thefts;
}

}  // namespace fastdecode
