#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_REFUSED_FIELDS_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_REFUSED_FIELDS_H_

#include "nlohmann/json.hpp"

namespace fastdecode::serve {

enum class Endpoint { kCompletions, kChatCompletions };

// Throws an ApiError if a body of this endpoint has a field that would change the answer and is not served, but for
// values that ask for nothing. These are fields of OpenAI, vLLM, SGLang, llama-server and text-generation-inference.
// Thread: any.
void RefuseUnservedFields(Endpoint endpoint, const nlohmann::json& body);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_REFUSED_FIELDS_H_
