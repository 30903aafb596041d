#ifndef FASTDECODE_TOOLS_SERVE_ANSWERS_H_
#define FASTDECODE_TOOLS_SERVE_ANSWERS_H_

#include <exception>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/serve/api_error.h"
#include "tools/serve/http/exchange.h"

namespace fastdecode::serve {

// What the access log says of an error: its code and its field. The message may quote what the client wrote.
std::string ErrorName(const ApiError& error);

// Answers with an error: its status, OpenAI's error object, and Retry-After.
void SendError(Exchange* exchange, const ApiError& error);
// What is answered where a helper cannot go on: there is no memory, or something that was not foreseen.
ApiError HelperError(const std::exception& error);

// Answers with one JSON object.
void SendJson(Exchange* exchange, int status, const nlohmann::ordered_json& body);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_ANSWERS_H_
