#ifndef FASTDECODE_ENGINE_MODEL_FAMILIES_H_
#define FASTDECODE_ENGINE_MODEL_FAMILIES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/model_spec.h"

namespace fastdecode {

// What a tensor of a checkpoint is for.
enum class TensorRole {
  kEmbedding,      // [vocab, hidden]
  kAttentionNorm,  // [hidden]
  kQ,              // [heads * head_dim, hidden]
  kK,              // [kv_heads * head_dim, hidden]
  kV,              // [kv_heads * head_dim, hidden]
  kO,              // [hidden, heads * head_dim]
  kMlpNorm,        // [hidden]
  kGate,           // [intermediate, hidden]
  kUp,             // [intermediate, hidden]
  kDown,           // [hidden, intermediate]
  kQBias,          // biases: [outputs of the matrix]
  kKBias,
  kVBias,
  kOBias,
  kGateBias,
  kUpBias,
  kDownBias,
  kFinalNorm,  // [hidden]
  kHead,       // [vocab, hidden]
};

// The name that a family's checkpoints give to a role; '*' stands for the layer's number.
struct TensorName {
  TensorRole role;
  const char* pattern;
};

// Which field of config.json means what. nullptr: the family has no such thing.
struct ConfigFields {
  const char* layers = "num_hidden_layers";
  const char* hidden = "hidden_size";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";
  const char* head_dim = "head_dim";
  const char* intermediate = "intermediate_size";
  const char* vocab = "vocab_size";
  const char* max_context = "max_position_embeddings";
  const char* norm_epsilon = "rms_norm_eps";
  const char* tied_embeddings = "tie_word_embeddings";
  const char* attention_bias = nullptr;
  const char* attention_output_bias = nullptr;
  const char* mlp_bias = nullptr;
  const char* sliding_window = nullptr;
};

// What holds where config.json says nothing, as in the family's Hugging Face code.
struct ConfigDefaults {
  bool kv_heads_are_heads = false;  // else the field is required
  int sliding_window = 0;
};

// One family of checkpoints, described by data: a new family is an entry of the table in families.cc.
struct Family {
  const char* model_type;    // config.json's model_type
  const char* architecture;  // config.json's architectures[0]
  ConfigFields fields;
  ConfigDefaults defaults;
  std::span<const TensorName> tensors;
  std::span<const char* const> ignored_tensors;  // patterns: may be there, are not read
};

// A tensor that a model of a given spec must have.
struct ExpectedTensor {
  TensorRole role;
  int layer;  // -1 for those outside of the layers
  std::string name;
  std::vector<int64_t> shape;
};

// The family whose model_type it is; nullptr if there is none.
const Family* FindFamily(const std::string& model_type);
// "llama, mistral", for errors.
std::string FamilyNames();

// Every tensor of the model, in the order of a forward pass.
std::vector<ExpectedTensor> ExpectedTensors(const Family& family, const ModelSpec& spec);
// True for names that the family's checkpoints may hold without meaning for us.
bool IsIgnoredTensor(const Family& family, const std::string& name);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_FAMILIES_H_
