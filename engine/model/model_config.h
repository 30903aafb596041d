#ifndef FASTDECODE_ENGINE_MODEL_MODEL_CONFIG_H_
#define FASTDECODE_ENGINE_MODEL_MODEL_CONFIG_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/model/safetensors.h"

namespace fastdecode {

// Reads config.json of a Hugging Face model folder, and generation_config.json where there is one (its eos_token_id
// takes the place of config.json's, as when transformers generate; and how tokens are drawn by default). Every wrong or
// absurd field is an error that names file, field and value; what is missing is taken as transformers do, with a note,
// as is every field that does not count beside another one.
absl::StatusOr<ModelSpec> ReadModelSpec(const std::string& model_dir);

// The text of its config.json. The error says why there may be none, if the folder gives that away.
absl::StatusOr<std::string> ReadConfigFile(const std::string& model_dir);

// The same from texts. `generation_json` is none where there is no such file.
absl::StatusOr<ModelSpec> ParseModelSpec(std::string_view config_json, std::optional<std::string_view> generation_json,
                                         const std::string& model_dir);

// The inverse: the text of a config.json from which ReadModelSpec gives `spec` again. `weights` is what it says about
// the tensors. REQUIRES: spec.family is in the table of families.
std::string WriteModelConfig(const ModelSpec& spec, DType weights);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_MODEL_CONFIG_H_
