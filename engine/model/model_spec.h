#ifndef FASTDECODE_ENGINE_MODEL_MODEL_SPEC_H_
#define FASTDECODE_ENGINE_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastdecode {

// How positions are rotated into q and k. The pairs are (i, i + head_dim/2) as in Hugging Face's Llama.
struct RopeSpec {
  enum class Scaling { kNone, kLinear, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;                       // linear, llama3
  double low_freq_factor = 1.0;              // llama3
  double high_freq_factor = 4.0;             // llama3
  int64_t original_context = 8192;           // llama3: original_max_position_embeddings
};

// How generation_config.json wants tokens to be drawn; what it does not say is absent. The ranges are SamplingParams'.
struct SamplingDefaults {
  std::optional<float> temperature;  // 0 where do_sample is false: the most likely token
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
};

// One decoder-only transformer, described by data: the S-Part and R-Part read this and know no family by name.
// Every layer is: x += Wo * attention(norm1(x)); x += Wdown * (silu(Wgate * norm2(x)) * (Wup * norm2(x))).
// Plain values, immutable after ReadModelSpec; copied freely.
struct ModelSpec {
  std::string family;            // config.json's model_type: "llama", "mistral"
  int layers = 0;
  int hidden = 0;                // width of the residual stream
  int heads = 0;                 // query heads
  int kv_heads = 0;              // heads % kv_heads == 0
  int head_dim = 0;              // may differ from hidden / heads
  int intermediate = 0;          // width of the MLP
  int vocab = 0;                 // rows of the embedding and of the head
  int max_context = 0;           // tokens: max_position_embeddings
  int sliding_window = 0;        // tokens a query sees, itself included; 0 = all
  double norm_epsilon = 1e-5;
  bool tied_embeddings = false;
  bool attention_bias = false;        // on q, k, v
  bool attention_output_bias = false; // on o
  bool mlp_bias = false;
  RopeSpec rope;
  std::vector<int> bos_token_ids;     // may be empty
  std::vector<int> eos_token_ids;     // generation stops at any of these; may be empty
  SamplingDefaults sampling;

  int group() const { return heads / kv_heads; }  // query heads that share one KV head
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_MODEL_SPEC_H_
