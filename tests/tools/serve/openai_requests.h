#ifndef FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_REQUESTS_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_REQUESTS_H_

#include <string>

#include "gtest/gtest.h"
#include "tests/tools/serve/openai_errors.h"
#include "tools/serve/openai/completion_request.h"
#include "tools/serve/openai/json_reader.h"

namespace fastdecode::serve {

inline constexpr uint64_t kRandomSeed = 0x1234567890abcdef;

inline fd_request EngineDefaults() {
  fd_request defaults;
  fd_request_init(&defaults, sizeof(defaults));
  return defaults;
}

inline CompletionRequest ReadCompletion(const std::string& body, const fd_request& defaults = EngineDefaults()) {
  return ReadCompletionRequest(ReadJsonObject(body), RequestLimits{}, defaults, kRandomSeed);
}

// A request for the completion of "x" with more fields, such as R"("n":2)".
inline CompletionRequest ReadWith(const std::string& fields, const fd_request& defaults = EngineDefaults()) {
  return ReadCompletion(R"({"prompt":"x",)" + fields + "}", defaults);
}

// Why a body is refused: "param|message". The message must begin with the field's name.
inline std::string RefusalOfBody(const std::string& body) {
  const std::optional<ApiError> error = ErrorOf([&] { ReadCompletion(body); });
  if (!error) return "it was accepted: " + body;
  EXPECT_EQ(error->status, 400) << body;
  EXPECT_EQ(error->type, "invalid_request_error") << body;
  EXPECT_TRUE(error->message.starts_with(error->param)) << error->message;
  EXPECT_LT(error->message.size(), 300u) << error->message;
  return error->param + "|" + error->message;
}
inline std::string RefusalWith(const std::string& fields) { return RefusalOfBody(R"({"prompt":"x",)" + fields + "}"); }

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_REQUESTS_H_
