#ifndef FASTDECODE_ENGINE_SPART_CUDA_STEP_GRAPH_H_
#define FASTDECODE_ENGINE_SPART_CUDA_STEP_GRAPH_H_

#include "absl/status/statusor.h"
#include "engine/spart/cuda/spart_device.h"
#include "engine/spart/cuda/step_memory.h"

namespace fastdecode {

// A whole step of up to `rows` rows, of which up to `logit_rows` are sampled: stage 0; for each further stage a wait
// for its number; the publication of each. with_chunk: attention on the GPU is as a prompt's chunk wants it, whose rows
// share what is read of their KV; unless the model is batch-invariant.
absl::StatusOr<SPartDevice::Graph> MakeStepGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                 unsigned logit_rows, bool with_chunk, SPartDevice::Stream stream,
                                                 SPartDevice* device);
// For steps that want more logits than that, or to see them: up to `count` logit rows from `first` on, sampled and, if
// `shown`, into logits_out; publishes as stage `stage` of the step. After the step, in the same stream.
absl::StatusOr<SPartDevice::Graph> MakeLogitGraph(const StepModel& model, const StepMemory& memory, unsigned first,
                                                  unsigned count, bool shown, unsigned stage,
                                                  SPartDevice::Stream stream, SPartDevice* device);
// The GEMMs of MakeStepGraph's step and nothing else, for measuring what that adds to them. They multiply what the
// memory happens to hold.
absl::StatusOr<SPartDevice::Graph> MakeGemmGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                 unsigned logit_rows, SPartDevice::Stream stream, SPartDevice* device);

// A way of a step's rows between the GPU and a home's area in the host's memory, for measuring: kernels store or load
// there, as in a step, or the copy engine moves what they have stored, or will load, in the device's memory.
enum class Way { kThere, kBack };  // of q, k and v, or of o
struct Crossing {
  Way way = Way::kThere;
  StepArea* areas = nullptr;  // device: for the kernels
  DeviceCopy copy;            // of all rows; without bytes: none
};
// That of all layers and nothing else, with what the memory happens to hold.
absl::StatusOr<SPartDevice::Graph> MakeCrossingGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                     const Crossing& crossing, SPartDevice::Stream stream,
                                                     SPartDevice* device);

// What MakeStepGraph's step does for the rows that have their home on the GPU, in all layers, and nothing else, for
// measuring: once more what the last step of so many rows did, without a prompt's chunk. REQUIRES: model.is_home.
absl::StatusOr<SPartDevice::Graph> MakeAttentionGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                      SPartDevice::Stream stream, SPartDevice* device);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_STEP_GRAPH_H_
