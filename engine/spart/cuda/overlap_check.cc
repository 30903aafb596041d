#include "engine/spart/cuda/overlap_check.h"

#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/step_kernels.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr unsigned kStage = 1;

struct Probe {
  StepBoard* board = nullptr;  // pinned
  SPartDevice::Graph graph = 0;

  void Release() const { std::atomic_ref<uint64_t>(board->release).store(kStage, std::memory_order_release); }
  bool is_over() const { return Get(board->ready) != 0; }
  bool gave_up() const { return Get(board->gave_up) != 0; }
  static uint64_t Get(uint64_t& word) { return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire); }
};

// Waits for the host, and says again and again that it is over.
absl::StatusOr<SPartDevice::Graph> MakeGraph(SPartDevice::Stream stream, StepBoard* board, size_t kernels,
                                             uint64_t bound_ns, SPartDevice* device) {
  absl::StatusOr<std::byte*> state = device->Allocate(sizeof(StepState));
  if (!state.ok()) return state.status();
  WaitArgs wait;
  wait.board = board;
  wait.state = reinterpret_cast<StepState*>(*state);
  wait.stage = kStage;
  wait.bound_ns = bound_ns;
  PublishArgs publish;
  publish.board = board;
  publish.state = wait.state;
  publish.stage = kStage;
  absl::Status status = device->BeginGraph(stream, "overlap check");
  if (!status.ok()) return status;
  status.Update(device->Add(wait));
  for (size_t i = 0; i < kernels; ++i) status.Update(device->Add(publish));
  absl::StatusOr<SPartDevice::Graph> graph = device->EndGraph();
  return status.ok() ? graph : status;
}

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

absl::Status TryOverlap(const std::vector<Probe>& probes, const OverlapBounds& bounds, SPartDevice* device) {
  for (const Probe& probe : probes) {
    device->Launch(probe.graph);
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
  std::vector<Probe> probes;
  absl::Status status;
  for (size_t i = 0; i < streams.size() && status.ok(); ++i) {
    Probe probe;
    probe.board = new (*pinned + i * sizeof(StepBoard)) StepBoard();
    const absl::StatusOr<SPartDevice::Graph> graph =
        MakeGraph(streams[i], probe.board, kernels, bounds.wait_ns, device);
    if (graph.ok()) probe.graph = *graph;
    status.Update(graph.status());
    probes.push_back(probe);
  }
  if (status.ok()) status = TryOverlap(probes, bounds, device);
  for (const Probe& probe : probes) probe.Release();
  if (absl::IsDeadlineExceeded(status)) return status;  // the boards stay, for a GPU that begins after all
  status.Update(device->Synchronize());
  device->FreePinned(*pinned);
  return status;
}

}  // namespace fastdecode
