#include "engine/spart/cuda/cuda_spart.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_format.h"
#include "engine/spart/cuda/row_buckets.h"
#include "engine/spart/rope_table.h"
#include "numa/abandon.h"

namespace fastdecode {

namespace {

// Of the device's memory, left to the driver and whoever else computes there.
constexpr uint64_t kSpareBytes = uint64_t{1} << 30;
// A graph of a step has no more in a layer; what the driver keeps for one is assumed, not measured.
constexpr uint64_t kKernelsPerLayer = 16, kKernelBytes = uint64_t{16} << 10;

// Whoever holds steps waits so many times longer than the pipeline thread, to hear of a GPU that is given up.
constexpr uint64_t kHoldBounds = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaSPart>> CudaSPart::Create(const ModelSpec& spec, const RPartShape& shape,
                                                             std::unique_ptr<SPartDevice> device,
                                                             const GpuWeights& weights,
                                                             const CudaSPartOptions& options) {
  StepModel model;
  model.spec = spec;
  model.shape = shape;
  model.weights = weights;
  model.wait_bound_ns = options.wait_bound_ns;
  model.sequences_max = static_cast<unsigned>(options.sequences_max);
  model.batch_invariant = options.batch_invariant;
  model.is_home = options.is_home;
  model.push_rows_max = static_cast<size_t>(options.push_rows_max);
  std::unique_ptr<CudaSPart> spart(new CudaSPart(std::move(model), std::move(device), options));
  if (absl::Status bad = spart->Prepare(); !bad.ok()) return bad;
  return spart;
}

CudaSPart::CudaSPart(StepModel model, std::unique_ptr<SPartDevice> device, const CudaSPartOptions& options)
    : options_(options),
      model_(std::move(model)),
      device_(std::move(device)),
      gate_(kHoldBounds * options.stage_bound_ns),
      sampling_memory_(device_.get(), &gate_),
      buckets_(RowBuckets(static_cast<unsigned>(options.rows_max))) {}

CudaSPart::~CudaSPart() {
  if (gate_.shut()) Abandon(std::move(device_));
  if (device_ == nullptr) return;  // nobody waits for it
  // Waits that nobody will answer any more end by themselves, later; these end now.
  for (MicroBatch& batch : batches_) {
    if (batch.memory.board == nullptr) continue;  // it was not made
    std::atomic_ref<uint64_t>(batch.memory.board->release).store(UINT64_MAX, std::memory_order_release);
  }
  device_->Synchronize().IgnoreError();
}

absl::Status CudaSPart::Prepare() {
  const uint64_t needed = options_.micro_batches * StepMemoryBytes(model_, buckets_.back(), options_.homes_max);
  if (const uint64_t free = device_->free_bytes(); needed > free) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d micro-batches of up to %d rows need %.2f GiB beside the weights, the GPU has %.2f GiB free",
                        options_.micro_batches, options_.rows_max, static_cast<double>(needed) * 0x1p-30,
                        static_cast<double>(free) * 0x1p-30));
  }
  if (absl::Status bad = UploadRopeTables(); !bad.ok()) return bad;
  batches_.resize(static_cast<size_t>(options_.micro_batches));
  for (MicroBatch& batch : batches_) {
    if (absl::Status bad = MakeMemory(&batch); !bad.ok()) return bad;
  }
  if (options_.is_home) {
    if (absl::Status bad = MakeHome(); !bad.ok()) return bad;
  }
  for (MicroBatch& batch : batches_) {
    if (absl::Status bad = MakeGraphs(&batch); !bad.ok()) return bad;
  }
  if (absl::Status bad = device_->Synchronize(); !bad.ok()) return bad;
  std::vector<SPartDevice::Stream> streams;
  for (const MicroBatch& batch : batches_) streams.push_back(batch.stream);
  const size_t kernels = model_.shape.layers * kKernelsPerLayer;
  const absl::Status status = CheckStepsOverlap(streams, kernels, options_.overlap, device_.get());
  // Freeing its memory would wait for steps that it never began. The driver takes all back when the process ends.
  if (absl::IsDeadlineExceeded(status)) Abandon(std::move(device_));
  return status;
}

absl::Status CudaSPart::UploadRopeTables() {
  RopeTables built = BuildRopeTables(model_.spec, static_cast<int>(model_.shape.max_context));
  model_.layer_ropes = std::move(built.layers);
  for (const RopeTable& table : built.tables) {
    StepModel::Rope& rope = model_.ropes.emplace_back();
    for (const auto& [values, to] : {std::pair(&table.cosines, &rope.cosines), std::pair(&table.sines, &rope.sines)}) {
      const size_t bytes = values->size() * sizeof(float);
      absl::StatusOr<std::byte*> memory = device_->Allocate(bytes);
      if (!memory.ok()) return memory.status();
      absl::StatusOr<std::byte*> pinned = device_->AllocatePinned(bytes);
      if (!pinned.ok()) return pinned.status();
      std::memcpy(*pinned, values->data(), bytes);
      const absl::Status uploaded = device_->Upload(*memory, *pinned, bytes);
      device_->FreePinned(*pinned);
      if (!uploaded.ok()) return uploaded;
      *to = reinterpret_cast<const float*>(*memory);
    }
  }
  return absl::OkStatus();
}

// After all else that takes memory, but for what graphs and the driver take.
absl::Status CudaSPart::MakeHome() {
  GpuHomeOptions home;
  const int room = options_.sequences_max * options_.micro_batches;
  home.sequences_max = static_cast<uint32_t>(options_.sequences_all > 0 ? options_.sequences_all : room);
  const absl::StatusOr<double> read_rate = device_->MeasureReadRate();
  if (!read_rate.ok()) return read_rate.status();
  home.read_rate = *read_rate;
  home.kv_bytes = options_.kv_bytes;
  if (home.kv_bytes == 0) {
    const RPartShape& shape = model_.shape;
    const uint64_t page_bytes = KvPool::PageBytesAllLayers(shape.attention(), static_cast<int>(shape.layers));
    const auto two = std::count_if(buckets_.begin(), buckets_.end(), [&](unsigned rows) { return HasTwoGraphs(rows); });
    const uint64_t graphs = batches_.size() * (buckets_.size() + static_cast<size_t>(two));
    const uint64_t spare = kSpareBytes + graphs * shape.layers * kKernelsPerLayer * kKernelBytes;
    const uint64_t cached_tables = uint64_t{TablePages(shape)} * options_.sequences_cached * sizeof(uint32_t);
    const uint64_t free = device_->free_bytes() - std::min(device_->free_bytes(), cached_tables);
    home.kv_bytes = std::min(page_bytes * TablePages(shape) * home.sequences_max, free - std::min(free, spare));
  }
  home.sequences_max += static_cast<uint32_t>(options_.sequences_cached);
  absl::StatusOr<std::unique_ptr<GpuHome>> made = GpuHome::Create(home, model_.shape, device_.get());
  if (!made.ok()) return made.status();
  home_ = *std::move(made);
  model_.kv = home_->kv();
  return absl::OkStatus();
}

absl::Status CudaSPart::RegisterAreas(std::byte* memory, size_t bytes) {
  const std::shared_ptr<void> hold = HoldSteps();
  if (hold == nullptr) return absl::FailedPreconditionError(failure());
  return device_->Register(memory, bytes);
}

void CudaSPart::UnregisterAreas(std::byte* memory) {
  if (const std::shared_ptr<void> hold = HoldSteps(); hold != nullptr) device_->Unregister(memory);
}

absl::StatusOr<DeviceHome::Attached> CudaSPart::Attach(int index) {
  std::vector<std::byte*> areas;
  for (const MicroBatch& batch : batches_) areas.push_back(batch.memory.kv.area);
  return Attached{home_->Attach(index, std::move(areas)), home_->Describe()};
}

const std::byte* CudaSPart::PushedRows(int micro_batch, int layer) const {
  return LayerPush(model_, batches_[static_cast<size_t>(micro_batch)].memory, static_cast<unsigned>(layer));
}

absl::Status CudaSPart::MakeMemory(MicroBatch* batch) {
  absl::StatusOr<StepMemory> memory = AllocateStepMemory(model_, buckets_.back(), options_.homes_max, device_.get());
  if (!memory.ok()) return memory.status();
  batch->memory = *memory;
  absl::StatusOr<SPartDevice::Stream> stream = device_->MakeStream();
  if (!stream.ok()) return stream.status();
  batch->stream = *stream;
  return absl::OkStatus();
}

// Of steps with a prompt's chunk on the GPU and of those without.
bool CudaSPart::HasTwoGraphs(unsigned rows) const {
  return model_.is_home && !model_.batch_invariant && rows > kChunkRowsMin;
}

absl::Status CudaSPart::MakeGraphs(MicroBatch* batch) {
  const auto make = [&](unsigned rows, bool with_chunk, std::vector<SPartDevice::Graph>* graphs) {
    absl::StatusOr<SPartDevice::Graph> graph =
        MakeStepGraph(model_, batch->memory, rows, sampled_rows(rows), with_chunk, batch->stream, device_.get());
    if (graph.ok()) graphs->push_back(*graph);
    return graph.status();
  };
  for (const unsigned rows : buckets_) {
    if (absl::Status bad = make(rows, /*with_chunk=*/false, &batch->steps); !bad.ok()) return bad;
    if (!HasTwoGraphs(rows)) {
      batch->chunk_steps.push_back(batch->steps.back());
    } else if (absl::Status bad = make(rows, /*with_chunk=*/true, &batch->chunk_steps); !bad.ok()) {
      return bad;
    }
  }
  const unsigned tile = LogitTileRows(buckets_.back());
  for (unsigned first = 0; first < static_cast<unsigned>(options_.rows_max); first += tile) {
    const unsigned stage = static_cast<unsigned>(model_.spec.layers) + 1 + first / tile;
    for (const bool shown : {true, false}) {
      absl::StatusOr<SPartDevice::Graph> graph =
          MakeLogitGraph(model_, batch->memory, first, tile, shown, stage, batch->stream, device_.get());
      if (!graph.ok()) return graph.status();
      (shown ? batch->logits : batch->hidden_logits).push_back(*graph);
    }
  }
  return absl::OkStatus();
}

// How many rows of logits a step of this bucket computes.
unsigned CudaSPart::sampled_rows(unsigned rows) const {
  const int bucket = BucketFor(buckets_, std::min(static_cast<unsigned>(options_.sequences_max), buckets_.back()));
  return std::min(rows, buckets_[static_cast<size_t>(bucket)]);
}

StageState CudaSPart::CheckDevice(MicroBatch& batch) {
  // Whoever holds steps waits for others first.
  if (batch.waits_at_gate && gate_.AnyIn()) batch.waited_ns = 0;
  const bool gave_up = GaveUp(batch);
  std::string why = DeviceError(batch, gave_up);
  if (why.empty() && batch.waited_ns >= options_.stage_bound_ns) {
    const std::string what = batch.waits_at_gate ? "CUDA has not registered, pinned or freed memory"
                                                 : absl::StrFormat("it has not ended stage %d", batch.stage);
    why = absl::StrFormat("%s in %.1f s", what, static_cast<double>(batch.waited_ns) * 1e-9);
  }
  if (why.empty()) return StageState::kRunning;
  if (!gave_up) why.insert(0, "the GPU is given up: ");
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_ = std::move(why);
  }
  // What still runs of any other step goes on to write where others may be by then.
  if (!gave_up) gate_.Shut();
  return StageState::kFailed;
}

// The GPU did, and its kernels of this step that are left do nothing.
bool CudaSPart::GaveUp(const MicroBatch& batch) {
  return std::atomic_ref<uint64_t>(batch.memory.board->gave_up).load(std::memory_order_acquire) != 0;
}

// Empty: none that it tells of. CUDA is not asked while others hold steps, since it may answer when their call is over.
std::string CudaSPart::DeviceError(const MicroBatch& batch, bool gave_up) {
  if (batch.waits_at_gate) return "";
  if (gave_up) {
    return absl::StrFormat("the GPU waited %.1f s (--gpu-wait-ms) in vain for stage %d to be started",
                           static_cast<double>(model_.wait_bound_ns) * 1e-9, batch.stage);
  }
  return std::string(device_->Check().message());
}

std::string CudaSPart::failure() const {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

// Of steps.
size_t CudaSPart::GraphsOf(const MicroBatch& batch) {
  size_t graphs = batch.steps.size();
  for (size_t i = 0; i < batch.steps.size(); ++i) graphs += batch.chunk_steps[i] != batch.steps[i] ? 1 : 0;
  return graphs;
}

std::string CudaSPart::Describe() const {
  const GpuWeights& weights = model_.weights;
  return absl::StrFormat("cuda, %s, %s, weights %.2f GiB at %.1f GB/s, %d graphs for up to %d rows",
                         ElementName(weights.type), device_->Describe(), static_cast<double>(weights.bytes) * 0x1p-30,
                         static_cast<double>(weights.bytes) / static_cast<double>(weights.upload_ns),
                         batches_.size() * GraphsOf(batches_[0]), buckets_.back());
}

}  // namespace fastdecode
