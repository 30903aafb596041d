#ifndef FASTDECODE_TESTS_RDMA_VERBS_FAKE_FABRIC_STATE_H_
#define FASTDECODE_TESTS_RDMA_VERBS_FAKE_FABRIC_STATE_H_

// What the objects of a FakeFabric are. For its own files alone.

#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <vector>

#include "tests/rdma/verbs/fake_fabric.h"

namespace fastdecode {

// One event a read; the program makes it non-blocking as it does with a real one.
inline int EventFd() { return eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE); }
inline void Signal(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));
}
inline bool Take(int fd) {
  uint64_t value;
  return read(fd, &value, sizeof(value)) == sizeof(value);
}

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
  uint64_t start = 0;  // as work requests address it
  unsigned access = 0;

  bool Contains(uint64_t address, uint64_t bytes) const {
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

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_VERBS_FAKE_FABRIC_STATE_H_
