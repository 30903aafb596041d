#ifndef FASTDECODE_ENGINE_SPART_CPU_PACKED_WEIGHTS_H_
#define FASTDECODE_ENGINE_SPART_CPU_PACKED_WEIGHTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "kernels/gemm.h"
#include "numa/arena.h"

namespace fastdecode {

// One matrix in the panels of kernels/gemm.h. A view into the weights' arena.
struct PackedMatrix {
  std::byte* panels = nullptr;
  int64_t n = 0;                 // outputs
  int64_t k = 0;                 // inputs
  size_t panel_bytes = 0;
  int64_t panel_count() const { return PanelCount(n); }
  const std::byte* panel(int64_t index) const { return panels + index * panel_bytes; }
};

struct PackedLayer {
  PackedMatrix qkv;              // q, k, v outputs one after another: [(heads + 2 kv_heads) * head_dim, hidden]
  PackedMatrix o;                // [hidden, heads * head_dim]
  // Gated: panel 2i is gate outputs 64i.., panel 2i+1 up outputs 64i.. ; n = 2 * 64 * ceil(inter/64). Else up's outputs.
  PackedMatrix gate_up;
  PackedMatrix down;             // [hidden, intermediate]
};

// All weights of a model in the compute type, each packed once into one arena on the S-Part's node.
// Owns: the arena. Thread: immutable after Pack.
struct PackedWeights {
  Arena arena;
  ElementType type = ElementType::kF32;
  std::vector<PackedLayer> layers;
  ModelVectors vectors;                    // f32
  PackedMatrix head;                       // [vocab, hidden]
  std::byte* embedding = nullptr;          // [vocab][hidden] rows; null: tied, rows are read out of `head`
  uint64_t matrix_bytes = 0;               // of all panels: what a decode step reads

  // x = embedding of `token`, as f32.
  void EmbedToken(int32_t token, int hidden, float* x) const;
};

struct PackOptions {
  ElementType type = ElementType::kF32;
  int node = -1;
  std::vector<int> cores;                                         // threads that pack, pinned there
  std::function<void(uint64_t done, uint64_t total)> progress;    // tensor bytes; may be empty
};

// Reads every tensor once and gives its file pages back. Errors: no memory.
absl::StatusOr<PackedWeights> PackWeights(const ModelSpec& spec, const Checkpoint& checkpoint, const ModelWeights& weights,
                                          const PackOptions& options);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CPU_PACKED_WEIGHTS_H_
