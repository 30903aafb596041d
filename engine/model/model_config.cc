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
#include "engine/model/generation_config.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_folder.h"
#include "engine/model/named_family.h"
#include "engine/model/rope_config.h"
#include "engine/model/unread_fields.h"
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
constexpr double kNormEpsilonMin = 1e-12;
constexpr double kNormEpsilonMax = 1e-1;
constexpr double kScaleMax = 1e6;
constexpr double kScaleMin = 1e-6;

constexpr char kLayerTypes[] = "layer_types";
constexpr char kWindowed[] = "sliding_attention";

int AsInt(int64_t bounded) { return static_cast<int>(bounded); }

// Reads a family's fields, at the top of config.json or in text_config.
// Owns: nothing. Thread: the caller's.
class SpecReader {
 public:
  SpecReader(JsonFields* fields, const Family& family, absl::Status* error)
      : fields_(fields), family_(family), names_(family.fields), defaults_(family.defaults), error_(error) {}

  ModelSpec Read() {
    spec_.family = family_.model_type;
    TakeAliases();
    const ConfigSizes& sizes = defaults_.sizes;
    spec_.layers = Size(names_.layers, kLayersMax, sizes.layers);
    spec_.hidden = Size(names_.hidden, kHiddenMax, sizes.hidden);
    ReadHeads();
    spec_.intermediate = family_.traits.intermediate_is_4_hidden
                             ? AsInt(fields_->IntegerOr(names_.intermediate, 1, kIntermediateMax, 4 * spec_.hidden))
                             : Size(names_.intermediate, kIntermediateMax, sizes.intermediate);
    spec_.vocab = Size(names_.vocab, kVocabMax, sizes.vocab);
    spec_.max_context = Size(names_.max_context, kContextMax, sizes.max_context);
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
    RefuseLayersOfTheirOwn();
    NoteUnreadFields(*fields_, family_, &spec_);
    spec_.bos_token_ids = ReadTokenIds(fields_, "bos_token_id", &spec_);
    spec_.eos_token_ids = ReadTokenIds(fields_, "eos_token_id", &spec_);
    return std::move(spec_);
  }

  // "hidden_size (4096), vocab_size (32000)": what every config says, but this one does not, and what is taken for it.
  const std::string& missing() const { return missing_; }

 private:
  // Takes a field by its other name where it has that.
  void TakeAliases() {
    for (const FieldAlias& alias : family_.aliases) {
      if (!fields_->Contains(alias.name)) continue;
      const char*& name = names_.*alias.field;
      if (fields_->Has(name) && fields_->Has(alias.name) && *fields_->Find(name) != *fields_->Find(alias.name)) {
        spec_.notes.push_back(absl::StrCat(fields_->file(), ": ", name, " is ", ShowJson(*fields_->Find(name)), " and ",
                                           alias.name, ", its other name, ", ShowJson(*fields_->Find(alias.name)),
                                           ": the latter counts, as in transformers"));
      }
      name = alias.name;
    }
  }

  // Keeps what a missing field is taken for. Null is no way to leave such a field out.
  template <class Value>
  Value Missing(const char* name, const Value& fallback) {
    if (fields_->IsNull(name)) fields_->Fail(name, "a number (without the field it is the family's default)");
    absl::StrAppend(&missing_, missing_.empty() ? "" : ", ", name, " (", fallback, ")");
    return fallback;
  }
  int Size(const char* name, int64_t max, int fallback) {
    return fields_->Has(name) ? AsInt(fields_->Integer(name, 1, max)) : Missing(name, fallback);
  }
  bool Flag(const char* name, bool fallback) {
    if (name == nullptr) return fallback;
    if (fields_->IsNull(name)) fields_->Fail(name, "true or false");
    return fields_->BoolOr(name, fallback);
  }
  double Scale(const char* name, double fallback) {
    if (name == nullptr) return fallback;
    if (fields_->IsNull(name)) fields_->Fail(name, "a number");
    return fields_->NumberOr(name, kScaleMin, kScaleMax, fallback);
  }
  // An integer that may be missing, but not null.
  int Count(const char* name, int64_t min, int64_t max, int fallback) {
    if (name == nullptr) return fallback;
    if (fields_->IsNull(name)) fields_->Fail(name, "an integer");
    return AsInt(fields_->IntegerOr(name, min, max, fallback));
  }
  // A field of which null means that there is none, and a missing one the default.
  double Cap(const char* name, double fallback) {
    return name == nullptr || fields_->IsNull(name) ? 0.0 : Scale(name, fallback);
  }

  void ReadHeads() {
    spec_.heads = Size(names_.heads, kHeadsMax, defaults_.sizes.heads);
    if (names_.kv_heads == nullptr) {
      spec_.kv_heads = spec_.heads;
    } else {
      const bool are_heads = defaults_.kv_heads_are_heads || fields_->IsNull(names_.kv_heads);
      spec_.kv_heads =
          AsInt(fields_->IntegerOr(names_.kv_heads, 1, spec_.heads, are_heads ? spec_.heads : defaults_.kv_heads));
      if (spec_.kv_heads > spec_.heads || spec_.heads % spec_.kv_heads != 0) {
        fields_->Fail(names_.kv_heads, absl::StrCat("a divisor of ", names_.heads, ", which is ", spec_.heads));
      }
    }
    const bool is_zero =
        names_.head_dim != nullptr && fields_->Has(names_.head_dim) && *fields_->Find(names_.head_dim) == 0;
    if (is_zero)
      spec_.notes.push_back(absl::StrCat(fields_->file(), ": ", names_.head_dim, " is 0: it does not count"));
    const bool has_default = defaults_.head_dim != 0 && !fields_->Contains(names_.head_dim);
    if (names_.head_dim != nullptr && !is_zero && (fields_->Has(names_.head_dim) || has_default)) {
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
    if (const char* name = names_.norm_epsilon; name != nullptr) {
      spec_.norm.epsilon = fields_->Has(name) ? fields_->Number(name, kNormEpsilonMin, kNormEpsilonMax)
                                              : Missing(name, defaults_.norm_epsilon);
    }
    spec_.norm_before = traits.norm_before;
    spec_.norm_after = traits.norm_after;
    if (!Flag(names_.norm_before, true)) {
      spec_.norm_before = false;
      spec_.norm_sum = true;
      spec_.final_norm = false;
    }
    if (Flag(names_.no_final_norm, false)) spec_.final_norm = false;
    spec_.norm.weight = traits.norm.weight && Flag(names_.norm_weight, true);
    spec_.norm.bias = traits.norm.bias && spec_.norm.weight;
    spec_.qk_norm = traits.qk_norm;
    spec_.parallel = Flag(names_.parallel, traits.parallel);
    spec_.one_norm = traits.one_norm;
  }

  void ReadActivation() {
    std::string name = fields_->StringOr(names_.activation, defaults_.activation);
    if (fields_->IsNull(names_.activation)) name = "null";
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
    if (names_.use_sliding_window != nullptr && !Flag(names_.use_sliding_window, false)) return 0;
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
    if (window > 0) {
      ReadWindowed(&kinds);
    } else {
      NoteWindowless();
    }
    if (traits.rotated == RotatedLayers::kWindowed && window > 0) {
      for (LayerKind& kind : kinds) kind.rotated = kind.windowed;
    }
    if (std::ranges::any_of(kinds, [](const LayerKind& kind) { return kind.windowed; })) spec_.sliding_window = window;
    const LayerKind usual = {.windowed = spec_.sliding_window > 0};
    if (std::ranges::any_of(kinds, [&](const LayerKind& kind) { return kind != usual; })) {
      spec_.layer_kinds = std::move(kinds);
    }
  }

  // Layers that are called windowed without a window.
  void NoteWindowless() {
    const nlohmann::json* list = family_.traits.reads_layer_types ? fields_->Find(kLayerTypes) : nullptr;
    if (list == nullptr || !list->is_array() || std::ranges::find(*list, kWindowed) == list->end()) return;
    spec_.notes.push_back(absl::StrCat(fields_->file(), ": ", kLayerTypes, " has ", kWindowed,
                                       ", but there is no window: those layers see all"));
  }

  void ReadRotated(std::vector<LayerKind>* kinds) {
    const int interval = Count(names_.no_rope_interval, 1, kLayersMax, defaults_.no_rope_interval);
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
    const nlohmann::json* list = family_.traits.reads_layer_types ? fields_->Find(kLayerTypes) : nullptr;
    if (list != nullptr) {
      const bool fits = list->is_array() && list->size() == kinds->size();
      for (size_t i = 0; fits && i < kinds->size(); ++i) {
        if ((*list)[i] != "full_attention" && (*list)[i] != kWindowed) {
          return fields_->Fail(
              kLayerTypes, absl::StrCat("\"full_attention\" or \"sliding_attention\" for each layer; entry ", i, " is ",
                                        ShowJson((*list)[i])));
        }
        (*kinds)[i].windowed = (*list)[i] == kWindowed;
      }
      if (!fits) fields_->Fail(kLayerTypes, absl::StrCat("a list of ", kinds->size(), " kinds, one a layer"));
      return;
    }
    const int first = names_.max_window_layers == nullptr
                          ? 0
                          : Count(names_.max_window_layers, 0, kContextMax, defaults_.max_window_layers);
    const int pattern = Count(names_.window_pattern, 1, kLayersMax, defaults_.window_pattern);
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

  // Newer configs can give single layers sizes of their own.
  void RefuseLayersOfTheirOwn() {
    constexpr char kName[] = "per_layer_config";
    const nlohmann::json* layers = fields_->Find(kName);
    if (layers != nullptr && IsTruthy(*layers)) fields_->Fail(kName, "none (layers of other sizes are not supported)");
  }

  JsonFields* const fields_;
  const Family& family_;
  ConfigFields names_;  // as this config has them
  const ConfigDefaults& defaults_;
  absl::Status* const error_;
  std::string missing_;
  ModelSpec spec_;
};

// What a wrapper says of its text model outside of text_config.
void ReadAroundText(JsonFields* fields, const JsonFields& text, ModelSpec* spec) {
  constexpr char kTied[] = "tie_word_embeddings";
  // In transformers the wrapper's own field decides, which is true where it is missing; but a head in the checkpoint
  // that is another than the embedding stays one.
  spec->tied_without_head = fields->BoolOr(kTied, true);
  if (!text.Has(kTied)) spec->tied_embeddings = fields->BoolOr(kTied, spec->tied_embeddings);
  // Tokens that the wrapper names count more than the text model's.
  if (fields->Has("bos_token_id")) spec->bos_token_ids = ReadTokenIds(fields, "bos_token_id", spec);
  if (fields->Has("eos_token_id")) spec->eos_token_ids = ReadTokenIds(fields, "eos_token_id", spec);
}

std::string PathIn(const std::string& model_dir, const char* file) {
  return (std::filesystem::path(model_dir) / file).string();
}

// `generation_json`: the file's text, or why there is none.
absl::StatusOr<ModelSpec> ParseBoth(std::string_view config_json, const absl::StatusOr<std::string>& generation_json,
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
    SpecReader reader(&fields, *named.family, &error);
    spec = reader.Read();
    if (!reader.missing().empty()) {
      spec.notes.push_back(absl::StrCat(
          config_path, ": it does not say everything; as in transformers, this is taken: ", reader.missing()));
    }
  } else {
    JsonFields text(*named.text_config, config_path, "text_config.", &error);
    spec = SpecReader(&text, *named.family, &error).Read();
    ReadAroundText(&fields, text, &spec);
  }
  if (!error.ok()) return error;
  spec.notes.insert(spec.notes.begin(), named.notes.begin(), named.notes.end());
  const absl::Status generation_error =
      ReadGenerationConfig(generation_json, PathIn(model_dir, kGenerationFile), &spec);
  if (!generation_error.ok()) return generation_error;
  return spec;
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModelSpec(std::string_view config_json, std::optional<std::string_view> generation_json,
                                         const std::string& model_dir) {
  if (generation_json.has_value()) return ParseBoth(config_json, std::string(*generation_json), model_dir);
  return ParseBoth(config_json, absl::NotFoundError("no such file"), model_dir);
}

absl::StatusOr<std::string> ReadConfigFile(const std::string& model_dir) {
  absl::StatusOr<std::string> text = ReadTextFile(PathIn(model_dir, kConfigFile), kConfigBytesMax);
  if (text.ok()) return text;
  const std::string guess = GuessWhyNoConfig(model_dir);
  return absl::Status(text.status().code(), absl::StrCat(text.status().message(), guess.empty() ? "" : ": ", guess));
}

absl::StatusOr<ModelSpec> ReadModelSpec(const std::string& model_dir) {
  const absl::StatusOr<std::string> config = ReadConfigFile(model_dir);
  if (!config.ok()) return config.status();
  return ParseBoth(*config, ReadTextFile(PathIn(model_dir, kGenerationFile), kConfigBytesMax), model_dir);
}

}  // namespace fastdecode
