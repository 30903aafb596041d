#include "engine/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/activation_names.h"
#include "engine/model/families.h"
#include "engine/model/json_fields.h"
#include "engine/model/rope_config.h"
#include "engine/model/unsupported_models.h"
#include "kernels/sampler.h"

namespace fastdecode {
namespace {

constexpr char kConfigFile[] = "config.json";
constexpr char kGenerationFile[] = "generation_config.json";
constexpr int64_t kConfigBytesMax = 4 << 20;

// No product of two of these, nor of three with the layers, leaves 64 bits; each alone fits an int.
constexpr int64_t kLayersMax = 1024;
constexpr int64_t kHiddenMax = 1 << 16;
constexpr int64_t kHeadsMax = 1024;
constexpr int64_t kHeadDimMin = 2;
constexpr int64_t kHeadDimMax = 256;
constexpr int64_t kIntermediateMax = 1 << 20;
constexpr int64_t kVocabMax = kMaxVocab;
constexpr int64_t kContextMax = 1 << 24;
constexpr size_t kStopTokensMax = 64;
constexpr double kNormEpsilonMin = 1e-12;
constexpr double kNormEpsilonMax = 1e-1;
constexpr double kScaleMax = 1e6;
constexpr double kScaleMin = 1e-6;

int AsInt(int64_t bounded) { return static_cast<int>(bounded); }

// One id, a list of ids, or nothing. What is no token of the model is left out, with a note: transformers write the ids
// of a class whatever the vocabulary is, and old exports -1.
std::vector<int> ReadTokenIds(JsonFields* fields, const char* name, ModelSpec* spec) {
  const nlohmann::json* value = fields->Find(name);
  if (value == nullptr) return {};
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  std::vector<int> ids;
  for (const nlohmann::json& id : list) {
    if (!id.is_number_integer() || ids.size() == kStopTokensMax) {
      fields->Fail(name,
                   absl::StrCat("a token id from 0 to ", spec->vocab - 1, " or a list of at most ", kStopTokensMax));
      return {};
    }
    const bool is_token = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(spec->vocab);
    if (is_token) {
      ids.push_back(AsInt(id.get<int64_t>()));
    } else {
      spec->notes.push_back(absl::StrCat(fields->file(), ": ", name, " ", ShowJson(id), " is none of the model's ",
                                         spec->vocab, " tokens: it does not count"));
    }
  }
  return ids;
}

// What is named by config.json: a family, and where in the file its fields are.
struct NamedFamily {
  const Family* family = nullptr;
  const nlohmann::json* text_config = nullptr;  // of a wrapper; null: the fields are at the top
};

std::string UnsupportedBecause(const std::string& what) {
  return absl::StrCat("one of ", FamilyNames(), " (", what, ")");
}

// The error for a model_type without a family: what such a model would need, where that is known.
void FailModelType(JsonFields* fields, const std::string& model_type) {
  if (const auto needs = WhatModelTypeNeeds(model_type)) {
    return fields->Fail("model_type", UnsupportedBecause("not supported: " + *needs));
  }
  for (const char* experts : {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}) {
    if (!fields->Has(experts)) continue;
    return fields->Fail(
        "model_type", UnsupportedBecause(absl::StrCat("it has ", experts, ": mixtures of experts are not supported")));
  }
  if (fields->BoolOr("is_encoder_decoder", false)) {
    return fields->Fail("model_type", UnsupportedBecause("encoder-decoders are not supported"));
  }
  fields->Fail("model_type", absl::StrCat("one of ", FamilyNames()));
}

// The family, if the architecture is its causal language model or a wrapper of that; null with an error kept otherwise.
NamedFamily ReadFamily(JsonFields* fields, absl::Status* error) {
  NamedFamily named;
  std::string model_type = fields->String("model_type");
  const Wrapper* wrapper = FindWrapper(model_type);
  if (wrapper != nullptr) {
    const nlohmann::json* text_config = fields->Find("text_config");
    if (text_config == nullptr || !text_config->is_object()) {
      fields->Fail("text_config", absl::StrCat("an object that describes the text model of a ", model_type));
      return named;
    }
    named.text_config = text_config;
    JsonFields text(*text_config, fields->file(), "text_config.", error);
    model_type = text.StringOr("model_type", wrapper->text_type);
    named.family = FindFamily(model_type);
    if (named.family == nullptr) FailModelType(&text, model_type);
  } else {
    named.family = FindFamily(model_type);
    if (named.family == nullptr) FailModelType(fields, model_type);
  }
  if (named.family == nullptr) return named;
  const nlohmann::json* architectures = fields->Find("architectures");
  const char* expected = wrapper != nullptr ? wrapper->architecture : named.family->architecture;
  if (architectures != nullptr && *architectures != nlohmann::json::array({expected})) {
    fields->Fail("architectures", absl::StrCat("[\"", expected, "\"]"));
  }
  if (const nlohmann::json* quantized = fields->Find("quantization_config")) {
    fields->Fail("quantization_config",
                 absl::StrCat("none: quantised weights are not supported (these are ", DescribeQuantization(*quantized),
                              "); take a checkpoint in bf16, f16 or f32"));
  }
  return named;
}

// Reads a family's fields, at the top of config.json or in text_config.
// Owns: nothing. Thread: the caller's.
class SpecReader {
 public:
  SpecReader(JsonFields* fields, const Family& family, absl::Status* error)
      : fields_(fields), family_(family), names_(family.fields), defaults_(family.defaults), error_(error) {}

  ModelSpec Read() {
    spec_.family = family_.model_type;
    spec_.layers = Size(names_.layers, kLayersMax, defaults_.layers);
    spec_.hidden = Size(names_.hidden, kHiddenMax, defaults_.hidden);
    ReadHeads();
    spec_.intermediate = Size(names_.intermediate, kIntermediateMax,
                              family_.traits.intermediate_is_4_hidden ? 4 * spec_.hidden : defaults_.intermediate);
    spec_.vocab = Size(names_.vocab, kVocabMax, defaults_.vocab);
    spec_.max_context = Size(names_.max_context, kContextMax, defaults_.max_context);
    ReadNorms();
    ReadActivation();
    spec_.tied_embeddings = Flag(names_.tied_embeddings, defaults_.tied_embeddings);
    spec_.attention_bias = Flag(names_.attention_bias, defaults_.attention_bias);
    spec_.attention_output_bias = Flag(names_.attention_output_bias, defaults_.attention_output_bias);
    spec_.mlp_bias = Flag(names_.mlp_bias, defaults_.mlp_bias);
    ReadPositions();
    ReadLayerKinds();
    ReadScales();
    for (const FixedField& field : family_.fixed) {
      if (field.name == nullptr || fields_->BoolOr(field.name, field.value) == field.value) continue;
      fields_->Fail(field.name, absl::StrCat(field.value ? "true" : "false", " (", field.other, " is not supported)"));
    }
    spec_.bos_token_ids = ReadTokenIds(fields_, "bos_token_id", &spec_);
    spec_.eos_token_ids = ReadTokenIds(fields_, "eos_token_id", &spec_);
    return std::move(spec_);
  }

 private:
  int Size(const char* name, int64_t max, int fallback) {
    return AsInt(fallback == 0 ? fields_->Integer(name, 1, max) : fields_->IntegerOr(name, 1, max, fallback));
  }
  bool Flag(const char* name, bool fallback) { return name == nullptr ? fallback : fields_->BoolOr(name, fallback); }
  double Scale(const char* name, double fallback) {
    return name == nullptr ? fallback : fields_->NumberOr(name, kScaleMin, kScaleMax, fallback);
  }
  // A field of which null means that there is none, and a missing one the default.
  double Cap(const char* name, double fallback) {
    return name == nullptr || fields_->IsNull(name) ? 0.0 : Scale(name, fallback);
  }

  void ReadHeads() {
    spec_.heads = Size(names_.heads, kHeadsMax, defaults_.heads);
    if (names_.kv_heads == nullptr) {
      spec_.kv_heads = spec_.heads;
    } else {
      const bool are_heads = defaults_.kv_heads_are_heads || fields_->IsNull(names_.kv_heads);
      spec_.kv_heads = Size(names_.kv_heads, spec_.heads, are_heads ? spec_.heads : defaults_.kv_heads);
      if (spec_.kv_heads > spec_.heads || spec_.heads % spec_.kv_heads != 0) {
        fields_->Fail(names_.kv_heads, absl::StrCat("a divisor of ", names_.heads, ", which is ", spec_.heads));
      }
    }
    const bool has_default = defaults_.head_dim != 0 && !fields_->IsNull(names_.head_dim);
    if (names_.head_dim != nullptr && (fields_->Has(names_.head_dim) || has_default)) {
      spec_.head_dim = AsInt(fields_->IntegerOr(names_.head_dim, kHeadDimMin, kHeadDimMax, defaults_.head_dim));
      if (spec_.head_dim % 2 != 0) fields_->Fail(names_.head_dim, "an even number");
      return;
    }
    const int head_dim = spec_.hidden / spec_.heads;
    if (spec_.hidden % spec_.heads != 0 || head_dim % 2 != 0 || head_dim < kHeadDimMin || head_dim > kHeadDimMax) {
      fields_->Fail(
          names_.hidden,
          absl::StrCat(names_.heads, " (", spec_.heads, ") times an even head size from ", kHeadDimMin, " to ",
                       kHeadDimMax,
                       names_.head_dim == nullptr ? "" : absl::StrCat(", where there is no ", names_.head_dim)));
    }
    spec_.head_dim = head_dim;
  }

  void ReadNorms() {
    const Traits& traits = family_.traits;
    spec_.norm = traits.norm;
    spec_.norm.epsilon = defaults_.norm_epsilon;
    if (names_.norm_epsilon != nullptr) {
      spec_.norm.epsilon =
          defaults_.norm_epsilon == 0
              ? fields_->Number(names_.norm_epsilon, kNormEpsilonMin, kNormEpsilonMax)
              : fields_->NumberOr(names_.norm_epsilon, kNormEpsilonMin, kNormEpsilonMax, defaults_.norm_epsilon);
    }
    spec_.norm_before = traits.norm_before;
    spec_.norm_after = traits.norm_after;
    if (names_.norm_before != nullptr && !fields_->BoolOr(names_.norm_before, true)) {
      spec_.norm_before = false;
      spec_.norm_sum = true;
      spec_.final_norm = false;
    }
    if (names_.no_final_norm != nullptr && fields_->BoolOr(names_.no_final_norm, false)) spec_.final_norm = false;
    spec_.norm.weight = traits.norm.weight && Flag(names_.norm_weight, true);
    spec_.norm.bias = traits.norm.bias && spec_.norm.weight;
    spec_.qk_norm = traits.qk_norm;
    spec_.parallel = names_.parallel == nullptr ? traits.parallel : fields_->BoolOr(names_.parallel, traits.parallel);
    spec_.one_norm = traits.one_norm;
  }

  void ReadActivation() {
    std::string name = fields_->StringOr(names_.activation, defaults_.activation);
    if (family_.traits.gelu_is_tanh && name == "gelu") name = "gelu_pytorch_tanh";
    const std::optional<Activation> activation = FindActivation(name);
    if (activation.has_value()) {
      spec_.activation = *activation;
    } else {
      fields_->Fail(names_.activation, absl::StrCat("one of ", ActivationNames()));
    }
    spec_.gated = family_.traits.gated;
  }

  void ReadPositions() {
    if (family_.traits.positions == Positions::kLearned) {
      spec_.position_offset = family_.traits.position_offset;
      spec_.learned_positions = spec_.max_context + spec_.position_offset;
    }
    spec_.interleaved_rope = family_.traits.interleaved_rope;
    ReadRopes(fields_, family_, &spec_, error_);
  }

  int ReadWindow() {
    const char* name = names_.sliding_window;
    if (name == nullptr) return 0;
    const char* use = names_.use_sliding_window;
    if (use != nullptr && !fields_->BoolOr(use, false)) return 0;
    // An explicit null means none; only a field that is not there at all takes the default.
    if (fields_->IsNull(name) || (!fields_->Has(name) && defaults_.sliding_window == 0)) return 0;
    return AsInt(fields_->IntegerOr(name, 1, kContextMax, defaults_.sliding_window));
  }

  // Which layers are windowed and which are rotated; nothing if all are alike.
  void ReadLayerKinds() {
    const int window = ReadWindow();
    const Traits& traits = family_.traits;
    std::vector<LayerKind> kinds(static_cast<size_t>(spec_.layers));
    if (traits.rotated == RotatedLayers::kListed) ReadRotated(&kinds);
    if (window > 0) ReadWindowed(&kinds);
    if (traits.rotated == RotatedLayers::kWindowed && window > 0) {
      for (LayerKind& kind : kinds) kind.rotated = kind.windowed;
    }
    if (std::ranges::any_of(kinds, [](const LayerKind& kind) { return kind.windowed; })) spec_.sliding_window = window;
    const LayerKind usual = {.windowed = spec_.sliding_window > 0};
    if (std::ranges::any_of(kinds, [&](const LayerKind& kind) { return kind != usual; })) {
      spec_.layer_kinds = std::move(kinds);
    }
  }

  void ReadRotated(std::vector<LayerKind>* kinds) {
    const int interval = AsInt(fields_->IntegerOr(names_.no_rope_interval, 1, kLayersMax, defaults_.no_rope_interval));
    for (size_t i = 0; i < kinds->size(); ++i) (*kinds)[i].rotated = (i + 1) % static_cast<size_t>(interval) != 0;
    const nlohmann::json* list = fields_->Find(names_.no_rope_layers);
    if (list == nullptr) return;
    const auto is_flag = [](const nlohmann::json& one) { return one == 0 || one == 1; };
    if (!list->is_array() || list->size() < kinds->size() || !std::ranges::all_of(*list, is_flag)) {
      fields_->Fail(names_.no_rope_layers, absl::StrCat("a list of ", kinds->size(), " numbers, 0 or 1, one a layer"));
      return;
    }
    for (size_t i = 0; i < kinds->size(); ++i) (*kinds)[i].rotated = (*list)[i] == 1;
  }

  void ReadWindowed(std::vector<LayerKind>* kinds) {
    constexpr char kName[] = "layer_types";
    const nlohmann::json* list = family_.traits.reads_layer_types ? fields_->Find(kName) : nullptr;
    if (list != nullptr) {
      const bool fits = list->is_array() && list->size() == kinds->size();
      for (size_t i = 0; fits && i < kinds->size(); ++i) {
        if ((*list)[i] != "full_attention" && (*list)[i] != "sliding_attention") {
          return fields_->Fail(kName, absl::StrCat("\"full_attention\" or \"sliding_attention\" for each layer; entry ",
                                                   i, " is ", ShowJson((*list)[i])));
        }
        (*kinds)[i].windowed = (*list)[i] == "sliding_attention";
      }
      if (!fits) fields_->Fail(kName, absl::StrCat("a list of ", kinds->size(), " kinds, one a layer"));
      return;
    }
    const int first =
        names_.max_window_layers == nullptr
            ? 0
            : AsInt(fields_->IntegerOr(names_.max_window_layers, 0, kContextMax, defaults_.max_window_layers));
    const int pattern = names_.window_pattern == nullptr
                            ? defaults_.window_pattern
                            : AsInt(fields_->IntegerOr(names_.window_pattern, 1, kLayersMax, defaults_.window_pattern));
    for (int i = 0; i < spec_.layers; ++i) {
      LayerKind& kind = (*kinds)[static_cast<size_t>(i)];
      switch (family_.traits.windows) {
        case WindowLayers::kAll:
          kind.windowed = true;
          break;
        case WindowLayers::kFromLayer:
          kind.windowed = i >= first;
          break;
        case WindowLayers::kPattern:
          kind.windowed = pattern > 0 && (i + 1) % pattern != 0;
          break;
        case WindowLayers::kUnrotated:
          kind.windowed = !kind.rotated;
          break;
      }
    }
  }

  void ReadScales() {
    if (family_.traits.scales_embedding) {
      spec_.embedding_scale = std::sqrt(static_cast<double>(spec_.hidden));
      spec_.scale_in_type = true;
    }
    spec_.embedding_scale = Scale(names_.embedding_multiplier, spec_.embedding_scale);
    spec_.residual_scale = Scale(names_.residual_multiplier, 1.0);
    if (names_.attention_scalar != nullptr) {
      spec_.attention_scale = 1.0 / std::sqrt(Scale(names_.attention_scalar, defaults_.attention_scalar));
    }
    if (names_.attention_multiplier != nullptr) spec_.attention_scale = Scale(names_.attention_multiplier, 1.0);
    spec_.logit_scale = Scale(names_.logit_multiplier, defaults_.logit_multiplier) / Scale(names_.logit_divisor, 1.0);
    spec_.attention_cap = Cap(names_.attention_cap, defaults_.attention_cap);
    spec_.logit_cap = Cap(names_.logit_cap, defaults_.logit_cap);
    spec_.clip_qkv = names_.clip_qkv == nullptr || !fields_->Has(names_.clip_qkv) ? 0.0 : Scale(names_.clip_qkv, 0.0);
    if (names_.embedding_width != nullptr) {
      const int width = AsInt(fields_->IntegerOr(names_.embedding_width, 1, kHiddenMax, spec_.hidden));
      spec_.embedding_width = width == spec_.hidden ? 0 : width;
    }
  }

  JsonFields* const fields_;
  const Family& family_;
  const ConfigFields& names_;
  const ConfigDefaults& defaults_;
  absl::Status* const error_;
  ModelSpec spec_;
};

// What a wrapper says of its text model outside of text_config, where that says nothing.
void ReadAroundText(JsonFields* fields, const JsonFields& text, ModelSpec* spec) {
  constexpr char kTied[] = "tie_word_embeddings";
  // In transformers the wrapper's own field decides, which is true where it is missing; but a head in the checkpoint
  // that is another than the embedding stays one.
  spec->tied_without_head = fields->BoolOr(kTied, true);
  if (!text.Has(kTied)) spec->tied_embeddings = fields->BoolOr(kTied, spec->tied_embeddings);
  if (!text.Has("bos_token_id")) spec->bos_token_ids = ReadTokenIds(fields, "bos_token_id", spec);
  if (!text.Has("eos_token_id")) spec->eos_token_ids = ReadTokenIds(fields, "eos_token_id", spec);
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

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(std::string_view config_json, std::optional<std::string_view> generation_json,
                                         const std::string& model_dir) {
  const std::string config_path = PathIn(model_dir, kConfigFile);
  const absl::StatusOr<nlohmann::json> config = ParseJsonObject(config_json, config_path);
  if (!config.ok()) return config.status();
  absl::Status error;
  JsonFields fields(*config, config_path, "", &error);
  const NamedFamily named = ReadFamily(&fields, &error);
  if (!error.ok()) return error;
  ModelSpec spec;
  if (named.text_config == nullptr) {
    spec = SpecReader(&fields, *named.family, &error).Read();
  } else {
    JsonFields text(*named.text_config, config_path, "text_config.", &error);
    spec = SpecReader(&text, *named.family, &error).Read();
    ReadAroundText(&fields, text, &spec);
  }

  if (generation_json.has_value()) {
    const std::string generation_path = PathIn(model_dir, kGenerationFile);
    const absl::StatusOr<nlohmann::json> generation = ParseJsonObject(*generation_json, generation_path);
    if (error.ok() && !generation.ok()) return generation.status();
    if (error.ok()) {
      JsonFields generation_fields(*generation, generation_path, "", &error);
      const std::vector<int> eos = ReadTokenIds(&generation_fields, "eos_token_id", &spec);
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

}  // namespace fastdecode
