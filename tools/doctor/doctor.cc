#include "tools/doctor/doctor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "numa/cpu_affinity.h"
#include "numa/mapped_pages.h"
#include "numa/openmp_binding.h"
#include "numa/pinning.h"
#include "rdma/verbs/verbs_calls.h"

namespace fastdecode {

namespace {

// Tries it with a page of its own.
bool PlacesMemory(const Topology& topology) {
  const auto node = std::find_if(topology.nodes.begin(), topology.nodes.end(),
                                 [](const NumaNode& each) { return each.UsableAsHome(); });
  if (node == topology.nodes.end()) return true;
  void* const page = mmap(nullptr, kSmallPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, 0);
  if (page == MAP_FAILED) return true;
  const absl::Status bound = BindPages(static_cast<uint8_t*>(page), kSmallPageBytes, node->os_index);
  munmap(page, kSmallPageBytes);
  return !absl::IsPermissionDenied(bound);
}

}  // namespace

DoctorHost DoctorHost::ThisOne() {
  DoctorHost host;
  host.isa = DetectIsa();
  host.amx = CpuHasAmxKernels();
  host.openmp_binds = OpenMpBindsThreads();
  host.verbs_missing = VerbsCalls::System().missing;
  host.verbs_advice = VerbsCalls::System().missing_advice;
  absl::StatusOr<Topology> topology = Topology::Discover();
  if (topology.ok()) host.topology = *std::move(topology);
  if (host.topology) host.places_memory = PlacesMemory(*host.topology);
  if (host.topology) host.pinning_refused = TryToPin(host.topology->AllowedCores().front());
  if (const int error = CpuAffinity::OfThisThread().refusal; error != 0) {
    host.affinity_refused = absl::StrCat("sched_getaffinity: ", std::strerror(error));
  }
  return host;
}

std::vector<Check> ExamineHost(const DoctorHost& host) {
  CheckList list;
  list.BeginGroup("CPU");
  ExamineCpu(host, &list);
  list.BeginGroup("memory");
  ExamineMemory(host, &list);
  list.BeginGroup("fabric");
  ExamineFabric(host, &list);
  list.BeginGroup("GPU");
  ExamineGpu(host, &list);
  return list.checks();
}

}  // namespace fastdecode
