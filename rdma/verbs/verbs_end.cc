#include "rdma/verbs/verbs_end.h"

#include <sys/random.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "numa/check.h"
#include "numa/spin.h"
#include "numa/topology.h"

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

constexpr size_t kChunkBytesMin = 1 << 20;
constexpr size_t kChunksMax = 16;
constexpr size_t kPageBytes = 4096;
constexpr uint32_t kInlineBytes[] = {128, 64, 0};  // asked for, in this order, until the device agrees
constexpr uint64_t kDrainNsMax = 500'000'000;

RegionLayout InLayout(const LinkSize& size, LinkRole role) {
  return RegionLayout(size, role == LinkRole::kHome ? size.hop_payload_bytes_max : size.reply_payload_bytes_max);
}
RegionLayout OutLayout(const LinkSize& size, LinkRole role) {
  return InLayout(size, role == LinkRole::kHome ? LinkRole::kEngine : LinkRole::kHome);
}

std::string LockedMemoryAdvice() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return "locked memory is unlimited, so the device or the host is out of memory";
  return absl::StrCat("this process may lock ", FormatBytes(limit.rlim_cur),
                      " of memory; raise it with `ulimit -l unlimited` or, in a service, LimitMEMLOCK=infinity");
}

bool SameSubnet(const uint8_t* a, const uint8_t* b) { return std::memcmp(a, b, 8) == 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsEnd>> VerbsEnd::Create(const VerbsOptions& options, const LinkSize& size,
                                                           LinkRole role, int node) {
  if (absl::Status status = CheckLinkSize(size); !status.ok()) return status;
  absl::StatusOr<VerbsDevice> device = OpenVerbsDevice(*options.calls, options.fabric, node);
  if (!device.ok()) return device.status();
  std::unique_ptr<VerbsEnd> end(new VerbsEnd(options, size, role));
  end->device_ = *std::move(device);
  absl::Status status = end->PlanQueues();
  if (status.ok()) status = end->AllocateMemory(node);
  if (status.ok()) status = end->RegisterMemory();
  if (status.ok()) status = end->CreateQueues();
  if (status.ok()) status = end->ToInit();
  if (status.ok()) status = end->PostReceives();
  if (!status.ok()) return status;
  return end;
}

VerbsEnd::VerbsEnd(const VerbsOptions& options, const LinkSize& size, LinkRole role)
    : options_(options),
      calls_(*options.calls),
      size_(size),
      role_(role),
      in_layout_(InLayout(size, role)),
      out_layout_(OutLayout(size, role)) {}

VerbsEnd::~VerbsEnd() {
  if (queue_pair_ != nullptr) Drain();
}

// How deep the queues must be for everything that can be in flight; see docs/decisions/0008.
absl::Status VerbsEnd::PlanQueues() {
  const size_t device_max = std::min<size_t>(device_.port_attributes.max_msg_sz, uint32_t{1} << 31);
  if (device_max < kControlMessageBytesMax + sizeof(ControlWord)) {
    return absl::FailedPreconditionError(absl::StrCat(device_.Name(), " takes messages of ", device_max,
                                                      " bytes at most: too few for control messages"));
  }
  const size_t message_bytes = out_layout_.message_bytes_max();
  const size_t sixteenth = (message_bytes + kChunksMax - 1) / kChunksMax;
  chunk_bytes_ = std::max(kChunkBytesMin, (sixteenth + kPageBytes - 1) / kPageBytes * kPageBytes);
  chunk_bytes_ = std::min(chunk_bytes_, device_max / kPageBytes * kPageBytes);
  const uint64_t chain = message_bytes <= kOneWriteBytesMax ? 1 : (message_bytes + chunk_bytes_ - 1) / chunk_bytes_ + 1;
  const uint64_t slots = static_cast<uint64_t>(size_.slots);
  // Twice what the credits let out at once, since an acknowledgement may come after the credit: slots; control messages
  // that wrap, and the credit writes for the peer's.
  const uint64_t send_depth = 2 * (slots * chain + 2 * kControlWindow + kControlWindow);
  const uint64_t receive_depth = 2 * (slots + kControlWindow);
  const uint64_t queue_max = static_cast<uint64_t>(std::max(device_.attributes.max_qp_wr - 1, 0));
  const uint64_t completions_max = static_cast<uint64_t>(std::max(device_.attributes.max_cqe - 2, 0));
  if (send_depth > queue_max || receive_depth > queue_max || send_depth + receive_depth > completions_max) {
    return absl::FailedPreconditionError(
        absl::StrCat(device_.Name(), " has queues of at most ", queue_max, " work requests and ", completions_max,
                     " completions; this link needs ", send_depth, " and ", send_depth + receive_depth,
                     ": fewer micro-batches or smaller batches need less"));
  }
  send_depth_ = static_cast<uint32_t>(send_depth);
  receive_depth_ = static_cast<uint32_t>(receive_depth);
  return absl::OkStatus();
}

absl::Status VerbsEnd::AllocateMemory(int node) {
  ArenaOptions arena;
  arena.node = node;
  arena.bytes = in_layout_.bytes();
  absl::StatusOr<Arena> in = Arena::Create(arena);
  if (!in.ok()) return in.status();
  arena.bytes = out_layout_.bytes();
  absl::StatusOr<Arena> out = Arena::Create(arena);
  if (!out.ok()) return out.status();
  in_ = *std::move(in);
  out_ = *std::move(out);
  return absl::OkStatus();
}

absl::StatusOr<VerbsHandle<ibv_mr>> VerbsEnd::Register(std::byte* data, size_t bytes, unsigned access) {
  ibv_mr* const region = calls_.reg_mr(domain_.get(), data, bytes, access);
  if (region == nullptr) {
    const int error = errno;
    return VerbsError(device_.name, absl::StrCat("ibv_reg_mr of ", FormatBytes(bytes)).c_str(), error,
                      LockedMemoryAdvice());
  }
  return VerbsHandle<ibv_mr>(region, [&calls = calls_](ibv_mr* mr) { calls.dereg_mr(mr); });
}

absl::Status VerbsEnd::RegisterMemory() {
  domain_ = VerbsHandle<ibv_pd>(calls_.alloc_pd(device_.context.get()),
                                [&calls = calls_](ibv_pd* domain) { calls.dealloc_pd(domain); });
  if (domain_ == nullptr) return VerbsError(device_.name, "ibv_alloc_pd", errno, "");
  std::byte* const in = reinterpret_cast<std::byte*>(in_.data());
  std::byte* const out = reinterpret_cast<std::byte*>(out_.data());
  constexpr unsigned kPeerWrites = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  // Slots are read only after the completion that announces them, which the device orders behind all of the message,
  // relaxed or not. The credit line is polled, so its region is written in order.
  auto slots = Register(in, in_layout_.slots_bytes(), kPeerWrites | IBV_ACCESS_RELAXED_ORDERING);
  if (!slots.ok()) return slots.status();
  auto control = Register(in + in_layout_.ring_offset(), in_layout_.control_bytes(), kPeerWrites);
  if (!control.ok()) return control.status();
  auto out_region = Register(out, out_layout_.bytes(), IBV_ACCESS_RELAXED_ORDERING);
  if (!out_region.ok()) return out_region.status();
  in_slots_ = *std::move(slots);
  in_control_ = *std::move(control);
  out_region_ = *std::move(out_region);
  return absl::OkStatus();
}

absl::Status VerbsEnd::CreateQueues() {
  channel_ = VerbsHandle<ibv_comp_channel>(
      calls_.create_comp_channel(device_.context.get()),
      [&calls = calls_](ibv_comp_channel* channel) { calls.destroy_comp_channel(channel); });
  if (channel_ == nullptr) return VerbsError(device_.name, "ibv_create_comp_channel", errno, "");
  completions_ = VerbsHandle<ibv_cq>(
      calls_.create_cq(device_.context.get(), static_cast<int>(send_depth_ + receive_depth_ + 2), channel_.get()),
      [&calls = calls_](ibv_cq* queue) { calls.destroy_cq(queue); });
  if (completions_ == nullptr) return VerbsError(device_.name, "ibv_create_cq", errno, LockedMemoryAdvice());
  absl::Status status;
  for (const uint32_t inline_bytes : kInlineBytes) {
    absl::StatusOr<VerbsHandle<ibv_qp>> queue_pair = CreateQueuePair(inline_bytes);
    status = queue_pair.status();
    if (!status.ok()) continue;
    queue_pair_ = *std::move(queue_pair);
    break;
  }
  return status;
}

absl::StatusOr<VerbsHandle<ibv_qp>> VerbsEnd::CreateQueuePair(uint32_t inline_bytes) {
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = completions_.get();
  attributes.recv_cq = completions_.get();
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 0;
  attributes.cap.max_send_wr = send_depth_ + 1;  // one more for Drain
  attributes.cap.max_recv_wr = receive_depth_ + 1;
  attributes.cap.max_send_sge = 1;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = inline_bytes;
  ibv_qp* const queue_pair = calls_.create_qp(domain_.get(), &attributes);
  if (queue_pair == nullptr) return VerbsError(device_.name, "ibv_create_qp", errno, LockedMemoryAdvice());
  inline_bytes_max_ = attributes.cap.max_inline_data;
  return VerbsHandle<ibv_qp>(queue_pair, [&calls = calls_](ibv_qp* qp) { calls.destroy_qp(qp); });
}

absl::Status VerbsEnd::ToInit() {
  constexpr uint32_t k24Bits = (1u << 24) - 1;
  if (getrandom(&packet_number_, sizeof(packet_number_), 0) != sizeof(packet_number_)) {
    return absl::InternalError("the kernel gives no random numbers");
  }
  packet_number_ &= k24Bits;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = 0;
  attributes.port_num = device_.port;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  const int error = calls_.modify_qp(queue_pair_.get(), &attributes,
                                     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return VerbsError(device_.Name(), "ibv_modify_qp to INIT", error, "");
  return absl::OkStatus();
}

absl::Status VerbsEnd::PostReceives() {
  ibv_recv_wr request = {};
  request.wr_id = WrId(MessageKind::kNone, 0, 0).bits();
  for (uint32_t i = 0; i < receive_depth_; ++i) {
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(queue_pair_.get(), &request, &bad); error != 0) {
      return VerbsError(device_.Name(), "ibv_post_recv", error, "");
    }
  }
  return absl::OkStatus();
}

VerbsParameters VerbsEnd::parameters() const {
  VerbsParameters parameters;
  std::memcpy(parameters.gid, device_.gid.gid.raw, sizeof(parameters.gid));
  parameters.queue_pair = queue_pair_->qp_num;
  parameters.packet_number = packet_number_;
  parameters.lid = device_.port_attributes.lid;
  parameters.link_layer = device_.ethernet() ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  ibv_mtu mtu = device_.port_attributes.active_mtu;
  ibv_mtu wanted;
  if (MtuFromBytes(options_.fabric.mtu, &wanted)) mtu = std::min(mtu, wanted);
  parameters.mtu = static_cast<uint8_t>(mtu);
  parameters.checksum = options_.checksum ? 1 : 0;
  parameters.slots_key = in_slots_->rkey;
  parameters.control_key = in_control_->rkey;
  parameters.region_address = reinterpret_cast<uint64_t>(in_.data());
  parameters.region_bytes = in_layout_.bytes();
  return parameters;
}

absl::Status VerbsEnd::Connect(const VerbsParameters& peer) {
  FD_CHECK(!connected_, "an end is connected once");
  absl::Status status = CheckPeer(peer);
  if (status.ok()) status = ToReadyToReceive(peer);
  if (status.ok()) status = ToReadyToSend();
  if (!status.ok()) return status;
  peer_ = peer;
  connected_ = true;
  return absl::OkStatus();
}

absl::Status VerbsEnd::CheckPeer(const VerbsParameters& peer) const {
  const VerbsParameters own = parameters();
  if (peer.link_layer != own.link_layer) {
    return absl::InvalidArgumentError(absl::StrCat(device_.Name(),
                                                   " and the peer's device are not on one fabric: one is "
                                                   "on Ethernet, the other on InfiniBand"));
  }
  if (peer.checksum != own.checksum) {
    return absl::InvalidArgumentError(absl::StrCat("message checksums are ", own.checksum != 0 ? "on" : "off",
                                                   " at this end and ", peer.checksum != 0 ? "on" : "off",
                                                   " at the peer's: both ends must agree"));
  }
  if (peer.region_bytes != out_layout_.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the peer registered ", peer.region_bytes,
                                                   " bytes for our messages where the agreed sizes make ",
                                                   out_layout_.bytes()));
  }
  return absl::OkStatus();
}

absl::Status VerbsEnd::ToReadyToReceive(const VerbsParameters& peer) {
  const VerbsParameters own = parameters();
  mtu_ = static_cast<ibv_mtu>(std::min(own.mtu, peer.mtu));
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = mtu_;
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.packet_number;
  attributes.max_dest_rd_atomic = 0;  // nobody reads
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  attributes.ah_attr.port_num = device_.port;
  attributes.ah_attr.sl = static_cast<uint8_t>(options_.fabric.service_level);
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.is_global = device_.ethernet() || !SameSubnet(own.gid, peer.gid) || peer.lid == 0;
  if (attributes.ah_attr.is_global) {
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid, sizeof(peer.gid));
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(device_.gid.gid_index);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = static_cast<uint8_t>(options_.fabric.traffic_class);
  }
  const int error = calls_.modify_qp(queue_pair_.get(), &attributes,
                                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) return absl::OkStatus();
  ibv_gid peer_gid;
  std::memcpy(peer_gid.raw, peer.gid, sizeof(peer.gid));
  return VerbsError(
      device_.Name(), "ibv_modify_qp to RTR", error,
      absl::StrCat("is there a route from this port to GID ", FormatGid(peer_gid), ", and is the port still up?"));
}

absl::Status VerbsEnd::ToReadyToSend() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = packet_number_;
  attributes.timeout = kAckTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kReceiverNotReadyRetries;
  attributes.max_rd_atomic = 0;
  const int error = calls_.modify_qp(
      queue_pair_.get(), &attributes,
      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) return VerbsError(device_.Name(), "ibv_modify_qp to RTS", error, "");
  return absl::OkStatus();
}

VerbsWiring VerbsEnd::wiring() const {
  FD_CHECK(connected_, "the end is not connected");
  VerbsWiring wiring;
  wiring.queue_pair = queue_pair_.get();
  wiring.completions = completions_.get();
  wiring.in = reinterpret_cast<std::byte*>(in_.data());
  wiring.out = reinterpret_cast<std::byte*>(out_.data());
  wiring.in_layout = in_layout_;
  wiring.out_layout = out_layout_;
  wiring.out_key = out_region_->lkey;
  wiring.peer_address = peer_.region_address;
  wiring.peer_slots_key = peer_.slots_key;
  wiring.peer_control_key = peer_.control_key;
  wiring.send_depth = send_depth_;
  wiring.receive_depth = receive_depth_;
  wiring.inline_bytes_max = inline_bytes_max_;
  wiring.chunk_bytes = chunk_bytes_;
  wiring.checksum = options_.checksum;
  return wiring;
}

std::string VerbsEnd::Describe() const {
  std::string text = absl::StrCat(device_.Describe(), ", QP ", queue_pair_->qp_num);
  if (connected_) absl::StrAppend(&text, ", path MTU ", MtuBytes(mtu_));
  absl::StrAppend(&text, ", queues of ", send_depth_, " and ", receive_depth_, ", up to ", inline_bytes_max_,
                  " bytes inline, memory ", in_.Describe(), " and ", out_.Describe(),
                  options_.checksum ? ", with checksums" : "");
  return text;
}

// Behind a request of our own at the end of each queue, posted while they still run (a queue pair in ERR may not look
// at new receives), all others have ended: the device touches no memory of this end any more.
void VerbsEnd::Drain() {
  const uint64_t marker = WrId(MessageKind::kNone, 0, WrId::kPostedMax).bits();
  ibv_recv_wr receive = {};
  receive.wr_id = marker;
  ibv_recv_wr* bad_receive = nullptr;
  ibv_send_wr send = {};
  send.wr_id = marker;
  send.opcode = IBV_WR_RDMA_WRITE;
  send.send_flags = IBV_SEND_SIGNALED;
  send.wr.rdma.remote_addr = peer_.region_address;
  send.wr.rdma.rkey = peer_.slots_key;
  ibv_send_wr* bad_send = nullptr;
  int markers = ibv_post_recv(queue_pair_.get(), &receive, &bad_receive) == 0 ? 1 : 0;
  if (connected_ && ibv_post_send(queue_pair_.get(), &send, &bad_send) == 0) ++markers;
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  if (calls_.modify_qp(queue_pair_.get(), &attributes, IBV_QP_STATE) != 0) return;  // destroying it has to do
  const uint64_t end_ns = NowNs() + kDrainNsMax;
  PollBackoff backoff(PollMode::kYield);
  while (markers > 0 && NowNs() < end_ns) {
    ibv_wc completion;
    if (ibv_poll_cq(completions_.get(), 1, &completion) <= 0) {
      backoff.Idle();
    } else if (completion.wr_id == marker) {
      --markers;
    }
  }
}

}  // namespace fastdecode
