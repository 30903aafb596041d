#include <endian.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/rdma/verbs/fake_fabric_state.h"

namespace fastdecode {

FakeFabric::FakeFabric(const FakeFabricOptions& options) : options_(options), random_(options.seed) {
  AddDevice("fake0");
}

FakeFabric::~FakeFabric() = default;

FakeFabric::Device* FakeFabric::AddDevice(const std::string& name, const std::string& sysfs_path) {
  auto device = std::make_unique<Device>();
  device->base.transport_type = IBV_TRANSPORT_IB;
  std::strncpy(device->base.name, name.c_str(), sizeof(device->base.name) - 1);
  std::strncpy(device->base.ibdev_path, sysfs_path.c_str(), sizeof(device->base.ibdev_path) - 1);
  ibv_port_attr port = {};
  port.state = IBV_PORT_ACTIVE;
  port.active_mtu = IBV_MTU_4096;
  port.max_msg_sz = options_.max_msg_bytes;
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  device->ports = {port};
  device->gids = {Gid(0, IBV_GID_TYPE_ROCE_V2, {0xff, 0xff, 10, 0, 0, 1})};
  device->attributes.max_qp_wr = options_.max_qp_wr;
  device->attributes.max_cqe = 1 << 20;
  devices_.push_back(std::move(device));
  return devices_.back().get();
}

ibv_gid_entry FakeFabric::Gid(uint32_t index, uint32_t type, const std::vector<uint8_t>& tail) {
  ibv_gid_entry entry = {};
  entry.gid_index = index;
  entry.port_num = 1;
  entry.gid_type = type;
  std::copy(tail.begin(), tail.end(), entry.gid.raw + sizeof(entry.gid.raw) - tail.size());
  return entry;
}

VerbsCalls FakeFabric::Calls() {
  VerbsCalls calls;
  calls.get_device_list = [this](int* count) {
    auto** list = new ibv_device*[devices_.size() + 1]();
    for (size_t i = 0; i < devices_.size(); ++i) list[i] = &devices_[i]->base;
    ++live_objects_;
    *count = static_cast<int>(devices_.size());
    return list;
  };
  calls.free_device_list = [this](ibv_device** list) {
    --live_objects_;
    delete[] list;
  };
  calls.open_device = [this](ibv_device* device) { return Open(device); };
  calls.close_device = [this](ibv_context* context) { return Close(context); };
  calls.query_device = [](ibv_context* context, ibv_device_attr* attributes) {
    const Device* device = reinterpret_cast<Context*>(context)->device;
    *attributes = device->attributes;
    attributes->phys_port_cnt = static_cast<uint8_t>(device->ports.size());
    return 0;
  };
  calls.query_port = [](ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
    const Device* device = reinterpret_cast<Context*>(context)->device;
    *attributes = device->ports.at(port - 1u);
    attributes->pkey_tbl_len = static_cast<uint16_t>(device->partition_keys.size());
    return 0;
  };
  calls.query_gid_table = [](ibv_context* context, ibv_gid_entry* entries, size_t entries_max) -> ssize_t {
    const auto& gids = reinterpret_cast<Context*>(context)->device->gids;
    std::copy(gids.begin(), gids.end(), entries);
    return static_cast<ssize_t>(std::min(gids.size(), entries_max));
  };
  calls.query_pkey = [](ibv_context* context, uint8_t port, int index, __be16* key) {
    *key = htobe16(reinterpret_cast<Context*>(context)->device->partition_keys.at(static_cast<size_t>(index)));
    return 0;
  };
  calls.alloc_pd = [this](ibv_context* context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* domain = new Domain;
    domain->base.context = context;
    ++reinterpret_cast<Context*>(context)->domains;
    ++live_objects_;
    return &domain->base;
  };
  calls.dealloc_pd = [this](ibv_pd* base) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* domain = reinterpret_cast<Domain*>(base);
    if (domain->users > 0) Violation("a protection domain was freed that is in use");
    --reinterpret_cast<Context*>(base->context)->domains;
    --live_objects_;
    delete domain;
    return 0;
  };
  calls.reg_mr = [this](ibv_pd* domain, void* data, size_t bytes, unsigned access) {
    return RegisterRegion(domain, data, bytes, access);
  };
  calls.reg_dmabuf_mr = [this](ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t address, int fd,
                               unsigned access) {
    return RegisterDmaBuf(domain, {.offset = offset, .bytes = bytes, .address = address, .fd = fd}, access);
  };
  calls.dereg_mr = [this](ibv_mr* base) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* region = reinterpret_cast<Region*>(base);
    regions_.erase(base->lkey);
    regions_.erase(base->rkey);
    --region->domain->users;
    --live_objects_;
    delete region;
    return 0;
  };
  calls.create_comp_channel = [this](ibv_context* context) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* channel = new Channel;
    channel->base.context = context;
    channel->base.fd = EventFd();
    ++live_objects_;
    return &channel->base;
  };
  calls.destroy_comp_channel = [this](ibv_comp_channel* base) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (base->refcnt > 0) Violation("a completion channel was destroyed before its queue");
    close(base->fd);
    --live_objects_;
    delete reinterpret_cast<Channel*>(base);
    return 0;
  };
  calls.create_cq = [this](ibv_context* context, int depth, ibv_comp_channel* channel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* queue = new Queue;
    queue->base.context = context;
    queue->fabric = this;
    queue->channel = reinterpret_cast<Channel*>(channel);
    queue->depth = depth;
    if (channel != nullptr) ++channel->refcnt;
    ++reinterpret_cast<Context*>(context)->queues;
    ++live_objects_;
    return &queue->base;
  };
  calls.destroy_cq = [this](ibv_cq* queue) { return DestroyQueue(queue); };
  calls.create_qp = [this](ibv_pd* domain, ibv_qp_init_attr* attributes) { return CreatePair(domain, attributes); };
  calls.modify_qp = [this](ibv_qp* qp, ibv_qp_attr* attributes, int mask) { return ModifyPair(qp, attributes, mask); };
  calls.destroy_qp = [this](ibv_qp* qp) { return DestroyPair(qp); };
  calls.get_cq_event = [this](ibv_comp_channel* base, ibv_cq** queue) {
    if (!Take(base->fd)) return -1;
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* channel = reinterpret_cast<Channel*>(base);
    Queue* const source = channel->events.front();
    channel->events.pop_front();
    ++source->unacknowledged;
    *queue = &source->base;
    return 0;
  };
  calls.ack_cq_events = [this](ibv_cq* queue, unsigned count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    reinterpret_cast<Queue*>(queue)->unacknowledged -= static_cast<int>(count);
  };
  calls.get_async_event = [this](ibv_context* base, ibv_async_event* event) {
    if (!Take(base->async_fd)) return -1;
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* context = reinterpret_cast<Context*>(base);
    *event = context->events.front();
    context->events.pop_front();
    ++unacknowledged_events_;
    return 0;
  };
  calls.ack_async_event = [this](ibv_async_event* event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    --unacknowledged_events_;
  };
  return calls;
}

ibv_context* FakeFabric::Open(ibv_device* device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto context = std::make_unique<Context>();
  context->fabric = this;
  context->device = reinterpret_cast<Device*>(device);
  context->base.device = device;
  context->base.async_fd = EventFd();
  context->base.ops.post_send = &PostSend;
  context->base.ops.post_recv = &PostReceive;
  context->base.ops.poll_cq = &PollQueue;
  context->base.ops.req_notify_cq = &RequestEvent;
  ++live_objects_;
  contexts_.push_back(std::move(context));
  return &contexts_.back()->base;
}

int FakeFabric::Close(ibv_context* base) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* context = reinterpret_cast<Context*>(base);
  if (context->domains > 0 || context->queues > 0) Violation("a device was closed whose objects live");
  close(base->async_fd);
  --live_objects_;
  contexts_.remove_if([context](const auto& entry) { return entry.get() == context; });
  return 0;
}

ibv_mr* FakeFabric::RegisterRegion(ibv_pd* base, void* data, size_t bytes, unsigned access) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* region = new Region;
  region->domain = reinterpret_cast<Domain*>(base);
  region->start = reinterpret_cast<uint64_t>(data);
  region->access = access;
  region->base.context = base->context;
  region->base.pd = base;
  region->base.addr = data;
  region->base.length = bytes;
  region->base.lkey = next_key_++;
  region->base.rkey = next_key_++;
  regions_[region->base.lkey] = region;
  regions_[region->base.rkey] = region;
  ++region->domain->users;
  ++live_objects_;
  return &region->base;
}

ibv_mr* FakeFabric::RegisterDmaBuf(ibv_pd* domain, const DmaBuf& buffer, unsigned access) {
  constexpr uint64_t kPageBytes = 4096;
  const off_t bytes = lseek(buffer.fd, 0, SEEK_END);
  if (bytes < 0) return nullptr;
  if (buffer.offset + buffer.bytes > static_cast<uint64_t>(bytes) ||
      buffer.offset % kPageBytes != buffer.address % kPageBytes) {
    errno = EINVAL;
    return nullptr;
  }
  ibv_mr* const region = RegisterRegion(domain, reinterpret_cast<void*>(buffer.address), buffer.bytes, access);
  region->addr = reinterpret_cast<void*>(buffer.offset);  // that is what libibverbs leaves there
  return region;
}

ibv_qp* FakeFabric::CreatePair(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const ibv_qp_cap& wanted = attributes->cap;
  if (wanted.max_inline_data > options_.max_inline || attributes->qp_type != IBV_QPT_RC ||
      wanted.max_send_wr > static_cast<uint32_t>(options_.max_qp_wr) ||
      wanted.max_recv_wr > static_cast<uint32_t>(options_.max_qp_wr)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* pair = new Pair;
  pair->fabric = this;
  pair->context = reinterpret_cast<Context*>(domain->context);
  pair->domain = reinterpret_cast<Domain*>(domain);
  pair->send_queue = reinterpret_cast<Queue*>(attributes->send_cq);
  pair->receive_queue = reinterpret_cast<Queue*>(attributes->recv_cq);
  pair->capacity = wanted;
  pair->base.context = domain->context;
  pair->base.state = IBV_QPS_RESET;
  pair->base.qp_num = next_pair_++;
  ++pair->domain->users;
  ++pair->send_queue->pairs;
  pairs_[pair->base.qp_num] = pair;
  ++live_objects_;
  return &pair->base;
}

int FakeFabric::ModifyPair(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* pair = reinterpret_cast<Pair*>(qp);
  if ((mask & IBV_QP_STATE) == 0) return EINVAL;
  const ibv_qp_state from = qp->state;
  switch (attributes->qp_state) {
    case IBV_QPS_INIT:
      if (from != IBV_QPS_RESET) return EINVAL;
      pair->access = attributes->qp_access_flags;
      break;
    case IBV_QPS_RTR:
      if (from != IBV_QPS_INIT || (mask & IBV_QP_DEST_QPN) == 0) return EINVAL;
      pair->peer = attributes->dest_qp_num;
      pair->first_packet_in = attributes->rq_psn;
      pair->mtu = attributes->path_mtu;
      break;
    case IBV_QPS_RTS:
      if (from != IBV_QPS_RTR) return EINVAL;
      if (attributes->rnr_retry == 7 || attributes->retry_cnt == 7) Violation("7 retries are forever");
      pair->first_packet_out = attributes->sq_psn;
      break;
    case IBV_QPS_ERR:
      ToError(pair);
      return 0;
    default:
      return EINVAL;
  }
  qp->state = attributes->qp_state;
  return 0;
}

int FakeFabric::DestroyPair(ibv_qp* qp) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* pair = reinterpret_cast<Pair*>(qp);
  if (unacknowledged_events_ > 0) Violation("a queue pair was destroyed with unacknowledged events");
  if (pair->base.state == IBV_QPS_RTS) Violation("a queue pair was destroyed that was not in ERR");
  if (!pair->receives.empty()) Violation("a queue pair was destroyed with receives posted");
  --pair->domain->users;
  --pair->send_queue->pairs;
  auto& entries = pair->send_queue->entries;
  std::erase_if(entries, [pair](const Queue::Entry& entry) { return entry.pair == pair; });
  std::erase_if(pair->send_queue->late, [pair](const auto& late) { return late.entry.pair == pair; });
  pairs_.erase(qp->qp_num);
  --live_objects_;
  delete pair;
  return 0;
}

int FakeFabric::DestroyQueue(ibv_cq* base) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* queue = reinterpret_cast<Queue*>(base);
  if (queue->pairs > 0) Violation("a completion queue was destroyed before its queue pair");
  if (queue->unacknowledged > 0) Violation("a completion queue was destroyed with unacknowledged events");
  if (queue->channel != nullptr) {
    --queue->channel->base.refcnt;
    std::erase(queue->channel->events, queue);
  }
  --reinterpret_cast<Context*>(base->context)->queues;
  --live_objects_;
  delete queue;
  return 0;
}

// ---- What tests do to it ----

void FakeFabric::FailNextWrite(ibv_context* context, ibv_wc_status status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* state = reinterpret_cast<Context*>(context);
  state->fail_next = true;
  state->fail_status = status;
}

void FakeFabric::FailPosts(ibv_context* context, int error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reinterpret_cast<Context*>(context)->post_error = error;
}

void FakeFabric::RaiseEvent(ibv_context* context, ibv_event_type type, int port) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ibv_async_event event = {};
  event.event_type = type;
  event.element.port_num = port;
  Raise(reinterpret_cast<Context*>(context), event);
}

void FakeFabric::Hold(ibv_context* context, bool hold) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reinterpret_cast<Context*>(context)->held = hold;
}

void FakeFabric::HoldAcknowledgements(ibv_context* context, bool hold) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reinterpret_cast<Context*>(context)->acknowledgements_held = hold;
  if (hold) return;
  for (const auto& [number, pair] : pairs_) {
    if (&pair->context->base != context) continue;
    for (const Queue::Entry& entry : pair->unacknowledged) {
      Complete(pair->send_queue, pair, entry.completion, entry.send_index, false);
    }
    pair->unacknowledged.clear();
  }
}

int FakeFabric::live_objects() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return live_objects_;
}

std::vector<std::string> FakeFabric::violations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return violations_;
}

size_t FakeFabric::send_queue_peak() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return send_queue_peak_;
}

uint64_t FakeFabric::writes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return writes_;
}

}  // namespace fastdecode
