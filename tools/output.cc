#include "tools/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/fastdecode.hpp"

namespace fastdecode {

void WriteOut(const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  throw Error(FD_UNAVAILABLE, std::string("stdout: cannot be written: ") + std::strerror(errno));
}

}  // namespace fastdecode
