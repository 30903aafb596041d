#ifndef FASTDECODE_ENGINE_MODEL_MODEL_SPEC_H_
#define FASTDECODE_ENGINE_MODEL_MODEL_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"

namespace fastdecode {

// What stands before, in or behind a layer's two branches, its attention and its MLP.
struct NormSpec {
  enum class Kind {
    kRms,    // x / sqrt(mean(x²) + epsilon)
    kLayer,  // (x - mean(x)) / sqrt(variance(x) + epsilon)
  };
  Kind kind = Kind::kRms;
  double epsilon = 1e-5;
  bool weight = true;     // multiplied with; else there is none
  bool bias = false;      // added
  bool one_plus = false;  // checkpoints have the weight less one
  friend bool operator==(const NormSpec&, const NormSpec&) = default;
};

// How positions are rotated into q and k. The pairs are (i, i + dims / 2) of the first `dims` elements of a head.
// The formulas are those of transformers' modeling_rope_utils.py.
struct RopeSpec {
  enum class Scaling { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };
  double theta = 10000.0;
  int dims = 0;  // of a head that are rotated, even; 0: all
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;                // linear, dynamic, llama3, yarn
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  int64_t original_context = 8192;    // llama3, yarn, longrope: original_max_position_embeddings
  double beta_fast = 32.0;            // yarn
  double beta_slow = 1.0;             // yarn
  bool truncate = true;               // yarn: the bounds of its ramp are whole numbers
  double attention_factor = 1.0;      // yarn, longrope: of the rotated q and k
  std::vector<double> short_factors;  // longrope: [dims / 2], for contexts up to original_context
  std::vector<double> long_factors;   // longrope: for longer ones
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

// What layers of one model differ in.
struct LayerKind {
  bool windowed = false;  // a query sees sliding_window tokens, itself included; else all
  bool rotated = true;    // q and k are; else positions are not seen
  friend bool operator==(const LayerKind&, const LayerKind&) = default;
};

// How generation_config.json wants tokens to be drawn; what it does not say is absent. The ranges are SamplingParams'.
struct SamplingDefaults {
  std::optional<float> temperature;  // 0 where do_sample is false: the most likely token
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  friend bool operator==(const SamplingDefaults&, const SamplingDefaults&) = default;
};

// One decoder-only transformer, described by data: the S-Part and R-Part read this and know no family by name. With N
// for a norm, where there is one, a layer is
//   h = N_before(x);        q, k, v = Wq h, Wk h, Wv h;  x += residual_scale * N_after(Wo * attention(q, k, v))
//   h = N_before(x);        x += residual_scale * N_after(Wdown * m(h))
// with m(h) = activation(Wgate h) * (Wup h), or activation(Wup h) where the MLP is not gated. norm_sum: x = N_sum(x)
// behind each sum. parallel: both branches begin with the x that the layer began with.
// Plain values, immutable after ReadModelSpec; copied freely.
struct ModelSpec {
  std::string family;  // config.json's model_type: "llama", "mistral"
  int layers = 0;
  int hidden = 0;          // width of the residual stream
  int heads = 0;           // query heads
  int kv_heads = 0;        // heads % kv_heads == 0
  int head_dim = 0;        // may differ from hidden / heads
  int intermediate = 0;    // width of the MLP
  int vocab = 0;           // rows of the embedding and of the head
  int max_context = 0;     // tokens: max_position_embeddings
  int sliding_window = 0;  // tokens that a query sees in windowed layers, itself included; 0: there are none
  // [layers]; empty: all are rotated, and windowed if there is a window.
  std::vector<LayerKind> layer_kinds;

  NormSpec norm;  // of all norms
  bool norm_before = true;
  bool norm_after = false;
  bool norm_sum = false;
  bool final_norm = true;
  bool parallel = false;
  bool one_norm = false;  // parallel: both branches have the same N_before
  enum class QkNorm {
    kNone,
    kHead,  // of each head of q and k, with a weight of [head_dim] for all
    kRow,   // of all heads of a token's q, or k, at once
  };
  QkNorm qk_norm = QkNorm::kNone;

  Activation activation = Activation::kSilu;
  bool gated = true;  // the MLP

  bool tied_embeddings = false;        // the head is the embedding, unless a checkpoint has another
  bool tied_without_head = false;      // it is where a checkpoint has none, whatever tied_embeddings says
  bool attention_bias = false;         // on q, k, v
  bool attention_output_bias = false;  // on o
  bool mlp_bias = false;
  int embedding_width = 0;  // where a matrix leads from it to hidden, and one back to the head; 0: hidden

  RopeSpec rope;
  std::optional<RopeSpec> window_rope;  // of windowed layers, where it is another one
  bool interleaved_rope = false;        // checkpoints have the pairs (2i, 2i + 1)
  int learned_positions = 0;            // rows of a table that is added to the embedding; 0: none
  int position_offset = 0;              // the row of position 0

  double embedding_scale = 1.0;  // of the embedding. Rounded to the compute type if scale_in_type, as Gemma's
  bool scale_in_type = false;
  double residual_scale = 1.0;   // of what a branch adds
  double attention_scale = 0.0;  // of q·k; 0: head_dim^-1/2
  double attention_cap = 0.0;    // cap * tanh(q·k / cap); 0: none
  double logit_scale = 1.0;      // of logits
  double logit_cap = 0.0;        // as attention_cap, of logits
  double clip_qkv = 0.0;         // q, k and v are kept within +- this, before all else; 0: not
  // q *= 1 + temperature_beta * ln(1 + floor(position / temperature_context)); 0: not.
  double temperature_beta = 0.0;
  int64_t temperature_context = 1;

  std::vector<int> bos_token_ids;  // may be empty
  std::vector<int> eos_token_ids;  // generation stops at any of these; may be empty
  SamplingDefaults sampling;
  std::vector<std::string> notes;  // for people: what of the files does not count, and why

  int group() const { return heads / kv_heads; }  // query heads that share one KV head
  LayerKind kind(int layer) const {
    if (layer_kinds.empty()) return {.windowed = sliding_window > 0};
    return layer_kinds[static_cast<size_t>(layer)];
  }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
  // That of the layer. REQUIRES: kind(layer).rotated.
  const RopeSpec& rope_of(int layer) const { return kind(layer).windowed && window_rope ? *window_rope : rope; }
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_MODEL_SPEC_H_
