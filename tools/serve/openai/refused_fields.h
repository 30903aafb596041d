#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_REFUSED_FIELDS_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_REFUSED_FIELDS_H_

#include "nlohmann/json.hpp"

namespace fastdecode::serve {

// Throws an ApiError if a body of POST /v1/completions has a field that would change the answer and is not served, but
// for values that ask for nothing. These are fields of OpenAI, vLLM, SGLang, llama-server and
// text-generation-inference. Thread: any.
void RefuseUnservedFields(const nlohmann::json& body);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_REFUSED_FIELDS_H_
