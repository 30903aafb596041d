#ifndef FASTDECODE_ENGINE_MODEL_FAMILIES_H_
#define FASTDECODE_ENGINE_MODEL_FAMILIES_H_

#include <array>
#include <span>
#include <string>

#include "engine/model/model_spec.h"
#include "engine/model/tensor_table.h"

namespace fastdecode {

// Which field of config.json means what. nullptr: the family has no such field.
struct ConfigFields {
  const char* layers = "num_hidden_layers";
  const char* hidden = "hidden_size";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";  // nullptr: as many as heads
  const char* head_dim = "head_dim";             // nullptr: hidden / heads
  const char* intermediate = "intermediate_size";
  const char* vocab = "vocab_size";
  const char* max_context = "max_position_embeddings";
  const char* norm_epsilon = "rms_norm_eps";  // nullptr: the default
  const char* activation = "hidden_act";
  const char* tied_embeddings = "tie_word_embeddings";
  const char* attention_bias = nullptr;
  const char* attention_output_bias = nullptr;
  const char* mlp_bias = nullptr;
  const char* theta = "rope_theta";
  const char* local_theta = nullptr;   // of windowed layers
  const char* rotary_share = nullptr;  // of a head that is rotated
  const char* sliding_window = nullptr;
  const char* use_sliding_window = nullptr;  // where it is false, which is the default, there is no window
  const char* max_window_layers = nullptr;   // layers from this one on are windowed
  const char* window_pattern = nullptr;      // each so manieth layer is not windowed
  const char* no_rope_layers = nullptr;      // a list: 0 for a layer that is not rotated
  const char* no_rope_interval = nullptr;    // where there is no list: each so manieth layer is not
  const char* attention_scalar = nullptr;    // attention_scale is its -1/2nd power
  const char* attention_multiplier = nullptr;
  const char* attention_cap = nullptr;
  const char* embedding_multiplier = nullptr;
  const char* residual_multiplier = nullptr;
  const char* logit_multiplier = nullptr;
  const char* logit_divisor = nullptr;
  const char* logit_cap = nullptr;
  const char* clip_qkv = nullptr;
  const char* parallel = nullptr;
  const char* norm_before = nullptr;  // where it is false, norms are behind the sums, and there is no final one
  const char* no_final_norm = nullptr;
  const char* norm_weight = nullptr;  // where it is false, norms have neither weight nor bias
  const char* embedding_width = nullptr;
};

struct ConfigSizes {
  int layers, hidden, heads, intermediate, vocab, max_context;
};

// What holds where config.json says nothing, as in the family's Hugging Face code.
struct ConfigDefaults {
  ConfigSizes sizes = {};
  int kv_heads = 0;
  bool kv_heads_are_heads = false;  // as many as heads
  int head_dim = 0;                 // 0: hidden / heads
  double norm_epsilon = 0;
  const char* activation = "silu";
  bool tied_embeddings = false;
  bool attention_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  double theta = 10000.0;
  double local_theta = 10000.0;
  double rotary_share = 1.0;
  int original_context = 0;  // of ropes that are scaled, whatever their own object says; 0: as that says
  int sliding_window = 0;
  int max_window_layers = 28;
  int window_pattern = 0;
  int no_rope_interval = 4;
  double attention_scalar = 0;
  double attention_cap = 0;
  double logit_multiplier = 1.0;
  double logit_cap = 0;
};

// Another name of a field, which counts more where both are there.
struct FieldAlias {
  const char* ConfigFields::*field;
  const char* name;
};

// A field of which one value is supported, which is also what holds where it is missing.
struct FixedField {
  const char* name = nullptr;
  bool value = false;
  const char* other = nullptr;  // what the other one stands for
};

// Which layers the window holds for, unless config.json has a list of layer_types.
enum class WindowLayers { kAll, kFromLayer, kPattern, kUnrotated };
// Which layers are rotated.
enum class RotatedLayers { kAll, kListed, kWindowed };
// Where learned positions or ropes come from.
enum class Positions {
  kRope,
  kRopePerKind,  // windowed layers have a rope of their own, without scaling
  kLearned,
};

// What all models of a family have, whatever config.json says.
struct Traits {
  NormSpec norm = {};
  bool norm_before = true;
  bool norm_after = false;
  ModelSpec::QkNorm qk_norm = ModelSpec::QkNorm::kNone;
  bool parallel = false;
  bool one_norm = false;
  bool gated = true;
  Positions positions = Positions::kRope;
  int position_offset = 0;
  bool interleaved_rope = false;
  WindowLayers windows = WindowLayers::kAll;
  bool reads_layer_types = false;
  RotatedLayers rotated = RotatedLayers::kAll;
  bool scales_embedding = false;          // by the square root of hidden
  bool intermediate_is_4_hidden = false;  // where its field is missing
  bool gelu_is_tanh = false;              // an activation of "gelu" means its approximation by tanh
  bool yarn_is_longrope = false;          // a scaling of "yarn" means longrope
  bool position_scales_queries = false;   // rope_parameters has llama_4_scaling_beta
  const char* default_rope = nullptr;     // rope_parameters where there are none, as JSON
};

// One family of checkpoints, described by data: a new family is an entry of the table in families.cc.
struct Family {
  const char* model_type = nullptr;    // config.json's model_type
  const char* architecture = nullptr;  // config.json's architectures[0]
  ConfigFields fields = {};
  std::span<const FieldAlias> aliases = {};
  ConfigDefaults defaults = {};
  std::array<FixedField, 2> fixed = {};
  Traits traits = {};
  TensorTable tensors = {};
};

// A model around a text model, of which it has the config in text_config.
struct Wrapper {
  const char* model_type;
  const char* architecture;
  const char* text_type;  // the model_type of a text_config that says none
};
// nullptr if it is none.
const Wrapper* FindWrapper(const std::string& model_type);

// The family whose model_type it is; nullptr if there is none.
const Family* FindFamily(const std::string& model_type);
// "llama, mistral", for errors.
std::string FamilyNames();
// All of them.
std::span<const Family> Families();

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_FAMILIES_H_
