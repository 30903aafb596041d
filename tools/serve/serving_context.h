#ifndef FASTDECODE_TOOLS_SERVE_SERVING_CONTEXT_H_
#define FASTDECODE_TOOLS_SERVE_SERVING_CONTEXT_H_

#include <fastdecode/fastdecode.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "tools/serve/admission.h"
#include "tools/serve/http/asio.h"
#include "tools/serve/metrics.h"
#include "tools/serve/openai/answer_request.h"

namespace fastdecode::serve {

class Completion;

// What all requests have in common. Thread: as each member says; the rest is immutable once requests are taken.
struct ServingContext {
  asio::io_context* io = nullptr;
  asio::thread_pool* helpers = nullptr;
  fd_engine* engine = nullptr;
  std::vector<std::string> names;  // of the model; the first is said in answers to requests that name none
  uint64_t created_s = 0;          // since 1970: when it was loaded
  size_t token_bytes_max = 0;      // of the longest token
  RequestLimits limits;
  fd_request defaults;
  Admission* admission = nullptr;        // any thread
  Metrics* metrics = nullptr;            // I/O thread
  std::unordered_set<Completion*> live;  // I/O thread: those whose sequences have not all ended
};

// Throws ApiError if a request names a model that is not this one; returns the name that its answer says.
std::string CheckModelName(const ServingContext& context, const std::string& name);

// The room that the model's context has for a prompt and its answer. Both throw ApiError with the code
// context_length_exceeded. `field`: as the message names the prompt, such as "prompt[3]"; its beginning is the param.

// A text of so many bytes may be a prompt: otherwise it takes a while to find out how many tokens it has.
void CheckTextLength(const ServingContext& context, const std::string& field, size_t bytes);
// A prompt of so many tokens and its answer fit. Sets the max_tokens of a request that gives none to what is left.
void CheckLength(const ServingContext& context, const std::string& field, size_t prompt_tokens, AnswerRequest* request);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_SERVING_CONTEXT_H_
