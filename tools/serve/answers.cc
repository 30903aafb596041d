#include "tools/serve/answers.h"

#include <new>

namespace fastdecode::serve {

std::string ErrorName(const ApiError& error) {
  const std::string& name = error.code.empty() ? error.type : error.code;
  return error.param.empty() ? name : name + ": " + error.param;
}

void SendError(Exchange* exchange, const ApiError& error) {
  if (error.retry_after_s > 0) exchange->headers.push_back({"Retry-After", std::to_string(error.retry_after_s)});
  exchange->record.error = ErrorName(error);
  exchange->Reply(error.status, "application/json", ErrorJson(error));
}

ApiError HelperError(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) {
    return {.status = 500, .message = std::string("the server failed: ") + error.what(), .type = "server_error"};
  }
  return {.status = 503,
          .message = "there is no memory for one more request; try again later",
          .type = "overloaded_error",
          .code = "out_of_memory",
          .retry_after_s = 5};
}

void SendJson(Exchange* exchange, int status, const nlohmann::ordered_json& body) {
  exchange->Reply(status, "application/json",
                  body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace fastdecode::serve
