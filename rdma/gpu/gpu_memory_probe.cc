#include "rdma/gpu/gpu_memory_probe.h"

#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rdma/gpu/gpu_device.h"

namespace fastdecode {

namespace {

// As the driver brings it today, and as it was when it came by itself.
constexpr const char* kPeerMemModules[] = {"nvidia_peermem", "nv_peer_mem"};

bool HasPeerMemModule(const std::string& module_folder) {
  for (const char* module : kPeerMemModules) {
    if (access(absl::StrCat(module_folder, "/", module).c_str(), F_OK) == 0) return true;
  }
  return false;
}

absl::Status Try(const GpuMemoryPlace& place, GpuMemoryMethod method, const std::string& module_folder) {
  // Without the module, a registration may fail for reasons that name anything but the module.
  if (method == GpuMemoryMethod::kPeerMem && !HasPeerMemModule(module_folder)) {
    return absl::FailedPreconditionError("neither nvidia_peermem nor nv_peer_mem is loaded: `modprobe nvidia_peermem`");
  }
  GpuMemoryOptions options;
  options.bytes = 1;
  options.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING;
  return GpuMemory::Create(place, method, options).status();
}

absl::Status CheckFlush(const GpuDevice& device) {
  if (!device.WritesNeedFlush() || device.CanFlushWrites()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the GPU sees the device's writes only after a flush, and has no cuFlushGPUDirectRDMAWrites");
}

}  // namespace

absl::StatusOr<GpuMemoryProbe> ProbeGpuMemory(const GpuMemoryPlace& place, const std::string& module_folder) {
  // Held until the end: making a context takes longer than all else here.
  absl::StatusOr<std::unique_ptr<GpuDevice>> device = GpuDevice::Open(*place.driver, place.gpu);
  if (!device.ok()) return device.status();
  GpuMemoryProbe probe;
  for (const GpuMemoryMethod method :
       {GpuMemoryMethod::kDmaBuf, GpuMemoryMethod::kPeerMem, GpuMemoryMethod::kHostBounce}) {
    const bool on_gpu = method != GpuMemoryMethod::kHostBounce;
    absl::Status status = Try(place, method, module_folder);
    if (status.ok() && on_gpu) status = CheckFlush(**device);
    if (status.ok()) {
      probe.method = method;
      probe.flush = on_gpu && (*device)->WritesNeedFlush();
      return probe;
    }
    probe.refused.push_back(absl::StrCat(GpuMemoryMethodName(method), ": ", status.message()));
  }
  return absl::FailedPreconditionError(absl::StrCat(place.domain->context->device->name, " and ", (*device)->name(),
                                                    " cannot share memory: ", absl::StrJoin(probe.refused, "; ")));
}

std::string GpuMemoryProbe::Describe() const {
  std::string text = GpuMemoryMethodName(method);
  if (method != GpuMemoryMethod::kHostBounce) {
    absl::StrAppend(&text, "; the GPU sees the device's writes ", flush ? "after a flush a reply" : "without a flush");
  }
  for (const std::string& line : refused) absl::StrAppend(&text, "; not ", line);
  return text;
}

}  // namespace fastdecode
