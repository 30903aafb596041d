#include "engine/spart/cuda/wait_probe.h"

#include <atomic>

namespace fastdecode {

namespace {

constexpr unsigned kStage = 1;

uint64_t Get(uint64_t& word) { return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire); }
void Set(uint64_t& word, uint64_t value) { std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release); }

}  // namespace

absl::StatusOr<WaitProbe> WaitProbe::Make(SPartDevice::Stream stream, StepBoard* board, size_t kernels,
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
  absl::Status status = device->BeginGraph(stream, "wait probe");
  if (!status.ok()) return status;
  status.Update(device->Add(wait));
  for (size_t i = 0; i < kernels; ++i) status.Update(device->Add(publish));
  const absl::StatusOr<SPartDevice::Graph> graph = device->EndGraph();
  status.Update(graph.status());
  if (!status.ok()) return status;
  return WaitProbe(board, *graph);
}

void WaitProbe::Rearm() const {
  Set(board_->ready, 0);
  Set(board_->release, 0);
}

void WaitProbe::Release() const { Set(board_->release, ReleaseWord(kStage, /*areas_version=*/0)); }
bool WaitProbe::is_over() const { return Get(board_->ready) != 0; }
bool WaitProbe::gave_up() const { return Get(board_->gave_up) != 0; }

}  // namespace fastdecode
