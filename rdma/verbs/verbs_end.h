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
#include "rdma/gpu/gpu_memory_probe.h"
#include "rdma/link.h"
#include "rdma/verbs/verbs_calls.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_parameters.h"
#include "rdma/verbs/verbs_queue_pair.h"
#include "rdma/verbs/verbs_wire.h"

namespace fastdecode {

enum class LinkRole : uint8_t { kEngine, kHome };

struct VerbsOptions {
  FabricOptions fabric;
  bool checksum = false;  // CRC32C of every message, checked by its receiver; both ends must want it
  const VerbsCalls* calls = &VerbsCalls::System();  // must outlive the end
  uint64_t (*now_ns)() = NowNs;
  // With fabric.gpu: CUDA's driver, loaded if there is none here; and where the kernel lists its modules.
  std::shared_ptr<const CudaDriver> cuda;
  std::string module_folder = "/sys/module";
};

// What the data path needs of an end; plain values, constant once the end is connected.
struct VerbsWiring {
  // Memory of this end, and what the peer lets us write.
  struct Local {
    std::byte* data = nullptr;  // as the CPU, or a GPU's kernels, address it
    uint64_t address = 0;       // as the device does
    uint32_t key = 0;           // lkey
  };
  struct Remote {
    uint64_t address = 0;
    uint32_t key = 0;  // rkey
  };

  ibv_qp* queue_pair = nullptr;
  ibv_cq* completions = nullptr;
  QueueDepths depths;  // all receives are posted when the wiring is handed over
  uint32_t inline_bytes_max = 0;
  size_t chunk_bytes = 0;  // of a payload that is not part of one write
  bool checksum = false;

  RegionLayout in_layout;    // of what this end receives
  RegionLayout out_layout;   // of what it sends, here
  RegionLayout peer_layout;  // and there
  Local in;                  // lines, control ring, credit: the peer writes it
  Local in_payload;          // = `in`, if the payload does not lie apart
  Local out;
  Local out_payload;  // = `out`, if not
  Remote peer_slots;
  Remote peer_control;  // the same region by its other key
  Remote peer_payload;  // = peer_slots, if not

  // The bulk channel; no queue pair: there is none.
  ibv_qp* bulk_pair = nullptr;
  QueueDepths bulk_depths;
  BulkLayout bulk_layout;
  Local bulk;          // the engine's own segments, or the home's that the peer writes
  Local bulk_trailer;  // engine: a line for each
  Remote peer_bulk;    // engine
};

// Everything of one epoch of one link end: context, protection domain, registered memory, completion queue and queue
// pairs. Nothing is shared with another link, so all of it dies with this one.
// Owns: the above. Destroying it ends every access to its memory by the device before it frees the memory: the queue
// pairs go to ERR, are drained, and destroyed. What lies on a GPU that was given up is left to the end of the process.
// Thread: one at a time.
class VerbsEnd {
 public:
  // Makes all objects, with receives posted, ready to be connected; registers `in` and `out` memory on NUMA node `node`
  // (-1: anywhere). With options.fabric.gpu an engine's payload lies in that GPU's memory, or, if the device cannot
  // reach that or it is full, in memory of the host that the GPU can (Describe() says which, and why); bulk segments,
  // which the CPU fills, do not. Errors: those of OpenVerbsDevice, CheckLinkSize, Arena::Create,
  // CudaDriver::Load and ProbeGpuMemory; a failed call, naming device, call and what to check; InvalidArgument for
  // checksums of what lies in a GPU's memory.
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
  // Whether this end's areas lie in memory of a GPU.
  bool on_gpu() const { return out_layout_.payload_apart(); }
  // Whose kernels see a reply's payload only after a flush; null: nobody's. Lives as long as this.
  const GpuDevice* gpu_to_flush() const { return gpu_probe_.flush ? gpu_.get() : nullptr; }

 private:
  using Handle = VerbsHandle<ibv_mr>;
  using Local = VerbsWiring::Local;

  VerbsEnd(const VerbsOptions& options, const LinkSize& size, LinkRole role);

  // The steps of Create, in order.
  absl::Status PlanQueues();
  absl::Status AllocateMemory(int node);
  absl::Status RegisterMemory();
  absl::Status RegisterBulk();
  absl::Status HoldGpu();
  absl::Status ProbeGpu();
  absl::Status AllocateOnGpu(int node);
  absl::Status AllocateBy(GpuMemoryMethod method, int node);
  absl::Status CreateQueues();

  absl::Status CheckOptions() const;
  absl::Status CheckPeer(const VerbsParameters& peer) const;
  absl::StatusOr<Handle> Register(std::byte* data, size_t bytes, unsigned access);
  void Drain();
  bool has_bulk() const { return size_.bulk_segments > 0; }
  GpuMemoryPlace gpu_place() const { return {cuda_.get(), options_.fabric.gpu, &calls_, domain_.get()}; }
  // With the trailers of bulk segments behind the rest.
  size_t out_bytes() const {
    return out_layout_.bytes() + (role_ == LinkRole::kEngine ? bulk_layout_.segments() * kCacheLineBytes : 0);
  }

  // Constant after Create. The order is that of making; destruction is the reverse, memory last.
  const VerbsOptions options_;
  const VerbsCalls& calls_;
  const LinkSize size_;
  const LinkRole role_;
  const RegionLayout in_layout_;
  const RegionLayout out_layout_;
  const BulkLayout bulk_layout_;
  Arena in_;
  Arena out_;
  Arena bulk_;
  VerbsDevice device_;
  VerbsHandle<ibv_pd> domain_;
  Handle in_slots_;
  Handle in_control_;
  Handle out_region_;
  Handle bulk_region_;
  // With fabric.gpu.
  std::shared_ptr<void> gpu_hold_;  // while those below are made and destroyed
  std::shared_ptr<const CudaDriver> cuda_;
  std::unique_ptr<GpuDevice> gpu_;  // holds the context from the probe on: making one takes longer than all else
  GpuMemoryProbe gpu_probe_;
  std::unique_ptr<GpuMemory> in_payload_;
  std::unique_ptr<GpuMemory> out_payload_;
  VerbsHandle<ibv_comp_channel> channel_;
  VerbsHandle<ibv_cq> completions_;
  VerbsQueuePair hop_pair_;
  VerbsQueuePair bulk_pair_;
  size_t chunk_bytes_ = 0;
  QueueDepths hop_depths_;
  QueueDepths bulk_depths_;
  int completions_depth_ = 0;

  bool connected_ = false;
  ibv_mtu mtu_ = IBV_MTU_256;  // agreed
  VerbsParameters peer_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_END_H_
