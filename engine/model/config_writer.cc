#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/model/activation_names.h"
#include "engine/model/families.h"
#include "engine/model/model_config.h"
#include "engine/model/rope_config.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

using Json = nlohmann::ordered_json;

Json TokenIdsJson(const std::vector<int>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

Json NoneIfZero(double value) { return value == 0 ? Json(nullptr) : Json(value); }

// Sizes and flags.
void WriteBasics(const ModelSpec& spec, const ConfigFields& names, Json* config) {
  const auto put = [&](const char* name, const Json& value) {
    if (name != nullptr) (*config)[name] = value;
  };
  put(names.layers, spec.layers);
  put(names.hidden, spec.hidden);
  put(names.heads, spec.heads);
  put(names.kv_heads, spec.kv_heads);
  put(names.head_dim, spec.head_dim);
  put(names.intermediate, spec.intermediate);
  put(names.vocab, spec.vocab);
  put(names.max_context, spec.max_context);
  put(names.norm_epsilon, spec.norm.epsilon);
  put(names.norm_before, !spec.norm_sum);
  if (!spec.norm_sum) put(names.no_final_norm, !spec.final_norm);
  put(names.norm_weight, spec.norm.weight);
  put(names.activation, ActivationName(spec.activation));
  put(names.tied_embeddings, spec.tied_embeddings);
  put(names.attention_bias, spec.attention_bias);
  put(names.attention_output_bias, spec.attention_output_bias);
  put(names.mlp_bias, spec.mlp_bias);
  put(names.parallel, spec.parallel);
  put(names.embedding_width, spec.embedding_width == 0 ? spec.hidden : spec.embedding_width);
}

void WriteLayerKinds(const ModelSpec& spec, const Family& family, Json* config) {
  const ConfigFields& names = family.fields;
  if (names.sliding_window != nullptr) {
    (*config)[names.sliding_window] = spec.sliding_window > 0 ? Json(spec.sliding_window) : Json(nullptr);
  }
  if (names.use_sliding_window != nullptr) (*config)[names.use_sliding_window] = spec.sliding_window > 0;
  Json types = Json::array(), rotated = Json::array();
  for (int i = 0; i < spec.layers; ++i) {
    const LayerKind kind = spec.kind(i);
    types.push_back(kind.windowed ? "sliding_attention" : "full_attention");
    rotated.push_back(kind.rotated ? 1 : 0);
  }
  if (family.traits.reads_layer_types) (*config)["layer_types"] = std::move(types);
  if (names.no_rope_layers != nullptr) (*config)[names.no_rope_layers] = std::move(rotated);
}

void WriteScales(const ModelSpec& spec, const ConfigFields& names, Json* config) {
  const auto put = [&](const char* name, const Json& value) {
    if (name != nullptr) (*config)[name] = value;
  };
  put(names.embedding_multiplier, spec.embedding_scale);
  put(names.residual_multiplier, spec.residual_scale);
  if (spec.attention_scale != 0) {
    put(names.attention_scalar, std::pow(spec.attention_scale, -2.0));
    put(names.attention_multiplier, spec.attention_scale);
  }
  put(names.logit_multiplier, spec.logit_scale);
  put(names.logit_divisor, 1.0 / spec.logit_scale);
  put(names.attention_cap, NoneIfZero(spec.attention_cap));
  put(names.logit_cap, NoneIfZero(spec.logit_cap));
  put(names.clip_qkv, NoneIfZero(spec.clip_qkv));
}

}  // namespace

std::string WriteModelConfig(const ModelSpec& spec, DType weights) {
  const Family* family = FindFamily(spec.family);
  FD_CHECK(family != nullptr, "the spec's family is in the table");
  Json config = {
      {"architectures", {family->architecture}},
      {"model_type", family->model_type},
      {"torch_dtype", weights == DType::kF32   ? "float32"
                      : weights == DType::kF16 ? "float16"
                                               : "bfloat16"},
  };
  WriteBasics(spec, family->fields, &config);
  WriteRopes(spec, *family, &config);
  WriteLayerKinds(spec, *family, &config);
  WriteScales(spec, family->fields, &config);
  config["bos_token_id"] = TokenIdsJson(spec.bos_token_ids);
  config["eos_token_id"] = TokenIdsJson(spec.eos_token_ids);
  return config.dump(2) + "\n";
}

}  // namespace fastdecode
