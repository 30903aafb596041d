#include "tools/serve/access_log.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fastdecode/fastdecode.hpp>
#include <nlohmann/json.hpp>
#include <utility>

namespace fastdecode::serve {

namespace {

constexpr size_t kBehindBytesMax = 4 << 20;
constexpr size_t kTextBytesMax = 200;
constexpr size_t kErrorBytesMax = 500;
constexpr std::chrono::seconds kLastWrites(1);
constexpr int kLookForTheEndMs = 100;

std::string UtcTime(uint64_t time_ns) {
  const time_t seconds = static_cast<time_t>(time_ns / 1'000'000'000);
  struct tm utc = {};
  gmtime_r(&seconds, &utc);
  char date[32], text[48];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text, sizeof(text), "%s.%06uZ", date, static_cast<unsigned>(time_ns % 1'000'000'000 / 1000));
  return text;
}

uint64_t UnixNs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

void PutText(const char* name, std::string_view text, size_t bytes_max, nlohmann::ordered_json* out) {
  if (text.empty()) return;
  // No character is cut in two: continuation bytes are 10xxxxxx.
  size_t bytes = std::min(text.size(), bytes_max);
  if (bytes < text.size()) {
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) --bytes;
  }
  (*out)[name] = text.substr(0, bytes);
}

void PutMs(const char* name, double ms, nlohmann::ordered_json* out) {
  if (ms >= 0 && std::isfinite(ms)) (*out)[name] = std::round(ms * 1000) / 1000;
}

std::string LogLine(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

// Stdout, for writing without waiting. Its own description must stay as it is, because others share it: another one is
// opened where the kernel lets us, and else its duplicate is asked with poll() first.
int OpenStdout() {
  struct stat info = {};
  if (fstat(STDOUT_FILENO, &info) != 0) return -1;
  if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) {
    const int fd = open("/proc/self/fd/1", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd >= 0) return fd;
  }
  return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

// Not blocking, for the sake of a FIFO.
int OpenLog(const std::string& path) {
  if (path == "-") return OpenStdout();
  return open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0640);
}

std::string OpenProblem(const std::string& path, int error) {
  std::string problem = "access log: '" + path + "' cannot be opened: " + std::strerror(error);
  if (error == ENXIO) problem += " (it is a FIFO that nobody reads, or a socket)";
  return problem;
}

void ToStderr(const std::string& problem) { std::fprintf(stderr, "%s\n", problem.c_str()); }

}  // namespace

AccessLog::AccessLog(std::string path, Complain complain)
    : path_(std::move(path)), complain_(complain ? std::move(complain) : ToStderr) {
  if (path_ == "none") return;
  fd_ = OpenLog(path_);
  if (fd_ < 0) {
    const int error = errno;
    const bool forbidden = error == EACCES || error == EPERM || error == EROFS;
    throw Error(forbidden ? FD_PERMISSION_DENIED : FD_INVALID_ARGUMENT, OpenProblem(path_, error));
  }
  LookAtFile();
  // Signals are for other threads; SIGPIPE would end the program when the log's reader goes.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    close(fd_);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

AccessLog::~AccessLog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    stop_at_ = std::chrono::steady_clock::now() + kLastWrites;
  }
  wake_.notify_one();
  thread_.join();
  close(fd_);
}

void AccessLog::Write(const AccessRecord& record) {
  if (!thread_.joinable()) return;
  std::string line = ToJson(record);
  line += '\n';
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (behind_bytes_ + line.size() > kBehindBytesMax) {
      ++dropped_;
      ++dropped_unsaid_;
      return;
    }
    first = waiting_.empty();
    waiting_ += line;
    behind_bytes_ += line.size();
  }
  if (first) wake_.notify_one();
}

void AccessLog::Reopen() {
  if (!thread_.joinable() || path_ == "-") return;
  {
    const std::lock_guard lock(mutex_);
    reopen_ = true;
  }
  wake_.notify_one();
}

uint64_t AccessLog::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

std::string AccessLog::ToJson(const AccessRecord& record) {
  nlohmann::ordered_json out;
  out["time"] = UtcTime(record.time_ns);
  PutText("id", record.id, kTextBytesMax, &out);
  PutText("peer", record.peer, kTextBytesMax, &out);
  PutText("key", record.key, kTextBytesMax, &out);
  PutText("method", record.method, kTextBytesMax, &out);
  // What follows a ? may be somebody's secret.
  PutText("target", std::string_view(record.target).substr(0, record.target.find('?')), kTextBytesMax, &out);
  if (record.status != 0) out["status"] = record.status;
  PutText("user", record.user, kTextBytesMax, &out);
  PutText("finish", record.finish, kTextBytesMax, &out);
  PutText("ended_by", record.ended_by, kTextBytesMax, &out);
  PutText("error", record.error, kErrorBytesMax, &out);
  if (record.choices != 0) {
    out["prompt_tokens"] = record.prompt_tokens;
    if (record.cached_tokens) out["cached_tokens"] = *record.cached_tokens;
    out["generated_tokens"] = record.generated_tokens;
    out["choices"] = record.choices;
  }
  PutMs("queue_ms", record.queue_ms, &out);
  PutMs("ttft_ms", record.ttft_ms, &out);
  PutMs("itl_max_ms", record.itl_max_ms, &out);
  PutMs("total_ms", record.total_ms, &out);
  out["bytes_in"] = record.bytes_in;
  out["bytes_out"] = record.bytes_out;
  PutText("traceparent", record.traceparent, kTextBytesMax, &out);
  return LogLine(out);
}

void AccessLog::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || reopen_ || !waiting_.empty(); });
    if (std::exchange(reopen_, false)) {
      lock.unlock();
      OpenAnew();
      lock.lock();
    }
    if (waiting_.empty()) {
      if (stop_) return;
      continue;
    }
    const std::string lines = std::exchange(waiting_, {});
    // They were dropped after these lines had come.
    const uint64_t dropped = std::exchange(dropped_unsaid_, 0);
    lock.unlock();
    const uint64_t lost = WriteLines(lines);
    uint64_t unsaid = lost;
    if (dropped != 0) {
      const nlohmann::ordered_json notice = {{"time", UtcTime(UnixNs())}, {"dropped", dropped}};
      if (lost != 0 || WriteLines(LogLine(notice) + "\n") != 0) unsaid += dropped;
    }
    lock.lock();
    behind_bytes_ -= lines.size();
    dropped_ += lost;
    dropped_unsaid_ += unsaid;
    if (stop_ && std::chrono::steady_clock::now() >= stop_at_) return;
  }
}

void AccessLog::OpenAnew() {
  const int fd = OpenLog(path_);
  if (fd < 0) {
    complain_(OpenProblem(path_, errno) + "; the file that was open before goes on being used");
    return;
  }
  close(fd_);
  fd_ = fd;
  LookAtFile();
  in_line_ = false;
}

void AccessLog::LookAtFile() {
  struct stat info = {};
  const bool known = fstat(fd_, &info) == 0;
  is_socket_ = known && S_ISSOCK(info.st_mode);
  is_regular_ = known && S_ISREG(info.st_mode);
}

uint64_t AccessLog::WriteLines(std::string_view lines) {
  // Half a line is ended, so that the next one stays readable.
  std::string ended;
  if (in_line_) lines = ended = "\n" + std::string(lines);
  bool half_counted = in_line_;
  while (!lines.empty()) {
    int error = ETIMEDOUT;  // the end has come before a reader
    if (WaitUntilWritable()) {
      const ssize_t written = WriteSome(lines);
      error = written < 0 ? errno : 0;
      if (written > 0) {
        in_line_ = lines[static_cast<size_t>(written) - 1] != '\n';
        half_counted = false;
        lines.remove_prefix(static_cast<size_t>(written));
        failing_ = false;
      }
    }
    if (error == EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (error == 0 || error == EINTR || error == EAGAIN) continue;
    if (!std::exchange(failing_, true)) {
      complain_("access log: '" + path_ + "' cannot be written, and lines are lost: " +
                (error == ETIMEDOUT ? "nobody reads it" : std::strerror(error)));
    }
    // What is left has a line's end for each line, and one for the half line that was lost before.
    return static_cast<uint64_t>(std::count(lines.begin(), lines.end(), '\n')) - (half_counted ? 1 : 0);
  }
  return 0;
}

ssize_t AccessLog::WriteSome(std::string_view bytes) {
  if (is_socket_) return send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (!is_regular_) {
    // A pipe that poll() calls writable takes so much without waiting; whole lines stay whole beside other writers'.
    bytes = bytes.substr(0, PIPE_BUF);
    if (const size_t end = bytes.rfind('\n'); end != std::string_view::npos) bytes = bytes.substr(0, end + 1);
  }
  return write(fd_, bytes.data(), bytes.size());
}

bool AccessLog::WaitUntilWritable() {
  if (is_regular_) return true;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stop_ && std::chrono::steady_clock::now() >= stop_at_) return false;
    }
    pollfd writable = {.fd = fd_, .events = POLLOUT, .revents = 0};
    if (poll(&writable, 1, kLookForTheEndMs) > 0) return true;
  }
}

}  // namespace fastdecode::serve
