#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_TOKENIZE_REQUEST_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_TOKENIZE_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/serve/openai/chat_input.h"
#include "tools/serve/openai/json_reader.h"

namespace fastdecode::serve {

// POST /tokenize: a text, or a chat.
struct TokenizeRequest {
  std::string model;  // empty: not named
  std::string prompt;
  std::optional<ChatInput> chat;   // used instead of `prompt`
  bool add_special_tokens = true;  // absent, it is false for a chat, whose template has them
  bool return_token_strs = false;
};
TokenizeRequest ReadTokenizeRequest(const JsonBody& body);

// POST /detokenize.
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};
DetokenizeRequest ReadDetokenizeRequest(const nlohmann::json& body);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_TOKENIZE_REQUEST_H_
