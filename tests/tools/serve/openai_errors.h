#ifndef FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_ERRORS_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_ERRORS_H_

#include <functional>
#include <optional>

#include "tools/serve/api_error.h"

namespace fastdecode::serve {

// What `read` throws; nothing if it throws no ApiError.
inline std::optional<ApiError> ErrorOf(const std::function<void()>& read) {
  try {
    read();
  } catch (const ApiError& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_ERRORS_H_
