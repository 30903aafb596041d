#include "numa/pinning.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "numa/pinned_thread.h"

namespace fastdecode {

namespace {

// What came of trying.
struct Trial {
  size_t threads = 0;
  size_t refused = 0;
  int error = 0;  // of the first that was refused
  std::vector<std::string> parts;

  void Add(const std::string& part, const std::vector<int>& cores) {
    std::vector<PinnedThread> trials;
    for (const int core : cores) trials.emplace_back("fd-try", core, [] {});
    size_t part_refused = 0;
    for (const PinnedThread& trial : trials) {
      if (trial.pin_error() == 0) continue;
      ++part_refused;
      if (error == 0) error = trial.pin_error();
    }
    threads += trials.size();
    refused += part_refused;
    if (part_refused > 0) parts.push_back(absl::StrFormat("%s %d of %d", part, part_refused, trials.size()));
  }
};

}  // namespace

bool PinningIsForbidden(int error) { return error == EPERM || error == ENOSYS || error == EACCES; }

std::string TryToPin(int core) {
  const PinnedThread thread("fd-try", core, [] {});
  return thread.pin_error() == 0 ? "" : absl::StrCat("sched_setaffinity: ", std::strerror(thread.pin_error()));
}

std::string DescribeRefusedPinning(const CorePlan& plan, size_t s_threads) {
  Trial trial;
  const auto s_end = plan.s_cores.begin() + static_cast<ptrdiff_t>(std::min(s_threads, plan.s_cores.size()));
  if (s_threads > 0) trial.Add("S-Part", std::vector<int>(plan.s_cores.begin(), s_end));
  for (size_t home = 0; home < plan.home_cores.size(); ++home) {
    trial.Add(absl::StrCat("home", home), plan.home_cores[home]);
  }
  if (trial.refused == 0) return "";
  const std::string advice =
      PinningIsForbidden(trial.error)
          ? kPinningAdvice
          : "give the process these cores (taskset, --cpuset-cpus), or name others (--s-cores, --r-cores)";
  return absl::StrFormat(
      "%d of %d threads cannot be pinned to their cores (%s): sched_setaffinity: %s; the scheduler moves them, which "
      "makes tokens slower and their times uneven, most where other programs run; %s",
      trial.refused, trial.threads, absl::StrJoin(trial.parts, ", "), std::strerror(trial.error), advice);
}

}  // namespace fastdecode
