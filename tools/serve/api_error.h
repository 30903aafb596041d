#ifndef FASTDECODE_TOOLS_SERVE_API_ERROR_H_
#define FASTDECODE_TOOLS_SERVE_API_ERROR_H_

#include <string>
#include <string_view>

namespace fastdecode::serve {

// Why a request is not answered: the HTTP status, and what OpenAI's error object says. Thrown by whatever reads
// requests.
struct ApiError {
  int status = 400;
  std::string message{};  // for people: names the field and its value, and says what to do
  std::string type = "invalid_request_error";
  std::string param{};    // the field; empty: none
  std::string code{};     // for programs, such as context_length_exceeded; empty: none
  int retry_after_s = 0;  // the header Retry-After; 0: none
};

// A field that cannot be served: status 400.
ApiError BadField(std::string_view param, std::string message);

// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string ErrorJson(const ApiError& error);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_API_ERROR_H_
