#ifndef FASTDECODE_ENGINE_SPART_CUDA_GPU_KV_H_
#define FASTDECODE_ENGINE_SPART_CUDA_GPU_KV_H_

#include <cstddef>
#include <cstdint>

#include "engine/rpart/messages.h"
#include "kernels/cuda/attention_kernels.h"

namespace fastdecode {

// What a step's graph knows of the home that the GPU's own memory is. A plain view.
struct GpuKv {
  KvPages pages;  // of layer 0
  size_t layer_stride_bytes = 0;
  uint32_t* tables = nullptr;  // those of `pages`

  KvPages LayerPages(unsigned layer) const {
    KvPages of_layer = pages;
    of_layer.layer += layer * layer_stride_bytes;
    return of_layer;
  }
};

// How attention is cut in layers with a window, or without, but for the tiles, which are the graph's.
inline KvSplit KvSplitFor(const RPartShape& shape, bool windowed) {
  KvSplit split;
  split.kv_heads = static_cast<int>(shape.kv_heads);
  split.group = static_cast<int>(shape.group);
  split.cuts_max = CutOf(shape.max_context - 1) + 1;
  if (windowed) split.window = shape.sliding_window;
  return split;
}
inline uint32_t TablePages(const RPartShape& shape) { return (shape.max_context + kPageTokens - 1) / kPageTokens; }

// What the home has of each micro-batch's memory.
struct KvStepMemory {
  // Pinned; the host fills it in before a step.
  KvBoard* board = nullptr;
  KvEntry* entries = nullptr;        // [sequences_max]
  KvTableChange* changes = nullptr;  // [sequences_max * TablePages]
  // Pinned; the step's kernels fill it in.
  std::byte* push = nullptr;  // [layers][push_rows_max] of k, v; null: nothing is pushed
  // Device.
  KvRoster rosters[2];        // [windowed]; of layers that there are not: nulls
  std::byte* area = nullptr;  // hop rows [rows_max]
  float* partials = nullptr;  // as AttendKvArgs has them, of rows_max * heads queries
  float* maxima = nullptr;
  float* sums = nullptr;
  uint32_t* arrived = nullptr;
  uint32_t* drawn = nullptr;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_GPU_KV_H_
