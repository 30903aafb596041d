// FAST PATH (docs/FAST_PATH.md)
// One stage of the S-Part on the CPU, start to end. Nothing here allocates, locks, logs or enters the kernel.
#include <algorithm>
#include <cstring>

#include "engine/spart/cpu/cpu_spart.h"
#include "engine/spart/cpu/tiles.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

// Says how long a scope took; nothing if there is no trace.
class PartTimer {
 public:
  PartTimer(StageTrace* trace, StagePart what, int layer)
      : trace_(trace), what_(what), layer_(layer), start_ns_(trace == nullptr ? 0 : NowNs()) {}
  ~PartTimer() {
    if (trace_ != nullptr) trace_->Add({what_, layer_, start_ns_, NowNs()});
  }
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

 private:
  StageTrace* const trace_;
  const StagePart what_;
  const int layer_;
  const uint64_t start_ns_;
};

}  // namespace

void CpuSPart::StartStage(int micro_batch, int stage, StepTable& table) {
  micro_batch_ = micro_batch;
  stage_ = stage;
  table_ = &table;
  team_.Run(&CpuSPart::StageWork, this);
}

void CpuSPart::StageWork(void* self, int t, int n) { static_cast<CpuSPart*>(self)->RunStage(t, n); }

CpuSPart::Range CpuSPart::Share(int count, int t, int n, int unit) {
  const int64_t units = (count + unit - 1) / unit;
  return {static_cast<int>(std::min<int64_t>(count, units * t / n * unit)),
          static_cast<int>(std::min<int64_t>(count, units * (t + 1) / n * unit))};
}

// Every barrier separates writers of a buffer from its readers: what one thread wrote for all columns of its rows, the
// others read for all rows of their columns, and the other way round.
void CpuSPart::RunStage(int t, int n) {
  const int rows_all = table_->rows;
  const Range rows = Share(rows_all, t, n);
  const int hidden = spec_.hidden;
  // A part is over when all threads are: its barrier counts to it.
  StageTrace* const trace = t == 0 ? table_->trace : nullptr;
  if (stage_ == 0) {
    Embed(rows);
  } else {
    const PackedLayer& done = weights_.layers[stage_ - 1];
    GatherOutputs(rows);
    team_.Barrier(t);
    {
      const PartTimer timer(trace, kStageO, stage_ - 1);
      Multiply(done.o, attended_, rows_all, projected_.data(), hidden, t, n);
      team_.Barrier(t);
    }
    AddAndNorm(done.bias(done.o_bias), done.mlp_norm, rows);
    team_.Barrier(t);
    {
      const PartTimer timer(trace, kStageGateUp, stage_ - 1);
      Mlp(done, t, n);
      team_.Barrier(t);
    }
    {
      const PartTimer timer(trace, kStageDown, stage_ - 1);
      Multiply(done.down, activated_, rows_all, projected_.data(), hidden, t, n);
      team_.Barrier(t);
    }
  }
  const float* down_bias = stage_ == 0 ? nullptr : weights_.layers[stage_ - 1].bias(weights_.layers[stage_ - 1].down_bias);
  if (stage_ == spec_.layers) {
    AddAndNorm(down_bias, weights_.final_norm, rows);
    team_.Barrier(t);
    const PartTimer timer(trace, kStageLogits, stage_);
    Finish(t, n);
    return;
  }
  const PackedLayer& next = weights_.layers[stage_];
  AddAndNorm(down_bias, next.attention_norm, rows);
  team_.Barrier(t);
  {
    const PartTimer timer(trace, kStageQkv, stage_);
    Multiply(next.qkv, normed_, rows_all, projected_.data(), next.qkv.n, t, n);
    team_.Barrier(t);
  }
  RotateAndSend(next, rows);
}

void CpuSPart::Embed(Range rows) {
  float* x = residual_[micro_batch_].data();
  for (int r = rows.begin; r < rows.end; ++r) {
    weights_.EmbedToken(table_->tokens[r], spec_.hidden, x + int64_t{r} * spec_.hidden);
  }
}

// o of the last layer, from the homes' receive areas into contiguous rows; a lost home's rows are zeros.
void CpuSPart::GatherOutputs(Range rows) {
  const size_t element = shape_.element_bytes();
  const size_t head_bytes = spec_.head_dim * element;
  const size_t padded_head_bytes = shape_.head_dim * element;
  for (int r = rows.begin; r < rows.end; ++r) {
    std::byte* to = attended_.row(r);
    const std::byte* from = table_->home_areas[table_->homes[r]].receive;
    if (from == nullptr) {
      std::memset(to, 0, spec_.heads * head_bytes);
      continue;
    }
    from += table_->home_rows[r] * shape_.reply_row_bytes();
    if (head_bytes == padded_head_bytes) {
      std::memcpy(to, from, spec_.heads * head_bytes);
      continue;
    }
    for (int h = 0; h < spec_.heads; ++h) std::memcpy(to + h * head_bytes, from + h * padded_head_bytes, head_bytes);
  }
}

// x += projected (+ bias), except in stage 0, where x is new; then normed = norm(x).
void CpuSPart::AddAndNorm(const float* bias, const std::vector<float>& norm, Range rows) {
  const int hidden = spec_.hidden;
  for (int r = rows.begin; r < rows.end; ++r) {
    float* x = residual_[micro_batch_].data() + int64_t{r} * hidden;
    if (stage_ > 0) ops_.add(x, projected_.data() + int64_t{r} * hidden, bias, hidden);
    ops_.rms_norm(x, norm.data(), spec_.norm_epsilon, hidden, normed_.row(r), static_cast<int>(normed_.stride));
  }
}

// activated = silu(gate) * up for this thread's outputs, a tile of rows at a time, so that gate and up stay in its cache.
void CpuSPart::Mlp(const PackedLayer& layer, int t, int n) {
  const PackedMatrix& matrix = layer.gate_up;
  const Range panels = Share(static_cast<int>(matrix.panel_count()), t, n, /*unit=*/2);
  const int64_t columns = int64_t{panels.end - panels.begin} * kPanelColumns;
  if (columns == 0) return;
  const size_t element = shape_.element_bytes();
  const float* gate_bias = layer.bias(layer.gate_bias);
  const float* up_bias = layer.bias(layer.up_bias);
  float* tile = gate_up_[t].data();
  for (int first = 0; first < table_->rows; first += kTileRows) {
    const int rows = std::min(kTileRows, table_->rows - first);
    MultiplyPanels(matrix, panels, normed_, first, rows, tile, columns, t);
    for (int r = 0; r < rows; ++r) {
      const float* row = tile + r * columns;
      std::byte* out = activated_.row(first + r);
      for (int p = panels.begin; p < panels.end; p += 2, row += 2 * kPanelColumns) {
        const int column = p / 2 * kPanelColumns;
        const int count = std::min(kPanelColumns, spec_.intermediate - column);
        ops_.silu_mul(row, row + kPanelColumns, gate_bias == nullptr ? nullptr : gate_bias + column,
                      up_bias == nullptr ? nullptr : up_bias + column, count, out + column * element);
      }
    }
  }
}

// q and k rotated, v as it is, written where the home will read them.
void CpuSPart::RotateAndSend(const PackedLayer& layer, Range rows) {
  const int d = spec_.head_dim;
  const int padded = static_cast<int>(shape_.head_dim);
  const size_t padded_bytes = padded * shape_.element_bytes();
  const float* bias = layer.bias(layer.qkv_bias);
  for (int r = rows.begin; r < rows.end; ++r) {
    std::byte* to = table_->home_areas[table_->homes[r]].send;
    if (to == nullptr) continue;
    to += table_->home_rows[r] * shape_.hop_row_bytes();
    const float* from = projected_.data() + int64_t{r} * layer.qkv.n;
    const float* cosines = rope_.cosines.data() + int64_t{table_->positions[r]} * (d / 2);
    const float* sines = rope_.sines.data() + int64_t{table_->positions[r]} * (d / 2);
    const int rotated = spec_.heads + spec_.kv_heads;
    for (int h = 0; h < rotated + spec_.kv_heads; ++h) {
      const float* head_bias = bias == nullptr ? nullptr : bias + int64_t{h} * d;
      if (h < rotated) {
        ops_.rope_head(from + int64_t{h} * d, head_bias, cosines, sines, d, to, padded);
      } else {
        ops_.copy_head(from + int64_t{h} * d, head_bias, d, to, padded);
      }
      to += padded_bytes;
    }
  }
}

// Logits of the rows that want them, a tile of rows at a time, and their samples.
void CpuSPart::Finish(int t, int n) {
  for (int first = 0; first < table_->logit_rows; first += kLogitRows) {
    const int count = std::min(kLogitRows, table_->logit_rows - first);
    const Range rows = Share(count, t, n);
    for (int i = rows.begin; i < rows.end; ++i) {
      std::memcpy(logit_inputs_.row(i), normed_.row(table_->logits[first + i].row), normed_.row_bytes);
    }
    team_.Barrier(t);
    Multiply(weights_.head, logit_inputs_, count, logits_.data(), spec_.vocab, t, n);
    team_.Barrier(t);
    SampleRows(first, rows, t);
  }
}

void CpuSPart::SampleRows(int first, Range rows, int t) {
  for (int i = rows.begin; i < rows.end; ++i) {
    LogitRow& row = table_->logits[first + i];
    const float* logits = logits_.data() + int64_t{i} * spec_.vocab;
    if (row.logits_out != nullptr) std::memcpy(row.logits_out, logits, spec_.vocab * sizeof(float));
    if (!row.sample) continue;
    row.args.logits = logits;
    row.args.scratch = sample_scratch_[t].get();
    row.result = Sample(row.args);
  }
}

void CpuSPart::Multiply(const PackedMatrix& matrix, Activations& x, int rows, float* y, int64_t y_stride, int t, int n) {
  const Range panels = Share(static_cast<int>(matrix.panel_count()), t, n);
  MultiplyPanels(matrix, panels, x, 0, rows, y + int64_t{panels.begin} * kPanelColumns, y_stride, t);
}

void CpuSPart::MultiplyPanels(const PackedMatrix& matrix, Range panels, Activations& x, int first_row, int rows, float* y,
                              int64_t y_stride, int t) {
  if (panels.begin == panels.end || rows == 0) return;
  GemmArgs args;
  args.x = x.row(first_row);
  args.x_stride = x.stride;
  args.rows = rows;
  args.k = matrix.k;
  args.panels = matrix.panel(panels.begin);
  args.columns = std::min<int64_t>(matrix.n, int64_t{panels.end} * kPanelColumns) - int64_t{panels.begin} * kPanelColumns;
  args.y = y;
  args.y_stride = y_stride;
  if (rows > own_rows_max_ && onednn_->Multiply(args, t)) return;
  gemm_.gemm(args);
}

}  // namespace fastdecode
