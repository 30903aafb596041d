#include "tools/output.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tools/interrupt.h"

namespace fastdecode {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void ThrowUnwritable(const std::string& context, const std::string& path) {
  throw Error(FD_PERMISSION_DENIED, context + ": " + path + ": cannot be written: " + std::strerror(errno));
}

// Returns when stdout takes PIPE_BUF bytes without waiting, or fails. After a signal nobody is waited for who does not
// read: the program ends.
void AwaitReader() {
  constexpr int kLookMs = 200, kReaderMsMax = 5000;
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  for (;;) {
    const bool ending = InterruptGuard::Signal() != 0;
    const int ready = poll(&out, 1, ending ? kReaderMsMax : kLookMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return;
    if (ready == 0 && ending) InterruptGuard::EndNow("nobody has read stdout for 5 s, and the rest for it is lost");
  }
}

// A file on its way. It goes with the object unless it got its name.
class PartialFile {
 public:
  explicit PartialFile(const std::string& path) {
    std::error_code ignored;
    target_ = fs::canonical(path, ignored);  // a link stays one, to what is new
    if (target_.empty()) target_ = path;
    const fs::file_status status = fs::status(target_, ignored);
    replaces_ = fs::is_regular_file(status);
    in_place_ = fs::exists(status) && !replaces_;
    partial_ = in_place_ ? target_ : fs::path(target_.string() + ".partial-" + std::to_string(getpid()));
    permissions_ = status.permissions();
  }
  ~PartialFile() {
    std::error_code ignored;
    if (!in_place_) fs::remove(partial_, ignored);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const fs::path& path() const { return partial_; }
  bool in_place() const { return in_place_; }
  // False, with errno: it cannot.
  bool TakeName() const {
    std::error_code ignored;
    if (replaces_) fs::permissions(partial_, permissions_, ignored);
    return in_place_ || std::rename(partial_.c_str(), target_.c_str()) == 0;
  }

 private:
  fs::path target_, partial_;
  bool replaces_ = false, in_place_ = false;
  fs::perms permissions_{};
};

}  // namespace

void WriteOut(const std::string& text) {
  bool written = std::fflush(stdout) == 0;  // what others have printed comes first
  for (std::string_view left = text; written && !left.empty();) {
    AwaitReader();
    const ssize_t bytes = write(STDOUT_FILENO, left.data(), std::min<size_t>(left.size(), PIPE_BUF));
    if (bytes > 0) left.remove_prefix(static_cast<size_t>(bytes));
    written = bytes > 0 || (bytes < 0 && (errno == EINTR || errno == EAGAIN));
  }
  if (!written) throw OutputError(FD_UNAVAILABLE, std::string("stdout: cannot be written: ") + std::strerror(errno));
}

void CheckWritable(const std::string& context, const std::string& path) {
  if (access(path.c_str(), F_OK) == 0 && access(path.c_str(), W_OK) != 0) ThrowUnwritable(context, path);
  std::error_code ignored;
  errno = EISDIR;
  if (fs::is_directory(path, ignored)) ThrowUnwritable(context, path);
  const PartialFile file(path);
  if (!file.in_place() && !std::ofstream(file.path())) ThrowUnwritable(context, path);
}

void WriteFile(const std::string& context, const std::string& path, const std::function<void(std::ostream&)>& write) {
  const PartialFile file(path);
  std::ofstream out(file.path());
  if (!out) ThrowUnwritable(context, path);
  write(out);
  out.close();
  if (!out || !file.TakeName()) ThrowUnwritable(context, path);
}

int TerminalColumns() {
  constexpr int kDefault = 100;
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefault;
  return size.ws_col;
}

}  // namespace fastdecode
