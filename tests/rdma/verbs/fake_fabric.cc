#include "tests/rdma/verbs/fake_fabric.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace fastdecode {

namespace {

// One event a read; the program makes it non-blocking as it does with a real one.
int EventFd() { return eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE); }
void Signal(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));
}
bool Take(int fd) {
  uint64_t value;
  return read(fd, &value, sizeof(value)) == sizeof(value);
}

// As an adapter writes: aligned words at once, so that a reader of a word never sees half of it.
void PlaceBytes(uint64_t address, const std::byte* from, size_t bytes) {
  while (bytes > 0) {
    if (address % 8 == 0 && bytes >= 8) {
      uint64_t word;
      std::memcpy(&word, from, sizeof(word));
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(address)).store(word, std::memory_order_release);
      address += 8, from += 8, bytes -= 8;
    } else {
      *reinterpret_cast<std::byte*>(address) = *from;
      ++address, ++from, --bytes;
    }
  }
}

}  // namespace

struct FakeFabric::Context {
  ibv_context base = {};
  FakeFabric* fabric = nullptr;
  Device* device = nullptr;
  int domains = 0;
  int queues = 0;
  std::deque<ibv_async_event> events;
  int post_error = 0;
  bool held = false;
  bool acknowledgements_held = false;
  bool fail_next = false;
  ibv_wc_status fail_status = IBV_WC_SUCCESS;
};

struct FakeFabric::Domain {
  ibv_pd base = {};
  int users = 0;
};

struct FakeFabric::Region {
  ibv_mr base = {};
  Domain* domain = nullptr;
  unsigned access = 0;

  bool Contains(uint64_t address, uint64_t bytes) const {
    const uint64_t start = reinterpret_cast<uint64_t>(base.addr);
    return address >= start && bytes <= base.length && address - start <= base.length - bytes;
  }
};

struct FakeFabric::Channel {
  ibv_comp_channel base = {};
  std::deque<Queue*> events;
};

struct FakeFabric::Queue {
  struct Entry {
    ibv_wc completion;
    Pair* pair;
    uint64_t send_index;  // 0: a receive
  };

  ibv_cq base = {};
  FakeFabric* fabric = nullptr;
  Channel* channel = nullptr;
  int depth = 0;
  int pairs = 0;
  int unacknowledged = 0;
  enum class Armed { kNo, kSolicited, kAll } armed = Armed::kNo;
  std::deque<Entry> entries;
  struct LateEntry {
    Entry entry;
    bool solicited;
  };
  std::deque<LateEntry> late;  // with a seed: those that no poll sees yet
};

struct FakeFabric::Work {
  ibv_send_wr request = {};
  std::vector<ibv_sge> pieces;
  uint64_t index = 0;            // of the send queue, from 1
  std::vector<std::byte> bytes;  // read when it was posted, if inline, else when it starts
  bool is_inline = false;
  std::vector<size_t> unplaced;  // offsets
  bool notified = false;
};

struct FakeFabric::Pair {
  ibv_qp base = {};
  FakeFabric* fabric = nullptr;
  Context* context = nullptr;
  Domain* domain = nullptr;
  Queue* send_queue = nullptr;
  Queue* receive_queue = nullptr;
  ibv_qp_cap capacity = {};
  uint32_t peer = 0;
  uint32_t first_packet_out = 0;
  uint32_t first_packet_in = 0;
  ibv_mtu mtu = IBV_MTU_256;
  unsigned access = 0;
  std::deque<Work> waiting;
  std::deque<Work> started;
  std::deque<uint64_t> receives;
  uint64_t posted = 0;
  std::deque<Queue::Entry> unacknowledged;  // completions of sends that the program does not get yet
  uint64_t retired = 0;                     // as the program knows by the completions that it has polled

  bool CanReceive() const { return base.state == IBV_QPS_RTR || base.state == IBV_QPS_RTS; }
};

FakeFabric::FakeFabric(const FakeFabricOptions& options) : options_(options), random_(options.seed) {
  AddDevice("fake0");
}

FakeFabric::~FakeFabric() = default;

FakeFabric::Device* FakeFabric::AddDevice(const std::string& name, const std::string& sysfs_path) {
  auto device = std::make_unique<Device>();
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
    *attributes = reinterpret_cast<Context*>(context)->device->ports.at(port - 1u);
    return 0;
  };
  calls.query_gid_table = [](ibv_context* context, ibv_gid_entry* entries, size_t entries_max) -> ssize_t {
    const auto& gids = reinterpret_cast<Context*>(context)->device->gids;
    std::copy(gids.begin(), gids.end(), entries);
    return static_cast<ssize_t>(std::min(gids.size(), entries_max));
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

// ---- The data path ----

int FakeFabric::PostSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
  auto* pair = reinterpret_cast<Pair*>(qp);
  FakeFabric* const fabric = pair->fabric;
  const std::lock_guard<std::mutex> lock(fabric->mutex_);
  for (ibv_send_wr* request = list; request != nullptr; request = request->next) {
    if (const int error = fabric->AcceptSend(pair, *request); error != 0) {
      *bad = request;
      return error;
    }
  }
  fabric->Advance();
  return 0;
}

int FakeFabric::AcceptSend(Pair* pair, const ibv_send_wr& request) {
  if (pair->context->post_error != 0) return pair->context->post_error;
  if (pair->base.state != IBV_QPS_RTS && pair->base.state != IBV_QPS_ERR) {
    Violation("a send was posted to a queue pair that is not connected");
    return EINVAL;
  }
  if (pair->posted - pair->retired >= pair->capacity.max_send_wr) {
    Violation("the send queue overflowed");
    return ENOMEM;
  }
  Work work;
  work.request = request;
  work.request.next = nullptr;
  work.pieces.assign(request.sg_list, request.sg_list + request.num_sge);
  work.index = ++pair->posted;
  send_queue_peak_ = std::max<size_t>(send_queue_peak_, pair->posted - pair->retired);
  if ((request.send_flags & IBV_SEND_INLINE) != 0) {
    work.is_inline = true;
    for (const ibv_sge& piece : work.pieces) {
      const auto* from = reinterpret_cast<const std::byte*>(piece.addr);
      work.bytes.insert(work.bytes.end(), from, from + piece.length);
    }
    if (work.bytes.size() > pair->capacity.max_inline_data) {
      Violation("more inline bytes than the queue pair takes");
      return ENOMEM;
    }
  }
  pair->waiting.push_back(std::move(work));
  if (pair->base.state == IBV_QPS_ERR) ToError(pair);
  return 0;
}

int FakeFabric::PostReceive(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) {
  auto* pair = reinterpret_cast<Pair*>(qp);
  FakeFabric* const fabric = pair->fabric;
  const std::lock_guard<std::mutex> lock(fabric->mutex_);
  for (ibv_recv_wr* request = list; request != nullptr; request = request->next) {
    int error = qp->state == IBV_QPS_RESET ? EINVAL : 0;
    if (pair->receives.size() >= pair->capacity.max_recv_wr) {
      fabric->Violation("the receive queue overflowed");
      error = ENOMEM;
    }
    if (error != 0) {
      *bad = request;
      return error;
    }
    pair->receives.push_back(request->wr_id);
  }
  if (qp->state == IBV_QPS_ERR) fabric->ToError(pair);
  return 0;
}

int FakeFabric::PollQueue(ibv_cq* cq, int count, ibv_wc* completions) {
  auto* queue = reinterpret_cast<Queue*>(cq);
  FakeFabric* const fabric = queue->fabric;
  const std::lock_guard<std::mutex> lock(fabric->mutex_);
  fabric->Advance();
  const int ready = static_cast<int>(std::min<size_t>(static_cast<size_t>(count), queue->entries.size()));
  for (int i = 0; i < ready; ++i) {
    const Queue::Entry& entry = queue->entries.front();
    completions[i] = entry.completion;
    if (entry.send_index != 0) entry.pair->retired = entry.send_index;
    queue->entries.pop_front();
  }
  return ready;
}

int FakeFabric::RequestEvent(ibv_cq* cq, int solicited_only) {
  auto* queue = reinterpret_cast<Queue*>(cq);
  const std::lock_guard<std::mutex> lock(queue->fabric->mutex_);
  queue->armed = solicited_only != 0 ? Queue::Armed::kSolicited : Queue::Armed::kAll;
  return 0;
}

void FakeFabric::Advance() {
  if (options_.seed == 0) {
    while (Step()) {
    }
    return;
  }
  for (uint64_t i = random_() % static_cast<uint64_t>(options_.steps_per_call + 1); i > 0; --i) Step();
}

void FakeFabric::Settle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (Step()) {
  }
}

// One thing that may happen now, of a queue pair chosen at random; false if nothing can.
bool FakeFabric::Step() {
  if (options_.seed != 0 && random_() % 2 == 0 && ShowOne()) return true;
  std::vector<Pair*> busy;
  for (const auto& [number, pair] : pairs_) {
    if (pair->base.state == IBV_QPS_RTS && !pair->context->held && !(pair->waiting.empty() && pair->started.empty())) {
      busy.push_back(pair);
    }
  }
  if (busy.empty()) return ShowOne();
  Pair* const pair = busy[random_() % busy.size()];
  constexpr size_t kStartedMax = 4;
  const bool may_start = !pair->waiting.empty() && pair->started.size() < (options_.seed == 0 ? 1 : kStartedMax);
  if (may_start && (pair->started.empty() || random_() % 3 == 0)) return Start(pair);
  // Any message that has started; the oldest ends when all of it is in place.
  std::vector<Work*> placeable;
  for (Work& work : pair->started) {
    if (!work.unplaced.empty()) placeable.push_back(&work);
  }
  if (!pair->started.front().unplaced.empty() || (!placeable.empty() && random_() % 2 == 0)) {
    Place(pair, placeable[random_() % placeable.size()]);
  } else {
    Finish(pair);
  }
  return true;
}

bool FakeFabric::Start(Pair* pair) {
  Work work = std::move(pair->waiting.front());
  pair->waiting.pop_front();
  ++writes_;
  const char* const local = ReadLocal(pair, &work);
  pair->started.push_back(std::move(work));
  Work& started = pair->started.back();
  if (pair->context->fail_next) {
    pair->context->fail_next = false;
    Fail(pair, pair->context->fail_status);
    return true;
  }
  if (local != nullptr) {
    Violation(local);
    Fail(pair, IBV_WC_LOC_PROT_ERR);
    return true;
  }
  Pair* const peer = Peer(*pair);
  if (peer == nullptr) {
    Fail(pair, IBV_WC_RETRY_EXC_ERR);
    return true;
  }
  if (peer->mtu != pair->mtu) Violation("the two ends use different MTUs");
  if (!started.bytes.empty() && FindRemote(peer, started) == nullptr) {
    Fail(pair, IBV_WC_REM_ACCESS_ERR);
    ibv_async_event event = {};
    event.event_type = IBV_EVENT_QP_ACCESS_ERR;
    event.element.qp = &peer->base;
    Raise(peer->context, event);
    ToError(peer);
    return true;
  }
  const size_t piece = options_.seed == 0 ? std::max<size_t>(started.bytes.size(), 1) : options_.piece_bytes;
  for (size_t at = 0; at < started.bytes.size(); at += piece) started.unplaced.push_back(at);
  if (options_.notify_before_payload && options_.seed != 0) Notify(pair, started);
  return true;
}

const char* FakeFabric::ReadLocal(Pair* pair, Work* work) {
  if (work->is_inline) return nullptr;
  for (const ibv_sge& piece : work->pieces) {
    const auto found = regions_.find(piece.lkey);
    if (found == regions_.end() || found->second->domain != pair->domain ||
        !found->second->Contains(piece.addr, piece.length)) {
      return "a send from memory that is not registered";
    }
    const auto* from = reinterpret_cast<const std::byte*>(piece.addr);
    work->bytes.insert(work->bytes.end(), from, from + piece.length);
  }
  return work->bytes.size() > options_.max_msg_bytes ? "a message longer than the port takes" : nullptr;
}

FakeFabric::Region* FakeFabric::FindRemote(Pair* peer, const Work& work) {
  const auto found = regions_.find(work.request.wr.rdma.rkey);
  if (found == regions_.end()) return nullptr;
  Region* const region = found->second;
  if (region->base.rkey != work.request.wr.rdma.rkey || region->domain != peer->domain) return nullptr;
  if ((region->access & IBV_ACCESS_REMOTE_WRITE) == 0 || (peer->access & IBV_ACCESS_REMOTE_WRITE) == 0) return nullptr;
  return region->Contains(work.request.wr.rdma.remote_addr, work.bytes.size()) ? region : nullptr;
}

// One piece, any of those that are left.
void FakeFabric::Place(Pair* pair, Work* work) {
  if (Peer(*pair) == nullptr) return Fail(pair, IBV_WC_RETRY_EXC_ERR);
  const size_t chosen = random_() % work->unplaced.size();
  const size_t at = work->unplaced[chosen];
  work->unplaced.erase(work->unplaced.begin() + static_cast<ptrdiff_t>(chosen));
  const size_t piece = options_.seed == 0 ? work->bytes.size() : options_.piece_bytes;
  PlaceBytes(work->request.wr.rdma.remote_addr + at, work->bytes.data() + at, std::min(piece, work->bytes.size() - at));
}

// The oldest message is in place.
void FakeFabric::Finish(Pair* pair) {
  if (Peer(*pair) == nullptr) return Fail(pair, IBV_WC_RETRY_EXC_ERR);
  Notify(pair, pair->started.front());
  if (pair->started.empty()) return;  // it failed
  const Work work = std::move(pair->started.front());
  pair->started.pop_front();
  if ((work.request.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc completion = {};
  completion.wr_id = work.request.wr_id;
  completion.opcode = IBV_WC_RDMA_WRITE;
  Complete(pair->send_queue, pair, completion, work.index, false);
}

void FakeFabric::Notify(Pair* pair, const Work& work) {
  if (work.request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM || work.notified) return;
  Pair* const peer = Peer(*pair);
  if (peer->receives.empty()) {
    Violation("receiver not ready");
    return Fail(pair, IBV_WC_RNR_RETRY_EXC_ERR);
  }
  ibv_wc completion = {};
  completion.wr_id = peer->receives.front();
  completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  completion.byte_len = static_cast<uint32_t>(work.bytes.size());
  completion.wc_flags = IBV_WC_WITH_IMM;
  completion.imm_data = work.request.imm_data;
  completion.qp_num = peer->base.qp_num;
  peer->receives.pop_front();
  const_cast<Work&>(work).notified = true;
  Complete(peer->receive_queue, peer, completion, 0, (work.request.send_flags & IBV_SEND_SOLICITED) != 0);
}

// Who can still take this queue pair's writes.
FakeFabric::Pair* FakeFabric::Peer(const Pair& pair) {
  const auto found = pairs_.find(pair.peer);
  if (found == pairs_.end()) return nullptr;
  Pair* const peer = found->second;
  if (!peer->CanReceive() || peer->peer != pair.base.qp_num) return nullptr;
  return peer->first_packet_in == pair.first_packet_out ? peer : nullptr;
}

// The oldest message that has started ends with an error, and the queue pair with it.
void FakeFabric::Fail(Pair* pair, ibv_wc_status status) {
  const Work work = std::move(pair->started.front());
  pair->started.pop_front();
  ibv_wc completion = {};
  completion.wr_id = work.request.wr_id;
  completion.status = status;
  completion.vendor_err = 0x77;
  Complete(pair->send_queue, pair, completion, work.index, false);
  ToError(pair);
}

void FakeFabric::ToError(Pair* pair) {
  pair->base.state = IBV_QPS_ERR;
  ibv_wc completion = {};
  completion.status = IBV_WC_WR_FLUSH_ERR;
  for (auto* works : {&pair->started, &pair->waiting}) {
    for (const Work& work : *works) {
      completion.wr_id = work.request.wr_id;
      Complete(pair->send_queue, pair, completion, work.index, false);
    }
    works->clear();
  }
  for (const uint64_t wr_id : pair->receives) {
    completion.wr_id = wr_id;
    Complete(pair->receive_queue, pair, completion, 0, false);
  }
  pair->receives.clear();
}

void FakeFabric::Complete(Queue* queue, Pair* pair, const ibv_wc& completion, uint64_t send_index, bool solicited) {
  if (send_index != 0 && completion.status == IBV_WC_SUCCESS && pair->context->acknowledgements_held) {
    pair->unacknowledged.push_back({completion, pair, send_index});
    return;
  }
  if (queue->entries.size() + queue->late.size() >= static_cast<size_t>(queue->depth)) {
    Violation("a completion queue overflowed");
  }
  queue->late.push_back({{completion, pair, send_index}, solicited});
  if (options_.seed == 0) Show(queue);
}

// The oldest completion that no poll has seen yet can be polled, and wakes who waits for it.
void FakeFabric::Show(Queue* queue) {
  const auto [entry, solicited] = queue->late.front();
  queue->late.pop_front();
  queue->entries.push_back(entry);
  const bool wakes = queue->armed == Queue::Armed::kAll || (queue->armed == Queue::Armed::kSolicited &&
                                                            (solicited || entry.completion.status != IBV_WC_SUCCESS));
  if (!wakes || queue->channel == nullptr) return;
  queue->armed = Queue::Armed::kNo;
  queue->channel->events.push_back(queue);
  Signal(queue->channel->base.fd);
}

bool FakeFabric::ShowOne() {
  std::vector<Queue*> late;
  for (const auto& [number, pair] : pairs_) {
    if (!pair->send_queue->late.empty()) late.push_back(pair->send_queue);
  }
  if (late.empty()) return false;
  Show(late[random_() % late.size()]);
  return true;
}

void FakeFabric::Raise(Context* context, const ibv_async_event& event) {
  context->events.push_back(event);
  Signal(context->base.async_fd);
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
