#ifndef FASTDECODE_TESTS_TOOLS_SERVE_REQUEST_DEFAULTS_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_REQUEST_DEFAULTS_H_

#include <fastdecode/fastdecode.h>

// The defaults that fastdecode.h documents, without a struct_size. The engine's own are not linked here.
inline fd_request DocumentedDefaults() {
  fd_request request = {};
  request.add_special_tokens = 1;
  request.max_tokens = 16;
  request.temperature = 1;
  request.top_p = 1;
  request.repetition_penalty = 1;
  request.logprobs = -1;
  request.prompt_logprobs = -1;
  request.n = 1;
  return request;
}

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_REQUEST_DEFAULTS_H_
