#ifndef FASTDECODE_RDMA_LINK_MONITOR_H_
#define FASTDECODE_RDMA_LINK_MONITOR_H_

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "numa/pinned_thread.h"
#include "rdma/link.h"

namespace fastdecode {

// Watches the peers of many links and marks a link lost within milliseconds of its peer's death or farewell.
// Owns: a thread, which sleeps in poll(2); another one that destroys links, which may take a GPU's step or the
// unmapping of gigabytes, while the first one's links wait for their heartbeats; and the links in quarantine. Thread:
// any.
class LinkMonitor {
 public:
  // Throws std::system_error: as PinnedThread does, or if the kernel gives no eventfd.
  LinkMonitor();
  // Links still in quarantine are destroyed, by the caller.
  ~LinkMonitor();
  LinkMonitor(const LinkMonitor&) = delete;
  LinkMonitor& operator=(const LinkMonitor&) = delete;

  // `link` must outlive its stay; one without a liveness_fd() is not watched.
  void Add(LinkEnd* link);
  // Once it returns, the monitor does not touch the link any more. Nothing happens if the link is not watched.
  void Remove(LinkEnd* link);

  // Marks the link lost if it is not (with `cause`) and keeps it, with its memory, while LinkEnd::PeerMayStillWrite;
  // then destroys it. A watched link need not be removed before.
  void Quarantine(std::unique_ptr<LinkEnd> link, const char* cause);
  // Those that are being destroyed included.
  size_t links_in_quarantine() const;

 private:
  explicit LinkMonitor(int wake_fd);  // still without threads
  void Run();
  void Wake();
  void CheckWatched();
  void ReleaseQuarantined();
  void Destroy();

  const int wake_fd_;  // eventfd: the sets have changed, or the end

  mutable std::mutex mutex_;
  std::vector<LinkEnd*> watched_;                      // guarded by mutex_
  std::vector<std::unique_ptr<LinkEnd>> quarantined_;  // guarded by mutex_
  std::vector<std::unique_ptr<LinkEnd>> released_;     // guarded by mutex_; from quarantine, to be destroyed
  size_t destroying_ = 0;                              // guarded by mutex_; links taken from released_
  bool stopping_ = false;                              // guarded by mutex_
  std::condition_variable released_changed_;

  PinnedThread thread_, destroyer_;  // last: they use all of the above; not pinned, and signals are others'
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_LINK_MONITOR_H_
