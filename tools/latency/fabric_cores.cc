#include "tools/latency/fabric_cores.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include <fastdecode/fastdecode.hpp>
#include "numa/core_plan.h"
#include "numa/topology.h"
#include "tools/bench/summary.h"

namespace fastdecode {

namespace {

bool Has(const std::vector<int>& cores, int core) { return std::find(cores.begin(), cores.end(), core) != cores.end(); }

std::vector<int> AskedCores(const std::string& asked, size_t threads, const Topology& topology) {
  if (asked.empty()) return {};
  absl::StatusOr<std::vector<int>> cores = ParseCores("--cores", asked, topology);
  ThrowUnlessOk(cores.status());
  if (cores->size() <= threads) return *std::move(cores);
  throw Error(FD_INVALID_ARGUMENT, "--cores: " + asked + " are " + std::to_string(cores->size()) +
                                       " cores, more than the threads of this end: " + std::to_string(threads));
}

// The last ones first: the first core tends to have the interrupts, also those of the device that is measured. What
// somebody has comes behind all others.
std::vector<int> ByPreference(std::vector<int> cores, const std::vector<int>& taken) {
  std::sort(cores.rbegin(), cores.rend());
  std::stable_partition(cores.begin(), cores.end(), [&](int core) { return !Has(taken, core); });
  return cores;
}

}  // namespace

FabricCores::FabricCores(const std::string& asked, size_t threads) {
  const Topology topology = DiscoverMachine();
  cores_ = AskedCores(asked, threads, topology);
  const absl::StatusOr<std::string> directory = CoreReservation::HostDirectory();
  ThrowUnlessOk(directory.status());
  const absl::StatusOr<DirectoryLock> lock = DirectoryLock::Acquire(*directory);
  ThrowUnlessOk(lock.status());
  const std::vector<int> preferred = ByPreference(topology.AllowedCores(), CoreReservation::TakenCores(*directory));
  for (const int core : preferred) {
    if (cores_.size() < threads && !Has(cores_, core)) cores_.push_back(core);
  }
  cores_.resize(threads, preferred[0]);  // fewer cores than threads: they share
  const std::set<int> once(cores_.begin(), cores_.end());
  absl::StatusOr<CoreReservation> reservation = CoreReservation::Reserve(*directory, {once.begin(), once.end()});
  ThrowUnlessOk(reservation.status());
  reservation_ = *std::move(reservation);
  if (reservation_.refused().empty()) return;
  std::fprintf(stderr,
               "fastdecode: warning: another process of FastDecode is on core %s too: both wait for each other there\n",
               FormatCores(reservation_.refused()).c_str());
}

}  // namespace fastdecode
