#include "tools/serve/api_error.h"

#include <utility>

#include "tools/serve/openai/json_text.h"

namespace fastdecode::serve {
namespace {

void AppendStringOrNull(std::string_view text, std::string* out) {
  if (text.empty()) {
    out->append("null");
  } else {
    AppendJsonString(text, out);
  }
}

}  // namespace

ApiError BadField(std::string_view param, std::string message) {
  ApiError error;
  error.message = std::move(message);
  error.param = param;
  return error;
}

std::string ErrorJson(const ApiError& error) {
  std::string json = R"({"error":{"message":)";
  AppendJsonString(error.message, &json);
  json += R"(,"type":)";
  AppendJsonString(error.type, &json);
  json += R"(,"param":)";
  AppendStringOrNull(error.param, &json);
  json += R"(,"code":)";
  AppendStringOrNull(error.code, &json);
  json += "}}";
  return json;
}

}  // namespace fastdecode::serve
