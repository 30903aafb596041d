#include "tools/latency/machine/interruptions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "numa/clock.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Who wants less of a core than this is not delayed by what others take of it.
constexpr double kWantedShareMin = 0.01;
constexpr double kUnpinnedWaitShareMax = 0.01;
// Steps of what /proc/stat counts: one may have been nearly full before.
constexpr uint64_t kStatStepNs = 10'000'000;
constexpr size_t kCausesMax = 3;

std::string ProcessFolder(int pid) { return absl::StrCat("/proc/", pid == 0 ? "self" : absl::StrCat(pid)); }

std::optional<ThreadCounters> ReadThread(const SysRoot& root, const std::string& folder, int tid) {
  const std::optional<std::string> name = root.Field(folder + "/status", "Name");
  if (!name) return std::nullopt;  // it has just ended
  ThreadCounters thread;
  thread.tid = tid;
  thread.name = *name;
  const std::optional<std::vector<int>> cores =
      ParseCpuList(root.Field(folder + "/status", "Cpus_allowed_list").value_or(""));
  if (cores && cores->size() == 1) thread.core = cores->front();
  std::istringstream times(root.Text(folder + "/schedstat").value_or(""));
  thread.timed = static_cast<bool>(times >> thread.ran_ns >> thread.waited_ns);
  const std::string preemptions = root.Field(folder + "/status", "nonvoluntary_ctxt_switches").value_or("");
  if (!absl::SimpleAtoi(preemptions, &thread.preemptions)) thread.preemptions = 0;
  return thread;
}

// What was added to a thread's counters.
std::vector<ThreadCounters> ThreadsSince(const MachineSnapshot& before, const MachineSnapshot& after) {
  std::map<int, ThreadCounters> then;
  for (const ThreadCounters& thread : before.threads) then[thread.tid] = thread;
  std::vector<ThreadCounters> added;
  for (ThreadCounters thread : after.threads) {
    const ThreadCounters& start = then[thread.tid];
    thread.ran_ns -= std::min(start.ran_ns, thread.ran_ns);
    thread.waited_ns -= std::min(start.waited_ns, thread.waited_ns);
    thread.preemptions -= std::min(start.preemptions, thread.preemptions);
    added.push_back(thread);
  }
  return added;
}

// What happened at one core that threads are pinned to.
struct CoreStory {
  int core = -1;
  std::vector<std::string> names;  // of those that wanted it
  uint64_t waited_ns = 0;
  uint64_t preemptions = 0;
  CoreCounters counters;

  // Not by threads.
  uint64_t BelowNs() const {
    const auto surely = [](uint64_t ns) { return ns - std::min(ns, kStatStepNs); };
    return surely(counters.stolen_ns) + surely(counters.handled_ns);
  }
  std::string Details() const {
    std::vector<std::string> parts;
    const std::string causes = DescribeCauses(counters.interrupts, kCausesMax);
    if (!causes.empty()) parts.push_back(causes);
    if (preemptions > 0)
      parts.push_back(absl::StrCat(FormatCount(preemptions), preemptions == 1 ? " preemption" : " preemptions"));
    if (counters.handled_ns > 0) parts.push_back(FormatNs(static_cast<double>(counters.handled_ns)) + " in interrupts");
    if (counters.stolen_ns > 0) {
      parts.push_back(FormatNs(static_cast<double>(counters.stolen_ns)) + " stolen by the hypervisor");
    }
    return parts.empty() ? "" : absl::StrCat(": ", absl::StrJoin(parts, ", "));
  }
};

std::vector<CoreStory> TellByCore(const std::vector<ThreadCounters>& threads, const MachineCounters& machine,
                                  double elapsed_ns) {
  std::map<int, CoreStory> stories;
  for (const ThreadCounters& thread : threads) {
    const double wanted_ns = static_cast<double>(thread.ran_ns + thread.waited_ns);
    if (thread.core < 0 || wanted_ns < kWantedShareMin * elapsed_ns) continue;
    CoreStory& story = stories[thread.core];
    story.core = thread.core;
    story.names.push_back(thread.name);
    story.waited_ns += thread.waited_ns;
    story.preemptions += thread.preemptions;
  }
  std::vector<CoreStory> told;
  for (auto& [core, story] : stories) {
    const auto counters = machine.find(core);
    if (counters != machine.end()) story.counters = counters->second;
    told.push_back(std::move(story));
  }
  return told;
}

void WarnOfCore(const CoreStory& story, double elapsed_ns, Interruptions* out) {
  const auto much = [&](uint64_t ns) { return static_cast<double>(ns) > Interruptions::kTakenShareMax * elapsed_ns; };
  const auto amount = [&](uint64_t ns) {
    const double taken_ns = static_cast<double>(ns);
    return absl::StrCat(FormatNs(taken_ns), " (", FormatShare(taken_ns / elapsed_ns), " of ", FormatNs(elapsed_ns),
                        ")");
  };
  const bool shared = story.names.size() > 1;
  if (shared && much(story.waited_ns)) {
    out->warnings.push_back(absl::StrCat(absl::StrJoin(story.names, ", "), " share core ", story.core,
                                         " and waited for it for ", amount(story.waited_ns), " together"));
  }
  const uint64_t taken_ns = story.BelowNs() + (shared ? 0 : story.waited_ns);
  if (!much(taken_ns)) return;
  out->interrupted = true;
  out->warnings.push_back(absl::StrCat("the machine took core ", story.core, " away from ",
                                       absl::StrJoin(story.names, ", "), " for ", amount(taken_ns), story.Details()));
}

}  // namespace

MachineSnapshot TakeSnapshot(const SysRoot& root, int pid) {
  MachineSnapshot snapshot;
  snapshot.pid = pid;
  snapshot.time_ns = NowNs();
  const std::string tasks = ProcessFolder(pid) + "/task";
  for (const std::string& name : root.List(tasks)) {
    int tid;
    if (!absl::SimpleAtoi(name, &tid)) continue;
    std::optional<ThreadCounters> thread = ReadThread(root, absl::StrCat(tasks, "/", name), tid);
    if (thread) snapshot.threads.push_back(*std::move(thread));
  }
  snapshot.cores = ReadMachineCounters(root);
  return snapshot;
}

Interruptions FindInterruptions(const MachineSnapshot& before, const MachineSnapshot& after) {
  Interruptions found;
  const std::vector<ThreadCounters> threads = ThreadsSince(before, after);
  const double elapsed_ns = static_cast<double>(after.time_ns - std::min(before.time_ns, after.time_ns));
  if (std::none_of(threads.begin(), threads.end(), [](const ThreadCounters& thread) { return thread.timed; })) {
    found.warnings.push_back(absl::StrCat("whether the machine took cores away is not known: ",
                                          ProcessFolder(after.pid), "/task/*/schedstat is not readable"));
  }
  for (const CoreStory& story : TellByCore(threads, Since(before.cores, after.cores), elapsed_ns)) {
    WarnOfCore(story, elapsed_ns, &found);
  }
  for (const ThreadCounters& thread : threads) {
    const double waited_ns = static_cast<double>(thread.waited_ns);
    if (thread.core >= 0 || waited_ns <= kUnpinnedWaitShareMax * elapsed_ns) continue;
    found.warnings.push_back(absl::StrCat(thread.name, ", which is not pinned, waited for a core for ",
                                          FormatNs(waited_ns), " (", FormatShare(waited_ns / elapsed_ns), " of ",
                                          FormatNs(elapsed_ns), ")"));
  }
  return found;
}

}  // namespace fastdecode
