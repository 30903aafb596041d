#ifndef FASTDECODE_ENGINE_SPART_FORWARD_PASS_H_
#define FASTDECODE_ENGINE_SPART_FORWARD_PASS_H_

#include <vector>

#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "kernels/float_types.h"

namespace fastdecode {

// A norm of a model, by its place.
struct NormPlace {
  enum class Kind {
    kNone,            // what it is given
    kAttention,       // of the layer's attention: before it, or behind its sum
    kAttentionAfter,  // of what the attention adds
    kMlp,
    kMlpAfter,
    kFinal,
  };
  Kind kind = Kind::kNone;
  int layer = 0;
};

// One operation on all rows of a step, between buffers that every backend has: x, the residual stream; the normed rows;
// the attended rows, which is o of all heads; the projected rows, which is what a branch adds to x.
struct StageOp {
  enum class Kind {
    kEmbed,   // x = embedding of the tokens, and of their positions
    kGather,  // attended = o of the layer, from the homes
    kOut,     // projected = Wo attended
    kGateUp,  // activated = activation(Wgate normed) * (Wup normed)
    kDown,    // projected = Wdown activated
    kJoin,    // a sum into x, and norms: see Join
    kQkv,     // q, k, v = Wq, Wk, Wv normed
    kSend,    // q, k and v, normed and rotated, to the homes
    kLogits,  // of the normed rows that want them, and their samples
  };
  enum class Branch { kNone, kAttention, kMlp };

  //   h = projected + bias; h = after(h); x += residual_scale * h; x = sum(x); normed = next(x)
  // Without a branch there is no h, and x stays as it is.
  struct Join {
    Branch adds = Branch::kNone;
    NormPlace after, sum;
    bool makes_normed = true;  // else the last step is left out
    NormPlace next;
  };

  Kind kind = Kind::kEmbed;
  int layer = 0;  // whose weights
  Join join;
};

// The forward pass of a model, a list of operations a stage (SPart): [layers + 1]. The only place that knows how layers
// are put together; the CPU runs the lists, and the GPU captures them in its graphs.
std::vector<std::vector<StageOp>> ForwardPass(const ModelSpec& spec);

// What embeddings are multiplied with: rounded to the type that the S-Part computes in, if the model has it so.
float EmbeddingScale(const ModelSpec& spec, ElementType type);

// The vectors of a norm. REQUIRES: the place is one.
template <class Vector>
NormVectorsOf<Vector> FindNorm(const ModelVectorsOf<Vector>& vectors, const NormPlace& place) {
  if (place.kind == NormPlace::Kind::kFinal) return vectors.final_norm;
  const LayerVectorsOf<Vector>& layer = vectors.layers[static_cast<size_t>(place.layer)];
  switch (place.kind) {
    case NormPlace::Kind::kAttention:
      return layer.attention_norm;
    case NormPlace::Kind::kAttentionAfter:
      return {layer.attention_after_norm, {}};
    case NormPlace::Kind::kMlp:
      return layer.mlp_norm;
    case NormPlace::Kind::kMlpAfter:
      return {layer.mlp_after_norm, {}};
    default:
      return {};
  }
}

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_FORWARD_PASS_H_
