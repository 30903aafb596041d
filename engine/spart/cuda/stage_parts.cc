#include "engine/spart/cuda/stage_parts.h"

#include <algorithm>

namespace fastdecode {

void AddStageParts(const HostStage& stage, const StageStamps& times, const DeviceClock& clock, StageTrace* trace) {
  uint64_t earliest_ns = stage.start_ns;
  const auto add = [&](StagePart part, int layer, uint64_t start_ns, uint64_t end_ns) {
    start_ns = std::clamp(start_ns, earliest_ns, stage.seen_ns);
    earliest_ns = std::clamp(end_ns, start_ns, stage.seen_ns);
    trace->Add({part, layer, start_ns, earliest_ns});
  };
  const auto on_device = [&](StagePart part, int layer, uint64_t start, uint64_t end) {
    add(part, layer, clock.ToHost(start), clock.ToHost(end));
  };
  const int before = stage.stage - 1;
  const bool last = stage.stage == stage.layers;
  add(kStageSignal, stage.stage, stage.start_ns, clock.ToHost(times.begun));
  if (stage.stage > 0) {
    on_device(kStageO, before, times.gathered, times.projected);
    on_device(kStageGateUp, before, times.mlp_normed, times.activated);
    on_device(kStageDown, before, times.activated, times.mlp_projected);
  }
  if (last) {
    on_device(kStageLogits, stage.layers, times.normed, times.published);
  } else {
    on_device(kStageQkv, stage.stage, times.normed, times.qkv);
  }
  add(kStageSignal, stage.stage, clock.ToHost(times.published), stage.seen_ns);
}

}  // namespace fastdecode
