#include "tools/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

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

int TerminalColumns() {
  constexpr int kDefault = 100;
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefault;
  return size.ws_col;
}

}  // namespace fastdecode
