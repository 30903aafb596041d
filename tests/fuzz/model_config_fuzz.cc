#include <optional>
#include <string>
#include <vector>

#include "engine/model/families.h"
#include "engine/model/model_config.h"
#include "engine/model/shapes.h"
#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace fastdecode {

// The input: config.json's text, then after a zero byte generation_config.json's.
bool FuzzOne(const std::string& input) {
  const size_t zero = input.find('\0');
  const std::string config = input.substr(0, zero);
  std::optional<std::string> generation;
  if (zero != std::string::npos) generation = input.substr(zero + 1);
  const auto spec = ParseModelSpec(config, generation, "DIR");
  if (!spec.ok()) {
    FD_CHECK(spec.status().message().substr(0, 4) == "DIR/", "an error names the file first");
    return false;
  }
  FD_CHECK(spec->layers > 0 && spec->hidden > 0 && spec->intermediate > 0 && spec->vocab > 0, "sizes are positive");
  FD_CHECK(spec->heads > 0 && spec->kv_heads > 0 && spec->heads % spec->kv_heads == 0, "heads share KV heads evenly");
  FD_CHECK(spec->head_dim >= 2 && spec->head_dim <= 256 && spec->head_dim % 2 == 0,
           "heads have a size that we compute");
  FD_CHECK(spec->max_context > 0 && spec->sliding_window >= 0, "lengths are not negative");
  FD_CHECK(spec->norm.epsilon > 0 && spec->rope.theta >= 1 && spec->rope.factor > 0, "numbers are in range");
  FD_CHECK(spec->layer_kinds.empty() || spec->layer_kinds.size() == static_cast<size_t>(spec->layers),
           "each layer has a kind");
  FD_CHECK(spec->rope.dims >= 0 && spec->rope.dims < spec->head_dim && spec->rope.dims % 2 == 0,
           "what is rotated lies in a head");
  for (const int id : spec->eos_token_ids) FD_CHECK(id >= 0 && id < spec->vocab, "stop tokens are in the vocabulary");
  FD_CHECK(ParseModelSpec(WriteModelConfig(*spec, DType::kF32), std::nullopt, "DIR").ok(),
           "what was read can be written");
  return true;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const std::string& name : ShapeNames()) seeds.push_back(WriteModelConfig(*FindShape(name), DType::kBf16));
  // Each field of each family.
  for (const Family& family : Families()) {
    ModelSpec spec = *FindShape("tiny-random");
    spec.family = family.model_type;
    seeds.push_back(WriteModelConfig(spec, DType::kBf16));
  }
  seeds.push_back(
      R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":64,"num_hidden_layers":7,)"
      R"("rope_scaling":{"rope_type":"linear","factor":8},"sliding_window":32},"eos_token_id":[1,106]})");
  seeds.push_back(seeds[0] + '\0' + R"({"eos_token_id": [2, 3], "do_sample": true})");
  seeds.push_back(
      R"({"model_type":"gpt2","hidden_size":64,"n_head":4,"n_layer":2,"x":NaN,"y":[Infinity,-Infinity,"0"],)"
      R"("rope_scaling":{},"architectures":[]})" +
      std::string(1, '\0') + R"({"temperature":NaN,"top_k":-1,"eos_token_id":[]})");
  seeds.push_back(
      R"({"model_type":"llama","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,"vocab_size":99,)"
      R"("intermediate_size":8,"max_position_embeddings":64,"rms_norm_eps":1e-5,)"
      R"("rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":1e4}})");
  return seeds;
}

}  // namespace fastdecode
