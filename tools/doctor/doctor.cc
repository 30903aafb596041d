#include "tools/doctor/doctor.h"

#include "absl/status/statusor.h"
#include "numa/openmp_binding.h"

namespace fastdecode {

DoctorHost DoctorHost::ThisOne() {
  DoctorHost host;
  host.isa = DetectIsa();
  host.amx = CpuHasAmxKernels();
  host.openmp_binds = OpenMpBindsThreads();
  absl::StatusOr<Topology> topology = Topology::Discover();
  if (topology.ok()) host.topology = *std::move(topology);
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
