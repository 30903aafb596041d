#include "tools/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <string_view>

namespace fastdecode {

namespace {

void SayWhatIsGone(int) {
  constexpr std::string_view kMessage =
      "fastdecode: error: mapped memory is gone: a file, such as a model's safetensors, was truncated while it was "
      "read\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(1);
}

}  // namespace

void PrepareProcess() {
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Takes the lowest number that is free: this one, as those below are taken.
    if (fcntl(standard, F_GETFD) < 0) open("/dev/null", standard == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
  std::signal(SIGBUS, &SayWhatIsGone);
}

}  // namespace fastdecode
