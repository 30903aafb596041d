#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_REQUEST_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/serve/openai/answer_request.h"

namespace fastdecode::serve {

struct Prompt {
  std::string text;
  std::vector<int32_t> ids;
  bool is_ids = false;  // which of the two it is
};

// What POST /v1/completions asks for, under OpenAI's names and those that vLLM added. With echo and logprobs,
// fields.prompt_logprobs is set; with echo, max_tokens may be 0.
struct CompletionRequest : AnswerRequest {
  std::vector<Prompt> prompts;
  bool echo = false;
};

// Reads a body of POST /v1/completions. `defaults` and `random_seed` are those of ReadAnswerFields. Null is the same as
// absent; integers may be written as 1.0; unknown fields are ignored; a field that would change the answer and is not
// served is refused. Throws ApiError that names the field. What depends on the model (length, ids below the vocabulary)
// is left to whoever submits. Thread: any.
CompletionRequest ReadCompletionRequest(const nlohmann::json& body, const RequestLimits& limits,
                                        const fd_request& defaults, uint64_t random_seed);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_REQUEST_H_
