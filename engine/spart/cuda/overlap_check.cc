#include "engine/spart/cuda/overlap_check.h"

#include <chrono>
#include <new>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/spart/cuda/wait_probe.h"
#include "kernels/cuda/step_kernels.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

absl::Status BeganNothing(uint64_t bound_ns) {
  return absl::DeadlineExceededError(absl::StrFormat(
      "the GPU began nothing in %.1f s of what it was given (it hangs, a debugger holds it or another program has it "
      "for itself)",
      static_cast<double>(bound_ns) * 1e-9));
}

absl::Status DoNotOverlap(absl::string_view what, uint64_t bound_ns) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "the GPU's micro-batches do not run side by side: %s in %.1f s while one waited for the host "
      "(CUDA_LAUNCH_BLOCKING, a debugger, or a CUDA_DEVICE_MAX_CONNECTIONS below --micro-batches make it so)",
      what, static_cast<double>(bound_ns) * 1e-9));
}

absl::Status TryOverlap(const std::vector<WaitProbe>& probes, const OverlapBounds& bounds, SPartDevice* device) {
  for (const WaitProbe& probe : probes) {
    device->Launch(probe.graph());
    if (probes[0].gave_up()) return DoNotOverlap("launching did not return", bounds.wait_ns);
  }
  // By then the first one has begun, and ended or given up.
  const uint64_t bound_ns = bounds.begin_ns + bounds.wait_ns, launched_ns = NowNs();
  // The last one launched first, while all before it wait.
  for (auto probe = probes.rbegin(); probe != probes.rend(); ++probe) {
    probe->Release();
    while (!probe->is_over()) {
      if (absl::Status bad = device->Check(); !bad.ok()) return bad;
      if (probes[0].gave_up()) return DoNotOverlap("another's step did not end", bounds.wait_ns);
      if (NowNs() - launched_ns > bound_ns) return BeganNothing(bound_ns);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStepsOverlap(const std::vector<SPartDevice::Stream>& streams, size_t kernels,
                               const OverlapBounds& bounds, SPartDevice* device) {
  absl::StatusOr<std::byte*> pinned = device->AllocatePinned(streams.size() * sizeof(StepBoard));
  if (!pinned.ok()) return pinned.status();
  std::vector<WaitProbe> probes;
  absl::Status status;
  for (size_t i = 0; i < streams.size() && status.ok(); ++i) {
    auto* const board = new (*pinned + i * sizeof(StepBoard)) StepBoard();
    const absl::StatusOr<WaitProbe> probe = WaitProbe::Make(streams[i], board, kernels, bounds.wait_ns, device);
    status.Update(probe.status());
    if (probe.ok()) probes.push_back(*probe);
  }
  if (status.ok()) status = TryOverlap(probes, bounds, device);
  for (const WaitProbe& probe : probes) probe.Release();
  if (absl::IsDeadlineExceeded(status)) return status;  // the boards stay, for a GPU that begins after all
  status.Update(device->Synchronize());
  device->FreePinned(*pinned);
  return status;
}

}  // namespace fastdecode
