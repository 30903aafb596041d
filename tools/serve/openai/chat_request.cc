#include "tools/serve/openai/chat_request.h"

#include <optional>
#include <string>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/body_fields.h"
#include "tools/serve/openai/refused_fields.h"

namespace fastdecode::serve {
namespace {

using nlohmann::json;

// Nobody looks for calls in an answer, so a model must not be told that it may make them.
void CheckTools(const BodyFields& fields, bool has_tools) {
  const json* const choice = fields.Find("tool_choice");
  if (choice != nullptr && *choice == "none") return;
  if (choice != nullptr && *choice != "auto") {
    throw BadField("tool_choice", "tool_choice: " + ShowValue(*choice) +
                                      " is not supported, as calls of tools are not built yet; give \"none\", or leave "
                                      "this field and tools out");
  }
  if (!has_tools) return;
  throw BadField("tools",
                 "tools: calls of tools are not built yet; send \"tool_choice\": \"none\" to have tools in the prompt "
                 "and no calls in the answer, or leave this field out");
}

void ReadChatLengths(const BodyFields& fields, ChatRequest* request) {
  request->length_field = nullptr;
  for (const char* const name : {"max_completion_tokens", "max_tokens"}) {
    const std::optional<int64_t> tokens =
        fields.Integer(name, 1, kUint32Max, "; leave it out for an answer up to the end of the context");
    if (!tokens) continue;
    request->length_field = name;
    request->generate.fields.max_tokens = static_cast<uint32_t>(*tokens);
    break;
  }
  ReadMinTokens(fields, request);
}

void ReadChatLogprobs(const BodyFields& fields, fd_request* request) {
  const bool logprobs = fields.Bool("logprobs", false);
  const std::optional<int64_t> top = fields.Integer("top_logprobs", 0, kLogprobsMax);
  request->logprobs = logprobs ? static_cast<int32_t>(top.value_or(0)) : -1;
  request->prompt_logprobs = -1;
  if (logprobs || top.value_or(0) == 0) return;
  throw BadField("top_logprobs", "top_logprobs: " + std::to_string(*top) +
                                     " goes with \"logprobs\": true alone; give both, or neither");
}

}  // namespace

ChatRequest ReadChatRequest(const JsonBody& body, const RequestLimits& limits, const fd_request& defaults,
                            uint64_t random_seed) {
  RefuseUnservedFields(Endpoint::kChatCompletions, body.object);
  const BodyFields fields(body.object);
  ChatRequest request;
  request.input = ReadChatInput(body);
  CheckTools(fields, !request.input.tools.empty());
  ReadAnswerFields(fields, limits, defaults, random_seed, &request);
  request.include_reasoning = fields.Bool("include_reasoning", true);
  ReadChatLengths(fields, &request);
  fd_request& generate = request.generate.fields;
  ReadChatLogprobs(fields, &generate);
  generate.add_special_tokens = fields.Bool("add_special_tokens", false) ? 1 : 0;
  return request;
}

}  // namespace fastdecode::serve
