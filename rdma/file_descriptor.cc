#include "rdma/file_descriptor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "numa/clock.h"

namespace fastdecode {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void FileDescriptor::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

int PollTimeoutMs(uint64_t deadline_ns) {
  constexpr uint64_t kNsPerMs = 1'000'000;
  constexpr uint64_t kTimeoutMsMax = 1'000'000;
  const uint64_t now_ns = NowNs();
  if (now_ns >= deadline_ns) return 0;
  return static_cast<int>(std::min((deadline_ns - now_ns - 1) / kNsPerMs + 1, kTimeoutMsMax));
}

bool WaitReadable(int fd, uint64_t deadline_ns) {
  while (true) {
    pollfd entry = {fd, POLLIN, 0};
    const int timeout_ms = PollTimeoutMs(deadline_ns);
    if (poll(&entry, 1, timeout_ms) > 0) return true;
    if (timeout_ms == 0) return false;
  }
}

void PauseIfExhausted(int error) {
  constexpr int kPauseMs = 20;
  if (error != EAGAIN && error != EINTR && error != ECONNABORTED) poll(nullptr, 0, kPauseMs);
}

}  // namespace fastdecode
