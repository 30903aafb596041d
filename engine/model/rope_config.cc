#include "engine/model/rope_config.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fastdecode {
namespace {

constexpr double kThetaMax = 1e12;
constexpr double kRopeFactorMax = 1e6;
constexpr int64_t kOriginalContextMax = 1 << 24;
constexpr char kRopeTypes[] = "\"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or \"longrope\"";
constexpr char kOriginalContext[] = "original_max_position_embeddings";
constexpr char kFullLayers[] = "full_attention";
constexpr char kWindowedLayers[] = "sliding_attention";

using Scaling = RopeSpec::Scaling;
constexpr std::pair<const char*, Scaling> kScalings[] = {
    {"default", Scaling::kNone},  {"linear", Scaling::kLinear}, {"dynamic", Scaling::kDynamic},
    {"llama3", Scaling::kLlama3}, {"yarn", Scaling::kYarn},     {"longrope", Scaling::kLongRope},
    {"su", Scaling::kLongRope}};

// Reads the ropes of one config.
// Owns: nothing. Thread: the caller's.
class RopeReader {
 public:
  RopeReader(JsonFields* fields, const Family& family, const ModelSpec& spec, absl::Status* error)
      : fields_(fields), family_(family), spec_(spec), error_(error) {}

  void Read(ModelSpec* spec) {
    const bool per_kind = family_.traits.positions == Positions::kRopePerKind;
    RopeSpec plain;
    plain.theta = NumberOf(family_.fields.theta, 1.0, kThetaMax, family_.defaults.theta);
    const char* name = fields_->Has("rope_scaling") ? "rope_scaling" : "rope_parameters";
    const nlohmann::json* object = fields_->Find(name);
    nlohmann::json usual;
    if (object == nullptr && family_.traits.default_rope != nullptr) {
      usual = nlohmann::json::parse(family_.traits.default_rope);
      object = &usual;
    }
    plain.dims = ReadDims(name, object);
    if (object != nullptr && !object->is_object()) fields_->Fail(name, "an object");
    const bool has_object = object != nullptr && object->is_object();
    if (!per_kind) {
      spec->rope = has_object ? ReadObject(*object, absl::StrCat(name, "."), plain, spec) : plain;
      return;
    }
    const bool nested = has_object && (object->contains(kFullLayers) || object->contains(kWindowedLayers));
    RopeSpec windowed = plain;
    windowed.theta = NumberOf(family_.fields.local_theta, 1.0, kThetaMax, family_.defaults.local_theta);
    spec->rope = nested       ? ReadKind(*object, name, kFullLayers, plain, spec)
                 : has_object ? ReadObject(*object, absl::StrCat(name, "."), plain, spec)
                              : plain;
    if (nested) windowed = ReadKind(*object, name, kWindowedLayers, windowed, spec);
    if (windowed != spec->rope) spec->window_rope = windowed;
  }

 private:
  double NumberOf(const char* name, double min, double max, double fallback) const {
    return name == nullptr ? fallback : fields_->NumberOr(name, min, max, fallback);
  }

  // How many elements of a head are rotated; 0: all. The object's own share counts more than the one beside it. As in
  // transformers, what is no whole number is rounded down, and most families have no such field.
  int ReadDims(const char* object_name, const nlohmann::json* object) const {
    constexpr char kInObject[] = "partial_rotary_factor";
    const char* beside = family_.fields.rotary_share;
    if (beside == nullptr) return 0;
    if (object != nullptr && object->is_object()) {
      JsonFields inside(*object, fields_->file(), absl::StrCat(object_name, "."), error_);
      if (inside.Has(kInObject)) return DimsOf(inside, kInObject);
    }
    return DimsOf(*fields_, beside);
  }

  int DimsOf(JsonFields& fields, const char* name) const {
    const double share = fields.NumberOr(name, 0.0, 1.0, family_.defaults.rotary_share);
    const int dims = static_cast<int>(spec_.head_dim * share);
    if (dims == spec_.head_dim) return 0;
    if (dims >= 2 && dims % 2 == 0) return dims;
    fields.Fail(name, absl::StrCat("a share of the head size, ", spec_.head_dim,
                                   ", that is an even number from 2 (it is ", share, " where there is no such field)"));
    return 0;
  }

  RopeSpec ReadKind(const nlohmann::json& object, const char* name, const char* kind, const RopeSpec& plain,
                    ModelSpec* spec) {
    const auto of_kind = object.find(kind);
    if (of_kind == object.end() || of_kind->is_null()) return plain;
    const std::string prefix = absl::StrCat(name, ".");
    if (!of_kind->is_object()) {
      JsonFields(object, fields_->file(), prefix, error_).Fail(kind, "an object");
      return plain;
    }
    return ReadObject(*of_kind, absl::StrCat(prefix, kind, "."), plain, spec);
  }

  RopeSpec ReadObject(const nlohmann::json& object, const std::string& prefix, const RopeSpec& plain, ModelSpec* spec) {
    JsonFields scaling(object, fields_->file(), prefix, error_);
    RopeSpec rope = plain;
    rope.theta = scaling.NumberOr("rope_theta", 1.0, kThetaMax, rope.theta);
    const char* type_name = scaling.Has("rope_type") ? "rope_type" : "type";
    std::string type = scaling.StringOr(type_name, "default");
    if (family_.traits.yarn_is_longrope && type == "yarn") type = "longrope";
    bool is_known = false;
    for (const auto& [name, kind] : kScalings) {
      if (type != name) continue;
      is_known = true;
      rope.scaling = kind;
    }
    if (!is_known) {
      scaling.Fail(type_name, kRopeTypes);
      return rope;
    }
    switch (rope.scaling) {
      case Scaling::kNone:
        CheckUnscaled(object, type_name, &scaling);
        break;
      case Scaling::kLinear:
      case Scaling::kDynamic:
        rope.factor = scaling.Number("factor", 1.0, kRopeFactorMax);
        break;
      case Scaling::kLlama3:
        ReadLlama3(&scaling, &rope);
        break;
      case Scaling::kYarn:
        ReadYarn(&scaling, &rope);
        break;
      case Scaling::kLongRope:
        ReadLongRope(object, &scaling, &rope);
        break;
    }
    if (family_.traits.position_scales_queries) {
      spec->temperature_beta = scaling.NumberOr("llama_4_scaling_beta", 0.0, 100.0, 0.0);
      spec->temperature_context = OriginalContext(&scaling);
    }
    return rope;
  }

  // Without scaling nothing may be there that would scale. Without a type, which is "default" then, a theta may: newer
  // rope_parameters have one. What else there is wants a type, as transformers do.
  void CheckUnscaled(const nlohmann::json& object, const char* type_name, JsonFields* rope) const {
    for (const auto& [key, value] : object.items()) {
      if (value.is_object()) rope->Fail(key.c_str(), "no object (this family has one rope for all layers)");
    }
    for (const auto& [key, value] : object.items()) {
      if (rope->Has(type_name) || value.is_null() || key == "rope_theta" || key == "partial_rotary_factor") continue;
      rope->Fail(type_name, absl::StrCat(kRopeTypes, " beside ", ShowText(key)));
    }
    const nlohmann::json* factor = rope->Find("factor");
    if (factor != nullptr && *factor != 1) {
      rope->Fail("factor", absl::StrCat("none or 1 where ", type_name, " is \"default\""));
    }
  }

  // The field beside the object counts more than the one in it.
  int64_t OriginalContext(JsonFields* scaling) const {
    if (fields_->Has(kOriginalContext)) return fields_->Integer(kOriginalContext, 1, kOriginalContextMax);
    if (family_.defaults.original_context != 0) return family_.defaults.original_context;
    return scaling->IntegerOr(kOriginalContext, 1, kOriginalContextMax, spec_.max_context);
  }

  // How many times longer the context is than the original one.
  double FactorOrRatio(JsonFields* scaling, int64_t original) const {
    const double ratio = static_cast<double>(spec_.max_context) / static_cast<double>(original);
    return scaling->NumberOr("factor", 1e-3, kRopeFactorMax, ratio);
  }

  void ReadLlama3(JsonFields* scaling, RopeSpec* rope) const {
    rope->factor = scaling->Number("factor", 1.0, kRopeFactorMax);
    rope->low_freq_factor = scaling->Number("low_freq_factor", 1e-6, kRopeFactorMax);
    rope->high_freq_factor = scaling->Number("high_freq_factor", 1e-6, kRopeFactorMax);
    rope->original_context = OriginalContext(scaling);
    if (rope->high_freq_factor <= rope->low_freq_factor) {
      scaling->Fail("high_freq_factor", absl::StrCat("more than low_freq_factor, which is ", rope->low_freq_factor));
    }
  }

  void ReadYarn(JsonFields* scaling, RopeSpec* rope) const {
    const auto scale_of = [&](double mscale) {
      return rope->factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(rope->factor) + 1.0;
    };
    rope->original_context = OriginalContext(scaling);
    rope->factor = FactorOrRatio(scaling, rope->original_context);
    // 0 counts as none.
    const auto beta = [&](const char* name, double usual) {
      const double given = scaling->NumberOr(name, 0.0, kRopeFactorMax, usual);
      return given == 0.0 ? usual : given;
    };
    rope->beta_fast = beta("beta_fast", rope->beta_fast);
    rope->beta_slow = beta("beta_slow", rope->beta_slow);
    rope->truncate = scaling->BoolOr("truncate", true);
    const double mscale = scaling->NumberOr("mscale", 0.0, 1000.0, 0.0);
    const double mscale_all_dim = scaling->NumberOr("mscale_all_dim", 0.0, 1000.0, 0.0);
    const double usual = mscale > 0 && mscale_all_dim > 0 ? scale_of(mscale) / scale_of(mscale_all_dim) : scale_of(1.0);
    rope->attention_factor = scaling->NumberOr("attention_factor", 1e-6, 1000.0, usual);
    if (rope->theta <= 1.0) scaling->Fail("rope_theta", "a number above 1 where the scaling is \"yarn\"");
  }

  void ReadLongRope(const nlohmann::json& object, JsonFields* scaling, RopeSpec* rope) const {
    rope->original_context = OriginalContext(scaling);
    const double factor = FactorOrRatio(scaling, rope->original_context);
    double usual = 1.0;
    if (factor > 1.0 && rope->original_context > 1) {
      usual = std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(rope->original_context)));
    }
    rope->attention_factor = scaling->NumberOr("attention_factor", 1e-6, 1000.0, usual);
    const int dims = rope->dims == 0 ? spec_.head_dim : rope->dims;
    const auto read = [&](const char* name) {
      std::vector<double> factors;
      const auto list = object.find(name);
      const bool is_list = list != object.end() && list->is_array() && list->size() == static_cast<size_t>(dims / 2);
      if (is_list) {
        for (const nlohmann::json& one : *list) {
          const double value = one.is_number() ? one.get<double>() : 0.0;
          if (value >= 1e-6 && value <= kRopeFactorMax) factors.push_back(value);
        }
      }
      if (factors.size() != static_cast<size_t>(dims / 2)) {
        scaling->Fail(name,
                      absl::StrCat("a list of ", dims / 2, " positive numbers, half of what is rotated of a head"));
        factors.clear();
      }
      return factors;
    };
    rope->short_factors = read("short_factor");
    rope->long_factors = read("long_factor");
  }

  JsonFields* const fields_;
  const Family& family_;
  const ModelSpec& spec_;
  absl::Status* const error_;
};

nlohmann::ordered_json ScalingJson(const ModelSpec& spec, const RopeSpec& rope) {
  nlohmann::ordered_json json = {{"rope_type", ScalingName(rope.scaling)}};
  switch (rope.scaling) {
    case Scaling::kNone:
      break;
    case Scaling::kLinear:
    case Scaling::kDynamic:
      json["factor"] = rope.factor;
      break;
    case Scaling::kLlama3:
      json["factor"] = rope.factor;
      json["low_freq_factor"] = rope.low_freq_factor;
      json["high_freq_factor"] = rope.high_freq_factor;
      json["original_max_position_embeddings"] = rope.original_context;
      break;
    case Scaling::kYarn:
      json["factor"] = rope.factor;
      json["beta_fast"] = rope.beta_fast;
      json["beta_slow"] = rope.beta_slow;
      json["truncate"] = rope.truncate;
      json["attention_factor"] = rope.attention_factor;
      json["original_max_position_embeddings"] = rope.original_context;
      break;
    case Scaling::kLongRope:
      json["short_factor"] = rope.short_factors;
      json["long_factor"] = rope.long_factors;
      json["attention_factor"] = rope.attention_factor;
      json["original_max_position_embeddings"] = rope.original_context;
      break;
  }
  if (spec.temperature_beta != 0) {
    json["llama_4_scaling_beta"] = spec.temperature_beta;
    json["original_max_position_embeddings"] = spec.temperature_context;
  }
  return json;
}

}  // namespace

const char* ScalingName(RopeSpec::Scaling scaling) {
  for (const auto& [name, known] : kScalings) {
    if (known == scaling) return name;
  }
  return kScalings[0].first;
}

void ReadRopes(JsonFields* fields, const Family& family, ModelSpec* spec, absl::Status* error) {
  if (family.traits.positions != Positions::kLearned) RopeReader(fields, family, *spec, error).Read(spec);
}

void WriteRopes(const ModelSpec& spec, const Family& family, nlohmann::ordered_json* config) {
  if (family.traits.positions == Positions::kLearned) return;
  if (family.traits.positions == Positions::kRopePerKind) {
    const auto of_kind = [&](const RopeSpec& rope) {
      nlohmann::ordered_json json = ScalingJson(spec, rope);
      json["rope_theta"] = rope.theta;
      return json;
    };
    (*config)["rope_parameters"] = {{kFullLayers, of_kind(spec.rope)},
                                    {kWindowedLayers, of_kind(spec.window_rope.value_or(spec.rope))}};
    return;
  }
  // The older form, which transformers 4 reads, too.
  (*config)[family.fields.theta] = spec.rope.theta;
  const double share = spec.rope.dims == 0 ? 1.0 : static_cast<double>(spec.rope.dims) / spec.head_dim;
  if (share != family.defaults.rotary_share && family.fields.rotary_share != nullptr) {
    (*config)[family.fields.rotary_share] = share;
  }
  (*config)["rope_scaling"] = nullptr;
  if (spec.rope.scaling == Scaling::kNone && spec.temperature_beta == 0) return;
  (*config)["rope_scaling"] = ScalingJson(spec, spec.rope);
  if (family.traits.yarn_is_longrope) (*config)[kOriginalContext] = spec.rope.original_context;
}

}  // namespace fastdecode
