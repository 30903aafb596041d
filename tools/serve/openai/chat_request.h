#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_REQUEST_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_REQUEST_H_

#include <cstdint>

#include "tools/serve/openai/answer_request.h"
#include "tools/serve/openai/chat_input.h"
#include "tools/serve/openai/json_reader.h"

namespace fastdecode::serve {

// What POST /v1/chat/completions asks for, under OpenAI's names and those that vLLM added.
struct ChatRequest : AnswerRequest {
  ChatInput input;
  bool include_reasoning = true;  // false: the answer does not say it
};

// Reads a body of POST /v1/chat/completions, as ReadCompletionRequest does one of its endpoint. max_completion_tokens
// counts before max_tokens. Tools are for the template alone, so a request that has some says "tool_choice": "none".
ChatRequest ReadChatRequest(const JsonBody& body, const RequestLimits& limits, const fd_request& defaults,
                            uint64_t random_seed);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_REQUEST_H_
