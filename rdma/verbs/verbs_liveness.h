#ifndef FASTDECODE_RDMA_VERBS_VERBS_LIVENESS_H_
#define FASTDECODE_RDMA_VERBS_VERBS_LIVENESS_H_

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "numa/cache_line.h"
#include "rdma/file_descriptor.h"
#include "rdma/loss_record.h"
#include "rdma/peer_channel.h"
#include "rdma/verbs/verbs_end.h"

namespace fastdecode {

// Whether one end of a verbs link still lives: takes every bad news (a failed completion, an asynchronous event of the
// device, the peer's silence, farewell or end, our own word), keeps the first as the cause and tells the peer.
// Owns: the peer channel, an epoll set, a timer, the eventfd that wakes a sleeper. Bounded: what comes is looked at
// kNewsMax at a time.
// Thread: any, where no other is named.
class VerbsLiveness {
 public:
  // `end` must outlive it. Errors: ResourceExhausted if no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<VerbsLiveness>> Create(const VerbsEnd& end,
                                                               std::unique_ptr<PeerChannel> channel);

  bool lost() const { return loss_.lost(); }
  std::string cause() const { return loss_.cause(); }
  std::string peer_name() const { return channel_->name(); }
  void MarkLost(const char* cause);

  // For LinkEnd: readable when the channel, the device or the heartbeat's timer has something.
  int fd() const { return epoll_.get(); }
  // Looks at all three. Not for the data thread: it may wait for another one in here.
  void Check();
  // Readable once the link is lost.
  int wake_fd() const { return wake_.get(); }

  // Finished work items: ours go out with the heartbeats, the peer's come in.
  // Relaxed: signs of life, nothing is read on their strength.
  void AddProgress(uint64_t items) { own_progress_.value.fetch_add(items, std::memory_order_relaxed); }
  uint64_t PeerProgress() const { return peer_progress_.value.load(std::memory_order_relaxed); }

  // The data thread has met an error; not called again after a loss.
  void LoseByProtocol(const char* defect, int slot);
  void LoseByCall(const char* call, int error);
  // A completion with an error. One that was merely flushed is no cause: the link is lost for what the device or the
  // peer says meanwhile, or, if both are silent, for that at the second heartbeat from here.
  void LoseByCompletion(const ibv_wc& completion);

 private:
  static constexpr int kNewsMax = 64;

  VerbsLiveness(const VerbsEnd& end, std::unique_ptr<PeerChannel> channel);
  absl::Status Watch(int fd);
  absl::Status Start();
  void CheckEvents();
  void CheckChannel();
  void CheckTimer();
  void CheckSilence();
  std::string Place() const;

  // Constant after Create.
  const VerbsCalls& calls_;
  ibv_context* const context_;
  const int port_;
  const std::string device_name_;
  const LinkRole role_;
  const uint64_t heartbeat_timeout_ns_;
  uint64_t (*const now_ns_)();
  const std::unique_ptr<PeerChannel> channel_;
  FileDescriptor epoll_;
  FileDescriptor timer_;
  FileDescriptor wake_;

  LossRecord loss_;
  CacheAligned<std::atomic<uint64_t>> own_progress_ = {};   // written by the data thread
  CacheAligned<std::atomic<uint64_t>> peer_progress_ = {};  // written in Check
  std::atomic<bool> flushed_{false};

  std::mutex check_mutex_;  // guards what follows: of the monitor and a control thread, either may look
  uint64_t heard_ns_ = 0;   // when the peer last said something; 0: it was not ready to, or nobody has looked since
  int flushed_ticks_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_LIVENESS_H_
