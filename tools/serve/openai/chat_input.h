#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_INPUT_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_INPUT_H_

#include <string>

#include "tools/serve/openai/json_reader.h"

namespace fastdecode::serve {

// What a chat's prompt is made of, as fd_chat_input has it. The texts are JSON, and an empty one is none.
struct ChatInput {
  std::string messages;   // a list of objects with a role
  std::string tools;      // a list of objects
  std::string documents;  // a list of objects
  std::string variables;  // an object: chat_template_kwargs, and reasoning_effort
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

// Reads the fields of a body that a chat's prompt is made of, under OpenAI's names and vLLM's. It checks that messages
// have roles, and contents that are text; whatever else is in a message is left to the model's template. Throws
// ApiError. Thread: any.
ChatInput ReadChatInput(const JsonBody& body);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_INPUT_H_
