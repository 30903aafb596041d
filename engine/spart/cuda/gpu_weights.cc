#include "engine/spart/cuda/gpu_weights.h"

#include <cstring>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/convert.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr size_t kAlignBytes = 256;

// Where everything lies in one piece of device memory: matrices, then vectors. Pointers are offsets until it is there.
class Layout {
 public:
  explicit Layout(ElementType type) : type_(type) {}

  void AddMatrix(GpuMatrix* matrix, std::initializer_list<const TensorView*> tensors) {
    matrix->data = reinterpret_cast<const std::byte*>(matrix_bytes_);
    matrix->k = (*tensors.begin())->shape[1];
    for (const TensorView* tensor : tensors) {
      matrix->n += tensor->shape[0];
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
    layout.AddVector(&to.qkv_bias, qkv_bias);
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
  if (!spec.tied_embeddings) layout.AddMatrix(&embedding, {&weights.embedding});
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
  gpu.embedding = spec.tied_embeddings ? gpu.head.data : embedding.data;
  gpu.upload_ns = NowNs() - start_ns;
  return gpu;
}

}  // namespace fastdecode
