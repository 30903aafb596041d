// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_RDMA_VERBS_VERBS_QUEUES_FASTPATH_H_
#define FASTDECODE_RDMA_VERBS_VERBS_QUEUES_FASTPATH_H_

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "numa/check.h"
#include "rdma/verbs/verbs_wire.h"

namespace fastdecode {

// The accounting of one queue pair's send queue, which cannot overflow: what finds no room is not posted. A completion
// is asked for before half of the queue is posted without one, so that a full queue always has one under way.
// Owns: nothing. Thread: the data thread alone. Bounded: `depth` work requests.
class SendQueue {
 public:
  SendQueue(ibv_qp* queue_pair, uint32_t depth) : queue_pair_(queue_pair), depth_(depth) {}

  bool HasRoom(uint64_t requests) const { return depth_ - in_flight() >= requests; }
  // Work requests since the link was made.
  uint64_t posted() const { return posted_; }
  // Those that nothing is known of.
  uint64_t in_flight() const { return posted_ - retired_; }

  // One doorbell for the list from `first` to `last`, whose flags are set but for the signal. 0, or why it failed.
  int Post(ibv_send_wr* first, ibv_send_wr* last, uint64_t requests) {
    FD_CHECK(HasRoom(requests) && last->next == nullptr, "a post into a full send queue");
    posted_ += requests;
    unsignaled_ += requests;
    if (unsignaled_ >= depth_ / 2) {
      last->send_flags |= IBV_SEND_SIGNALED;
      unsignaled_ = 0;
    }
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(queue_pair_, first, &bad);
  }

  // A completion ends everything that was posted before it, too.
  void Retire(const ibv_wc& completion) {
    const uint64_t posted = WrId::FromBits(completion.wr_id).posted();
    FD_CHECK(posted > retired_ && posted <= posted_, "a completion of a work request that is not in the send queue");
    retired_ = posted;
  }

 private:
  ibv_qp* queue_pair_;
  uint64_t depth_;
  uint64_t posted_ = 0;
  uint64_t retired_ = 0;     // known to be done; <= posted_ <= retired_ + depth_
  uint64_t unsignaled_ = 0;  // behind the last that asks for a completion; < half of depth_
};

// Keeps one queue pair's receives at `depth`, all of them posted at the start: those that were used are posted again
// once they are a quarter.
// Owns: the work requests. Thread: the data thread alone.
class ReceiveQueue {
 public:
  ReceiveQueue(ibv_qp* queue_pair, uint32_t depth, MessageKind kind) : queue_pair_(queue_pair), depth_(depth) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      requests_[i] = {};
      requests_[i].wr_id = WrId(kind, 0, 0).bits();
    }
  }

  // A completion has used one.
  void Use() { ++used_; }

  // 0, or why it failed.
  int PostUsed() {
    if (used_ == 0 || used_ < depth_ / 4) return 0;
    while (used_ > 0) {
      const size_t count = std::min<size_t>(used_, requests_.size());
      for (size_t i = 0; i + 1 < count; ++i) requests_[i].next = &requests_[i + 1];
      requests_[count - 1].next = nullptr;
      ibv_recv_wr* bad = nullptr;
      if (const int error = ibv_post_recv(queue_pair_, requests_.data(), &bad); error != 0) return error;
      used_ -= static_cast<uint32_t>(count);
    }
    return 0;
  }

 private:
  ibv_qp* queue_pair_;
  uint32_t depth_;
  uint32_t used_ = 0;
  std::array<ibv_recv_wr, 64> requests_;  // a list, to post some at once
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_QUEUES_FASTPATH_H_
