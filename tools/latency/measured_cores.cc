#include "tools/latency/measured_cores.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fastdecode/fastdecode.hpp>
#include "numa/core_plan.h"
#include "numa/topology.h"
#include "tools/bench/summary.h"

namespace fastdecode {

namespace {

// One home a node, as an engine has by default.
std::vector<int> CoresOfAnEngine(const Topology& topology, const std::vector<int>& taken) {
  CorePlanOptions options;
  options.homes = static_cast<int>(std::count_if(topology.nodes.begin(), topology.nodes.end(),
                                                 [](const NumaNode& node) { return node.UsableAsHome(); }));
  options.taken_cores = taken;
  const absl::StatusOr<CorePlan> plan = PlanCores(topology, options);
  ThrowUnlessOk(plan.status());
  return plan->AllCores();
}

}  // namespace

void MeasuredCores::AddTo(CLI::App* command) {
  command->add_option("--cores", asked_, "which cores (default: those that an engine would take)")->type_name("LIST");
}

const std::vector<int>& MeasuredCores::Take() {
  const Topology topology = DiscoverMachine();
  const absl::StatusOr<std::string> directory = CoreReservation::HostDirectory();
  ThrowUnlessOk(directory.status());
  const absl::StatusOr<DirectoryLock> lock = DirectoryLock::Acquire(*directory);
  ThrowUnlessOk(lock.status());
  if (asked_.empty()) {
    cores_ = CoresOfAnEngine(topology, CoreReservation::TakenCores(*directory));
  } else {
    absl::StatusOr<std::vector<int>> cores = ParseCores("--cores", asked_, topology);
    ThrowUnlessOk(cores.status());
    cores_ = *std::move(cores);
  }
  absl::StatusOr<CoreReservation> reservation = CoreReservation::Reserve(*directory, cores_);
  ThrowUnlessOk(reservation.status());
  reservation_ = *std::move(reservation);
  if (!reservation_.refused().empty()) {
    std::fprintf(stderr, "fastdecode: another process of FastDecode is on core %s: it is measured too, and disturbed\n",
                 FormatCores(reservation_.refused()).c_str());
  }
  return cores_;
}

}  // namespace fastdecode
