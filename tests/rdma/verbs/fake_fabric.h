#ifndef FASTDECODE_TESTS_RDMA_VERBS_FAKE_FABRIC_H_
#define FASTDECODE_TESTS_RDMA_VERBS_FAKE_FABRIC_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "rdma/verbs/verbs_calls.h"

namespace fastdecode {

// How the made-up adapters behave. All of it is legal unless it says otherwise.
struct FakeFabricOptions {
  // 0: a work request runs whole as it is posted. Else: work requests wait, their bytes are placed piecemeal and in any
  // order, several at once, and completions come late; a notification still comes after all that was written before it.
  uint64_t seed = 0;
  int steps_per_call = 8;              // with a seed: how much happens at most in one post or poll
  size_t piece_bytes = 64;             // with a seed
  bool notify_before_payload = false;  // illegal, with a seed: the completion comes before the bytes are placed
  uint32_t max_inline = 256;
  uint32_t max_msg_bytes = 1 << 30;
  int max_qp_wr = 1 << 14;
};

// RDMA adapters, and the wire between them, in this process: contexts whose function tables move bytes between
// registered memory as the transport would, and find fault with what a real adapter would: keys, bounds and access
// rights, states of queue pairs, full queues, missing receives, objects destroyed before those that use them. What
// only a program's error can bring about is kept in violations().
// Owns: all objects that were made through it. Thread: any.
class FakeFabric {
 public:
  explicit FakeFabric(const FakeFabricOptions& options = {});
  ~FakeFabric();
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;

  // There is fake0 with one active port and one GID from the start. Valid as long as the fabric.
  struct Device {
    ibv_device base = {};
    std::vector<ibv_port_attr> ports;
    std::vector<ibv_gid_entry> gids;
    std::vector<uint16_t> partition_keys;  // of each port
    ibv_device_attr attributes = {};
  };
  Device* AddDevice(const std::string& name, const std::string& sysfs_path = "");
  Device* device(size_t index) { return devices_[index].get(); }
  void RemoveDevices() { devices_.clear(); }
  static ibv_gid_entry Gid(uint32_t index, uint32_t type, const std::vector<uint8_t>& tail);

  VerbsCalls Calls();

  // Until nothing more happens by itself.
  void Settle();

  // The next write of this context's queue pair fails so.
  void FailNextWrite(ibv_context* context, ibv_wc_status status);
  // Posts fail with this error; 0: no more.
  void FailPosts(ibv_context* context, int error);
  void RaiseEvent(ibv_context* context, ibv_event_type type, int port = 1);
  // Writes of this context's queue pair wait, until let go.
  void Hold(ibv_context* context, bool hold);
  // They are carried out, but their completions wait: acknowledgements that get lost for a while.
  void HoldAcknowledgements(ibv_context* context, bool hold);

  // Contexts, domains, regions, channels, queues and queue pairs that exist.
  int live_objects() const;
  std::vector<std::string> violations() const;
  // The most that were in a queue at once, as the adapter sees it, over all queue pairs that ever were.
  size_t send_queue_peak() const;
  uint64_t writes() const;

 private:
  struct Context;
  struct Domain;
  struct Region;
  struct Channel;
  struct Queue;
  struct Pair;
  struct Work;

  static int PostSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad);
  static int PostReceive(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad);
  static int PollQueue(ibv_cq* cq, int count, ibv_wc* completions);
  static int RequestEvent(ibv_cq* cq, int solicited_only);

  ibv_context* Open(ibv_device* device);
  int Close(ibv_context* context);
  ibv_mr* RegisterRegion(ibv_pd* domain, void* data, size_t bytes, unsigned access);
  // Memory of this process, addressed as the process does.
  struct DmaBuf {
    uint64_t offset;
    size_t bytes;
    uint64_t address;
    int fd;
  };
  ibv_mr* RegisterDmaBuf(ibv_pd* domain, const DmaBuf& buffer, unsigned access);
  ibv_qp* CreatePair(ibv_pd* domain, ibv_qp_init_attr* attributes);
  int ModifyPair(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
  int DestroyPair(ibv_qp* qp);
  int DestroyQueue(ibv_cq* cq);

  // All below with mutex_ held.
  int AcceptSend(Pair* pair, const ibv_send_wr& request);
  bool Step();
  bool Start(Pair* pair);
  void Place(Pair* pair, Work* work);
  void Finish(Pair* pair);
  void Notify(Pair* pair, const Work& work);
  const char* ReadLocal(Pair* pair, Work* work);
  Region* FindRemote(Pair* peer, const Work& work);
  void Fail(Pair* pair, ibv_wc_status status);
  void ToError(Pair* pair);
  void Complete(Queue* queue, Pair* pair, const ibv_wc& completion, uint64_t send_index, bool solicited);
  void Show(Queue* queue);
  bool ShowOne();
  void Raise(Context* context, const ibv_async_event& event);
  Pair* Peer(const Pair& pair);
  void Violation(const std::string& what) { violations_.push_back(what); }
  void Advance();

  const FakeFabricOptions options_;
  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::list<std::unique_ptr<Context>> contexts_;
  std::map<uint32_t, Region*> regions_;
  std::map<uint32_t, Pair*> pairs_;
  std::vector<std::string> violations_;
  uint32_t next_key_ = 0x1000;
  uint32_t next_pair_ = 0x11;
  int live_objects_ = 0;
  int unacknowledged_events_ = 0;
  size_t send_queue_peak_ = 0;
  uint64_t writes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_VERBS_FAKE_FABRIC_H_
