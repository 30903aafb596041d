#include "engine/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace fastdecode {
namespace {

constexpr double kThetaMax = 1e12;
constexpr double kRopeFactorMin = 1e-3;
constexpr double kRopeFactorMax = 1e6;
constexpr char kScaling[] = "rope_scaling";
constexpr char kParameters[] = "rope_parameters";
constexpr int64_t kOriginalContextMax = 1 << 24;
constexpr char kRopeTypes[] = "\"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or \"longrope\"";
constexpr char kOriginalContext[] = "original_max_position_embeddings";
constexpr char kBeta[] = "llama_4_scaling_beta";
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
  RopeReader(JsonFields* fields, const Family& family, ModelSpec* spec, absl::Status* error)
      : fields_(fields), family_(family), spec_(spec), error_(error) {}

  // Follows transformers' convert_rope_params_to_dict: rope_scaling takes the place of rope_parameters unless it is
  // empty, and what an object says of theta and the rotated share counts more than what stands beside it.
  void Read() {
    const nlohmann::json* scaling = ObjectOf(kScaling);
    const nlohmann::json* parameters = ObjectOf(kParameters);
    if (scaling != nullptr && scaling->empty()) scaling = nullptr;
    RopeSpec plain;
    plain.theta = NumberOf(family_.fields.theta, 1.0, kThetaMax, family_.defaults.theta);
    nlohmann::json usual;
    if (parameters == nullptr && family_.traits.default_rope != nullptr) {
      usual = nlohmann::json::parse(family_.traits.default_rope);
      parameters = &usual;
    }
    const char* name = scaling != nullptr ? kScaling : kParameters;
    plain.dims = ReadDims(name, scaling != nullptr ? scaling : parameters);
    if (family_.traits.positions == Positions::kRopePerKind) return ReadPerKind(scaling, parameters, plain);
    if (scaling != nullptr && parameters != nullptr && parameters != &usual && *scaling != *parameters) {
      Note(absl::StrCat(kParameters, " does not count beside ", kScaling, ", as in transformers"));
    }
    const nlohmann::json none = nlohmann::json::object();
    const nlohmann::json& object = scaling != nullptr ? *scaling : parameters != nullptr ? *parameters : none;
    spec_->rope = ReadObject(object, absl::StrCat(name, "."), family_.fields.theta, plain);
  }

 private:
  double NumberOf(const char* name, double min, double max, double fallback) const {
    return name == nullptr ? fallback : fields_->NumberOr(name, min, max, fallback);
  }

  void Note(const std::string& text) const { spec_->notes.push_back(absl::StrCat(fields_->file(), ": ", text)); }

  // Null if there is none. What Python takes for false stands for none in rope_scaling.
  const nlohmann::json* ObjectOf(const char* name) const {
    const nlohmann::json* object = fields_->Find(name);
    if (object == nullptr || object->is_object()) return object;
    if (name == kScaling && !IsTruthy(*object)) return nullptr;
    fields_->Fail(name, "an object");
    return nullptr;
  }

  // A rope for each kind of layer. In rope_parameters each has an object of its own; an older rope_scaling is put over
  // that of layers without a window.
  void ReadPerKind(const nlohmann::json* scaling, const nlohmann::json* parameters, const RopeSpec& plain) {
    const nlohmann::json none = nlohmann::json::object();
    const nlohmann::json& kinds = parameters == nullptr ? none : *parameters;
    if (!kinds.empty() && !kinds.contains(kFullLayers) && !kinds.contains(kWindowedLayers)) {
      Note(absl::StrCat(kParameters, " does not count, as in transformers: it has neither ", kFullLayers, " nor ",
                        kWindowedLayers));
    }
    RopeSpec windowed = plain;
    windowed.theta = NumberOf(family_.fields.local_theta, 1.0, kThetaMax, family_.defaults.local_theta);
    nlohmann::json full = KindOf(kinds, kFullLayers);
    std::string prefix = absl::StrCat(kParameters, ".", kFullLayers, ".");
    if (scaling != nullptr) {
      full.update(*scaling);
      prefix = absl::StrCat(kScaling, ".");
    }
    spec_->rope = ReadObject(full, prefix, family_.fields.theta, plain);
    windowed = ReadObject(KindOf(kinds, kWindowedLayers), absl::StrCat(kParameters, ".", kWindowedLayers, "."),
                          family_.fields.local_theta, windowed);
    if (windowed != spec_->rope) spec_->window_rope = windowed;
  }

  // The object of a kind; an empty one if there is none.
  nlohmann::json KindOf(const nlohmann::json& kinds, const char* kind) const {
    const auto of_kind = kinds.find(kind);
    if (of_kind == kinds.end() || of_kind->is_null()) return nlohmann::json::object();
    if (of_kind->is_object()) return *of_kind;
    JsonFields(kinds, fields_->file(), absl::StrCat(kParameters, "."), error_).Fail(kind, "an object");
    return nlohmann::json::object();
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
    const int dims = static_cast<int>(spec_->head_dim * share);
    if (dims == spec_->head_dim) return 0;
    if (dims >= 2 && dims % 2 == 0) return dims;
    fields.Fail(name, absl::StrCat("a share of the head size, ", spec_->head_dim,
                                   ", that is an even number from 2 (it is ", share, " where there is no such field)"));
    return 0;
  }

  // `theta_name`: the field beside the object that theta may stand in, or null.
  RopeSpec ReadObject(const nlohmann::json& object, const std::string& prefix, const char* theta_name,
                      const RopeSpec& plain) {
    JsonFields scaling(object, fields_->file(), prefix, error_);
    RopeSpec rope = plain;
    rope.theta = scaling.NumberOr("rope_theta", 1.0, kThetaMax, rope.theta);
    // Null is no way to leave it out.
    if (scaling.IsNull("rope_theta")) scaling.Fail("rope_theta", "a number");
    if (!scaling.Has("rope_theta") && theta_name != nullptr && fields_->IsNull(theta_name)) {
      fields_->Fail(theta_name, "a number");
    }
    NoteLoser(prefix, scaling, "rope_theta", theta_name);
    NoteLoser(prefix, scaling, "partial_rotary_factor", family_.fields.rotary_share);
    const char* type_name = scaling.Has("rope_type") ? "rope_type" : "type";
    if (scaling.Has("rope_type") && scaling.Has("type") && object.at("type") != object.at("rope_type")) {
      Note(absl::StrCat(prefix, "type does not count beside ", prefix, "rope_type, as in transformers"));
    }
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
        CheckUnscaled(object, prefix, &scaling);
        break;
      case Scaling::kLinear:
      case Scaling::kDynamic:
        rope.factor = scaling.Number("factor", kRopeFactorMin, kRopeFactorMax);
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
      spec_->temperature_beta = scaling.NumberOr(kBeta, 0.0, 100.0, 0.0);
      spec_->temperature_context = OriginalContext(&scaling);
    }
    return rope;
  }

  // Says that the field beside a rope's object does not count, where it says something else.
  void NoteLoser(const std::string& prefix, const JsonFields& inside, const char* name, const char* beside) const {
    if (beside == nullptr || !inside.Has(name) || !fields_->Has(beside)) return;
    if (*inside.Find(name) == *fields_->Find(beside)) return;
    Note(absl::StrCat(beside, " (", ShowJson(*fields_->Find(beside)), ") does not count beside ", prefix, name, " (",
                      ShowJson(*inside.Find(name)), "), as in transformers"));
  }

  // Without a type, which is "default" then, or with that one, nothing scales, whatever else the object has.
  void CheckUnscaled(const nlohmann::json& object, const std::string& prefix, JsonFields* rope) const {
    constexpr std::string_view kHarmless[] = {"type", "rope_type", "rope_theta", "partial_rotary_factor"};
    std::string others;
    for (const auto& [key, value] : object.items()) {
      if (value.is_object()) rope->Fail(key.c_str(), "no object (this family has one rope for all layers)");
      const bool is_one = key == "factor" && value == 1;
      if (value.is_null() || is_one || std::ranges::find(kHarmless, key) != std::end(kHarmless)) continue;
      if (family_.traits.position_scales_queries && (key == kBeta || key == kOriginalContext)) continue;
      absl::StrAppend(&others, others.empty() ? "" : ", ", ShowText(key));
    }
    if (others.empty()) return;
    Note(absl::StrCat(prefix, "rope_type ",
                      rope->Has("rope_type") || rope->Has("type") ? "is \"default\"" : "is missing",
                      ": positions are not scaled, as in transformers; ", others,
                      others.find(',') == std::string::npos ? " does" : " do", " not count"));
  }

  // The field beside the object counts more than the one in it.
  int64_t OriginalContext(JsonFields* scaling) const {
    if (fields_->Has(kOriginalContext)) return fields_->Integer(kOriginalContext, 1, kOriginalContextMax);
    if (family_.defaults.original_context != 0) return family_.defaults.original_context;
    return scaling->IntegerOr(kOriginalContext, 1, kOriginalContextMax, spec_->max_context);
  }

  // How many times longer the context is than the original one.
  double FactorOrRatio(JsonFields* scaling, int64_t original) const {
    const double ratio = static_cast<double>(spec_->max_context) / static_cast<double>(original);
    return scaling->NumberOr("factor", kRopeFactorMin, kRopeFactorMax, ratio);
  }

  void ReadLlama3(JsonFields* scaling, RopeSpec* rope) const {
    rope->factor = scaling->Number("factor", kRopeFactorMin, kRopeFactorMax);
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
    const int dims = rope->dims == 0 ? spec_->head_dim : rope->dims;
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
  ModelSpec* const spec_;
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
    json[kBeta] = spec.temperature_beta;
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
  if (family.traits.positions != Positions::kLearned) RopeReader(fields, family, spec, error).Read();
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
