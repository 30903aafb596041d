#include "engine/model/unread_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace fastdecode {
namespace {

// A number by the name that a family has for it, and the value of it that changes nothing.
struct OtherNumber {
  const char* name;
  const char* ConfigFields::*field;
  double neutral;
};
constexpr OtherNumber kOtherNumbers[] = {
    {"sliding_window", &ConfigFields::sliding_window, 0},
    {"partial_rotary_factor", &ConfigFields::rotary_share, 1},
    {"attn_logit_softcapping", &ConfigFields::attention_cap, 0},
    {"final_logit_softcapping", &ConfigFields::logit_cap, 0},
    {"logits_scaling", &ConfigFields::logit_divisor, 1},
    {"logit_scale", &ConfigFields::logit_multiplier, 1},
    {"embedding_multiplier", &ConfigFields::embedding_multiplier, 1},
    {"residual_multiplier", &ConfigFields::residual_multiplier, 1},
    {"attention_multiplier", &ConfigFields::attention_multiplier, 0},
    {"query_pre_attn_scalar", &ConfigFields::attention_scalar, 0},
    {"clip_qkv", &ConfigFields::clip_qkv, 0},
};

}  // namespace

void NoteUnreadFields(const JsonFields& fields, const Family& family, ModelSpec* spec) {
  const auto note = [&](const char* name) {
    spec->notes.push_back(absl::StrCat(fields.file(), ": ", name, " is ", ShowJson(*fields.Find(name)),
                                       ": it does not count in a ", family.model_type, " model, as in transformers"));
  };
  const auto differs = [&](const char* name, const nlohmann::json& from) {
    return fields.Has(name) && *fields.Find(name) != from;
  };
  for (const OtherNumber& one : kOtherNumbers) {
    if (family.fields.*one.field != nullptr || !fields.Has(one.name)) continue;
    if (fields.Find(one.name)->is_number() && differs(one.name, one.neutral)) note(one.name);
  }
  const ConfigFields& names = family.fields;
  if (names.attention_bias == nullptr && differs("attention_bias", spec->attention_bias)) note("attention_bias");
  if (names.mlp_bias == nullptr && differs("mlp_bias", spec->mlp_bias)) note("mlp_bias");
  if (names.head_dim == nullptr && differs("head_dim", spec->head_dim)) note("head_dim");
  if (names.kv_heads == nullptr && differs("num_key_value_heads", spec->kv_heads)) note("num_key_value_heads");
  if (names.use_sliding_window == nullptr && spec->sliding_window > 0 && differs("use_sliding_window", true)) {
    note("use_sliding_window");
  }
  const nlohmann::json* kinds = family.traits.reads_layer_types ? nullptr : fields.Find("layer_types");
  if (kinds != nullptr && kinds->is_array() && std::ranges::find(*kinds, "sliding_attention") != kinds->end()) {
    note("layer_types");
  }
  const bool learned = family.traits.positions == Positions::kLearned;
  for (const char* rope : {"rope_scaling", "rope_parameters"}) {
    if (learned && fields.Has(rope) && IsTruthy(*fields.Find(rope))) note(rope);
  }
}

}  // namespace fastdecode
