#include "engine/spart/cuda/gpu_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/convert.h"
#include "numa/parallel_for.h"

namespace fastdecode {

namespace {

constexpr size_t kChunkBytes = size_t{8} << 20;  // what one thread converts and uploads at once
constexpr size_t kAlignBytes = 256;

// A tensor, and where it goes.
struct UploadJob {
  const TensorView* tensor;
  size_t offset;  // in the device's piece
};

// A vector of all layers is small: they go together.
struct VectorJob {
  const float** to;
  std::vector<float> values;
};

// Where everything lies in one piece of device memory. Pointers are offsets until it is there.
class Layout {
 public:
  explicit Layout(ElementType type) : type_(type) {}

  void AddMatrix(GpuMatrix* matrix, std::initializer_list<const TensorView*> tensors) {
    matrix->data = reinterpret_cast<const std::byte*>(bytes_);
    matrix->k = (*tensors.begin())->shape[1];
    for (const TensorView* tensor : tensors) {
      matrix->n += tensor->shape[0];
      jobs_.push_back({tensor, bytes_});
      bytes_ += static_cast<size_t>(tensor->elements()) * ElementBytes(type_);
    }
    Align();
    matrices_.push_back(matrix);
  }

  void AddVector(const float** to, std::vector<float> values) {
    if (values.empty()) return;
    *to = reinterpret_cast<const float*>(bytes_);
    bytes_ += values.size() * sizeof(float);
    Align();
    vectors_.push_back({to, std::move(values)});
  }

  // Makes pointers of offsets.
  void PlaceAt(std::byte* base) {
    for (GpuMatrix* matrix : matrices_) matrix->data = base + reinterpret_cast<size_t>(matrix->data);
    for (VectorJob& vector : vectors_) {
      *vector.to = reinterpret_cast<const float*>(base + reinterpret_cast<size_t>(*vector.to));
    }
  }

  ElementType type() const { return type_; }
  size_t bytes() const { return bytes_; }
  const std::vector<UploadJob>& jobs() const { return jobs_; }
  const std::vector<VectorJob>& vectors() const { return vectors_; }

 private:
  void Align() { bytes_ = (bytes_ + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

  const ElementType type_;
  size_t bytes_ = 0;
  std::vector<UploadJob> jobs_;
  std::vector<GpuMatrix*> matrices_;
  std::vector<VectorJob> vectors_;
};

Layout LayOut(const ModelSpec& spec, const ModelWeights& weights, GpuWeights* gpu) {
  Layout layout(gpu->type);
  gpu->layers.resize(static_cast<size_t>(spec.layers));
  for (size_t l = 0; l < gpu->layers.size(); ++l) {
    const LayerWeights& from = weights.layers[l];
    GpuLayer& to = gpu->layers[l];
    layout.AddMatrix(&to.qkv, {&from.q, &from.k, &from.v});
    layout.AddMatrix(&to.o, {&from.o});
    layout.AddMatrix(&to.gate_up, {&from.gate, &from.up});
    layout.AddMatrix(&to.down, {&from.down});
    layout.AddVector(&to.attention_norm, ReadF32(from.attention_norm));
    layout.AddVector(&to.mlp_norm, ReadF32(from.mlp_norm));
    std::vector<float> qkv_bias;
    for (const auto* bias : {&from.q_bias, &from.k_bias, &from.v_bias}) {
      const std::vector<float> values = ReadF32(*bias);
      qkv_bias.insert(qkv_bias.end(), values.begin(), values.end());
    }
    layout.AddVector(&to.qkv_bias, std::move(qkv_bias));
    layout.AddVector(&to.o_bias, ReadF32(from.o_bias));
    layout.AddVector(&to.gate_bias, ReadF32(from.gate_bias));
    layout.AddVector(&to.up_bias, ReadF32(from.up_bias));
    layout.AddVector(&to.down_bias, ReadF32(from.down_bias));
  }
  layout.AddVector(&gpu->final_norm, ReadF32(weights.final_norm));
  layout.AddMatrix(&gpu->head, {&weights.head});
  return layout;
}

// Kernels take rows by fours.
absl::Status CheckWidths(const ModelSpec& spec) {
  const std::pair<const char*, int> widths[] = {{"hidden_size", spec.hidden}, {"intermediate_size", spec.intermediate}};
  for (const auto& [name, width] : widths) {
    if (width % 4 == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("--spart cuda: the model's %s is %d, it must be a multiple of 4", name, width));
  }
  return absl::OkStatus();
}

// Pinned buffers, one for each thread that wants one at a time.
class Buffers {
 public:
  static absl::StatusOr<std::unique_ptr<Buffers>> Make(size_t count, SPartDevice* device) {
    std::unique_ptr<Buffers> buffers(new Buffers(device));
    for (size_t i = 0; i < count; ++i) {
      absl::StatusOr<std::byte*> memory = device->AllocatePinned(kChunkBytes);
      if (!memory.ok()) return memory.status();
      buffers->all_.push_back(*memory);
    }
    buffers->free_ = buffers->all_;
    return buffers;
  }
  ~Buffers() {
    for (std::byte* memory : all_) device_->FreePinned(memory);
  }

  std::byte* Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::byte* const memory = free_.back();
    free_.pop_back();
    return memory;
  }
  void Give(std::byte* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(memory);
  }

 private:
  explicit Buffers(SPartDevice* device) : device_(device) {}

  SPartDevice* const device_;
  std::vector<std::byte*> all_;
  std::mutex mutex_;
  std::vector<std::byte*> free_;
};

// Keeps the first error of several threads.
class FirstError {
 public:
  void Note(absl::Status status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    first_.Update(std::move(status));
    failed_.store(true, std::memory_order_relaxed);
  }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  absl::Status Get() const { return first_; }

 private:
  std::mutex mutex_;
  absl::Status first_;
  std::atomic<bool> failed_{false};
};

absl::Status UploadTensors(const Checkpoint& checkpoint, const Layout& layout, const UploadOptions& options,
                           std::byte* base, SPartDevice* device) {
  absl::StatusOr<std::unique_ptr<Buffers>> buffers = Buffers::Make(std::max<size_t>(1, options.cores.size()), device);
  if (!buffers.ok()) return buffers.status();
  const size_t element = ElementBytes(layout.type());
  const auto chunk = static_cast<int64_t>(kChunkBytes / element);
  FirstError error;
  uint64_t done = 0;
  for (const UploadJob& job : layout.jobs()) {
    const int64_t elements = job.tensor->elements();
    ParallelFor("fd-upload", options.cores, (elements + chunk - 1) / chunk, [&](int64_t i) {
      if (error.failed()) return;
      const int64_t first = i * chunk, count = std::min(chunk, elements - first);
      std::byte* const buffer = (*buffers)->Take();
      ConvertTo(layout.type(), *job.tensor, first, count, buffer);
      error.Note(device->Upload(base + job.offset + static_cast<size_t>(first) * element, buffer,
                                static_cast<size_t>(count) * element));
      (*buffers)->Give(buffer);
    });
    if (error.failed()) return error.Get();
    checkpoint.DropPages(*job.tensor);
    done += static_cast<uint64_t>(elements) * element;
    if (options.progress) options.progress(done, layout.bytes());
  }
  std::byte* const buffer = (*buffers)->Take();
  for (const VectorJob& vector : layout.vectors()) {
    const size_t bytes = vector.values.size() * sizeof(float);
    for (size_t first = 0; first < bytes; first += kChunkBytes) {
      const size_t some = std::min(kChunkBytes, bytes - first);
      std::memcpy(buffer, reinterpret_cast<const std::byte*>(vector.values.data()) + first, some);
      std::byte* const to = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(*vector.to)) + first;
      if (absl::Status bad = device->Upload(to, buffer, some); !bad.ok()) return bad;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GpuWeights> UploadWeights(const ModelSpec& spec, const Checkpoint& checkpoint,
                                         const ModelWeights& weights, const UploadOptions& options,
                                         SPartDevice* device) {
  if (absl::Status bad = CheckWidths(spec); !bad.ok()) return bad;
  GpuWeights gpu;
  gpu.type = options.type;
  Layout layout = LayOut(spec, weights, &gpu);
  gpu.matrix_bytes = layout.bytes();
  GpuMatrix embedding;
  if (!spec.tied_embeddings) layout.AddMatrix(&embedding, {&weights.embedding});
  if (const uint64_t free = device->free_bytes(); layout.bytes() > free) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the weights need %.2f GiB as %s, the GPU has %.2f GiB free", static_cast<double>(layout.bytes()) * 0x1p-30,
        ElementName(options.type), static_cast<double>(free) * 0x1p-30));
  }
  absl::StatusOr<std::byte*> base = device->Allocate(layout.bytes());
  if (!base.ok()) return base.status();
  layout.PlaceAt(*base);
  if (absl::Status bad = UploadTensors(checkpoint, layout, options, *base, device); !bad.ok()) return bad;
  gpu.embedding = spec.tied_embeddings ? gpu.head.data : embedding.data;
  return gpu;
}

}  // namespace fastdecode
