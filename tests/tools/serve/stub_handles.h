#ifndef FASTDECODE_TESTS_TOOLS_SERVE_STUB_HANDLES_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_STUB_HANDLES_H_

#include <fastdecode/fastdecode.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/tools/serve/stub_engine.h"

// What stands behind the handles of the C interface here.

struct fd_status {
  fd_code code;
  std::string message;
};

struct fd_engine {
  std::unique_ptr<fastdecode::stub::StubEngine> engine;
};

namespace fastdecode::stub {

inline fd_status* Invalid(std::string message) { return new fd_status{FD_INVALID_ARGUMENT, std::move(message)}; }

}  // namespace fastdecode::stub

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_STUB_HANDLES_H_
