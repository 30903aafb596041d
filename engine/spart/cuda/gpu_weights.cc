#include "engine/spart/cuda/gpu_weights.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr size_t kAlignBytes = 256;

// Where everything lies in one piece of device memory: matrices, then vectors. Pointers are offsets until it is there.
class Layout {
 public:
  explicit Layout(ElementType type) : type_(type) {}

  void AddMatrix(GpuMatrix* matrix, const std::vector<const WeightView*>& tensors) {
    matrix->data = reinterpret_cast<const std::byte*>(matrix_bytes_);
    matrix->k = tensors[0]->columns;
    for (const WeightView* tensor : tensors) {
      matrix->n += tensor->rows;
      jobs_.push_back({tensor, reinterpret_cast<std::byte*>(matrix_bytes_)});
      matrix_bytes_ += static_cast<size_t>(tensor->elements()) * ElementBytes(type_);
    }
    matrix_bytes_ = (matrix_bytes_ + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    matrices_.push_back(matrix);
  }

  void AddVector(const float** to, const std::vector<float>& values) {
    if (values.empty()) return;
    *to = reinterpret_cast<const float*>(vector_bytes());
    vectors_.push_back(to);
    values_.insert(values_.end(), values.begin(), values.end());
    constexpr size_t kAlign = kAlignBytes / sizeof(float);
    values_.resize((values_.size() + kAlign - 1) / kAlign * kAlign);
  }

  // Makes pointers of offsets.
  void PlaceAt(std::byte* base) {
    for (GpuMatrix* matrix : matrices_) matrix->data = base + reinterpret_cast<size_t>(matrix->data);
    for (UploadJob& job : jobs_) job.to = base + reinterpret_cast<size_t>(job.to);
    for (const float** vector : vectors_) {
      *vector = reinterpret_cast<const float*>(base + matrix_bytes_ + reinterpret_cast<size_t>(*vector));
    }
  }

  size_t bytes() const { return matrix_bytes_ + vector_bytes(); }
  size_t matrix_bytes() const { return matrix_bytes_; }
  size_t vector_bytes() const { return values_.size() * sizeof(float); }
  const std::vector<UploadJob>& jobs() const { return jobs_; }
  const std::vector<float>& values() const { return values_; }

 private:
  const ElementType type_;
  size_t matrix_bytes_ = 0;
  std::vector<UploadJob> jobs_;
  std::vector<GpuMatrix*> matrices_;
  std::vector<const float**> vectors_;
  std::vector<float> values_;  // of all vectors, which are small: they go together
};

Layout LayOut(const ModelSpec& spec, const ModelWeights& weights, GpuWeights* gpu) {
  Layout layout(gpu->type);
  gpu->layers.resize(static_cast<size_t>(spec.layers));
  for (size_t l = 0; l < gpu->layers.size(); ++l) {
    const RoleViews& from = weights.layers[l];
    GpuLayer& to = gpu->layers[l];
    layout.AddMatrix(&to.qkv, {&from[TensorRole::kQ], &from[TensorRole::kK], &from[TensorRole::kV]});
    layout.AddMatrix(&to.o, {&from[TensorRole::kO]});
    std::vector<const WeightView*> gate_up = {&from[TensorRole::kUp]};
    if (spec.gated) gate_up.insert(gate_up.begin(), &from[TensorRole::kGate]);
    layout.AddMatrix(&to.gate_up, gate_up);
    layout.AddMatrix(&to.down, {&from[TensorRole::kDown]});
  }
  gpu->vectors.layers.resize(gpu->layers.size());
  ForEachVector(ReadVectors(spec, weights), &gpu->vectors,
                [&layout](const std::vector<float>& from, const float** to) { layout.AddVector(to, from); });
  layout.AddMatrix(&gpu->head, {&weights.model[TensorRole::kHead]});
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

absl::Status UploadVectors(const std::vector<float>& values, std::byte* to, SPartDevice* device) {
  const size_t bytes = values.size() * sizeof(float);
  absl::StatusOr<std::byte*> pinned = device->AllocatePinned(bytes);
  if (!pinned.ok()) return pinned.status();
  std::memcpy(*pinned, values.data(), bytes);
  absl::Status status = device->Upload(to, *pinned, bytes);
  device->FreePinned(*pinned);
  return status;
}

}  // namespace

absl::StatusOr<GpuWeights> UploadWeights(const ModelSpec& spec, const Checkpoint& checkpoint,
                                         const ModelWeights& weights, const UploadOptions& options,
                                         SPartDevice* device) {
  const uint64_t start_ns = NowNs();
  if (absl::Status bad = CheckWidths(spec); !bad.ok()) return bad;
  GpuWeights gpu;
  gpu.type = options.type;
  Layout layout = LayOut(spec, weights, &gpu);
  gpu.matrix_bytes = layout.bytes();
  GpuMatrix embedding;
  // A head that is part of a product is not the embedding, which is one with another.
  const bool own_embedding = !weights.tied || spec.embedding_width != 0;
  if (own_embedding) layout.AddMatrix(&embedding, {&weights.model[TensorRole::kEmbedding]});
  gpu.bytes = layout.bytes();
  if (const uint64_t free = device->free_bytes(); gpu.bytes > free) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the weights need %.2f GiB as %s, the GPU has %.2f GiB free", static_cast<double>(gpu.bytes) * 0x1p-30,
        ElementName(options.type), static_cast<double>(free) * 0x1p-30));
  }
  absl::StatusOr<std::byte*> base = device->Allocate(gpu.bytes);
  if (!base.ok()) return base.status();
  layout.PlaceAt(*base);
  if (absl::Status bad = UploadVectors(layout.values(), *base + layout.matrix_bytes(), device); !bad.ok()) return bad;
  if (absl::Status bad = UploadTensors(checkpoint, layout.jobs(), options, device); !bad.ok()) return bad;
  gpu.embedding = own_embedding ? embedding.data : gpu.head.data;
  gpu.upload_ns = NowNs() - start_ns;
  return gpu;
}

}  // namespace fastdecode
