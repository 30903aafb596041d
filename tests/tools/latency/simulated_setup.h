#ifndef FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_SETUP_H_
#define FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_SETUP_H_

#include <deque>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/tools/latency/simulated_machine.h"
#include "tests/tools/latency/simulated_run.h"

namespace fastdecode {

// What a simulated engine begins with.

// Something that happens to the home that is lost.
struct SimulatedLoss {
  enum class What { kDies, kIsKnown, kIsBack };
  What what = What::kDies;
  double at = 0;
};

// What share of all KV is meant for each home.
std::vector<double> HomeWeights(const SimulatedRun& run);
// With its link, and with what is wrong with both.
SimulatedHome MakeHome(const SimulatedRun& run, int home);
// By time.
std::deque<SimulatedLoss> PlanLoss(const SimulatedRun& run);
// What fd_record_describe would say.
nlohmann::json DescribeEngine(const SimulatedRun& run);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_LATENCY_SIMULATED_SETUP_H_
