#ifndef FASTDECODE_ENGINE_MODEL_WEIGHTS_H_
#define FASTDECODE_ENGINE_MODEL_WEIGHTS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_spec.h"
#include "engine/model/tensor_table.h"
#include "engine/model/weight_view.h"

namespace fastdecode {

// Weights by what they are for.
class RoleViews {
 public:
  // nullptr: the model has none of this role.
  const WeightView* Find(TensorRole role) const;
  // REQUIRES: there is one.
  const WeightView& operator[](TensorRole role) const;
  void Set(TensorRole role, WeightView view) { views_.insert_or_assign(role, std::move(view)); }

 private:
  std::map<TensorRole, WeightView> views_;
};

// Where a checkpoint has every weight of a model. Matrices are [outputs, inputs], as ShapeOf says, whatever way the
// checkpoint has them. Rows of q and k, their biases and their norms are in such an order that the pairs that are
// rotated are (i, i + head_dim / 2), and rotated ones come first. Views only: valid as long as the checkpoint.
struct ModelWeights {
  // kEmbedding and kHead are [vocab, hidden]: matrices that lead to hidden and back are part of them. With tied
  // embeddings and no such matrices both are the same tensor.
  RoleViews model;
  std::vector<RoleViews> layers;
  bool tied = false;  // the head is the embedding: whatever config.json says, a head of its own counts
  // What of the checkpoint is not the text model's, such as a vision tower: "vision_tower (12 tensors)".
  std::vector<std::string> skipped;
  // For people: what is not read though it is there, and what is taken for what is not there.
  std::vector<std::string> notes;
};

// Finds every tensor that the spec asks for, under any of the names that transformers know it by, and checks its shape;
// a missing or misshapen tensor is an error that names file, tensor, got and expected shape. Each tensor may have its
// own dtype. As in transformers, biases that are missing are zeros, and tensors that the model does not have are not
// read; both with a note. No weight is read, but where a head lies beside an embedding that it should be, and those
// that lead to an embedding's width and back (ModelSpec::embedding_width).
absl::StatusOr<ModelWeights> MapWeights(const ModelSpec& spec, const Checkpoint& checkpoint);

// The vectors of a model as f32, ready to be used: a norm's weight is whole (NormSpec::one_plus), and the final norm
// has the scale of the logits (logit_scale) in it. Empty where there is none. `Vector` owns the numbers, or says where
// they are.
template <class Vector>
struct NormVectorsOf {
  Vector weight{}, bias{};
};
template <class Vector>
struct LayerVectorsOf {
  NormVectorsOf<Vector> attention_norm, mlp_norm;  // [hidden]
  Vector attention_after_norm{};                   // [hidden]
  Vector mlp_after_norm{};                         // [hidden]
  Vector q_norm{}, k_norm{};                       // [head_dim], or of a row
  Vector qkv_bias{};                               // of q, k and v, one after another
  // With parallel branches, whose sums are one, down_bias has both.
  Vector o_bias{}, gate_bias{}, up_bias{}, down_bias{};
};
template <class Vector>
struct ModelVectorsOf {
  std::vector<LayerVectorsOf<Vector>> layers;
  NormVectorsOf<Vector> final_norm;  // [hidden]
  Vector positions{};                // [learned_positions][hidden]
};
using LayerVectors = LayerVectorsOf<std::vector<float>>;
using ModelVectors = ModelVectorsOf<std::vector<float>>;

ModelVectors ReadVectors(const ModelSpec& spec, const ModelWeights& weights);

// Null where there is no such vector.
inline const float* DataOrNull(const std::vector<float>& vector) { return vector.empty() ? nullptr : vector.data(); }

// Calls put(vector of `from`, &that of `to`) for each. REQUIRES: `to` has as many layers.
template <class From, class To, class Put>
void ForEachVector(const ModelVectorsOf<From>& from, ModelVectorsOf<To>* to, const Put& put) {
  const auto put_norm = [&put](const NormVectorsOf<From>& norm, NormVectorsOf<To>* other) {
    put(norm.weight, &other->weight);
    put(norm.bias, &other->bias);
  };
  for (size_t i = 0; i < from.layers.size(); ++i) {
    const LayerVectorsOf<From>& layer = from.layers[i];
    LayerVectorsOf<To>& other = to->layers[i];
    put_norm(layer.attention_norm, &other.attention_norm);
    put_norm(layer.mlp_norm, &other.mlp_norm);
    for (const auto& [here, there] :
         {std::pair(&layer.attention_after_norm, &other.attention_after_norm),
          std::pair(&layer.mlp_after_norm, &other.mlp_after_norm), std::pair(&layer.q_norm, &other.q_norm),
          std::pair(&layer.k_norm, &other.k_norm), std::pair(&layer.qkv_bias, &other.qkv_bias),
          std::pair(&layer.o_bias, &other.o_bias), std::pair(&layer.gate_bias, &other.gate_bias),
          std::pair(&layer.up_bias, &other.up_bias), std::pair(&layer.down_bias, &other.down_bias)}) {
      put(*here, there);
    }
  }
  put_norm(from.final_norm, &to->final_norm);
  put(from.positions, &to->positions);
}

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_WEIGHTS_H_
