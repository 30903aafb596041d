#include "tools/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace fastdecode {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void ThrowUnwritable(const std::string& context, const std::string& path) {
  throw Error(FD_PERMISSION_DENIED, context + ": " + path + ": cannot be written: " + std::strerror(errno));
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
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  throw OutputError(FD_UNAVAILABLE, std::string("stdout: cannot be written: ") + std::strerror(errno));
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
