#ifndef FASTDECODE_ENGINE_SPART_CUDA_GPU_WEIGHTS_H_
#define FASTDECODE_ENGINE_SPART_CUDA_GPU_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "engine/spart/cuda/spart_device.h"
#include "engine/spart/cuda/weight_upload.h"

namespace fastdecode {

// [n][k] of the compute type, row-major: outputs by inputs, as checkpoints have it.
struct GpuMatrix {
  const std::byte* data = nullptr;
  int64_t n = 0, k = 0;
};

struct GpuLayer {
  GpuMatrix qkv;      // q, k, v outputs one after another
  GpuMatrix o;        // [hidden, heads * head_dim]
  GpuMatrix gate_up;  // gate's outputs, if the MLP is gated, then up's
  GpuMatrix down;     // [hidden, intermediate]
};

// A model's weights in a GPU's memory. Owns: nothing; the memory is the device's.
struct GpuWeights {
  ElementType type = ElementType::kF32;
  std::vector<GpuLayer> layers;
  ModelVectorsOf<const float*> vectors;
  GpuMatrix head;                        // [vocab, hidden]
  const std::byte* embedding = nullptr;  // [vocab][hidden]; tied: the head's
  uint64_t matrix_bytes = 0;             // what a decode step reads
  // All of it, and how long it took to get there.
  uint64_t bytes = 0, upload_ns = 0;
};

// As UploadTensors. Errors, too: ResourceExhausted, with what is needed and what is free; InvalidArgument, naming field
// and value, for a model whose widths are no multiples of 4.
absl::StatusOr<GpuWeights> UploadWeights(const ModelSpec& spec, const Checkpoint& checkpoint,
                                         const ModelWeights& weights, const UploadOptions& options,
                                         SPartDevice* device);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_GPU_WEIGHTS_H_
