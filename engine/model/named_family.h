#ifndef FASTDECODE_ENGINE_MODEL_NAMED_FAMILY_H_
#define FASTDECODE_ENGINE_MODEL_NAMED_FAMILY_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/families.h"
#include "engine/model/json_fields.h"

namespace fastdecode {

// What is named by config.json: a family, and where in the file its fields are.
struct NamedFamily {
  const Family* family = nullptr;
  const nlohmann::json* text_config = nullptr;  // of a wrapper; null: the fields are at the top
  std::vector<std::string> notes;
};

// The family that model_type names, as transformers choose it: what architectures say does not count, unless it is a
// model that makes no text. Null with an error kept if there is none, or if it is quantised.
NamedFamily ReadFamily(JsonFields* fields, absl::Status* error);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_NAMED_FAMILY_H_
