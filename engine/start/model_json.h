#ifndef FASTDECODE_ENGINE_START_MODEL_JSON_H_
#define FASTDECODE_ENGINE_START_MODEL_JSON_H_

#include <string>

#include "engine/model/model_spec.h"
#include "engine/text/tokenizer.h"

namespace fastdecode {

// What fd_model_describe says. `model`: the folder as the option has it. `max_context`: the engine's. `tokenizer`: null
// if there is none.
std::string ModelToJson(const std::string& model, const ModelSpec& spec, int max_context, const Tokenizer* tokenizer);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_MODEL_JSON_H_
