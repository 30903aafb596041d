#ifndef FASTDECODE_ENGINE_API_READ_REQUEST_H_
#define FASTDECODE_ENGINE_API_READ_REQUEST_H_

#include <fastdecode/fastdecode.h>

#include <cstddef>
#include <vector>

#include "engine/request/build_request.h"

namespace fastdecode {

// A request as it was given: `fields` point to arrays of the caller, and to the copies of those whose elements differ
// inside.
struct GivenRequest {
  RequestFields fields;
  std::vector<LogitBias> biases;
  std::vector<RequestFields::Part> parts;
};

// What a field is that a caller's struct does not have.
fd_request DefaultRequest();

// Reads structs of callers who may know an older or newer header. The status, null if nothing is wrong, names struct or
// field; the caller destroys it. Throws std::bad_alloc.
fd_status* ReadRequest(const fd_request* given, GivenRequest* out);
// An array of parts, whose size the first one says; null has none.
fd_status* ReadParts(const fd_prompt_part* given, size_t count, std::vector<RequestFields::Part>* out);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_API_READ_REQUEST_H_
