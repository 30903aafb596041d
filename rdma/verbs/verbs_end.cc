#include "rdma/verbs/verbs_end.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "numa/abandon.h"
#include "numa/check.h"
#include "numa/spin.h"
#include "numa/topology.h"
#include "rdma/verbs/verbs_error_text.h"

namespace fastdecode {

namespace {

constexpr size_t kChunkBytesMin = 1 << 20;
constexpr size_t kChunksMax = 16;
constexpr size_t kPageBytes = 4096;
constexpr uint64_t kDrainNsMax = 500'000'000;
constexpr unsigned kPeerWrites = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

LinkRole Other(LinkRole role) { return role == LinkRole::kHome ? LinkRole::kEngine : LinkRole::kHome; }

// Of the messages that an end of this role receives.
RegionLayout InLayout(const LinkSize& size, LinkRole role, bool payload_apart) {
  return RegionLayout(size, role == LinkRole::kHome ? size.hop_payload_bytes_max : size.reply_payload_bytes_max,
                      payload_apart);
}

std::byte* BytesOf(const Arena& arena) { return reinterpret_cast<std::byte*>(arena.data()); }

VerbsWiring::Local LocalOf(const Arena& arena, size_t offset, const ibv_mr& region) {
  std::byte* const data = BytesOf(arena) + offset;
  return {data, reinterpret_cast<uint64_t>(data), region.lkey};
}
VerbsWiring::Local LocalOf(const GpuMemory& memory) { return {memory.data(), memory.address(), memory.local_key()}; }

// Only an engine has a GPU that writes and reads what the link carries.
bool OnGpu(const VerbsOptions& options, LinkRole role) { return role == LinkRole::kEngine && options.fabric.gpu >= 0; }

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsEnd>> VerbsEnd::Create(const VerbsOptions& options, const LinkSize& size,
                                                           LinkRole role, int node) {
  if (absl::Status status = CheckLinkSize(size); !status.ok()) return status;
  absl::StatusOr<VerbsDevice> device = OpenVerbsDevice(*options.calls, options.fabric, node);
  if (!device.ok()) return device.status();
  std::unique_ptr<VerbsEnd> end(new VerbsEnd(options, size, role));
  end->device_ = *std::move(device);
  absl::Status status = end->CheckOptions();
  if (status.ok()) status = end->PlanQueues();
  if (status.ok()) status = end->AllocateMemory(node);
  if (status.ok()) status = end->RegisterMemory();
  if (status.ok()) status = end->RegisterBulk();
  if (status.ok()) status = end->HoldGpu();
  if (status.ok()) status = end->ProbeGpu();
  if (status.ok()) status = end->AllocateOnGpu(node);
  end->gpu_hold_.reset();
  if (status.ok()) status = end->CreateQueues();
  if (!status.ok()) return status;
  return end;
}

VerbsEnd::VerbsEnd(const VerbsOptions& options, const LinkSize& size, LinkRole role)
    : options_(options),
      calls_(*options.calls),
      size_(size),
      role_(role),
      in_layout_(InLayout(size, role, OnGpu(options, role))),
      out_layout_(InLayout(size, Other(role), OnGpu(options, role))),
      bulk_layout_(size) {}

VerbsEnd::~VerbsEnd() {
  if (hop_pair_.get() != nullptr) Drain();
  if (gpu_ == nullptr || HoldGpu().ok()) return;
  for (std::unique_ptr<GpuMemory>* const payload : {&in_payload_, &out_payload_}) {
    if (*payload == nullptr) continue;
    (*payload)->EndAccess();
    Abandon(std::move(*payload));
  }
  Abandon(std::move(gpu_));
}

absl::Status VerbsEnd::CheckOptions() const {
  if (on_gpu() && options_.checksum) {
    return absl::InvalidArgumentError(
        "message checksums: the CPU computes them, and cannot of what lies in a GPU's memory; use one of the two");
  }
  return absl::OkStatus();
}

// How deep the queues must be for everything that can be in flight; see docs/decisions/0008.
absl::Status VerbsEnd::PlanQueues() {
  const size_t device_max = std::min<size_t>(device_.port_attributes.max_msg_sz, uint32_t{1} << 31);
  if (device_max < kControlMessageBytesMax + sizeof(ControlWord)) {
    return absl::FailedPreconditionError(absl::StrCat(device_.Name(), " takes messages of ", device_max,
                                                      " bytes at most: too few for control messages"));
  }
  const size_t payload_bytes = out_layout_.payload_bytes_max();
  chunk_bytes_ = std::max(kChunkBytesMin, RoundUpTo((payload_bytes + kChunksMax - 1) / kChunksMax, kPageBytes));
  chunk_bytes_ = std::min(chunk_bytes_, device_max / kPageBytes * kPageBytes);
  const uint64_t chain = (payload_bytes + chunk_bytes_ - 1) / chunk_bytes_ + 1;  // with the line
  const uint64_t slots = static_cast<uint64_t>(size_.slots);
  const uint64_t segments = bulk_layout_.segments();
  // Twice what the credits let out at once, since an acknowledgement may come after the credit: slots; control messages
  // that wrap; and the credit writes for the peer's messages and segments.
  const uint64_t send = 2 * (slots * chain + 2 * kControlWindow + kControlWindow + segments);
  const uint64_t receive = 2 * (slots + kControlWindow);
  const uint64_t queue_max = static_cast<uint64_t>(std::max(device_.attributes.max_qp_wr - 1, 0));
  const uint64_t completions_max = static_cast<uint64_t>(std::max(device_.attributes.max_cqe, 0));
  const uint64_t completions = send + receive + 2 + (has_bulk() ? 2 * segments + 2 : 0);  // two markers a queue pair
  static_assert(kBulkSegmentBytesMax + sizeof(BulkTrailer) <= kControlMessageBytesMax + sizeof(ControlWord));
  if (send > queue_max || receive > queue_max || completions > completions_max) {
    return absl::FailedPreconditionError(absl::StrCat(device_.Name(), " has queues of at most ", queue_max,
                                                      " work requests and ", completions_max,
                                                      " completions; this link needs ", send, " and ", completions,
                                                      ": fewer micro-batches or smaller batches need less"));
  }
  completions_depth_ = static_cast<int>(completions);
  hop_depths_ = {static_cast<uint32_t>(send), static_cast<uint32_t>(receive)};
  const uint32_t twice = static_cast<uint32_t>(2 * segments);
  bulk_depths_ = role_ == LinkRole::kEngine ? QueueDepths{twice, 0} : QueueDepths{0, twice};
  return absl::OkStatus();
}

absl::Status VerbsEnd::AllocateMemory(int node) {
  const auto allocate = [node](size_t bytes, Arena* to) -> absl::Status {
    if (bytes == 0) return absl::OkStatus();
    ArenaOptions options;
    options.node = node;
    options.bytes = bytes;
    absl::StatusOr<Arena> arena = Arena::Create(options);
    if (!arena.ok()) return arena.status();
    *to = *std::move(arena);
    return absl::OkStatus();
  };
  absl::Status status = allocate(in_layout_.bytes(), &in_);
  if (status.ok()) status = allocate(out_bytes(), &out_);
  if (status.ok()) status = allocate(bulk_layout_.bytes(), &bulk_);
  return status;
}

absl::StatusOr<VerbsEnd::Handle> VerbsEnd::Register(std::byte* data, size_t bytes, unsigned access) {
  ibv_mr* const region = calls_.reg_mr(domain_.get(), data, bytes, access);
  if (region == nullptr) {
    const int error = errno;
    return VerbsError(device_.name, absl::StrCat("ibv_reg_mr of ", FormatBytes(bytes)).c_str(), error,
                      LockedMemoryAdvice());
  }
  return Handle(region, [&calls = calls_](ibv_mr* mr) { calls.dereg_mr(mr); });
}

absl::Status VerbsEnd::RegisterMemory() {
  domain_ = VerbsHandle<ibv_pd>(calls_.alloc_pd(device_.context.get()),
                                [&calls = calls_](ibv_pd* domain) { calls.dealloc_pd(domain); });
  if (domain_ == nullptr) return VerbsError(device_.name, "ibv_alloc_pd", errno, "");
  // Slots are read only after the completion that announces them, which the device orders behind all of the message,
  // relaxed or not. The credit line is polled, so its region is written in order.
  auto slots = Register(BytesOf(in_), in_layout_.slots_bytes(), kPeerWrites | IBV_ACCESS_RELAXED_ORDERING);
  if (!slots.ok()) return slots.status();
  auto control = Register(BytesOf(in_) + in_layout_.ring_offset(), in_layout_.control_bytes(), kPeerWrites);
  if (!control.ok()) return control.status();
  auto out = Register(BytesOf(out_), out_bytes(), IBV_ACCESS_RELAXED_ORDERING);
  if (!out.ok()) return out.status();
  in_slots_ = *std::move(slots);
  in_control_ = *std::move(control);
  out_region_ = *std::move(out);
  return absl::OkStatus();
}

absl::Status VerbsEnd::RegisterBulk() {
  if (!has_bulk()) return absl::OkStatus();
  // As slots, a segment is read only after its completion.
  const unsigned access = role_ == LinkRole::kHome ? kPeerWrites : 0u;
  auto region = Register(BytesOf(bulk_), bulk_layout_.bytes(), access | IBV_ACCESS_RELAXED_ORDERING);
  if (!region.ok()) return region.status();
  bulk_region_ = *std::move(region);
  return absl::OkStatus();
}

absl::Status VerbsEnd::HoldGpu() {
  if (!on_gpu() || !options_.fabric.hold_gpu) return absl::OkStatus();
  gpu_hold_ = options_.fabric.hold_gpu();
  if (gpu_hold_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("GPU ", options_.fabric.gpu, " is given up: it hangs"));
}

absl::Status VerbsEnd::ProbeGpu() {
  if (!on_gpu()) return absl::OkStatus();
  cuda_ = options_.cuda;
  if (cuda_ == nullptr) {
    absl::StatusOr<CudaDriver> driver = CudaDriver::Load();
    if (!driver.ok()) return driver.status();
    cuda_ = std::make_shared<const CudaDriver>(*std::move(driver));
  }
  absl::StatusOr<std::unique_ptr<GpuDevice>> gpu = GpuDevice::Open(*cuda_, options_.fabric.gpu);
  if (!gpu.ok()) return gpu.status();
  gpu_ = *std::move(gpu);
  absl::StatusOr<GpuMemoryProbe> probe = ProbeGpuMemory(gpu_place(), options_.module_folder);
  if (!probe.ok()) return probe.status();
  gpu_probe_ = *std::move(probe);
  return absl::OkStatus();
}

// A GPU that is full has room for the probe's small piece perhaps, and not for this.
absl::Status VerbsEnd::AllocateOnGpu(int node) {
  absl::Status status = AllocateBy(gpu_probe_.method, node);
  if (status.ok() || gpu_probe_.method == GpuMemoryMethod::kHostBounce) return status;
  gpu_probe_.refused.push_back(absl::StrCat(GpuMemoryMethodName(gpu_probe_.method), ": ", status.message()));
  gpu_probe_.method = GpuMemoryMethod::kHostBounce;
  gpu_probe_.flush = false;
  return AllocateBy(gpu_probe_.method, node);
}

absl::Status VerbsEnd::AllocateBy(GpuMemoryMethod method, int node) {
  in_payload_.reset();
  const auto allocate = [&](size_t bytes, unsigned access, std::unique_ptr<GpuMemory>* to) -> absl::Status {
    if (bytes == 0) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<GpuMemory>> memory =
        GpuMemory::Create(gpu_place(), method, {bytes, access | IBV_ACCESS_RELAXED_ORDERING, node});
    if (!memory.ok()) return memory.status();
    *to = *std::move(memory);
    return absl::OkStatus();
  };
  absl::Status status = allocate(in_layout_.apart_bytes(), kPeerWrites, &in_payload_);
  if (status.ok()) status = allocate(out_layout_.apart_bytes(), 0, &out_payload_);
  return status;
}

absl::Status VerbsEnd::CreateQueues() {
  channel_ = VerbsHandle<ibv_comp_channel>(
      calls_.create_comp_channel(device_.context.get()),
      [&calls = calls_](ibv_comp_channel* channel) { calls.destroy_comp_channel(channel); });
  if (channel_ == nullptr) return VerbsError(device_.name, "ibv_create_comp_channel", errno, "");
  completions_ = VerbsHandle<ibv_cq>(calls_.create_cq(device_.context.get(), completions_depth_, channel_.get()),
                                     [&calls = calls_](ibv_cq* queue) { calls.destroy_cq(queue); });
  if (completions_ == nullptr) return VerbsError(device_.name, "ibv_create_cq", errno, LockedMemoryAdvice());
  absl::StatusOr<VerbsQueuePair> hop = VerbsQueuePair::Create(calls_, device_, options_.fabric, domain_.get(),
                                                              completions_.get(), hop_depths_, MessageKind::kNone);
  if (!hop.ok()) return hop.status();
  hop_pair_ = *std::move(hop);
  if (!has_bulk()) return absl::OkStatus();
  absl::StatusOr<VerbsQueuePair> bulk = VerbsQueuePair::Create(calls_, device_, options_.fabric, domain_.get(),
                                                               completions_.get(), bulk_depths_, MessageKind::kBulk);
  if (!bulk.ok()) return bulk.status();
  bulk_pair_ = *std::move(bulk);
  return absl::OkStatus();
}

VerbsParameters VerbsEnd::parameters() const {
  VerbsParameters parameters;
  std::memcpy(parameters.gid, device_.gid.gid.raw, sizeof(parameters.gid));
  parameters.lid = device_.port_attributes.lid;
  parameters.link_layer = device_.ethernet() ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
  ibv_mtu mtu = device_.port_attributes.active_mtu;
  ibv_mtu wanted;
  if (MtuFromBytes(options_.fabric.mtu, &wanted)) mtu = std::min(mtu, wanted);
  parameters.mtu = static_cast<uint8_t>(mtu);
  parameters.checksum = options_.checksum ? 1 : 0;
  parameters.hop_pair = {hop_pair_.number(), hop_pair_.packet_number()};
  parameters.slots = {reinterpret_cast<uint64_t>(in_.data()), in_layout_.bytes(), in_slots_->rkey};
  parameters.control_key = in_control_->rkey;
  if (in_payload_ != nullptr) {
    parameters.payload = {in_payload_->address(), in_layout_.apart_bytes(), in_payload_->remote_key()};
  }
  if (has_bulk()) parameters.bulk_pair = {bulk_pair_.number(), bulk_pair_.packet_number()};
  if (has_bulk() && role_ == LinkRole::kHome) {
    parameters.bulk = {reinterpret_cast<uint64_t>(bulk_.data()), bulk_layout_.bytes(), bulk_region_->rkey};
  }
  return parameters;
}

absl::Status VerbsEnd::Connect(const VerbsParameters& peer) {
  FD_CHECK(!connected_, "an end is connected once");
  if (absl::Status status = CheckPeer(peer); !status.ok()) return status;
  mtu_ = static_cast<ibv_mtu>(std::min(parameters().mtu, peer.mtu));
  QueuePairPeer to;
  std::memcpy(to.gid, peer.gid, sizeof(to.gid));
  to.lid = peer.lid;
  to.mtu = mtu_;
  to.queue_pair = peer.hop_pair.number;
  to.packet_number = peer.hop_pair.packet_number;
  absl::Status status = hop_pair_.Connect(to);
  if (status.ok() && has_bulk()) {
    to.queue_pair = peer.bulk_pair.number;
    to.packet_number = peer.bulk_pair.packet_number;
    status = bulk_pair_.Connect(to);
  }
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
  const RegionLayout there = InLayout(size_, Other(role_), peer.payload.bytes != 0);
  const uint64_t bulk_bytes = role_ == LinkRole::kEngine ? bulk_layout_.bytes() : 0;
  const struct {
    const char* what;
    uint64_t registered;
    uint64_t agreed;
  } ranges[] = {{"messages", peer.slots.bytes, there.bytes()},
                {"payload", peer.payload.bytes, there.apart_bytes()},
                {"bulk segments", peer.bulk.bytes, bulk_bytes}};
  for (const auto& range : ranges) {
    if (range.registered == range.agreed) continue;
    return absl::InvalidArgumentError(absl::StrCat("the peer registered ", range.registered, " bytes for our ",
                                                   range.what, " where the agreed sizes make ", range.agreed));
  }
  return absl::OkStatus();
}

VerbsWiring VerbsEnd::wiring() const {
  FD_CHECK(connected_, "the end is not connected");
  VerbsWiring wiring;
  wiring.queue_pair = hop_pair_.get();
  wiring.completions = completions_.get();
  wiring.depths = hop_depths_;
  wiring.inline_bytes_max = hop_pair_.inline_bytes_max();
  wiring.chunk_bytes = chunk_bytes_;
  wiring.checksum = options_.checksum;
  wiring.in_layout = in_layout_;
  wiring.out_layout = out_layout_;
  wiring.peer_layout = InLayout(size_, Other(role_), peer_.payload.bytes != 0);
  wiring.in = wiring.in_payload = LocalOf(in_, 0, *in_slots_);
  wiring.out = wiring.out_payload = LocalOf(out_, 0, *out_region_);
  if (in_payload_ != nullptr) wiring.in_payload = LocalOf(*in_payload_);
  if (out_payload_ != nullptr) wiring.out_payload = LocalOf(*out_payload_);
  wiring.peer_slots = wiring.peer_payload = {peer_.slots.address, peer_.slots.key};
  wiring.peer_control = {peer_.slots.address, peer_.control_key};
  if (peer_.payload.bytes != 0) wiring.peer_payload = {peer_.payload.address, peer_.payload.key};
  if (has_bulk()) {
    wiring.bulk_pair = bulk_pair_.get();
    wiring.bulk_depths = bulk_depths_;
    wiring.bulk_layout = bulk_layout_;
    wiring.bulk = LocalOf(bulk_, 0, *bulk_region_);
    if (role_ == LinkRole::kEngine) wiring.bulk_trailer = LocalOf(out_, out_layout_.bytes(), *out_region_);
    wiring.peer_bulk = {peer_.bulk.address, peer_.bulk.key};
  }
  return wiring;
}

std::string VerbsEnd::Describe() const {
  std::string text = absl::StrCat(device_.Describe(), ", QP ", hop_pair_.number());
  if (has_bulk()) absl::StrAppend(&text, " and ", bulk_pair_.number(), " for bulk");
  if (connected_) absl::StrAppend(&text, ", path MTU ", MtuBytes(mtu_));
  absl::StrAppend(&text, ", queues of ", hop_depths_.send, " and ", hop_depths_.receive, ", up to ",
                  hop_pair_.inline_bytes_max(), " bytes inline, memory ", in_.DescribePlace(), " and ",
                  out_.DescribePlace(), options_.checksum ? ", with checksums" : "");
  if (on_gpu()) absl::StrAppend(&text, "; payload by ", gpu_probe_.Describe());
  return text;
}

// Once the markers are back, the device touches no memory of this end any more.
void VerbsEnd::Drain() {
  int markers = hop_pair_.PostMarkersAndFail(peer_.slots.address, peer_.slots.key);
  if (bulk_pair_.get() != nullptr) markers += bulk_pair_.PostMarkersAndFail(peer_.slots.address, peer_.slots.key);
  const uint64_t end_ns = NowNs() + kDrainNsMax;
  PollBackoff backoff(PollMode::kYield);
  while (markers > 0 && NowNs() < end_ns) {
    ibv_wc completion;
    if (ibv_poll_cq(completions_.get(), 1, &completion) <= 0) {
      backoff.Idle();
    } else if (completion.wr_id == VerbsQueuePair::kMarker) {
      --markers;
    }
  }
}

}  // namespace fastdecode
