#ifndef FASTDECODE_NUMA_CORE_PLAN_H_
#define FASTDECODE_NUMA_CORE_PLAN_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "numa/core_reservation.h"
#include "numa/topology.h"

namespace fastdecode {

// What the user said about cores, and what the process is. Values that are not given are chosen.
struct CorePlanOptions {
  std::string s_cores = {};  // --s-cores, as "0,2-5"; empty: choose
  std::string r_cores = {};  // --r-cores, those of all homes together; empty: choose
  int homes = 1;             // logical homes in this process, over the NUMA nodes round robin; 0: none are here
  int s_threads = 0;         // --s-threads; 0: choose
  int r_threads = 0;         // --r-threads, of each home; 0: choose
  bool s_part = true;        // whether this process runs an S-Part (a worker does not)
  // One team does the work of the S-Part and of the homes: it gets every core of the process. Where cores of one of the
  // two are given, the other gets the same.
  bool share = false;
  std::vector<int> taken_cores = {};  // reserved by other processes: avoided while there are others
  std::string front_cores = {};       // --front-cores: a list, auto, or none, which "" is, too (front_cores.h)
};

// Which core every polling thread gets.
struct CorePlan {
  std::vector<int> s_cores;                    // entry i: the core of S thread i, whose first is the pipeline thread
  std::vector<std::vector<int>> home_cores;    // [home][i]: the core of team thread i, whose first is the leader
  std::vector<int> home_nodes;                 // [home]: os_index of its NUMA node
  bool one_team = false;                       // the homes' threads are S threads...
  std::vector<std::vector<int>> home_threads;  // ...namely these, [home][i]: the S thread that team thread i is
  std::vector<int> front_cores;                // no thread of this process polls there: they are left to its caller's
  // Some core has more than one polling thread of this process: they take turns (PollMode::kTurns).
  bool shared_cores = false;
  // Other processes need CPU time of these cores: one of them is taken, or the CPU quota is less than the cores. All
  // threads must poll with PollMode::kYield.
  bool contended = false;

  // Every core with polling threads once, ascending.
  std::vector<int> AllCores() const;
  size_t ThreadCount() const;
  // Lines for people: S cores, then one line a home, then the front's cores.
  std::string ToString() const;
};

// Defaults, with `share`: a thread of S on each physical core of every usable node, which is one of the node's homes,
// too; these divide their node's threads among themselves. `r_threads` are the most that one home has. A home on whose
// node there is none has all. Without: one thread a physical core (hyperthreads only where cores are too
// few); S gets half of the first node's cores, at least one; the homes on that node share the rest, the homes on other
// nodes have theirs whole. With no home here S gets the whole first node. On two cores: S core 0, R core 1. Too few
// cores are shared, never an error. Errors: InvalidArgument naming option, value and what is allowed;
// FailedPrecondition without any usable node.
absl::StatusOr<CorePlan> PlanCores(const Topology& topology, const CorePlanOptions& options);

// A plan and the reservation of its cores, made in one go, so that two processes that start together do not choose the
// same. options.taken_cores is added to what is found reserved. Cores that others hold are in the plan only if named by
// the user or if there were too few. Where nothing can be locked or reserved there is a plan all the same, of whose
// cores others may not know; threads that watch (PollMode::kWatch) find it out should they come. `directory`: empty for
// the host's own, see CoreReservation. Errors: those of PlanCores.
struct ReservedCorePlan {
  CorePlan plan;
  CoreReservation reservation;
  std::vector<std::string> warnings;  // for the log
};
absl::StatusOr<ReservedCorePlan> PlanAndReserveCores(const Topology& topology, CorePlanOptions options,
                                                     const std::string& directory = "");

// Parses "0,2-5" into {0,2,3,4,5}, in the order written. `option` is named in errors. Errors: InvalidArgument for a
// syntax error, a core named twice, or one that is not there or not allowed.
absl::StatusOr<std::vector<int>> ParseCores(const std::string& option, const std::string& text,
                                            const Topology& topology);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_CORE_PLAN_H_
