#ifndef FASTDECODE_ENGINE_SPART_SPART_H_
#define FASTDECODE_ENGINE_SPART_SPART_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/record/event.h"
#include "engine/rpart/messages.h"
#include "engine/rpart/stage_home.h"
#include "kernels/sampler.h"
#include "numa/ticket_team.h"
#include "rdma/link.h"

namespace fastdecode {

// One row of logits that a step has to produce: sampled, copied out, or both.
struct LogitRow {
  uint32_t row = 0;  // of the step
  bool sample = true;
  SampleArgs args;              // args.logits and args.scratch are set by the S-Part
  SampleResult result;          // written by stage L
  float* logits_out = nullptr;  // [vocab], or null
};

// Where the rows of one home lie in this step. Null areas: the home is lost; nothing is sent and o counts as zero.
struct HomeArea {
  std::byte* send = nullptr;           // hop rows, as RPartShape says
  const std::byte* receive = nullptr;  // reply rows
};

// Where the time of one stage went, for whoever records it.
struct StageTrace {
  static constexpr int kPartsMax = 16;
  struct Part {
    StagePart what;
    int layer;          // whose weights
    uint64_t start_ns;  // NowNs
    uint64_t end_ns;
  };

  void Add(const Part& part) {
    if (count < kPartsMax) parts[count++] = part;
  }

  int count = 0;
  Part parts[kPartsMax];
};

// One step of one micro-batch, as the S-Part sees it: sized once for the most rows, refilled at each step boundary by
// the pipeline thread, unchanged while the step runs.
struct StepTable {
  static constexpr uint32_t kNoPushRow = UINT32_MAX;
  uint64_t step = 0;  // its number, by which rosters count
  int rows = 0;
  std::vector<int32_t> tokens;      // [rows]
  std::vector<int32_t> positions;   // [rows]
  std::vector<uint16_t> homes;      // [rows] index into home_areas
  std::vector<uint32_t> home_rows;  // [rows] row within that home's area
  std::vector<uint32_t> push_rows;  // [rows] row of DeviceHome::PushedRows, or kNoPushRow; empty: none is pushed
  int logit_rows = 0;
  std::vector<LogitRow> logits;      // [logit_rows], ascending by row
  std::vector<HomeArea> home_areas;  // [homes]
  StageTrace* trace = nullptr;       // to be filled in during a stage; null: nobody asks
  uint64_t attend_ns = 0;            // stages on a CPU add for how long they attended to sequences of StageHomes
};

enum class StageState : uint8_t {
  kRunning,
  kDone,
  kFailed,  // its results mean nothing, and those of the step's further stages: the step is over. failure() says why
};

// Runs the stages of a model: everything but attention. Stage 0 embeds and makes q, k, v of layer 0; stage l takes o of
// layer l-1 and ends with q, k, v of layer l; stage L takes the last o and ends with logits and sampled tokens.
// Thread: the pipeline thread, where nothing else is said. StartStage and PollStage neither allocate nor lock, nor
// enter the kernel but to launch work of a GPU.
class StageRunner {
 public:
  virtual ~StageRunner() = default;

  // Starts stage `stage` of a micro-batch. The table stays unchanged until PollStage() no longer says kRunning. The cpu
  // backend does the whole stage inside this call, with the calling thread as the first of its threads.
  virtual void StartStage(int micro_batch, int stage, StepTable& table) = 0;
  virtual StageState PollStage(int micro_batch) = 0;
  // Stage `stage` is done, and hops of its layer are out, which will take a while: what the next stage does for homes
  // that the S-Part attends to by itself can be done meanwhile. Does nothing where that runs beside the caller anyway.
  virtual void AttendMeanwhile(int /*micro_batch*/, int /*stage*/, StepTable& /*table*/) {}

  // No step will start until the next StartStage: helper threads may sleep.
  virtual void Park() = 0;

  // Whether stages run beside the pipeline thread, several micro-batches' at once; else within StartStage.
  virtual bool asynchronous() const { return false; }
  // Why a stage failed last, for people. Any thread.
  virtual std::string failure() const { return ""; }
};

// The memory that stages of a device read and write, and that must be made known to the device before.
// Thread: any but the pipeline's.
class AreaRegistry {
 public:
  virtual ~AreaRegistry() = default;

  // Returns when no step runs; none starts while what it returns lives, StartStage notwithstanding. For calls that may
  // wait for a device's steps and they for them, as those that register memory. Null: the device has been given up, and
  // whatever calls it would wait for ever.
  virtual std::shared_ptr<void> HoldSteps() = 0;
  // Memory of a link in which stages will read and write home areas: from before the pipeline hears of the link until
  // it has forgotten it. Page-aligned. Holds steps.
  virtual absl::Status RegisterAreas(std::byte* memory, size_t bytes) = 0;
  virtual void UnregisterAreas(std::byte* memory) = 0;
};

// The home that the memory of the S-Part's device is.
class DeviceHome {
 public:
  // Its link, and what it says of itself; it holds nothing yet.
  struct Attached {
    std::unique_ptr<EngineLink> link;  // AttendsInStage
    HomeDescription description;
  };

  virtual ~DeviceHome() = default;

  // Makes it home `index` of the tables, from now on. REQUIRES: nobody uses an earlier link any more. Control thread.
  virtual absl::StatusOr<Attached> Attach(int index) = 0;
  // The rows that the step's table gives a push row: k and v of a layer, [push row] of RPartShape::kv_row_bytes. They
  // are there when stage layer + 1 is done, until the next step that pushes begins. Null: it cannot push. Pipeline
  // thread.
  virtual const std::byte* PushedRows(int micro_batch, int layer) const = 0;
};

// Homes of this process that have no team of their own: the S-Part's threads attend there, between two stages.
// Thread: control thread.
class StageHomes {
 public:
  virtual ~StageHomes() = default;

  virtual TicketTeam* team() = 0;
  // `home` is home `index` of the tables from now on: threads[i] is the number, among the team's, of its thread i.
  // REQUIRES: nobody uses the link of an earlier one of that index any more.
  virtual void Put(int index, StageHome* home, const std::vector<int>& threads) = 0;
};

// The S-Part of a model: its stages, and what the device that runs them has besides.
// Owns the packed weights, the residual stream of every micro-batch, and its own threads or streams.
class SPart : public StageRunner {
 public:
  // Null: stages reach all memory of the host. Any thread.
  virtual AreaRegistry* areas() { return nullptr; }
  // Null: the device has no memory for KV, or was not told to use it. Any thread.
  virtual DeviceHome* device_home() { return nullptr; }
  // Null: homes have threads of their own. Any thread.
  virtual StageHomes* stage_homes() { return nullptr; }

  // What a LogitRow's SampleArgs point to, but for params, must lie in memory of this. May hold steps. Any thread but
  // the pipeline's.
  virtual std::pmr::memory_resource* sampling_memory() { return std::pmr::new_delete_resource(); }
  // For people: "cpu, bf16, avx512bf16 + oneDNN 2.6.3, 1 thread on core 0, weights 2.1 GiB".
  virtual std::string Describe() const = 0;
  // Bytes of weights that one decode step reads, for GB/s figures.
  virtual uint64_t weight_bytes() const = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_SPART_H_
