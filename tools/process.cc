#include "tools/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace fastdecode {

namespace {

// Why memory is gone, by the si_code of SIGBUS.
constexpr std::string_view MessageOf(int code) {
  switch (code) {
    case BUS_MCEERR_AR:
    case BUS_MCEERR_AO:
      return "fastdecode: error: memory failed: a hardware error, see the kernel's log (dmesg)\n";
    case BUS_ADRERR:
      return "fastdecode: error: mapped memory is gone: a file, such as a model's safetensors, was truncated while it "
             "was read, or no reserved huge page was left\n";
    default:
      return "fastdecode: error: ended by SIGBUS\n";
  }
}

// Calls only what a signal handler may.
void SayWhatIsGone(int, siginfo_t* info, void*) {
  const std::string_view message = MessageOf(info->si_code);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message.data(), message.size());
  _exit(1);
}

}  // namespace

}  // namespace fastdecode

// What libnuma says, from when it is loaded on. That the kernel refuses sched_getaffinity is said in our own log, with
// what follows from it.
extern "C" __attribute__((visibility("default"))) void numa_warn(int, char* format, ...) {
  if (std::strstr(format, "sched_getaffinity") != nullptr) return;
  va_list values;
  va_start(values, format);
  std::fputs("fastdecode: libnuma: ", stderr);
  std::vfprintf(stderr, format, values);
  std::fputc('\n', stderr);
  va_end(values);
}

namespace fastdecode {

void PrepareProcess() {
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Takes the lowest number that is free: this one, as those below are taken.
    if (fcntl(standard, F_GETFD) < 0) open("/dev/null", standard == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
  struct sigaction action = {};
  action.sa_sigaction = &SayWhatIsGone;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace fastdecode
