#include "tools/serve/openai/tokenize_request.h"

#include <utility>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/answer_request.h"
#include "tools/serve/openai/body_fields.h"

namespace fastdecode::serve {

TokenizeRequest ReadTokenizeRequest(const JsonBody& body) {
  const BodyFields fields(body.object);
  TokenizeRequest request;
  request.model = ReadModel(fields);
  std::optional<std::string> prompt = fields.String("prompt");
  const bool is_chat = fields.Find("messages") != nullptr;
  if (prompt && is_chat) {
    throw BadField("messages", "messages: there is a prompt, too; give one of the two");
  }
  if (is_chat) {
    request.chat = ReadChatInput(body);
  } else if (prompt) {
    request.prompt = *std::move(prompt);
  } else if (fields.Find("content") != nullptr) {
    throw BadField("content", "content: it is called prompt here");
  } else {
    throw BadField("prompt", "prompt: it is missing; give the text as a string, or a chat as messages");
  }
  request.add_special_tokens = fields.Bool("add_special_tokens", !is_chat);
  request.return_token_strs = fields.Bool("return_token_strs", false);
  return request;
}

DetokenizeRequest ReadDetokenizeRequest(const nlohmann::json& body) {
  const BodyFields fields(body);
  DetokenizeRequest request;
  request.model = ReadModel(fields);
  if (fields.Find("tokens") == nullptr) throw BadField("tokens", "tokens: they are missing; give a list of token ids");
  request.tokens = fields.TokenIds("tokens");
  return request;
}

}  // namespace fastdecode::serve
