#include "engine/spart/cpu/packed_weights.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/model/convert.h"
#include "numa/check.h"
#include "numa/parallel_for.h"

namespace fastdecode {

namespace {

constexpr size_t kAlignBytes = 4096;

size_t AlignUp(size_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

// Where one packed matrix comes from: rows of up to three tensors one after another, or of two interleaved by panels.
struct PackJob {
  PackedMatrix* matrix = nullptr;
  std::vector<const TensorView*> tensors;
  bool interleaved = false;      // panel 2i of tensors[0], 2i+1 of tensors[1]
};

struct Layout {
  std::vector<PackJob> jobs;
  size_t bytes = 0;
};

void AddMatrix(Layout& layout, ElementType type, PackedMatrix* matrix, int64_t n, int64_t k,
               std::vector<const TensorView*> tensors, bool interleaved = false) {
  matrix->n = n;
  matrix->k = k;
  matrix->panel_bytes = PanelBytes(type, k);
  // The offset for now; the arena's address is added once it is known.
  matrix->panels = std::bit_cast<std::byte*>(layout.bytes);
  layout.bytes = AlignUp(layout.bytes + matrix->panel_count() * matrix->panel_bytes);
  layout.jobs.push_back({matrix, std::move(tensors), interleaved});
}

Layout LayOut(const ModelSpec& spec, const ModelWeights& weights, PackedWeights& packed) {
  Layout layout;
  const ElementType type = packed.type;
  const int64_t q_width = int64_t{spec.heads} * spec.head_dim;
  const int64_t kv_width = int64_t{spec.kv_heads} * spec.head_dim;
  packed.layers.resize(spec.layers);
  for (int l = 0; l < spec.layers; ++l) {
    const LayerWeights& from = weights.layers[l];
    PackedLayer& to = packed.layers[l];
    AddMatrix(layout, type, &to.qkv, q_width + 2 * kv_width, spec.hidden, {&from.q, &from.k, &from.v});
    AddMatrix(layout, type, &to.o, spec.hidden, q_width, {&from.o});
    AddMatrix(layout, type, &to.gate_up, 2 * kPanelColumns * PanelCount(spec.intermediate), spec.hidden,
              {&from.gate, &from.up}, /*interleaved=*/true);
    AddMatrix(layout, type, &to.down, spec.hidden, spec.intermediate, {&from.down});
  }
  AddMatrix(layout, type, &packed.head, spec.vocab, spec.hidden, {&weights.head});
  packed.matrix_bytes = layout.bytes;
  return layout;
}

// Converts up to 64 rows of the job's panel `index` to f32; returns how many there are.
int ReadPanelRows(const PackJob& job, int64_t index, std::vector<float>& rows) {
  const int64_t k = job.matrix->k;
  if (job.interleaved) {
    const TensorView& tensor = *job.tensors[index % 2];
    const int64_t first = index / 2 * kPanelColumns;
    const int64_t count = std::min<int64_t>(kPanelColumns, tensor.shape[0] - first);
    ConvertToF32(tensor, first * k, count * k, rows.data());
    return static_cast<int>(count);
  }
  int64_t row = index * kPanelColumns;
  int filled = 0;
  for (const TensorView* tensor : job.tensors) {
    if (row >= tensor->shape[0]) {
      row -= tensor->shape[0];
      continue;
    }
    const int64_t count = std::min<int64_t>(kPanelColumns - filled, tensor->shape[0] - row);
    ConvertToF32(*tensor, row * k, count * k, rows.data() + filled * k);
    filled += static_cast<int>(count);
    row = 0;
    if (filled == kPanelColumns) break;
  }
  return filled;
}

void ReadVectors(const ModelWeights& weights, PackedWeights& packed) {
  packed.final_norm = ReadF32(weights.final_norm);
  for (size_t l = 0; l < packed.layers.size(); ++l) {
    const LayerWeights& from = weights.layers[l];
    PackedLayer& to = packed.layers[l];
    to.attention_norm = ReadF32(from.attention_norm);
    to.mlp_norm = ReadF32(from.mlp_norm);
    for (const auto* bias : {&from.q_bias, &from.k_bias, &from.v_bias}) {
      const std::vector<float> values = ReadF32(*bias);
      to.qkv_bias.insert(to.qkv_bias.end(), values.begin(), values.end());
    }
    to.o_bias = ReadF32(from.o_bias);
    to.gate_bias = ReadF32(from.gate_bias);
    to.up_bias = ReadF32(from.up_bias);
    to.down_bias = ReadF32(from.down_bias);
  }
}

}  // namespace

void PackedWeights::EmbedToken(int32_t token, int hidden, float* x) const {
  if (embedding == nullptr) {
    UnpackRow(type, head.panel(token / kPanelColumns), token % kPanelColumns, hidden, x);
    return;
  }
  if (type == ElementType::kF32) {
    std::memcpy(x, reinterpret_cast<const float*>(embedding) + int64_t{token} * hidden, hidden * sizeof(float));
    return;
  }
  const Bf16* row = reinterpret_cast<const Bf16*>(embedding) + int64_t{token} * hidden;
  for (int i = 0; i < hidden; ++i) x[i] = FromBf16(row[i]);
}

absl::StatusOr<PackedWeights> PackWeights(const ModelSpec& spec, const Checkpoint& checkpoint, const ModelWeights& weights,
                                          const PackOptions& options) {
  PackedWeights packed;
  packed.type = options.type;
  Layout layout = LayOut(spec, weights, packed);
  const bool own_embedding = !spec.tied_embeddings;
  const size_t embedding_offset = layout.bytes;
  if (own_embedding) layout.bytes += int64_t{spec.vocab} * spec.hidden * ElementBytes(options.type);

  ArenaOptions arena_options;
  arena_options.bytes = layout.bytes;
  arena_options.node = options.node;
  arena_options.prefault_cores = options.cores;
  arena_options.interleaved = options.node < 0;  // every matrix is read by all threads, wherever these are
  absl::StatusOr<Arena> arena = Arena::Create(arena_options);
  if (!arena.ok()) {
    return absl::Status(arena.status().code(), "weights: " + std::string(arena.status().message()));
  }
  packed.arena = *std::move(arena);
  std::byte* const base = reinterpret_cast<std::byte*>(packed.arena.data());

  uint64_t total = 0;
  for (const PackJob& job : layout.jobs) total += job.matrix->panel_count() * job.matrix->panel_bytes;
  uint64_t done = 0;
  for (const PackJob& job : layout.jobs) {
    PackedMatrix& matrix = *job.matrix;
    matrix.panels = base + std::bit_cast<size_t>(matrix.panels);
    // Whole panels a thread: a matrix is read and packed once, and its file pages go before the next one's come.
    ParallelFor("fd-pack", options.cores, matrix.panel_count(), [&](int64_t panel) {
      thread_local std::vector<float> rows;
      rows.resize(kPanelColumns * matrix.k);
      const int columns = ReadPanelRows(job, panel, rows);
      PackPanel(options.type, rows.data(), columns, matrix.k, matrix.panels + panel * matrix.panel_bytes);
    });
    for (const TensorView* tensor : job.tensors) checkpoint.DropPages(*tensor);
    done += matrix.panel_count() * matrix.panel_bytes;
    if (options.progress) options.progress(done, total);
  }
  ReadVectors(weights, packed);
  if (own_embedding) {
    packed.embedding = base + embedding_offset;
    constexpr int64_t kRows = 256;
    ParallelFor("fd-pack", options.cores, (spec.vocab + kRows - 1) / kRows, [&](int64_t i) {
      const int64_t first = i * kRows * spec.hidden, count = std::min(kRows, spec.vocab - i * kRows) * spec.hidden;
      ConvertTo(options.type, weights.embedding, first, count,
                packed.embedding + first * static_cast<int64_t>(ElementBytes(options.type)));
    });
    checkpoint.DropPages(weights.embedding);
  }
  return packed;
}

}  // namespace fastdecode
