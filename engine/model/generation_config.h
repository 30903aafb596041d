#ifndef FASTDECODE_ENGINE_MODEL_GENERATION_CONFIG_H_
#define FASTDECODE_ENGINE_MODEL_GENERATION_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_spec.h"

namespace fastdecode {

// The token ids that a field has: one, a list of them, or none. What is no token of the model is left out, with a note:
// transformers write the ids of a class whatever the vocabulary is, and old exports -1.
std::vector<int> ReadTokenIds(JsonFields* fields, const char* name, ModelSpec* spec);

// Reads generation_config.json, whose text or error `file` is, into spec's eos_token_ids and sampling. A file that is
// not there changes nothing; one that cannot be read, and a value of sampling that is none, does not count, with a
// note. Only a wrong eos_token_id is an error, since without it nothing might end.
absl::Status ReadGenerationConfig(const absl::StatusOr<std::string>& file, const std::string& path, ModelSpec* spec);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_GENERATION_CONFIG_H_
