#include "engine/spart/cpu/packed_weights.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "numa/check.h"
#include "numa/parallel_for.h"

namespace fastdecode {

namespace {

constexpr size_t kAlignBytes = 4096;

size_t AlignUp(size_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

// Where one packed matrix comes from: rows of up to three tensors one after another, or of two interleaved by panels.
struct PackJob {
  PackedMatrix* matrix = nullptr;
  std::vector<const WeightView*> tensors;
  bool interleaved = false;      // panel 2i of tensors[0], 2i+1 of tensors[1]
};

struct Layout {
  std::vector<PackJob> jobs;
  size_t bytes = 0;
};

void AddMatrix(Layout& layout, ElementType type, PackedMatrix* matrix, int64_t n, int64_t k,
               std::vector<const WeightView*> tensors, bool interleaved = false) {
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
  const auto add = [&](PackedMatrix* matrix, std::vector<const WeightView*> parts) {
    int64_t rows = 0;
    for (const WeightView* part : parts) rows += part->rows;
    const int64_t columns = parts[0]->columns;
    AddMatrix(layout, type, matrix, rows, columns, std::move(parts));
  };
  packed.layers.resize(spec.layers);
  for (int l = 0; l < spec.layers; ++l) {
    const RoleViews& from = weights.layers[l];
    PackedLayer& to = packed.layers[l];
    add(&to.qkv, {&from[TensorRole::kQ], &from[TensorRole::kK], &from[TensorRole::kV]});
    add(&to.o, {&from[TensorRole::kO]});
    if (spec.gated) {
      AddMatrix(layout, type, &to.gate_up, 2 * kPanelColumns * PanelCount(spec.intermediate), spec.hidden,
                {&from[TensorRole::kGate], &from[TensorRole::kUp]}, /*interleaved=*/true);
    } else {
      add(&to.gate_up, {&from[TensorRole::kUp]});
    }
    add(&to.down, {&from[TensorRole::kDown]});
  }
  add(&packed.head, {&weights.model[TensorRole::kHead]});
  packed.matrix_bytes = layout.bytes;
  return layout;
}

// Converts up to 64 rows of the job's panel `index` to f32; returns how many there are.
int ReadPanelRows(const PackJob& job, int64_t index, std::vector<float>& rows) {
  const int64_t k = job.matrix->k;
  if (job.interleaved) {
    const WeightView& tensor = *job.tensors[index % 2];
    const int64_t first = index / 2 * kPanelColumns;
    const int64_t count = std::min<int64_t>(kPanelColumns, tensor.rows - first);
    ConvertToF32(tensor, first * k, count * k, rows.data());
    return static_cast<int>(count);
  }
  int64_t row = index * kPanelColumns;
  int filled = 0;
  for (const WeightView* tensor : job.tensors) {
    if (row >= tensor->rows) {
      row -= tensor->rows;
      continue;
    }
    const int64_t count = std::min<int64_t>(kPanelColumns - filled, tensor->rows - row);
    ConvertToF32(*tensor, row * k, count * k, rows.data() + filled * k);
    filled += static_cast<int>(count);
    row = 0;
    if (filled == kPanelColumns) break;
  }
  return filled;
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
  // A head that is part of a product is not the embedding, which is one with another.
  const bool own_embedding = !weights.tied || spec.embedding_width != 0;
  const WeightView& embedding = weights.model[TensorRole::kEmbedding];
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
    for (const WeightView* tensor : job.tensors) checkpoint.DropPages(*tensor->tensor);
    done += matrix.panel_count() * matrix.panel_bytes;
    if (options.progress) options.progress(done, total);
  }
  packed.vectors = ReadVectors(spec, weights);
  if (own_embedding) {
    packed.embedding = base + embedding_offset;
    constexpr int64_t kRows = 256;
    ParallelFor("fd-pack", options.cores, (spec.vocab + kRows - 1) / kRows, [&](int64_t i) {
      const int64_t first = i * kRows * spec.hidden, count = std::min(kRows, spec.vocab - i * kRows) * spec.hidden;
      ConvertTo(options.type, embedding, first, count,
                packed.embedding + first * static_cast<int64_t>(ElementBytes(options.type)));
    });
    checkpoint.DropPages(*embedding.tensor);
  }
  return packed;
}

}  // namespace fastdecode
