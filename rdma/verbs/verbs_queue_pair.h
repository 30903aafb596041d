#ifndef FASTDECODE_RDMA_VERBS_VERBS_QUEUE_PAIR_H_
#define FASTDECODE_RDMA_VERBS_VERBS_QUEUE_PAIR_H_

#include <infiniband/verbs.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/fabric_options.h"
#include "rdma/verbs/verbs_calls.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_wire.h"

namespace fastdecode {

// How many work requests a queue pair has room for, besides one in each queue for its end.
struct QueueDepths {
  uint32_t send = 0;
  uint32_t receive = 0;
};

// What a queue pair must know of the one that it is connected to.
struct QueuePairPeer {
  uint8_t gid[16] = {};
  uint16_t lid = 0;            // 0 on Ethernet
  uint32_t queue_pair = 0;     // 24 bits
  uint32_t packet_number = 0;  // 24 bits: the first that it sends
  ibv_mtu mtu = IBV_MTU_256;   // agreed
};

// One reliable connection (RC): made, connected, used, and brought to its end; never used again.
// Owns: the queue pair. Its completion queue has room for `depths` and the two of PostMarkersAndFail.
// Thread: one at a time.
class VerbsQueuePair {
 public:
  VerbsQueuePair() = default;

  // In INIT, with `depths.receive` receives posted whose ids are of `receives`; only the peer's writes are let in.
  // `calls` and `device` must outlive it. Errors: a failed call, naming device, call and what to check.
  static absl::StatusOr<VerbsQueuePair> Create(const VerbsCalls& calls, const VerbsDevice& device,
                                               const FabricOptions& fabric, ibv_pd* domain, ibv_cq* completions,
                                               const QueueDepths& depths, MessageKind receives);

  ibv_qp* get() const { return queue_pair_.get(); }
  uint32_t number() const { return queue_pair_->qp_num; }
  uint32_t packet_number() const { return packet_number_; }  // random: the first that this end sends
  uint32_t inline_bytes_max() const { return inline_bytes_max_; }
  const QueueDepths& depths() const { return depths_; }

  // To RTR, then RTS. Errors: a failed call.
  absl::Status Connect(const QueuePairPeer& peer);

  // Posts a marker to each of its queues that is empty enough to take one, and goes to ERR: behind the markers all
  // other work requests have ended. Returns the markers, which complete with kMarker as their id. `address`, `key`: the
  // peer's memory, for a write of no bytes.
  static constexpr uint64_t kMarker = WrId::kPostedMax;
  int PostMarkersAndFail(uint64_t address, uint32_t key);

 private:
  absl::Status Make(ibv_pd* domain, ibv_cq* completions);
  absl::Status ToInit();
  absl::Status PostReceives(MessageKind kind);
  absl::Status ToReadyToReceive(const QueuePairPeer& peer);
  absl::Status ToReadyToSend();
  absl::Status Modify(ibv_qp_attr* attributes, int mask, const char* to, const std::string& advice);

  const VerbsCalls* calls_ = nullptr;
  const VerbsDevice* device_ = nullptr;
  FabricOptions fabric_;
  QueueDepths depths_;
  VerbsHandle<ibv_qp> queue_pair_;
  uint32_t inline_bytes_max_ = 0;
  uint32_t packet_number_ = 0;
  bool connected_ = false;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_QUEUE_PAIR_H_
