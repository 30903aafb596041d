#include "numa/core_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "numa/front_cores.h"

namespace fastdecode {

namespace {

constexpr int kHomesMax = 1024;
constexpr int kThreadsMax = 4096;

bool Contains(const std::vector<int>& values, int value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

absl::Status CheckCount(const char* option, int value, int max) {
  if (value >= 0 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", value, " is not allowed (0 to ", max, ")"));
}

// `count` entries, one a thread: the cores in order, again from the start if there are too few.
std::vector<int> SpreadThreads(const std::vector<int>& cores, size_t count) {
  std::vector<int> threads(count);
  for (size_t i = 0; i < count; ++i) threads[i] = cores[i % cores.size()];
  return threads;
}

// Whether the threads, should all poll at once, use up what the process may use of CPU time. Threads that share a core
// use no more than one has.
bool PassesQuota(const Topology& topology, const CorePlan& plan) {
  return topology.cpu_quota.cpus > 0 && static_cast<double>(plan.AllCores().size()) > topology.cpu_quota.cpus;
}

// A node that this process can use, while its cores are given out.
struct NodeShare {
  const NumaNode* node;
  int homes = 0;             // that will be on it
  std::vector<int> r_given;  // of --r-cores
  std::vector<int> pool;     // still to give out, best first
  size_t base = 0;           // of the pool: those that it has whatever thread counts are asked for
};

// The steps of PlanCores.
class Planner {
 public:
  Planner(const Topology& topology, const CorePlanOptions& options) : topology_(topology), options_(options) {}

  absl::StatusOr<CorePlan> Plan() {
    absl::Status status = ReadOptions();
    if (status.ok()) status = ChooseNodes();
    if (!status.ok()) return status;
    for (NodeShare& share : shares_) FillPool(&share);
    GiveToSPart();
    if (options_.share) {
      status = ShareThreads();
      if (!status.ok()) return status;
    } else {
      GiveToHomes();
    }
    FindSharing();
    return std::move(plan_);
  }

 private:
  bool RChosen() const { return r_given_.empty(); }
  bool SChosen() const { return s_given_.empty(); }
  size_t ThreadsPerHomeMin() const { return static_cast<size_t>(std::max(1, options_.r_threads)); }
  // Cores of a node that its homes need at least, out of the pool.
  size_t NeededByHomes(const NodeShare& share) const {
    return RChosen() ? static_cast<size_t>(share.homes) * ThreadsPerHomeMin() : 0;
  }

  absl::Status ReadOptions() {
    absl::Status status = CheckCount("--homes", options_.homes, kHomesMax);
    if (status.ok()) status = CheckCount("--s-threads", options_.s_threads, kThreadsMax);
    if (status.ok()) status = CheckCount("--r-threads", options_.r_threads, kThreadsMax);
    if (!status.ok()) return status;
    if (!options_.s_cores.empty() && !options_.s_part) {
      return absl::InvalidArgumentError(absl::StrCat("--s-cores: '", options_.s_cores, "', but no S-Part runs here"));
    }
    if (!options_.r_cores.empty() && options_.homes == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--r-cores: '", options_.r_cores, "', but no home is here"));
    }
    for (const auto& [option, text, cores] : {std::tuple("--s-cores", &options_.s_cores, &s_given_),
                                              std::tuple("--r-cores", &options_.r_cores, &r_given_)}) {
      if (text->empty()) continue;
      absl::StatusOr<std::vector<int>> parsed = ParseCores(option, *text, topology_);
      if (!parsed.ok()) return parsed.status();
      *cores = *std::move(parsed);
    }
    if (options_.share && RChosen()) {
      r_given_ = s_given_;
      r_option_ = "--s-cores";
      r_text_ = &options_.s_cores;
    }
    if (options_.share && SChosen()) s_given_ = r_given_;
    return absl::OkStatus();
  }

  static bool AllGiven(const NodeShare& share, const std::vector<int>& given) {
    return std::all_of(share.node->cores.begin(), share.node->cores.end(),
                       [&](int core) { return Contains(given, core); });
  }

  // Which nodes have a part in this, and how many homes each gets, round robin.
  absl::Status ChooseNodes() {
    for (const NumaNode& node : topology_.nodes) {
      if (node.UsableAsHome()) shares_.push_back({&node, 0, {}, {}});
    }
    if (shares_.empty())
      return absl::FailedPreconditionError("no NUMA node has both a core and memory for this process");
    for (const int core : r_given_) {
      const int os_index = topology_.nodes[static_cast<size_t>(topology_.NodeOfCore(core))].os_index;
      const auto share = std::find_if(shares_.begin(), shares_.end(),
                                      [&](const NodeShare& s) { return s.node->os_index == os_index; });
      if (share == shares_.end()) {
        return absl::InvalidArgumentError(absl::StrCat(r_option_, ": core ", core, " is on node ", os_index,
                                                       ", which has no memory that this process may use"));
      }
      share->r_given.push_back(core);
    }
    std::vector<NodeShare*> with_homes;
    for (NodeShare& share : shares_) {
      if (RChosen() ? options_.share || !AllGiven(share, s_given_) : !share.r_given.empty())
        with_homes.push_back(&share);
    }
    if (with_homes.empty()) {  // S has every core; the homes share them
      for (NodeShare& share : shares_) with_homes.push_back(&share);
    }
    if (!RChosen() && with_homes.size() > static_cast<size_t>(options_.homes)) {
      return absl::InvalidArgumentError(absl::StrCat(r_option_, ": '", *r_text_, "' has cores of ", with_homes.size(),
                                                     " NUMA nodes, but --homes is ", options_.homes,
                                                     " and a home is on one node"));
    }
    for (int home = 0; home < options_.homes; ++home) {
      NodeShare* const share = with_homes[static_cast<size_t>(home) % with_homes.size()];
      ++share->homes;
      plan_.home_nodes.push_back(share->node->os_index);
    }
    if (options_.share) return absl::OkStatus();
    // S is where the homes have left cores.
    const auto s_first = std::find_if(shares_.begin(), shares_.end(),
                                      [&](const NodeShare& share) { return !AllGiven(share, r_given_); });
    if (s_first != shares_.end()) std::rotate(shares_.begin(), s_first, shares_.end());
    return absl::OkStatus();
  }

  // Best cores first, worse ones only until there are enough: one PU of each physical core, further hyperthreads, then
  // what other processes hold, then what the user gave to the other part.
  void FillPool(NodeShare* share) const {
    const std::vector<int>& cores = share->node->cores;
    const bool s_here = options_.s_part && SChosen() && share == &shares_.front();
    size_t s_needs = s_here ? static_cast<size_t>(std::max(1, options_.s_threads)) : 0;
    if (options_.share) s_needs = (static_cast<size_t>(options_.s_threads) + shares_.size() - 1) / shares_.size();
    const size_t homes_need = NeededByHomes(*share);
    const size_t needed = std::max<size_t>(1, options_.share ? std::max(s_needs, homes_need) : s_needs + homes_need);
    const auto append = [&](size_t begin, size_t end, bool taken, bool given) {
      if (share->pool.size() >= needed) return;
      for (size_t i = begin; i < end; ++i) {
        const bool is_given = Contains(s_given_, cores[i]) || Contains(r_given_, cores[i]);
        const bool is_taken = Contains(options_.taken_cores, cores[i]);
        if (is_given == given && (given || is_taken == taken)) share->pool.push_back(cores[i]);
      }
      if (share->base == 0) share->base = share->pool.size();
    };
    const size_t physical = static_cast<size_t>(share->node->physical_cores);
    append(0, physical, false, false);
    append(physical, cores.size(), false, false);
    append(0, physical, true, false);
    append(physical, cores.size(), true, false);
    if (share->pool.empty()) append(0, cores.size(), false, true);
  }

  void GiveToSPart() {
    if (!options_.s_part) return;
    const size_t asked = static_cast<size_t>(options_.s_threads);
    std::vector<int> cores = s_given_;
    if (options_.share && SChosen()) cores = SharedCores(asked);
    for (NodeShare& share : shares_) {
      if (!SChosen() || options_.share) break;
      const bool first = &share == &shares_.front();
      if (!first && asked <= cores.size()) break;
      const size_t count = std::min(share.pool.size(), SPartShare(share, first, asked - std::min(asked, cores.size())));
      cores.insert(cores.end(), share.pool.begin(), share.pool.begin() + static_cast<std::ptrdiff_t>(count));
      // The only core of a node serves its homes too.
      if (count < share.pool.size())
        share.pool.erase(share.pool.begin(), share.pool.begin() + static_cast<std::ptrdiff_t>(count));
    }
    plan_.s_cores = SpreadThreads(cores, asked == 0 ? cores.size() : asked);
  }

  // Those that the S-Part shares with the homes: the best of every node, and others only for more threads than these.
  std::vector<int> SharedCores(size_t asked) const {
    std::vector<int> cores;
    for (const bool others : {false, true}) {
      if (others && asked <= cores.size()) break;
      for (const NodeShare& share : shares_) {
        const auto base = share.pool.begin() + static_cast<std::ptrdiff_t>(share.base);
        cores.insert(cores.end(), others ? base : share.pool.begin(), others ? share.pool.end() : base);
      }
    }
    return cores;
  }

  // How many cores of a node S takes, of `asked` that it still wants (0: as it sees fit).
  size_t SPartShare(const NodeShare& share, bool first, size_t asked) const {
    const size_t pool = share.pool.size();
    const size_t homes_need = NeededByHomes(share);
    size_t count = pool - std::min(pool, homes_need);
    if (asked != 0) {
      count = std::min(count, asked);
    } else if (homes_need != 0 && options_.r_threads == 0) {
      count = std::min(count, pool / 2);
    }
    return first ? std::max<size_t>(1, count) : count;
  }

  void GiveToHomes() {
    plan_.home_cores.resize(static_cast<size_t>(options_.homes));
    for (const NodeShare& share : shares_) {
      const std::vector<int> cores = RChosen() ? share.pool : share.r_given;
      const size_t homes = static_cast<size_t>(share.homes);
      size_t rank = 0;  // of a home among those of this node
      for (size_t home = 0; home < plan_.home_cores.size(); ++home) {
        if (plan_.home_nodes[home] == share.node->os_index) plan_.home_cores[home] = HomeCores(cores, rank++, homes);
      }
    }
  }

  // S threads are the homes' threads, too.
  absl::Status ShareThreads() {
    plan_.one_team = true;
    plan_.home_cores.resize(static_cast<size_t>(options_.homes));
    plan_.home_threads.resize(static_cast<size_t>(options_.homes));
    for (const int core : r_given_) {
      if (Contains(s_given_, core)) continue;
      return absl::InvalidArgumentError(absl::StrCat(r_option_, ": '", *r_text_, "': core ", core,
                                                     " is not one of --s-cores '", options_.s_cores,
                                                     "', and one team does both parts"));
    }
    for (const NodeShare& share : shares_) {
      const std::vector<int> threads = ThreadsOn(share);
      size_t rank = 0;  // of a home among those of this node
      for (size_t home = 0; home < plan_.home_cores.size(); ++home) {
        if (plan_.home_nodes[home] != share.node->os_index) continue;
        std::vector<int> own = PartOf(threads, rank++, static_cast<size_t>(share.homes));
        if (options_.r_threads > 0) own.resize(std::min(own.size(), static_cast<size_t>(options_.r_threads)));
        for (const int thread : own) plan_.home_cores[home].push_back(plan_.s_cores[static_cast<size_t>(thread)]);
        plan_.home_threads[home] = std::move(own);
      }
    }
    return absl::OkStatus();
  }

  // The S threads that may attend on a node: those on its cores, or all if there are none.
  std::vector<int> ThreadsOn(const NodeShare& share) const {
    std::vector<int> threads;
    for (size_t i = 0; i < plan_.s_cores.size(); ++i) {
      const int core = plan_.s_cores[i];
      const bool is_asked = RChosen() || Contains(r_given_, core);
      if (is_asked && Contains(share.node->cores, core)) threads.push_back(static_cast<int>(i));
    }
    if (!threads.empty()) return threads;
    threads.resize(plan_.s_cores.size());
    std::iota(threads.begin(), threads.end(), 0);
    return threads;
  }

  // The `rank`-th of `parts` parts of these, at least one.
  static std::vector<int> PartOf(const std::vector<int>& all, size_t rank, size_t parts) {
    const size_t begin = all.size() * rank / parts;
    const size_t end = all.size() * (rank + 1) / parts;
    if (begin == end) return {all[rank % all.size()]};
    return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  // The threads of the `rank`-th of `homes` homes that share `cores`.
  std::vector<int> HomeCores(const std::vector<int>& cores, size_t rank, size_t homes) const {
    const std::vector<int> own = PartOf(cores, rank, homes);
    return SpreadThreads(own, options_.r_threads == 0 ? own.size() : static_cast<size_t>(options_.r_threads));
  }

  void FindSharing() {
    std::set<int> seen;
    const auto see = [&](const std::vector<int>& cores) {
      for (const int core : cores) {
        if (!seen.insert(core).second) plan_.shared_cores = true;
        if (Contains(options_.taken_cores, core)) plan_.contended = true;
      }
    };
    see(plan_.s_cores);
    for (const std::vector<int>& cores : plan_.home_cores) {
      if (!plan_.one_team) see(cores);
    }
    if (PassesQuota(topology_, plan_)) plan_.contended = true;
  }

  const Topology& topology_;
  const CorePlanOptions& options_;
  std::vector<int> s_given_;
  std::vector<int> r_given_;
  const char* r_option_ = "--r-cores";  // where r_given_ comes from, and what it says
  const std::string* r_text_ = &options_.r_cores;
  std::vector<NodeShare> shares_;
  CorePlan plan_;
};

// "3 threads on cores 0-1".
std::string FormatThreads(const std::vector<int>& cores) {
  return absl::StrCat(cores.size(), cores.size() == 1 ? " thread on cores " : " threads on cores ", FormatCores(cores));
}

}  // namespace

absl::StatusOr<CorePlan> PlanCores(const Topology& topology, const CorePlanOptions& options) {
  absl::StatusOr<std::vector<int>> front_cores = ChooseFrontCores(topology, options);
  if (!front_cores.ok()) return front_cores.status();
  if (front_cores->empty()) return Planner(topology, options).Plan();
  const Topology left = topology.Without(*front_cores);
  absl::StatusOr<CorePlan> plan = Planner(left, options).Plan();
  if (plan.ok()) plan->front_cores = *std::move(front_cores);
  return plan;
}

absl::StatusOr<ReservedCorePlan> PlanAndReserveCores(const Topology& topology, CorePlanOptions options,
                                                     const std::string& directory) {
  absl::StatusOr<std::string> where = directory;
  if (directory.empty()) where = CoreReservation::HostDirectory();
  const absl::StatusOr<DirectoryLock> lock = where.ok() ? DirectoryLock::Acquire(*where) : where.status();
  if (where.ok()) {
    for (const int core : CoreReservation::TakenCores(*where)) options.taken_cores.push_back(core);
  }
  absl::StatusOr<CorePlan> plan = PlanCores(topology, options);
  if (!plan.ok()) return plan.status();
  ReservedCorePlan result;
  result.plan = *std::move(plan);
  if (PassesQuota(topology, result.plan)) {
    result.warnings.push_back(absl::StrFormat(
        "threads poll on %d cores, but this process may use the time of %.4g CPUs (%s) and stands still when it is "
        "used up: "
        "give it CPUs of its own (a cpuset) instead, or fewer threads (--r-threads; an engine's --s-threads)",
        result.plan.AllCores().size(), topology.cpu_quota.cpus, topology.cpu_quota.source));
  }
  absl::Status obstacle = lock.status();
  if (where.ok()) {
    std::vector<int> cores = result.plan.AllCores();
    cores.insert(cores.end(), result.plan.front_cores.begin(), result.plan.front_cores.end());
    absl::StatusOr<CoreReservation> reservation = CoreReservation::Reserve(*where, cores);
    obstacle.Update(reservation.status());
    if (reservation.ok()) result.reservation = *std::move(reservation);
  }
  std::vector<int> front_refused;
  for (const int core : result.reservation.refused()) {
    if (Contains(result.plan.front_cores, core)) {
      front_refused.push_back(core);
    } else {
      result.plan.contended = true;  // without the lock somebody else may have been faster
    }
  }
  if (!front_refused.empty()) {
    result.warnings.push_back(absl::StrCat("--front-cores: other FastDecode processes have reserved cores ",
                                           FormatCores(front_refused),
                                           ", which are left to this one's caller: both may run there"));
  }
  if (!obstacle.ok()) {
    result.warnings.push_back(absl::StrCat("other FastDecode processes may choose the same cores, as these cannot be ",
                                           "reserved safely: ", std::string(obstacle.message())));
  }
  return result;
}

absl::StatusOr<std::vector<int>> ParseCores(const std::string& option, const std::string& text,
                                            const Topology& topology) {
  const std::vector<int> allowed = topology.AllowedCores();
  const auto error = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat(option, ": '", text, "': ", why, " (allowed: cores ", FormatCores(allowed), ")"));
  };
  std::vector<int> cores;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first, last;
    if (!absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first) {
      return error(absl::StrCat("'", part, "' is not a core or a range like 2-5"));
    }
    for (int core = first; core <= last; ++core) {
      if (Contains(topology.barred_cores, core)) {
        return error(absl::StrCat("core ", core,
                                  " is not in this process's CPU set: isolcpus, taskset, a cpuset or OpenMP's "
                                  "variables keep it out, `taskset -c` or --cpuset-cpus lets it in"));
      }
      if (!Contains(allowed, core)) return error(absl::StrCat("core ", core, " is not there"));
      if (Contains(cores, core)) return error(absl::StrCat("core ", core, " is named twice"));
      cores.push_back(core);
    }
  }
  return cores;
}

std::vector<int> CorePlan::AllCores() const {
  std::set<int> cores(s_cores.begin(), s_cores.end());
  for (const std::vector<int>& home : home_cores) cores.insert(home.begin(), home.end());
  return {cores.begin(), cores.end()};
}

size_t CorePlan::ThreadCount() const {
  size_t threads = s_cores.size();
  for (const std::vector<int>& home : home_cores) threads += one_team ? 0 : home.size();
  return threads;
}

std::string CorePlan::ToString() const {
  std::string text;
  if (!s_cores.empty()) absl::StrAppend(&text, "S-Part: ", FormatThreads(s_cores), "\n");
  for (size_t home = 0; home < home_cores.size(); ++home) {
    absl::StrAppend(&text, "home ", home, ": ", FormatThreads(home_cores[home]), one_team ? " of these" : "", ", node ",
                    home_nodes[home], "\n");
  }
  if (!front_cores.empty()) absl::StrAppend(&text, "left to the caller: cores ", FormatCores(front_cores), "\n");
  if (contended) {
    absl::StrAppend(&text, "other processes use these cores, or the CPU quota is less than they are: threads yield\n");
  } else if (shared_cores) {
    absl::StrAppend(&text, "threads that share a core take turns\n");
  }
  return text;
}

}  // namespace fastdecode
