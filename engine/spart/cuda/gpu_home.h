#ifndef FASTDECODE_ENGINE_SPART_CUDA_GPU_HOME_H_
#define FASTDECODE_ENGINE_SPART_CUDA_GPU_HOME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/kv_pool.h"
#include "engine/rpart/messages.h"
#include "engine/rpart/page_account.h"
#include "engine/rpart/roster.h"
#include "engine/rpart/sequence_table.h"
#include "engine/spart/cuda/gpu_kv.h"
#include "engine/rpart/home_outbox.h"
#include "engine/spart/cuda/spart_device.h"
#include "engine/spart/spart.h"
#include "numa/clock.h"

namespace fastdecode {

struct GpuHomeOptions {
  uint64_t kv_bytes = 0;         // of the device's memory, for pages
  double read_rate = 0;          // of that memory, in bytes a second; 0: not known
  uint32_t sequences_max = 0;    // of all micro-batches
  uint64_t (*now_ns)() = NowNs;  // tests bring their own time
};

// The S-Part's own GPU as a home: whose pages of its memory are which. It is told what every home is told, by a link
// without a way; attention is done by kernels of the step, which find in KvStepMemory what they have to know.
//
// Forks share pages. A step that writes to a shared one has another page instead, to which its kernels copy what lies
// before its rows (AppendKvArgs). Micro-batches have streams of their own, so that the home keeps the copied page for
// itself until the step is over: nobody else is given it or writes to it meanwhile. A sequence is truncated and
// released between its steps, not while its tokens are still being stored; a fork shares what earlier steps have stored.
//
// Owns: the books, and what it has to say to the engine; the memory is the device's, and never touched from here.
// Thread: Create and Attach any, as long as no link lives; the rest the pipeline thread. Bounded: by the memory and
// sequences_max. Applying messages and taking steps allocate nothing.
class GpuHome {
 public:
  // REQUIRES: GpuHolds the shape's KV type. Errors: ResourceExhausted, naming --gpu-kv-gib, if the memory has room for
  // no page, or the device for no such memory.
  static absl::StatusOr<std::unique_ptr<GpuHome>> Create(const GpuHomeOptions& options, const RPartShape& shape,
                                                         SPartDevice* device);

  ~GpuHome();

  const GpuKv& kv() const { return kv_; }
  HomeDescription Describe() const;

  // A link to this home, which holds nothing then, as home `index` of step tables, each time the same. areas: of each
  // micro-batch.
  std::unique_ptr<EngineLink> Attach(int index, std::vector<std::byte*> areas);

  // A control message. Errors: the sequence table's, InvalidArgument and ResourceExhausted, with what makes no sense.
  absl::Status Apply(std::span<const std::byte> message);
  // The next message to the engine, as EngineLink::PollControl gives it. False: there is none. gpu_home_fastpath.cc
  bool TakeMessage(void* buffer, size_t* bytes);

  // Makes room for the rows of a step that are here, and fills in what its kernels have to know: `memory`'s pinned
  // parts, and `rows`' slots. Returns how many rows that are: none where the step has no area of this home's, since its
  // link was lost. REQUIRES: the micro-batch's step before is over. gpu_home_fastpath.cc
  uint32_t TakeStep(int micro_batch, const StepTable& table, const KvStepMemory& memory, StepRow* rows);
  // The micro-batch's step is over, done or failed: its kernels read no page any more. gpu_home_fastpath.cc
  void EndStep(int micro_batch);

 private:
  // What the device knows of a sequence.
  struct Placed {
    uint32_t slot = 0;
    uint32_t pages = 0;  // that its table has, or will have when the steps taken so far have begun
  };

  GpuHome(const GpuHomeOptions& options, const RPartShape& shape, std::byte* pages, std::byte* tables);
  void Prepare();
  absl::Status ApplyRoster(std::span<const std::byte> message);
  absl::Status ApplySequence(ControlKind kind, std::span<const std::byte> message);
  absl::Status ApplyFork(std::span<const std::byte> message);
  absl::Status ApplyHandOver(std::span<const std::byte> message);
  absl::Status ApplyIdle(std::span<const std::byte> message);
  absl::Status ApplyKind(ControlKind kind, std::span<const std::byte> message);
  KvSequence* FindOrPlace(uint64_t id);
  void Place(uint64_t id);
  void Release(uint64_t id);
  absl::Status Truncate(uint64_t id, uint32_t tokens);
  absl::Status Fill(uint64_t id, uint32_t tokens);
  void EndSteps();
  int NextRow(const StepTable& table, int row) const;
  PageId TakePages(int micro_batch, uint64_t id, const KvStepMemory& memory, KvEntry* entry);
  void TellIfDue();
  void Tell(uint64_t now_ns, uint32_t idle);

  // Constant after construction.
  const GpuHomeOptions options_;
  const RPartShape shape_;
  KvPool pool_;
  GpuKv kv_;
  int index_ = -1;  // of each Attach; -1: none so far

  PageAccount account_;
  SequenceTable table_;
  std::vector<Roster> rosters_;                   // [micro-batch]
  std::vector<std::vector<PageId>> kept_;         // [micro-batch]: a reference to each page that its step copies
  absl::flat_hash_map<uint64_t, Placed> placed_;  // by sequence
  std::vector<uint32_t> free_slots_;

  HomeOutbox outbox_;
  StatsMessage told_;       // what the engine was told last
  bool told_once_ = false;  // by this link
  uint64_t told_ns_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_GPU_HOME_H_
