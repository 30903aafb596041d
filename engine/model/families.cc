#include "engine/model/families.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr TensorName kLlamaTensors[] = {
    {TensorRole::kEmbedding, "model.embed_tokens.weight"},
    {TensorRole::kAttentionNorm, "model.layers.*.input_layernorm.weight"},
    {TensorRole::kQ, "model.layers.*.self_attn.q_proj.weight"},
    {TensorRole::kK, "model.layers.*.self_attn.k_proj.weight"},
    {TensorRole::kV, "model.layers.*.self_attn.v_proj.weight"},
    {TensorRole::kO, "model.layers.*.self_attn.o_proj.weight"},
    {TensorRole::kMlpNorm, "model.layers.*.post_attention_layernorm.weight"},
    {TensorRole::kGate, "model.layers.*.mlp.gate_proj.weight"},
    {TensorRole::kUp, "model.layers.*.mlp.up_proj.weight"},
    {TensorRole::kDown, "model.layers.*.mlp.down_proj.weight"},
    {TensorRole::kQBias, "model.layers.*.self_attn.q_proj.bias"},
    {TensorRole::kKBias, "model.layers.*.self_attn.k_proj.bias"},
    {TensorRole::kVBias, "model.layers.*.self_attn.v_proj.bias"},
    {TensorRole::kOBias, "model.layers.*.self_attn.o_proj.bias"},
    {TensorRole::kGateBias, "model.layers.*.mlp.gate_proj.bias"},
    {TensorRole::kUpBias, "model.layers.*.mlp.up_proj.bias"},
    {TensorRole::kDownBias, "model.layers.*.mlp.down_proj.bias"},
    {TensorRole::kFinalNorm, "model.norm.weight"},
    {TensorRole::kHead, "lm_head.weight"},
};

// Older exports wrote the rotary frequencies, which follow from the config.
constexpr const char* kLlamaIgnored[] = {"model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"};

constexpr Family kFamilies[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     // attention_bias puts a bias on q, k, v and o.
     .fields = {.attention_bias = "attention_bias", .attention_output_bias = "attention_bias", .mlp_bias = "mlp_bias"},
     .defaults = {.kv_heads_are_heads = true},
     .tensors = kLlamaTensors,
     .ignored_tensors = kLlamaIgnored},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .fields = {.sliding_window = "sliding_window"},
     .defaults = {.sliding_window = 4096},
     .tensors = kLlamaTensors,
     .ignored_tensors = kLlamaIgnored},
};

bool IsLayerPattern(std::string_view pattern) { return pattern.find('*') != std::string_view::npos; }

std::string NameInLayer(std::string_view pattern, int layer) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return std::string(pattern);
  return std::string(pattern.substr(0, star)) + std::to_string(layer) + std::string(pattern.substr(star + 1));
}

// True if '*' of the pattern stands for one or more digits of the name.
bool Matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view tail = pattern.substr(star + 1);
  if (name.size() <= star + tail.size() || !name.starts_with(pattern.substr(0, star)) || !name.ends_with(tail)) {
    return false;
  }
  const std::string_view digits = name.substr(star, name.size() - star - tail.size());
  return digits.find_first_not_of("0123456789") == std::string_view::npos;
}

bool Has(const ModelSpec& spec, TensorRole role) {
  switch (role) {
    case TensorRole::kQBias:
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      return spec.attention_bias;
    case TensorRole::kOBias:
      return spec.attention_output_bias;
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
    case TensorRole::kDownBias:
      return spec.mlp_bias;
    case TensorRole::kHead:
      return !spec.tied_embeddings;
    default:
      return true;
  }
}

std::vector<int64_t> ShapeOf(const ModelSpec& spec, TensorRole role) {
  const int64_t hidden = spec.hidden;
  const int64_t q_width = int64_t{spec.heads} * spec.head_dim;
  const int64_t kv_width = int64_t{spec.kv_heads} * spec.head_dim;
  switch (role) {
    case TensorRole::kEmbedding:
    case TensorRole::kHead:
      return {spec.vocab, hidden};
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kFinalNorm:
    case TensorRole::kOBias:
    case TensorRole::kDownBias:
      return {hidden};
    case TensorRole::kQ:
      return {q_width, hidden};
    case TensorRole::kK:
    case TensorRole::kV:
      return {kv_width, hidden};
    case TensorRole::kO:
      return {hidden, q_width};
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {spec.intermediate, hidden};
    case TensorRole::kDown:
      return {hidden, spec.intermediate};
    case TensorRole::kQBias:
      return {q_width};
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      return {kv_width};
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
      return {spec.intermediate};
  }
  FD_CHECK(false, "every role has a shape");
  return {};
}

}  // namespace

const Family* FindFamily(const std::string& model_type) {
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) return &family;
  }
  return nullptr;
}

std::string FamilyNames() {
  std::string names;
  for (const Family& family : kFamilies) absl::StrAppend(&names, names.empty() ? "" : ", ", family.model_type);
  return names;
}

std::vector<ExpectedTensor> ExpectedTensors(const Family& family, const ModelSpec& spec) {
  std::vector<ExpectedTensor> layer_independent[2];  // before and after the layers
  std::vector<const TensorName*> in_layer;
  for (const TensorName& tensor : family.tensors) {
    if (!Has(spec, tensor.role)) continue;
    if (IsLayerPattern(tensor.pattern)) {
      in_layer.push_back(&tensor);
    } else {
      layer_independent[in_layer.empty() ? 0 : 1].push_back(
          {tensor.role, -1, tensor.pattern, ShapeOf(spec, tensor.role)});
    }
  }
  std::vector<ExpectedTensor> tensors = std::move(layer_independent[0]);
  for (int layer = 0; layer < spec.layers; ++layer) {
    for (const TensorName* tensor : in_layer) {
      tensors.push_back({tensor->role, layer, NameInLayer(tensor->pattern, layer), ShapeOf(spec, tensor->role)});
    }
  }
  for (ExpectedTensor& tensor : layer_independent[1]) tensors.push_back(std::move(tensor));
  return tensors;
}

bool IsIgnoredTensor(const Family& family, const std::string& name) {
  for (const char* pattern : family.ignored_tensors) {
    if (Matches(pattern, name)) return true;
  }
  return false;
}

}  // namespace fastdecode
