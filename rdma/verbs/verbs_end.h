#ifndef FASTDECODE_RDMA_VERBS_VERBS_END_H_
#define FASTDECODE_RDMA_VERBS_VERBS_END_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "numa/arena.h"
#include "numa/clock.h"
#include "rdma/fabric_options.h"
#include "rdma/link.h"
#include "rdma/verbs/verbs_calls.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_parameters.h"
#include "rdma/verbs/verbs_wire.h"

namespace fastdecode {

enum class LinkRole : uint8_t { kEngine, kHome };

struct VerbsOptions {
  FabricOptions fabric;
  bool checksum = false;  // CRC32C of every message, checked by its receiver; both ends must want it
  const VerbsCalls* calls = &VerbsCalls::System();  // must outlive the end
  uint64_t (*now_ns)() = NowNs;
};

// What the data path needs of an end; plain values, constant once the end is connected.
struct VerbsWiring {
  ibv_qp* queue_pair = nullptr;
  ibv_cq* completions = nullptr;
  std::byte* in = nullptr;   // the peer writes it
  std::byte* out = nullptr;  // mirrors the peer's `in`
  RegionLayout in_layout;
  RegionLayout out_layout;
  uint32_t out_key = 0;         // lkey of `out`
  uint64_t peer_address = 0;    // of the peer's `in`
  uint32_t peer_slots_key = 0;  // rkeys there
  uint32_t peer_control_key = 0;
  uint32_t send_depth = 0;     // work requests
  uint32_t receive_depth = 0;  // all posted when the wiring is handed over
  uint32_t inline_bytes_max = 0;
  size_t chunk_bytes = 0;  // of a message longer than kOneWriteBytesMax
  bool checksum = false;
};

// Everything of one epoch of one link end: context, protection domain, registered memory, completion queue and queue
// pair. Nothing is shared with another link, so all of it dies with this one.
// Owns: the above. Destroying it ends every access to its memory by the device before it frees the memory: the queue
// pair goes to ERR, is drained, and destroyed. Thread: one at a time.
class VerbsEnd {
 public:
  // Makes all objects, with receives posted, ready to be connected; registers `in` and `out` memory on NUMA node `node`
  // (-1: anywhere).
  // Errors: those of OpenVerbsDevice, CheckLinkSize and Arena::Create; a failed call, naming device, call and what to
  // check.
  static absl::StatusOr<std::unique_ptr<VerbsEnd>> Create(const VerbsOptions& options, const LinkSize& size,
                                                          LinkRole role, int node);
  ~VerbsEnd();
  VerbsEnd(const VerbsEnd&) = delete;
  VerbsEnd& operator=(const VerbsEnd&) = delete;

  // For the peer's Connect.
  VerbsParameters parameters() const;
  // Afterwards messages may come, and, once the peer has connected too, go.
  // Errors: InvalidArgument if the two ends do not fit together; a failed call. REQUIRES: not connected yet.
  absl::Status Connect(const VerbsParameters& peer);

  bool connected() const { return connected_; }
  const LinkSize& size() const { return size_; }
  LinkRole role() const { return role_; }
  const VerbsOptions& options() const { return options_; }
  const VerbsDevice& device() const { return device_; }
  ibv_comp_channel* channel() const { return channel_.get(); }
  // REQUIRES: connected().
  VerbsWiring wiring() const;
  // What was chosen, for the log: device, port, GID, MTU, memory.
  std::string Describe() const;

 private:
  VerbsEnd(const VerbsOptions& options, const LinkSize& size, LinkRole role);

  // The steps of Create, in order.
  absl::Status PlanQueues();
  absl::Status AllocateMemory(int node);
  absl::Status RegisterMemory();
  absl::Status CreateQueues();
  absl::Status ToInit();
  absl::Status PostReceives();
  // The steps of Connect.
  absl::Status CheckPeer(const VerbsParameters& peer) const;
  absl::Status ToReadyToReceive(const VerbsParameters& peer);
  absl::Status ToReadyToSend();

  absl::StatusOr<VerbsHandle<ibv_mr>> Register(std::byte* data, size_t bytes, unsigned access);
  absl::StatusOr<VerbsHandle<ibv_qp>> CreateQueuePair(uint32_t inline_bytes);
  void Drain();

  // Constant after Create. The order is that of making; destruction is the reverse, memory last.
  const VerbsOptions options_;
  const VerbsCalls& calls_;
  const LinkSize size_;
  const LinkRole role_;
  const RegionLayout in_layout_;
  const RegionLayout out_layout_;
  Arena in_;
  Arena out_;
  VerbsDevice device_;
  VerbsHandle<ibv_pd> domain_;
  VerbsHandle<ibv_mr> in_slots_;
  VerbsHandle<ibv_mr> in_control_;
  VerbsHandle<ibv_mr> out_region_;
  VerbsHandle<ibv_comp_channel> channel_;
  VerbsHandle<ibv_cq> completions_;
  VerbsHandle<ibv_qp> queue_pair_;
  size_t chunk_bytes_ = 0;
  uint32_t send_depth_ = 0;
  uint32_t receive_depth_ = 0;
  uint32_t inline_bytes_max_ = 0;
  uint32_t packet_number_ = 0;

  bool connected_ = false;
  ibv_mtu mtu_ = IBV_MTU_256;  // agreed
  VerbsParameters peer_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_END_H_
