#include "rdma/verbs/verbs_queue_pair.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "numa/check.h"
#include "rdma/verbs/verbs_error_text.h"

namespace fastdecode {

namespace {

// 4.096 us * 2^14, six times: a peer that does not acknowledge is given up after about half a second. (Seven would mean
// forever on some devices.)
constexpr uint8_t kAckTimeout = 14;
constexpr uint8_t kRetries = 6;
// Receives are there before anyone may need them. A missing one is an error of ours, and must show as one: seven would
// wait forever.
constexpr uint8_t kReceiverNotReadyRetries = 3;
constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms
constexpr uint8_t kHopLimit = 64;
constexpr uint32_t kInlineBytes[] = {128, 64, 0};  // asked for, in this order, until the device agrees
// Of a work request: line and payload, or segment and trailer, that lie apart.
constexpr uint32_t kPiecesMax = 2;

bool SameSubnet(const uint8_t* a, const uint8_t* b) { return std::memcmp(a, b, 8) == 0; }

// Within an InfiniBand subnet only where this end's port insists, as that of a virtual function does. That the peer's
// does it cannot say; both ends of a link are of one kind, nearly always, and without it each packet is 40 bytes less.
bool NeedsGlobalRoute(const VerbsDevice& device, const QueuePairPeer& peer) {
  return device.ethernet() || (device.port_attributes.flags & IBV_QPF_GRH_REQUIRED) != 0 ||
         !SameSubnet(device.gid.gid.raw, peer.gid) || peer.lid == 0;
}

}  // namespace

absl::StatusOr<VerbsQueuePair> VerbsQueuePair::Create(const VerbsCalls& calls, const VerbsDevice& device,
                                                      const FabricOptions& fabric, ibv_pd* domain, ibv_cq* completions,
                                                      const QueueDepths& depths, MessageKind receives) {
  VerbsQueuePair pair;
  pair.calls_ = &calls;
  pair.device_ = &device;
  pair.fabric_ = fabric;
  pair.depths_ = depths;
  absl::Status status = pair.Make(domain, completions);
  if (status.ok()) status = pair.ToInit();
  if (status.ok()) status = pair.PostReceives(receives);
  if (!status.ok()) return status;
  return pair;
}

absl::Status VerbsQueuePair::Make(ibv_pd* domain, ibv_cq* completions) {
  int error = 0;
  for (const uint32_t inline_bytes : kInlineBytes) {
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = completions;
    attributes.recv_cq = completions;
    attributes.qp_type = IBV_QPT_RC;
    attributes.sq_sig_all = 0;
    attributes.cap.max_send_wr = depths_.send + 1;  // one more for the marker
    attributes.cap.max_recv_wr = depths_.receive + 1;
    attributes.cap.max_send_sge = kPiecesMax;
    attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = inline_bytes;
    ibv_qp* const made = calls_->create_qp(domain, &attributes);
    if (made == nullptr) {
      error = errno;
      continue;
    }
    inline_bytes_max_ = attributes.cap.max_inline_data;
    queue_pair_ = VerbsHandle<ibv_qp>(made, [calls = calls_](ibv_qp* qp) { calls->destroy_qp(qp); });
    return absl::OkStatus();
  }
  return VerbsError(device_->name, "ibv_create_qp", error, LockedMemoryAdvice());
}

absl::Status VerbsQueuePair::Modify(ibv_qp_attr* attributes, int mask, const char* to, const std::string& advice) {
  const int error = calls_->modify_qp(queue_pair_.get(), attributes, IBV_QP_STATE | mask);
  if (error == 0) return absl::OkStatus();
  return VerbsError(device_->Name(), absl::StrCat("ibv_modify_qp to ", to).c_str(), error, advice);
}

absl::Status VerbsQueuePair::ToInit() {
  constexpr uint32_t k24Bits = (1u << 24) - 1;
  if (getrandom(&packet_number_, sizeof(packet_number_), 0) != sizeof(packet_number_)) {
    return absl::InternalError("the kernel gives no random numbers");
  }
  packet_number_ &= k24Bits;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = device_->pkey_index;
  attributes.port_num = device_->port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  return Modify(&attributes, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT", "");
}

absl::Status VerbsQueuePair::PostReceives(MessageKind kind) {
  ibv_recv_wr request = {};
  request.wr_id = WrId(kind, 0, 0).bits();
  for (uint32_t i = 0; i < depths_.receive; ++i) {
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(queue_pair_.get(), &request, &bad); error != 0) {
      return VerbsError(device_->Name(), "ibv_post_recv", error, "");
    }
  }
  return absl::OkStatus();
}

absl::Status VerbsQueuePair::Connect(const QueuePairPeer& peer) {
  FD_CHECK(!connected_, "a queue pair is connected once");
  absl::Status status = ToReadyToReceive(peer);
  if (status.ok()) status = ToReadyToSend();
  connected_ = status.ok();
  return status;
}

absl::Status VerbsQueuePair::ToReadyToReceive(const QueuePairPeer& peer) {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = peer.mtu;
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.packet_number;
  attributes.max_dest_rd_atomic = 0;  // nobody reads
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  attributes.ah_attr.port_num = device_->port;
  attributes.ah_attr.sl = static_cast<uint8_t>(fabric_.service_level);
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.is_global = NeedsGlobalRoute(*device_, peer);
  if (attributes.ah_attr.is_global) {
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid, sizeof(peer.gid));
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(device_->gid.gid_index);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = static_cast<uint8_t>(fabric_.traffic_class);
  }
  ibv_gid peer_gid;
  std::memcpy(peer_gid.raw, peer.gid, sizeof(peer.gid));
  return Modify(
      &attributes,
      IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
      "RTR",
      absl::StrCat("is there a route from this port to GID ", FormatGid(peer_gid), ", and is the port still up?"));
}

absl::Status VerbsQueuePair::ToReadyToSend() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = packet_number_;
  attributes.timeout = kAckTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kReceiverNotReadyRetries;
  attributes.max_rd_atomic = 0;
  return Modify(&attributes,
                IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC, "RTS",
                "");
}

// While it still runs: a queue pair in ERR may not look at new receives.
int VerbsQueuePair::PostMarkersAndFail(uint64_t address, uint32_t key) {
  ibv_recv_wr receive = {};
  receive.wr_id = kMarker;
  ibv_recv_wr* bad_receive = nullptr;
  ibv_send_wr send = {};
  send.wr_id = kMarker;
  send.opcode = IBV_WR_RDMA_WRITE;
  send.send_flags = IBV_SEND_SIGNALED;
  send.wr.rdma.remote_addr = address;
  send.wr.rdma.rkey = key;
  ibv_send_wr* bad_send = nullptr;
  int markers = ibv_post_recv(queue_pair_.get(), &receive, &bad_receive) == 0 ? 1 : 0;
  if (connected_ && ibv_post_send(queue_pair_.get(), &send, &bad_send) == 0) ++markers;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  // If even that fails, destroying it has to do.
  return calls_->modify_qp(queue_pair_.get(), &attributes, IBV_QP_STATE) == 0 ? markers : 0;
}

}  // namespace fastdecode
