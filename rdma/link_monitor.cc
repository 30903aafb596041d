#include "rdma/link_monitor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

namespace fastdecode {

LinkMonitor::LinkMonitor(int wake_fd) : wake_fd_(wake_fd) {
  if (wake_fd_ < 0) throw std::system_error(errno, std::generic_category(), "links cannot be watched: eventfd");
}

// Once the other constructor is done, the destructor ends the threads that there are, however this one ends.
LinkMonitor::LinkMonitor() : LinkMonitor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = PinnedThread("fd-links", -1, [this] { Run(); });
  destroyer_ = PinnedThread("fd-links-end", -1, [this] { Destroy(); });
}

LinkMonitor::~LinkMonitor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
  released_changed_.notify_all();
  thread_.Join();
  destroyer_.Join();
  close(wake_fd_);
}

void LinkMonitor::Add(LinkEnd* link) {
  if (link->liveness_fd() < 0) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    watched_.push_back(link);
  }
  Wake();
}

// No Wake(): the thread may still poll a descriptor that was closed since, but looks only at links that it finds here.
void LinkMonitor::Remove(LinkEnd* link) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase(watched_, link);
}

void LinkMonitor::Quarantine(std::unique_ptr<LinkEnd> link, const char* cause) {
  link->MarkLost(cause);
  Remove(link.get());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    quarantined_.push_back(std::move(link));
  }
  Wake();
}

size_t LinkMonitor::links_in_quarantine() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return quarantined_.size() + released_.size() + destroying_;
}

void LinkMonitor::Wake() {
  const uint64_t one = 1;
  // Full only if nobody has read 2^64 - 2 wake-ups; the thread is awake then.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void LinkMonitor::Run() {
  std::vector<pollfd> entries;
  while (true) {
    // What to wait for: news of living links, the end of those in quarantine. A lost link has none of interest.
    entries.assign(1, {wake_fd_, POLLIN, 0});
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      for (const LinkEnd* link : watched_) {
        if (link->lost()) continue;
        entries.push_back({link->liveness_fd(), POLLIN | POLLRDHUP, 0});
        entries.push_back({link->peer_process_fd(), POLLIN, 0});
      }
      for (const auto& link : quarantined_) {
        entries.push_back({link->liveness_fd(), POLLRDHUP, 0});
        entries.push_back({link->peer_process_fd(), POLLIN, 0});
      }
    }
    poll(entries.data(), entries.size(), -1);
    uint64_t wake_ups;
    [[maybe_unused]] const ssize_t drained = read(wake_fd_, &wake_ups, sizeof(wake_ups));
    CheckWatched();
    ReleaseQuarantined();
  }
}

// All of them: news is rare, and asking a link that has none costs two system calls.
void LinkMonitor::CheckWatched() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (LinkEnd* link : watched_) {
    if (!link->lost()) link->CheckPeer();
  }
}

void LinkMonitor::ReleaseQuarantined() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& link : quarantined_) {
    if (!link->PeerMayStillWrite()) released_.push_back(std::move(link));
  }
  std::erase(quarantined_, nullptr);
  if (!released_.empty()) released_changed_.notify_all();
}

void LinkMonitor::Destroy() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    released_changed_.wait(lock, [this] { return stopping_ || !released_.empty(); });
    if (stopping_) return;
    std::vector<std::unique_ptr<LinkEnd>> links = std::move(released_);
    released_.clear();
    destroying_ = links.size();
    lock.unlock();
    links.clear();
    lock.lock();
    destroying_ = 0;
  }
}

}  // namespace fastdecode
