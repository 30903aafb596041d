// What a model's folder holds, without an engine.
#include <fastdecode/fastdecode.h>

#include <exception>
#include <new>
#include <string>

#include "absl/status/statusor.h"
#include "engine/api/handles.h"
#include "engine/api/status.h"
#include "engine/start/inspect_model.h"

extern "C" fd_status* fd_model_inspect(const char* model, uint64_t memory_bytes, char** json) {
  *json = nullptr;
  try {
    const absl::StatusOr<std::string> text = fastdecode::InspectModel(model == nullptr ? "" : model, memory_bytes);
    if (!text.ok()) return fastdecode::ToStatus(text.status());
    *json = fastdecode::CopyString(*text);
    if (*json != nullptr) return nullptr;
  } catch (const std::bad_alloc&) {
  } catch (const std::exception& error) {
    return new fd_status{FD_INTERNAL, std::string("model: ") + error.what()};
  }
  return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory while a model was inspected"};
}
