#ifndef FASTDECODE_TESTS_NUMA_MADE_UP_PLAN_H_
#define FASTDECODE_TESTS_NUMA_MADE_UP_PLAN_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "numa/core_plan.h"
#include "numa/topology.h"

namespace fastdecode {

// A machine as hwloc's synthetic descriptions have it; of its CPUs the process may use `allowed`, or all.
inline Topology Machine(const std::string& description, const std::vector<int>& allowed = {}) {
  absl::StatusOr<Topology> topology = Topology::Synthetic(description, allowed);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *std::move(topology);
}

// The plan of these options, which must be possible.
inline CorePlan PlanOrDie(const Topology& topology, const CorePlanOptions& options) {
  absl::StatusOr<CorePlan> plan = PlanCores(topology, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : CorePlan();
}

// Why they are refused.
inline std::string ErrorOf(const Topology& topology, const CorePlanOptions& options) {
  const absl::StatusOr<CorePlan> plan = PlanCores(topology, options);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << plan.status();
  return std::string(plan.status().message());
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_NUMA_MADE_UP_PLAN_H_
