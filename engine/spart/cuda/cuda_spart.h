#ifndef FASTDECODE_ENGINE_SPART_CUDA_CUDA_SPART_H_
#define FASTDECODE_ENGINE_SPART_CUDA_CUDA_SPART_H_

#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/spart/cuda/device_clock.h"
#include "engine/spart/cuda/gpu_home.h"
#include "engine/spart/cuda/launch_gate.h"
#include "engine/spart/cuda/overlap_check.h"
#include "engine/spart/cuda/pinned_pool.h"
#include "engine/spart/cuda/spart_device.h"
#include "engine/spart/cuda/step_graph.h"
#include "engine/spart/cuda/wait_probe.h"
#include "engine/spart/spart.h"

namespace fastdecode {

struct CudaSPartOptions {
  int micro_batches = 2;
  int rows_max = 0;                          // of one step of one micro-batch
  int sequences_max = 0;                     // of one micro-batch: rows of a step that are sampled
  int sequences_all = 0;                     // of all micro-batches; 0: as many as these have room for
  int sequences_cached = 0;                  // that the GPU as a home keeps besides, after they have ended
  int homes_max = 0;                         // indices of home areas lie below
  uint64_t wait_bound_ns = 30'000'000'000;   // the GPU waits no longer for a stage to be started
  uint64_t stage_bound_ns = 60'000'000'000;  // nor the host for a stage to be over, or for a call of CUDA
  OverlapBounds overlap;                     // of what is tried at the start
  bool is_home = false;                      // of KV, too
  bool batch_invariant = false;              // attention is the same with a prompt's chunk in the step and without
  int push_rows_max = 0;                     // then: of a step, whose k and v other homes get
  uint64_t kv_bytes = 0;                     // then; 0: what its sequences need at full length, as far as it is there
};

// The S-Part on a GPU: a step of a micro-batch is one graph, launched with stage 0, in the micro-batch's own stream. It
// publishes each stage that is over and waits until it may go on, by words of pinned memory (StepBoard), so that
// starting a stage is a store and asking for its end a load.
// A GPU that does not end a stage in time, or tells of an error, is given up: every step from then on fails at once,
// and the device and its memory are left to the end of the process, since what frees them would wait for the GPU.
//
// Owns: device, weights, the memory of all micro-batches, graphs. Thread: see SPart.
class CudaSPart : public SPart, private AreaRegistry, private DeviceHome {
 public:
  // Makes all graphs: some seconds. Errors: ResourceExhausted (with what is needed and what is free),
  // FailedPrecondition (micro-batches would not run side by side), DeadlineExceeded (the GPU began nothing: the device
  // is left to the end of the process), the device's own.
  static absl::StatusOr<std::unique_ptr<CudaSPart>> Create(const ModelSpec& spec, const RPartShape& shape,
                                                           std::unique_ptr<SPartDevice> device,
                                                           const GpuWeights& weights, const CudaSPartOptions& options);
  ~CudaSPart() override;

  // cuda_spart_fastpath.cc
  void StartStage(int micro_batch, int stage, StepTable& table) override;
  StageState PollStage(int micro_batch) override;
  void Park() override {}

  AreaRegistry* areas() override { return this; }
  DeviceHome* device_home() override { return home_ == nullptr ? nullptr : this; }
  std::pmr::memory_resource* sampling_memory() override { return &sampling_memory_; }
  bool asynchronous() const override { return true; }
  std::string failure() const override;
  std::string Describe() const override;
  uint64_t weight_bytes() const override { return model_.weights.matrix_bytes; }

  int layers() const { return model_.spec.layers; }
  int micro_batches() const { return options_.micro_batches; }
  // Of the weights, those that are multiplied by sampled rows alone.
  uint64_t head_weights() const { return static_cast<uint64_t>(model_.weights.head.n * model_.weights.head.k); }

 private:
  // AreaRegistry.
  std::shared_ptr<void> HoldSteps() override { return gate_.Hold(); }
  absl::Status RegisterAreas(std::byte* memory, size_t bytes) override;
  void UnregisterAreas(std::byte* memory) override;
  // DeviceHome.
  absl::StatusOr<Attached> Attach(int index) override;
  const std::byte* PushedRows(int micro_batch, int layer) const override;

  friend class CudaProbe;  // of engine/bench: measures parts of a step alone

  // More rows than sequences, from which on attention of a step is better off as a chunk's.
  static constexpr unsigned kChunkRowsMin = 32;

  struct MicroBatch {
    StepMemory memory;
    SPartDevice::Stream stream = 0;
    std::vector<SPartDevice::Graph> steps;  // [bucket]
    // [bucket]: for steps with a prompt's chunk on the GPU; the same ones where that makes no difference.
    std::vector<SPartDevice::Graph> chunk_steps;
    std::vector<SPartDevice::Graph> logits;  // [tile] of logit rows
    // [tile]: for steps that show none of them; what is sampled is all that leaves the GPU.
    std::vector<SPartDevice::Graph> hidden_logits;
    uint64_t first = 0;          // the number of the running step's stage 0
    unsigned stage = 0;          // that runs, or ran last; beyond the last: a tile of logits
    unsigned tiles = 0;          // of logits to be computed after the step
    bool shown = false;          // some of these
    uint32_t areas_version = 0;  // below kAreasVersions
    uint64_t started_ns = 0;
    uint64_t checked_ns = 0;
    uint64_t waited_ns = 0;      // for the stage to move, as far as the host looked
    bool waits_at_gate = false;  // the step is not launched yet
    bool timed = false;          // the running step
    bool all_here = false;       // the step's rows: no stage of it waits
    bool has_chunk = false;      // the step, here
    StepTable* table = nullptr;
  };

  CudaSPart(StepModel model, std::unique_ptr<SPartDevice> device, const CudaSPartOptions& options);
  absl::Status Prepare();
  absl::Status UploadRopeTables();
  absl::Status MakeHome();
  absl::Status MakeMemory(MicroBatch* batch);
  absl::Status MakeGraphs(MicroBatch* batch);
  bool HasTwoGraphs(unsigned rows) const;
  static size_t GraphsOf(const MicroBatch& batch);

  void BeginStep(int micro_batch, const StepTable& table);
  void TryLaunch(MicroBatch& batch);
  void Launch(MicroBatch& batch, SPartDevice::Graph graph);
  void PutRows(MicroBatch& batch, const StepTable& table);
  void PutLogitRow(const LogitRow& row, SampleRow* out);
  void PutAreas(MicroBatch& batch, const StepTable& table);
  void TakeSamples(MicroBatch& batch);
  void TakeLogits(MicroBatch& batch, unsigned tile);
  StageState StageIsOver(MicroBatch& batch);
  StageState EndStep(MicroBatch& batch, StageState state);
  void TakeTimes(const MicroBatch& batch);
  StageState CheckDevice(MicroBatch& batch);
  std::string DeviceError(const MicroBatch& batch, bool gave_up);
  static bool GaveUp(const MicroBatch& batch);
  unsigned sampled_rows(unsigned rows) const;

  const CudaSPartOptions options_;
  StepModel model_;
  std::unique_ptr<SPartDevice> device_;
  LaunchGate gate_;
  PinnedPool sampling_memory_;
  std::vector<unsigned> buckets_;
  std::vector<MicroBatch> batches_;
  DeviceClock clock_;
  std::unique_ptr<GpuHome> home_;  // null: the GPU is none

  mutable std::mutex failure_mutex_;
  std::string failure_;  // of the last stage that failed
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_CUDA_SPART_H_
