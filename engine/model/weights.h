#ifndef FASTDECODE_ENGINE_MODEL_WEIGHTS_H_
#define FASTDECODE_ENGINE_MODEL_WEIGHTS_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/convert.h"
#include "engine/model/model_spec.h"

namespace fastdecode {

// The tensors of one layer by their role, in Hugging Face's layout: matrices are [outputs, inputs], row-major.
// q_width = heads * head_dim, kv_width = kv_heads * head_dim. A bias is there if and only if the spec says so.
struct LayerWeights {
  TensorView attention_norm;            // [hidden]
  TensorView q;                         // [q_width, hidden]
  TensorView k;                         // [kv_width, hidden]
  TensorView v;                         // [kv_width, hidden]
  TensorView o;                         // [hidden, q_width]
  TensorView mlp_norm;                  // [hidden]
  TensorView gate;                      // [intermediate, hidden]
  TensorView up;                        // [intermediate, hidden]
  TensorView down;                      // [hidden, intermediate]
  std::optional<TensorView> q_bias;     // [q_width]
  std::optional<TensorView> k_bias;     // [kv_width]
  std::optional<TensorView> v_bias;     // [kv_width]
  std::optional<TensorView> o_bias;     // [hidden]
  std::optional<TensorView> gate_bias;  // [intermediate]
  std::optional<TensorView> up_bias;    // [intermediate]
  std::optional<TensorView> down_bias;  // [hidden]
};

// Where a checkpoint has every weight of a model. Views only: valid as long as the checkpoint.
struct ModelWeights {
  TensorView embedding;   // [vocab, hidden]
  TensorView final_norm;  // [hidden]
  TensorView head;        // [vocab, hidden]; with tied embeddings the same data as `embedding`
  std::vector<LayerWeights> layers;
};

// Finds every tensor that the spec asks for and checks its shape; a missing, misshapen or unexpected tensor is an error
// that names file, tensor, got and expected shape. Each tensor may have its own dtype.
absl::StatusOr<ModelWeights> MapWeights(const ModelSpec& spec, const Checkpoint& checkpoint);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_WEIGHTS_H_
