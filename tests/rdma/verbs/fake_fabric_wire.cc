#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "tests/rdma/verbs/fake_fabric_state.h"

namespace fastdecode {

namespace {

// As an adapter writes: aligned words at once, so that a reader of a word never sees half of it.
void PlaceBytes(uint64_t address, const std::byte* from, size_t bytes) {
  while (bytes > 0) {
    if (address % 8 == 0 && bytes >= 8) {
      uint64_t word;
      std::memcpy(&word, from, sizeof(word));
      std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(address)).store(word, std::memory_order_release);
      address += 8, from += 8, bytes -= 8;
    } else {
      std::atomic_ref<std::byte>(*reinterpret_cast<std::byte*>(address)).store(*from, std::memory_order_release);
      ++address, ++from, --bytes;
    }
  }
}

}  // namespace

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

}  // namespace fastdecode
