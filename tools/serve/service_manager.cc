#include "tools/serve/service_manager.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

namespace fastdecode::serve {

namespace {

constexpr int kStateTries = 10;
constexpr std::chrono::milliseconds kBetweenTries(10);

// A line break would begin another assignment.
std::string StatusLine(std::string status) {
  std::replace(status.begin(), status.end(), '\n', ' ');
  return "STATUS=" + status;
}

std::optional<uint64_t> WholeNumber(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view digits(text);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

}  // namespace

ServiceManager::ServiceManager(const char* socket_name) {
  const std::string_view name(socket_name == nullptr ? "" : socket_name);
  if (name.empty()) return;
  const std::string what = "NOTIFY_SOCKET: '" + std::string(name) + "' ";
  if ((name[0] != '/' && name[0] != '@') || name.size() == 1) {
    problem_ = what + "is neither an absolute path nor @ and a name: systemd is told nothing";
    return;
  }
  // A path is followed by a 0 byte, and an abstract name begins with one.
  if (name.size() > sizeof(address_.sun_path) - (name[0] == '/' ? 1 : 0)) {
    problem_ = what + "is too long for a socket's address: systemd is told nothing";
    return;
  }
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path, name.data(), name.size());
  if (name[0] == '@') address_.sun_path[0] = '\0';
  address_bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (name[0] == '/' ? 1 : 0));
  fd_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) problem_ = what + "cannot be used: " + std::strerror(errno);
}

ServiceManager::~ServiceManager() {
  if (fd_ >= 0) close(fd_);
}

void ServiceManager::Ready(const std::string& status) { Send("READY=1\n" + StatusLine(status), kStateTries); }

void ServiceManager::Reloading() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  Send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now_us), kStateTries);
}

void ServiceManager::Stopping(const std::string& status) { Send("STOPPING=1\n" + StatusLine(status), kStateTries); }

void ServiceManager::Status(const std::string& status) { Send(StatusLine(status), 1); }

void ServiceManager::Watchdog() { Send("WATCHDOG=1", 1); }

void ServiceManager::Send(const std::string& message, int tries) {
  if (fd_ < 0) return;
  for (int attempt = 1;; ++attempt) {
    const ssize_t sent = sendto(fd_, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                                reinterpret_cast<const sockaddr*>(&address_), address_bytes_);
    if (sent >= 0) {
      problem_.clear();
      return;
    }
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != ENOBUFS) || attempt >= tries) break;
    std::this_thread::sleep_for(kBetweenTries);
  }
  problem_ = "NOTIFY_SOCKET: '" + message.substr(0, message.find('\n')) + "' was not sent: " + std::strerror(errno);
}

uint64_t WatchdogPeriodNs(const char* watchdog_usec, const char* watchdog_pid) {
  const std::optional<uint64_t> period_us = WholeNumber(watchdog_usec);
  if (!period_us || *period_us == 0 || *period_us > UINT64_MAX / 1000) return 0;
  const std::optional<uint64_t> pid = WholeNumber(watchdog_pid);
  if (pid && *pid != static_cast<uint64_t>(getpid())) return 0;
  return *period_us * 1000 / 2;
}

}  // namespace fastdecode::serve
