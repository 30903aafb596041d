#ifndef FASTDECODE_ENGINE_SCHEDULE_BUILD_REQUEST_H_
#define FASTDECODE_ENGINE_SCHEDULE_BUILD_REQUEST_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/fastdecode.h"
#include "engine/model/model_spec.h"
#include "engine/model/tokenizer.h"
#include "engine/schedule/request.h"

namespace fastdecode {

// What a request is checked against.
struct RequestContext {
  const ModelSpec* spec = nullptr;
  const Tokenizer* tokenizer = nullptr;               // null: token ids only
  const std::string* tokenizer_missing_reason = nullptr;
  int max_context = 0;
  std::pmr::memory_resource* sampling_memory = std::pmr::get_default_resource();  // SPart::sampling_memory
};

// What is wrong with a request whatever the model is: pointers, lengths, sampling, stop strings. Errors name field and
// value.
absl::Status CheckRequest(const fd_request& given);

// Checks every field, tokenises the prompt, and takes all the memory that the request will need. Errors name field and
// value; ResourceExhausted: no sampling memory. Runs on the caller's thread.
absl::StatusOr<std::unique_ptr<Request>> BuildRequest(const RequestContext& context, const fd_request& given);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SCHEDULE_BUILD_REQUEST_H_
