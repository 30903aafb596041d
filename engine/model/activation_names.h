#ifndef FASTDECODE_ENGINE_MODEL_ACTIVATION_NAMES_H_
#define FASTDECODE_ENGINE_MODEL_ACTIVATION_NAMES_H_

#include <optional>
#include <string>

#include "kernels/activation.h"

namespace fastdecode {

// The activation of a name in config.json, such as "gelu_pytorch_tanh"; none if it is not known.
std::optional<Activation> FindActivation(const std::string& name);
// Names that FindActivation knows, for errors.
std::string ActivationNames();
// A name of it.
const char* ActivationName(Activation activation);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_ACTIVATION_NAMES_H_
