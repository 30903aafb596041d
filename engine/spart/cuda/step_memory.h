#ifndef FASTDECODE_ENGINE_SPART_CUDA_STEP_MEMORY_H_
#define FASTDECODE_ENGINE_SPART_CUDA_STEP_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/rpart/messages.h"
#include "engine/spart/cuda/gpu_kv.h"
#include "engine/spart/cuda/gpu_weights.h"
#include "engine/spart/cuda/spart_device.h"
#include "engine/spart/rope_table.h"
#include "kernels/cuda/sample_kernel.h"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode {

// So many rows of logits at most are computed at once: they are as wide as the vocabulary.
inline constexpr unsigned kLogitTileRowsMax = 256;
inline unsigned LogitTileRows(unsigned rows_max) { return rows_max < kLogitTileRowsMax ? rows_max : kLogitTileRowsMax; }

// The memory of one micro-batch: fixed addresses, which its graphs hold.
struct StepMemory {
  unsigned homes_max = 0;
  // Pinned.
  StepBoard* board = nullptr;
  StepRow* board_rows = nullptr;    // [rows_max]
  StepArea* board_areas = nullptr;  // [homes_max]
  uint32_t* logit_rows = nullptr;   // [rows_max]
  SampleRow* samples = nullptr;     // [rows_max]
  SampledRow* sampled = nullptr;    // [rows_max]
  float* logits_out = nullptr;      // [LogitTileRows(rows_max)][vocab]
  // Device. T is the compute type.
  StepState* state = nullptr;
  StageStamps* times = nullptr;
  StepRow* rows = nullptr;         // [rows_max]
  StepArea* areas = nullptr;       // [homes_max]
  float* x = nullptr;              // [rows_max][hidden]
  std::byte* normed = nullptr;     // T [rows_max][hidden]
  std::byte* qkv = nullptr;        // QkvType [rows_max][(heads + 2 kv_heads) * head_dim]
  std::byte* attended = nullptr;   // T [rows_max][heads * head_dim]
  std::byte* gate_up = nullptr;    // T [rows_max][2 * intermediate]
  std::byte* activated = nullptr;  // T [rows_max][intermediate]
  // [rows_max][hidden], where what a branch adds to x is normed before; else nothing
  float* projected = nullptr;
  std::byte* logit_inputs = nullptr;  // T [LogitTileRows(rows_max)][hidden]
  float* logits = nullptr;            // [LogitTileRows(rows_max)][vocab]
  std::byte* scratch = nullptr;       // [LogitTileRows(rows_max)][SampleScratchBytes(vocab)]
  KvStepMemory kv;                    // nulls, unless the GPU is a home
};

// What every graph of a model is made from.
struct StepModel {
  ModelSpec spec;
  RPartShape shape;
  GpuWeights weights;
  // RopeTables, on the device.
  struct Rope {
    const float *cosines = nullptr, *sines = nullptr;  // [max_context][head_dim / 2]
  };
  std::vector<Rope> ropes;
  std::vector<RopeTables::OfLayer> layer_ropes;
  uint64_t wait_bound_ns = 0;
  unsigned sequences_max = 0;    // of one micro-batch
  size_t push_rows_max = 0;      // of a step
  bool batch_invariant = false;  // attention gives the same bits with a prompt's chunk in the step and without
  bool is_home = false;          // of sequences' KV...
  GpuKv kv;                      // ...which lies here
};

// What the product of Wq, Wk and Wv is rounded to: the compute type where it is sent as it is; f32 where it is rotated,
// normed, clipped or added to before it is sent, so that there is one rounding in all.
inline ElementType QkvType(const StepModel& model) {
  const ModelSpec& spec = model.spec;
  const bool is_sent_as_it_is = spec.learned_positions > 0 && !spec.attention_bias &&
                                spec.qk_norm == ModelSpec::QkNorm::kNone && spec.clip_qkv == 0;
  return is_sent_as_it_is ? model.weights.type : ElementType::kF32;
}

absl::StatusOr<StepMemory> AllocateStepMemory(const StepModel& model, unsigned rows_max, int homes_max,
                                              SPartDevice* device);
// Where k and v of a layer go that are pushed; null: nothing is.
inline std::byte* LayerPush(const StepModel& model, const StepMemory& memory, unsigned layer) {
  if (memory.kv.push == nullptr) return nullptr;
  return memory.kv.push + layer * model.push_rows_max * model.shape.kv_row_bytes();
}
// What AllocateStepMemory takes on the device.
uint64_t StepMemoryBytes(const StepModel& model, unsigned rows_max, int homes_max);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_STEP_MEMORY_H_
