#include "tools/serve/serving_context.h"

#include <algorithm>

#include "tools/serve/api_error.h"

namespace fastdecode::serve {

namespace {

// Bytes of a prompt that are tokenised whatever the model's context is.
constexpr size_t kLongText = 64 << 10;

std::string ListOf(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "'" : ", '") + name + "'";
  return list;
}

ApiError TooLong(const std::string& param, std::string message) {
  ApiError error = BadField(param, std::move(message));
  error.code = "context_length_exceeded";
  return error;
}

std::string ParamOf(const std::string& field) { return field.substr(0, field.find('[')); }

}  // namespace

std::string CheckModelName(const ServingContext& context, const std::string& name) {
  if (name.empty()) return context.names.front();
  if (std::find(context.names.begin(), context.names.end(), name) != context.names.end()) return name;
  throw ApiError{.status = 404,
                 .message = "model: '" + name + "' is not served here; use " + ListOf(context.names),
                 .param = "model",
                 .code = "model_not_found"};
}

void CheckTextLength(const ServingContext& context, const std::string& field, size_t bytes) {
  const auto room = static_cast<uint64_t>(fd_max_context(context.engine));
  const size_t longest = context.token_bytes_max;
  if (longest == 0 || bytes <= std::max(kLongText, room * longest)) return;
  throw TooLong(ParamOf(field), field + ": " + std::to_string(bytes) + " bytes are at least " +
                                    std::to_string(bytes / longest) + " tokens, and the model's context has " +
                                    std::to_string(room) + "; shorten the prompt");
}

void CheckLength(const ServingContext& context, const std::string& field, size_t prompt_tokens,
                 AnswerRequest* request) {
  const auto room = static_cast<uint64_t>(fd_max_context(context.engine));
  const std::string lengths = field + ": " + std::to_string(prompt_tokens) + " tokens";
  const std::string context_text = " in the model's context of " + std::to_string(room) + " tokens; shorten the prompt";
  if (prompt_tokens >= room) throw TooLong(ParamOf(field), lengths + " leave no room" + context_text);
  fd_request& generate = request->generate.fields;
  const uint64_t left = room - prompt_tokens;
  const char* name = request->length_field;
  if (name == nullptr) {
    name = "min_tokens";
    generate.max_tokens = static_cast<uint32_t>(left);
  }
  const uint64_t answer = request->length_field == nullptr ? generate.min_tokens : generate.max_tokens;
  if (answer <= left) return;
  throw TooLong(name, lengths + " and " + name + " " + std::to_string(answer) + " are too many" + context_text +
                          " or lower " + name);
}

}  // namespace fastdecode::serve
