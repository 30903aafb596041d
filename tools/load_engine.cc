#include "tools/load_engine.h"

#include "tools/interrupt.h"

namespace fastdecode {

std::unique_ptr<InferenceEngine> LoadEngine(const EngineOptions& options) {
  const Doing loading("the model was being loaded");
  return std::make_unique<InferenceEngine>(options);
}

}  // namespace fastdecode
