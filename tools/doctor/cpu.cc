#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/core_plan.h"
#include "numa/cpu_quota.h"
#include "numa/openmp_binding.h"
#include "numa/pinning.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/host_facts.h"

namespace fastdecode {

namespace {

// Those of `cpus` that are not among `others`.
std::vector<int> Without(std::vector<int> cpus, const std::vector<int>& others) {
  std::erase_if(cpus, [&](int cpu) { return std::find(others.begin(), others.end(), cpu) != others.end(); });
  return cpus;
}

void ExamineModel(const DoctorHost& host, CheckList* list) {
  const std::string model = host.root.Field("/proc/cpuinfo", "model name").value_or("model not readable");
  if (host.isa == Isa::kNone) {
    list->Error("processor", model, "FastDecode's kernels need AVX2, FMA and F16C: use a host that has them");
    return;
  }
  const bool denied = host.amx && host.isa != Isa::kAmx;
  list->Ok("processor", absl::StrCat(model, "; kernels use ", IsaName(host.isa),
                                     denied ? "; it has AMX, which this process may not use" : ""));
}

void ExamineCpuSet(const DoctorHost& host, CheckList* list) {
  constexpr char kName[] = "CPU set";
  const std::optional<std::vector<int>> allowed = ReadAllowedCpus(host.root);
  if (!allowed) {
    list->Unknown(kName, kNotReadable, "is /proc mounted? `taskset -pc $$` says which CPUs a process may use");
    return;
  }
  const std::optional<std::vector<int>> online = ReadCpuList(host.root, absl::StrCat(kCpusFolder, "online"));
  const bool part = online && !Without(*online, *allowed).empty();
  std::string found = absl::StrCat("CPUs ", FormatCores(*allowed));
  if (online && !part) absl::StrAppend(&found, ", all that are online");
  if (part) absl::StrAppend(&found, " of ", FormatCores(*online), " online");
  if (!host.affinity_refused.empty()) absl::StrAppend(&found, " (as /proc says; ", host.affinity_refused, ")");
  if (part && host.openmp_binds) {
    list->Warning(kName, absl::StrCat(found, "; OpenMP's runtime was told to bind this process"),
                  absl::StrCat("unset ", kOpenMpBindingVariables));
    return;
  }
  if (allowed->size() < 2) {
    list->Warning(kName, found, "one core does everything in turn; give this process more (taskset, --cpuset-cpus)");
    return;
  }
  list->Ok(kName, found);
}

void ExaminePinning(const DoctorHost& host, CheckList* list) {
  constexpr char kName[] = "pinning";
  if (!host.topology) return;  // said elsewhere
  if (host.pinning_refused.empty()) {
    list->Ok(kName, "threads stay on the cores that they are put on");
    return;
  }
  list->Warning(kName, absl::StrCat("refused by the kernel: ", host.pinning_refused),
                absl::StrCat("the scheduler moves polling threads, and times are uneven: ", kPinningAdvice));
}

// What an engine makes of the cores that it may use, as long as no other process has them.
void ExamineCorePlan(const DoctorHost& host, CheckList* list) {
  constexpr char kName[] = "core plan";
  if (!host.topology) return;  // said elsewhere
  CorePlanOptions options;
  options.homes = static_cast<int>(std::count_if(host.topology->nodes.begin(), host.topology->nodes.end(),
                                                 [](const NumaNode& node) { return node.UsableAsHome(); }));
  options.share = true;
  const absl::StatusOr<CorePlan> shared = PlanCores(*host.topology, options);
  options.share = false;
  const absl::StatusOr<CorePlan> split = PlanCores(*host.topology, options);
  if (!shared.ok() || !split.ok()) return;
  list->Ok(kName, absl::StrCat("S-Part and homes share CPUs ", FormatCores(shared->AllCores()),
                               "; --core-plan split: S-Part CPUs ", FormatCores(split->s_cores)));
}

void ExamineCpuQuota(const DoctorHost& host, CheckList* list) {
  constexpr char kName[] = "CPU quota";
  const CpuQuota quota = CpuQuota::Read(host.root.prefix());
  if (quota.cpus == 0) {
    list->Ok(kName, "none");
    return;
  }
  int cores = 0;  // a thread each, by default
  if (host.topology) {
    for (const NumaNode& node : host.topology->nodes) cores += node.physical_cores;
  }
  const std::string found = absl::StrFormat("the time of %.4g CPUs (%s)", quota.cpus, quota.source);
  if (quota.cpus >= cores) {
    list->Ok(kName, found);
    return;
  }
  list->Warning(kName,
                absl::StrFormat("%s, but %d physical cores, by default with a polling thread each", found, cores),
                "they stand still when it is used up: give this process CPUs of its own instead (--cpuset-cpus), or "
                "fewer threads (--s-threads, --r-threads)");
}

void ExamineGovernor(const SysRoot& root, CheckList* list) {
  constexpr char kName[] = "governor";
  const std::map<std::string, std::vector<int>> cpus_by_governor = ReadGovernors(root);
  if (cpus_by_governor.empty()) {
    list->Unknown(kName, kNotReadable,
                  "firmware or hypervisor sets the frequency: choose a profile of performance there");
    return;
  }
  const std::string found = DescribeGovernors(cpus_by_governor);
  if (cpus_by_governor.size() == 1 && cpus_by_governor.count("performance") == 1) {
    list->Ok(kName, found);
    return;
  }
  list->Warning(
      kName, found,
      "frequencies that follow the load make hops slow after a pause: `cpupower frequency-set -g performance`");
}

std::string HowToUse(const SysRoot& root, const std::vector<int>& isolated, const std::vector<int>& allowed) {
  const std::vector<int> online = ReadCpuList(root, absl::StrCat(kCpusFolder, "online")).value_or(allowed);
  return absl::StrCat("start FastDecode on all CPUs, its polling threads on isolated ones: `taskset -c ",
                      FormatCores(online), " fastdecode ...` with --s-cores and --r-cores out of ",
                      FormatCores(isolated));
}

void ExamineIsolation(const SysRoot& root, CheckList* list) {
  constexpr char kName[] = "isolated cores";
  constexpr char kNone[] = "none";
  const std::optional<std::vector<int>> isolated = ReadCpuList(root, absl::StrCat(kCpusFolder, "isolated"));
  const std::vector<int> ticking =
      ReadCpuList(root, absl::StrCat(kCpusFolder, "nohz_full")).value_or(std::vector<int>());
  if (!isolated) {
    list->Unknown(kName, kNotReadable, "look for isolcpus= in /proc/cmdline");
    return;
  }
  if (isolated->empty()) {
    list->Warning(kName, kNone,
                  "other threads may interrupt those that poll; for steady latency keep some cores for them at boot: "
                  "isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST");
    return;
  }
  std::string found = FormatCores(*isolated);
  absl::StrAppend(&found, "; without timer tick (nohz_full): ", ticking.empty() ? kNone : FormatCores(ticking));
  const std::optional<std::vector<int>> allowed = ReadAllowedCpus(root);
  // A process gets isolated cores only if it is put there.
  if (allowed && !Without(*isolated, *allowed).empty()) {
    list->Warning(kName,
                  absl::StrCat(found, "; not in this process's CPU set: ", FormatCores(Without(*isolated, *allowed))),
                  HowToUse(root, *isolated, *allowed));
    return;
  }
  // The kernel spreads nothing over isolated cores: threads that are not pinned would share one.
  if (allowed && Without(*allowed, *isolated).empty()) {
    list->Warning(kName, absl::StrCat(found, "; this process's CPU set has no others"),
                  HowToUse(root, *isolated, *allowed));
    return;
  }
  if (!Without(*isolated, ticking).empty()) {
    list->Warning(kName, found,
                  absl::StrCat("add nohz_full=", FormatCores(*isolated), " to the kernel's command line"));
    return;
  }
  list->Ok(kName, found);
}

}  // namespace

void ExamineCpu(const DoctorHost& host, CheckList* list) {
  const std::optional<std::string> release = host.root.Text("/proc/sys/kernel/osrelease");
  if (release) {
    list->Ok("kernel", absl::StrCat("Linux ", *release));
  } else {
    list->Unknown("kernel", kNotReadable, "is /proc mounted? `uname -r` says the version");
  }
  ExamineModel(host, list);
  ExamineCpuSet(host, list);
  ExaminePinning(host, list);
  ExamineCorePlan(host, list);
  ExamineCpuQuota(host, list);
  ExamineGovernor(host.root, list);
  ExamineIsolation(host.root, list);
}

}  // namespace fastdecode
