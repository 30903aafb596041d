#ifndef FASTDECODE_ENGINE_MODEL_UNSUPPORTED_MODELS_H_
#define FASTDECODE_ENGINE_MODEL_UNSUPPORTED_MODELS_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace fastdecode {

// What a model of this type would need that is not there, as a clause: "its layers are mixtures of experts: ...". None
// for types that are not known.
std::optional<std::string> WhatModelTypeNeeds(const std::string& model_type);

// Whether a quantization_config is none to transformers, either, since its method is none that they know: they take the
// weights as they are.
bool IsUnknownQuantization(const nlohmann::json& config);

// What a quantization_config says, such as "gptq, 4 bits".
std::string DescribeQuantization(const nlohmann::json& config);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_UNSUPPORTED_MODELS_H_
