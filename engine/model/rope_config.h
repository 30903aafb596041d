#ifndef FASTDECODE_ENGINE_MODEL_ROPE_CONFIG_H_
#define FASTDECODE_ENGINE_MODEL_ROPE_CONFIG_H_

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "engine/model/families.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_spec.h"

namespace fastdecode {

// Reads how a family's config.json has positions rotated, into spec's rope, window_rope and query temperature:
// rope_scaling {"type" or "rope_type", ...} beside rope_theta, or the newer rope_parameters, which holds both, for all
// layers or for each kind of them. REQUIRES: spec has its head_dim and max_context. The first error is kept in `error`.
void ReadRopes(JsonFields* fields, const Family& family, ModelSpec* spec, absl::Status* error);

// The name that rope_type has for it, such as "llama3".
const char* ScalingName(RopeSpec::Scaling scaling);

// The inverse: adds what ReadRopes reads to a config.
void WriteRopes(const ModelSpec& spec, const Family& family, nlohmann::ordered_json* config);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_ROPE_CONFIG_H_
