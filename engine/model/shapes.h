#ifndef FASTDECODE_ENGINE_MODEL_SHAPES_H_
#define FASTDECODE_ENGINE_MODEL_SHAPES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"

namespace fastdecode {

// The spec of a well-known model ("llama-3-8b", ...), as its published config.json has it, or of "tiny-random", two
// small layers for tests. The error names the known ones.
absl::StatusOr<ModelSpec> FindShape(const std::string& name);

std::vector<std::string> ShapeNames();
// Gives a model another number of layers, of the same pattern of kinds.
void SetLayers(int layers, ModelSpec* spec);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_SHAPES_H_
