#include "engine/model/model_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/families.h"
#include "engine/model/json_fields.h"
#include "kernels/sampler.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr char kConfigFile[] = "config.json";
constexpr char kGenerationFile[] = "generation_config.json";
constexpr int64_t kConfigBytesMax = 4 << 20;

// No product of two of these, nor of three with the layers, leaves 64 bits; each alone fits an int.
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kHiddenMax = 1 << 16;
constexpr int64_t kHeadsMax = 1024;
constexpr int64_t kHeadDimMin = 16;
constexpr int64_t kHeadDimMax = 256;
constexpr int64_t kIntermediateMax = 1 << 20;
constexpr int64_t kVocabMax = kMaxVocab;
constexpr int64_t kContextMax = 1 << 24;
constexpr size_t kStopTokensMax = 64;
constexpr double kNormEpsilonMin = 1e-12;
constexpr double kNormEpsilonMax = 1e-1;
constexpr double kThetaMax = 1e12;
constexpr double kRopeFactorMax = 1e6;
constexpr char kRopeTypes[] = "\"default\", \"linear\" or \"llama3\"";

int AsInt(int64_t bounded) { return static_cast<int>(bounded); }

// One id, a list of ids, or nothing.
std::vector<int> ReadTokenIds(JsonFields* fields, const char* name, int vocab) {
  const nlohmann::json* value = fields->Find(name);
  if (value == nullptr) return {};
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  std::vector<int> ids;
  for (const nlohmann::json& id : list) {
    const bool is_id = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab);
    if (!is_id || ids.size() == kStopTokensMax) {
      fields->Fail(name, absl::StrCat("a token id from 0 to ", vocab - 1, " or a list of at most ", kStopTokensMax));
      return {};
    }
    ids.push_back(AsInt(id.get<int64_t>()));
  }
  return ids;
}

void CheckWholeRotation(JsonFields* fields) {
  if (fields->NumberOr("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    fields->Fail("partial_rotary_factor", "1 (heads that are rotated as a whole)");
  }
}

// Without scaling nothing may be there that would scale. Without a type, which is "default" then, a theta may: newer
// rope_parameters have one. What else there is wants a type, as transformers do.
void CheckUnscaled(const nlohmann::json& object, const char* type_name, JsonFields* rope) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) rope->Fail(key.c_str(), "no object (rope per kind of layer is not supported)");
  }
  for (const auto& [key, value] : object.items()) {
    if (rope->Has(type_name) || value.is_null() || key == "rope_theta" || key == "partial_rotary_factor") continue;
    rope->Fail(type_name, absl::StrCat(kRopeTypes, " beside ", ShowText(key)));
  }
  const nlohmann::json* factor = rope->Find("factor");
  if (factor != nullptr && *factor != 1)
    rope->Fail("factor", absl::StrCat("none or 1 where ", type_name, " is \"default\""));
}

// rope_scaling {"type" or "rope_type", ...} beside rope_theta, or the newer rope_parameters that holds both.
RopeSpec ReadRope(JsonFields* fields, absl::Status* error) {
  RopeSpec rope;
  rope.theta = fields->NumberOr("rope_theta", 1.0, kThetaMax, rope.theta);
  CheckWholeRotation(fields);
  const char* name = fields->Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* object = fields->Find(name);
  if (object == nullptr) return rope;
  if (!object->is_object()) {
    fields->Fail(name, "an object");
    return rope;
  }

  JsonFields scaling(*object, fields->file(), absl::StrCat(name, "."), error);
  CheckWholeRotation(&scaling);
  rope.theta = scaling.NumberOr("rope_theta", 1.0, kThetaMax, rope.theta);
  const char* type_name = scaling.Has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.StringOr(type_name, "default");
  if (type == "linear") {
    rope.scaling = RopeSpec::Scaling::kLinear;
    rope.factor = scaling.Number("factor", 1.0, kRopeFactorMax);
  } else if (type == "llama3") {
    rope.scaling = RopeSpec::Scaling::kLlama3;
    rope.factor = scaling.Number("factor", 1.0, kRopeFactorMax);
    rope.low_freq_factor = scaling.Number("low_freq_factor", 1e-6, kRopeFactorMax);
    rope.high_freq_factor = scaling.Number("high_freq_factor", 1e-6, kRopeFactorMax);
    rope.original_context = scaling.Integer("original_max_position_embeddings", 1, kContextMax);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      scaling.Fail("high_freq_factor", absl::StrCat("more than low_freq_factor, which is ", rope.low_freq_factor));
    }
  } else if (type != "default") {
    scaling.Fail(type_name, kRopeTypes);
  } else {
    CheckUnscaled(*object, type_name, &scaling);
  }
  return rope;
}

// The family, if the architecture is its causal language model; nullptr with an error kept otherwise.
const Family* ReadFamily(JsonFields* fields) {
  const std::string model_type = fields->String("model_type");
  const Family* family = FindFamily(model_type);
  if (family == nullptr) {
    fields->Fail("model_type", absl::StrCat("one of ", FamilyNames()));
    return nullptr;
  }
  const nlohmann::json* architectures = fields->Find("architectures");
  if (architectures != nullptr && *architectures != nlohmann::json::array({family->architecture})) {
    fields->Fail("architectures", absl::StrCat("[\"", family->architecture, "\"]"));
  }
  if (fields->Has("quantization_config")) {
    fields->Fail("quantization_config", "none (quantised checkpoints are not supported)");
  }
  if (fields->StringOr("hidden_act", "silu") != "silu") fields->Fail("hidden_act", "\"silu\"");
  return family;
}

void ReadHeads(JsonFields* fields, const Family& family, ModelSpec* spec) {
  const ConfigFields& names = family.fields;
  spec->heads = AsInt(fields->Integer(names.heads, 1, kHeadsMax));
  spec->kv_heads =
      AsInt(family.defaults.kv_heads_are_heads ? fields->IntegerOr(names.kv_heads, 1, spec->heads, spec->heads)
                                               : fields->Integer(names.kv_heads, 1, spec->heads));
  if (spec->heads % spec->kv_heads != 0) {
    fields->Fail(names.kv_heads, absl::StrCat("a divisor of ", names.heads, ", which is ", spec->heads));
  }
  if (fields->Has(names.head_dim)) {
    spec->head_dim = AsInt(fields->Integer(names.head_dim, kHeadDimMin, kHeadDimMax));
    if (spec->head_dim % 2 != 0) fields->Fail(names.head_dim, "an even number");
    return;
  }
  const int head_dim = spec->hidden / spec->heads;
  if (spec->hidden % spec->heads != 0 || head_dim % 2 != 0 || head_dim < kHeadDimMin || head_dim > kHeadDimMax) {
    fields->Fail(names.hidden, absl::StrCat(names.heads, " (", spec->heads, ") times an even head size from ",
                                            kHeadDimMin, " to ", kHeadDimMax, ", where there is no ", names.head_dim));
  }
  spec->head_dim = head_dim;
}

int ReadSlidingWindow(JsonFields* fields, const Family& family) {
  const char* name = family.fields.sliding_window;
  if (name == nullptr || !fields->BoolOr("use_sliding_window", true)) return 0;
  // An explicit null means none; only a field that is not there at all takes the default.
  if (fields->IsNull(name)) return 0;
  return AsInt(fields->IntegerOr(name, 1, kContextMax, family.defaults.sliding_window));
}

ModelSpec ReadFields(JsonFields* fields, const Family& family, absl::Status* error) {
  const ConfigFields& names = family.fields;
  const auto flag = [&](const char* name) { return name != nullptr && fields->BoolOr(name, false); };
  ModelSpec spec;
  spec.family = family.model_type;
  spec.layers = AsInt(fields->Integer(names.layers, 1, kLayersMax));
  spec.hidden = AsInt(fields->Integer(names.hidden, 1, kHiddenMax));
  ReadHeads(fields, family, &spec);
  spec.intermediate = AsInt(fields->Integer(names.intermediate, 1, kIntermediateMax));
  spec.vocab = AsInt(fields->Integer(names.vocab, 1, kVocabMax));
  spec.max_context = AsInt(fields->Integer(names.max_context, 1, kContextMax));
  spec.sliding_window = ReadSlidingWindow(fields, family);
  spec.norm_epsilon = fields->Number(names.norm_epsilon, kNormEpsilonMin, kNormEpsilonMax);
  spec.tied_embeddings = flag(names.tied_embeddings);
  spec.attention_bias = flag(names.attention_bias);
  spec.attention_output_bias = flag(names.attention_output_bias);
  spec.mlp_bias = flag(names.mlp_bias);
  spec.rope = ReadRope(fields, error);
  spec.bos_token_ids = ReadTokenIds(fields, "bos_token_id", spec.vocab);
  spec.eos_token_ids = ReadTokenIds(fields, "eos_token_id", spec.vocab);
  return spec;
}

SamplingDefaults ReadSampling(JsonFields* fields) {
  const auto number = [&](const char* name, double min, double max) -> std::optional<float> {
    if (!fields->Has(name)) return std::nullopt;
    return static_cast<float>(fields->Number(name, min, max));
  };
  SamplingDefaults sampling;
  sampling.temperature = number("temperature", 0, 100);
  if (!fields->BoolOr("do_sample", true)) sampling.temperature = 0.0f;
  if (fields->Has("top_k")) sampling.top_k = AsInt(fields->Integer("top_k", 0, INT32_MAX));
  sampling.top_p = number("top_p", 1e-6, 1);
  sampling.min_p = number("min_p", 0, 1);
  sampling.repetition_penalty = number("repetition_penalty", 0.01, 100);
  return sampling;
}

std::string PathIn(const std::string& model_dir, const char* file) {
  return (std::filesystem::path(model_dir) / file).string();
}

nlohmann::ordered_json TokenIdsJson(const std::vector<int>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

nlohmann::ordered_json RopeScalingJson(const RopeSpec& rope) {
  switch (rope.scaling) {
    case RopeSpec::Scaling::kNone:
      return nullptr;
    case RopeSpec::Scaling::kLinear:
      return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeSpec::Scaling::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", rope.factor},
              {"low_freq_factor", rope.low_freq_factor},
              {"high_freq_factor", rope.high_freq_factor},
              {"original_max_position_embeddings", rope.original_context}};
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(std::string_view config_json, std::optional<std::string_view> generation_json,
                                         const std::string& model_dir) {
  const std::string config_path = PathIn(model_dir, kConfigFile);
  const absl::StatusOr<nlohmann::json> config = ParseJsonObject(config_json, config_path);
  if (!config.ok()) return config.status();
  absl::Status error;
  JsonFields fields(*config, config_path, "", &error);
  const Family* family = ReadFamily(&fields);
  if (!error.ok()) return error;
  ModelSpec spec = ReadFields(&fields, *family, &error);

  if (generation_json.has_value()) {
    const std::string generation_path = PathIn(model_dir, kGenerationFile);
    const absl::StatusOr<nlohmann::json> generation = ParseJsonObject(*generation_json, generation_path);
    if (error.ok() && !generation.ok()) return generation.status();
    if (error.ok()) {
      JsonFields generation_fields(*generation, generation_path, "", &error);
      const std::vector<int> eos = ReadTokenIds(&generation_fields, "eos_token_id", spec.vocab);
      if (!eos.empty()) spec.eos_token_ids = eos;
      spec.sampling = ReadSampling(&generation_fields);
    }
  }
  if (!error.ok()) return error;
  return spec;
}

absl::StatusOr<ModelSpec> ReadModelSpec(const std::string& model_dir) {
  const absl::StatusOr<std::string> config = ReadTextFile(PathIn(model_dir, kConfigFile), kConfigBytesMax);
  if (!config.ok()) return config.status();
  const absl::StatusOr<std::string> generation = ReadTextFile(PathIn(model_dir, kGenerationFile), kConfigBytesMax);
  if (!generation.ok() && !absl::IsNotFound(generation.status())) return generation.status();
  std::optional<std::string_view> generation_json;
  if (generation.ok()) generation_json = *generation;
  return ParseModelSpec(*config, generation_json, model_dir);
}

std::string WriteModelConfig(const ModelSpec& spec, DType weights) {
  const Family* family = FindFamily(spec.family);
  FD_CHECK(family != nullptr, "the spec's family is in the table");
  const ConfigFields& names = family->fields;
  nlohmann::ordered_json config = {
      {"architectures", {family->architecture}},
      {"model_type", family->model_type},
      {"hidden_act", "silu"},
      {"torch_dtype", weights == DType::kF32   ? "float32"
                      : weights == DType::kF16 ? "float16"
                                               : "bfloat16"},
      {names.layers, spec.layers},
      {names.hidden, spec.hidden},
      {names.heads, spec.heads},
      {names.kv_heads, spec.kv_heads},
      {names.head_dim, spec.head_dim},
      {names.intermediate, spec.intermediate},
      {names.vocab, spec.vocab},
      {names.max_context, spec.max_context},
      {names.norm_epsilon, spec.norm_epsilon},
      {names.tied_embeddings, spec.tied_embeddings},
      {"rope_theta", spec.rope.theta},
      {"rope_scaling", RopeScalingJson(spec.rope)},
      {"bos_token_id", TokenIdsJson(spec.bos_token_ids)},
      {"eos_token_id", TokenIdsJson(spec.eos_token_ids)},
  };
  if (names.attention_bias != nullptr) config[names.attention_bias] = spec.attention_bias;
  if (names.attention_output_bias != nullptr) config[names.attention_output_bias] = spec.attention_output_bias;
  if (names.mlp_bias != nullptr) config[names.mlp_bias] = spec.mlp_bias;
  if (names.sliding_window != nullptr) {
    config[names.sliding_window] = spec.sliding_window > 0 ? nlohmann::ordered_json(spec.sliding_window) : nullptr;
  }
  return config.dump(2) + "\n";
}

}  // namespace fastdecode
