#ifndef FASTDECODE_TESTS_TOOLS_LATENCY_PLANTED_FAULT_H_
#define FASTDECODE_TESTS_TOOLS_LATENCY_PLANTED_FAULT_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/latency/simulated_run.h"
#include "tools/latency/analysis/critical_path.h"
#include "tools/latency/findings/findings.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

// What is to be found of something that was planted in a simulated run.
struct Planted {
  std::string kind, phase;
  int home = -1, layer = -1;
  double amount = 0;
};

inline constexpr double kAmountTolerance = 0.15;
// Of what a fault costs, against a run without it: which is another run, of other noise.
inline constexpr double kCostTolerance = 0.25;

inline void PrintTo(const Finding& finding, std::ostream* out) {
  *out << finding.kind << " " << finding.phase << " home " << finding.home << " layer " << finding.layer << " amount "
       << finding.amount << " cost " << finding.cost_ns << ": " << finding.line;
}

// Phase, home or layer, amount and cost are in the line.
inline bool SaysAll(const Finding& finding) {
  const auto says = [&finding](const std::string& text) { return finding.line.find(text) != std::string::npos; };
  char ratio[32];
  std::snprintf(ratio, sizeof(ratio), "%.2f times", finding.amount);
  return says(finding.phase) && says(finding.unit == "ns" ? FormatNs(finding.amount) : ratio) &&
         (finding.home < 0 || says("home " + std::to_string(finding.home) + " (")) &&
         (finding.layer < 0 || says("layer " + std::to_string(finding.layer) + ": ")) &&
         (says(FormatNs(finding.cost_ns) + " of the mean token") || says("hidden behind other work"));
}

// Named rightly, with its amount within 15 %, and all in its line.
MATCHER_P(Names, planted,
          planted.kind + " of " + planted.phase + " at home " + std::to_string(planted.home) + ", layer " +
              std::to_string(planted.layer) + ", amount " + std::to_string(planted.amount)) {
  return arg.kind == planted.kind && arg.phase == planted.phase && arg.home == planted.home &&
         arg.layer == planted.layer && std::abs(arg.amount / planted.amount - 1) <= kAmountTolerance && SaysAll(arg);
}

inline std::vector<Finding> FindIn(const SimulatedRun& run) {
  const Recording recording = Simulate(run);
  return FindFaults(recording, BuildTimeline(recording));
}

// The time between two tokens of a sequence, on average: what a finding's cost is a part of.
inline double MeanTokenNs(const SimulatedRun& run) {
  const TokenTime time(BuildTimeline(Simulate(run)));
  return time.ns() / static_cast<double>(time.tokens());
}

// What is found in `run` costs together about what its mean token takes longer than that of the same run without.
inline void ExpectCostsOf(const SimulatedRun& run, const SimulatedRun& healthy) {
  double cost_ns = 0;
  for (const Finding& finding : FindIn(run)) cost_ns += finding.cost_ns;
  const double longer_ns = MeanTokenNs(run) - MeanTokenNs(healthy);
  EXPECT_NEAR(cost_ns, longer_ns, kCostTolerance * longer_ns);
}

// Seeds, and shapes that go with them: two to four homes.
inline SimulatedRun RunOfHomes(int seed) {
  SimulatedRun run;
  run.seed = static_cast<uint64_t>(seed);
  run.homes = 2 + seed % 3;
  run.requests.sequences = 12 * run.homes;
  return run;
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_LATENCY_PLANTED_FAULT_H_
