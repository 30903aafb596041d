#ifndef FASTDECODE_ENGINE_START_INSPECT_MODEL_H_
#define FASTDECODE_ENGINE_START_INSPECT_MODEL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace fastdecode {

// What a model's folder holds, as JSON whose fields docs/MODELS.md names: the architecture, each kind of layer once,
// parameters, bytes of weights and of KV, the tokenizer, the chat template, and what is not supported. Reads
// config.json, the tokenizer's files and the headers of the safetensors, no weights. A model that no engine would load
// is described, too, as far as its files say it. memory_bytes: what fits into so much; 0: nobody asks.
// Errors: there is no folder, or no config.json that is JSON.
absl::StatusOr<std::string> InspectModel(const std::string& model_dir, uint64_t memory_bytes);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_INSPECT_MODEL_H_
