#ifndef FASTDECODE_TESTS_TOOLS_LATENCY_PLANTED_FAULT_H_
#define FASTDECODE_TESTS_TOOLS_LATENCY_PLANTED_FAULT_H_

#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/latency/simulated_run.h"
#include "tools/latency/findings/findings.h"

namespace fastdecode {

// What is to be found of something that was planted in a simulated run.
struct Planted {
  std::string kind, phase;
  int home = -1, layer = -1;
  double amount = 0;
};

inline constexpr double kAmountTolerance = 0.15;

inline void PrintTo(const Finding& finding, std::ostream* out) {
  *out << finding.kind << " " << finding.phase << " home " << finding.home << " layer " << finding.layer << " amount "
       << finding.amount << " cost " << finding.cost_ns << ": " << finding.line;
}

// Named rightly, with its amount within 15 %.
MATCHER_P(Names, planted,
          planted.kind + " of " + planted.phase + " at home " + std::to_string(planted.home) + ", layer " +
              std::to_string(planted.layer) + ", amount " + std::to_string(planted.amount)) {
  return arg.kind == planted.kind && arg.phase == planted.phase && arg.home == planted.home &&
         arg.layer == planted.layer && std::abs(arg.amount / planted.amount - 1) <= kAmountTolerance &&
         !arg.line.empty();
}

inline std::vector<Finding> FindIn(const SimulatedRun& run) {
  const Recording recording = Simulate(run);
  return FindFaults(recording, BuildTimeline(recording));
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
