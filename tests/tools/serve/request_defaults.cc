#include <fastdecode/fastdecode.h>

// The defaults that fastdecode.h documents. An engine's library has this function; tests of what only reads requests
// link none.
extern "C" void fd_request_init(fd_request* request, size_t bytes) {
  *request = {};
  request->struct_size = static_cast<uint32_t>(bytes);
  request->add_special_tokens = 1;
  request->max_tokens = 16;
  request->temperature = 1;
  request->top_p = 1;
  request->repetition_penalty = 1;
  request->logprobs = -1;
  request->prompt_logprobs = -1;
}
