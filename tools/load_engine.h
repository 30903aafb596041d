#ifndef FASTDECODE_TOOLS_LOAD_ENGINE_H_
#define FASTDECODE_TOOLS_LOAD_ENGINE_H_

#include <fastdecode/fastdecode.hpp>
#include <memory>

namespace fastdecode {

// An engine. A signal meanwhile ends the program at once (EndAtSignals), which says that the model was being loaded.
std::unique_ptr<InferenceEngine> LoadEngine(const EngineOptions& options);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LOAD_ENGINE_H_
