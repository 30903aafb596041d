// FAST PATH (docs/FAST_PATH.md)
// One stage of the S-Part on the CPU, start to end. Nothing here allocates, locks, logs or enters the kernel.
#include <algorithm>
#include <cstring>

#include "engine/spart/cpu/cpu_spart.h"
#include "engine/spart/cpu/tiles.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

// What operations are called in traces; those of rows are in none.
bool FindPart(StageOp::Kind kind, StagePart* part) {
  using Kind = StageOp::Kind;
  switch (kind) {
    case Kind::kOut:
      *part = kStageO;
      return true;
    case Kind::kGateUp:
      *part = kStageGateUp;
      return true;
    case Kind::kDown:
      *part = kStageDown;
      return true;
    case Kind::kQkv:
      *part = kStageQkv;
      return true;
    case Kind::kLogits:
      *part = kStageLogits;
      return true;
    default:
      return false;
  }
}

// Says how long a scope took; nothing if there is no trace, or it is no part of one.
class PartTimer {
 public:
  PartTimer(StageTrace* trace, const StageOp& op) {
    if (trace != nullptr && FindPart(op.kind, &what_)) Begin(trace, op.layer);
  }
  PartTimer(StageTrace* trace, StagePart what, int layer) : what_(what) {
    if (trace != nullptr) Begin(trace, layer);
  }
  ~PartTimer() {
    if (trace_ != nullptr) trace_->Add({what_, layer_, start_ns_, NowNs()});
  }
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

 private:
  void Begin(StageTrace* trace, int layer) {
    trace_ = trace;
    layer_ = layer;
    start_ns_ = NowNs();
  }

  StageTrace* trace_ = nullptr;
  StagePart what_ = {};
  int layer_ = 0;
  uint64_t start_ns_ = 0;
};

}  // namespace

void CpuSPart::StartStage(int micro_batch, int stage, StepTable& table) {
  micro_batch_ = micro_batch;
  stage_ = stage;
  table_ = &table;
  if (stage == 0) FindStageRows(micro_batch, table);
  attends_ = BeginAttention(micro_batch, stage - 1, table);
  team_.Run(&CpuSPart::StageWork, this);
  if (attends_) EndAttention(micro_batch, stage - 1);
}

void CpuSPart::StageWork(void* self, int t, int n) { static_cast<CpuSPart*>(self)->RunStage(t, n); }

CpuSPart::Range CpuSPart::Share(int count, int t, int n, int unit) {
  const int64_t units = (count + unit - 1) / unit;
  return {static_cast<int>(std::min<int64_t>(count, units * t / n * unit)),
          static_cast<int>(std::min<int64_t>(count, units * (t + 1) / n * unit))};
}

// Every barrier separates writers of a buffer from its readers: what one thread wrote for all columns of its rows, the
// others read for all rows of their columns, and the other way round. Between two steps by rows none is needed.
void CpuSPart::RunStage(int t, int n) {
  if (attends_) {
    const PartTimer timer(t == 0 ? table_->trace : nullptr, kStageAttend, stage_ - 1);
    const uint64_t start_ns = t == 0 ? NowNs() : 0;
    AttendShare(t);
    team_.Barrier(t);
    if (t == 0) table_->attend_ns += NowNs() - start_ns;
  }
  const std::vector<Step>& steps = steps_[stage_];
  const Range rows = Share(table_->rows, t, n);
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool is_last = i + 1 == steps.size();
    const bool by_rows = !is_last && steps[i].by_rows && steps[i + 1].by_rows;
    // A part is over when all threads are: its barrier counts to it.
    const PartTimer timer(t == 0 ? table_->trace : nullptr, steps[i].op);
    RunStep(steps[i], rows, t, n);
    if (!is_last && !by_rows) team_.Barrier(t);
  }
}

void CpuSPart::RunStep(const Step& step, Range rows, int t, int n) {
  using Kind = StageOp::Kind;
  const StageOp& op = step.op;
  const int rows_all = table_->rows;
  switch (op.kind) {
    case Kind::kEmbed:
      return Embed(rows);
    case Kind::kGather:
      return GatherOutputs(rows);
    case Kind::kOut:
      return Multiply(weights_.layers[op.layer].o, attended_, rows_all, projected_.data(), spec_.hidden, t, n);
    case Kind::kGateUp:
      return Mlp(op.layer, t, n);
    case Kind::kDown:
      return Multiply(weights_.layers[op.layer].down, activated_, rows_all, projected_.data(), spec_.hidden, t, n);
    case Kind::kJoin:
      return Join(step, rows);
    case Kind::kQkv: {
      const PackedMatrix& qkv = weights_.layers[op.layer].qkv;
      return Multiply(qkv, normed_, rows_all, projected_.data(), qkv.n, t, n);
    }
    case Kind::kSend:
      return RotateAndSend(op.layer, rows);
    case Kind::kLogits:
      return Finish(t, n);
  }
}

void CpuSPart::Embed(Range rows) {
  const int hidden = spec_.hidden;
  for (int r = rows.begin; r < rows.end; ++r) {
    float* x = residual_[micro_batch_].data() + int64_t{r} * hidden;
    weights_.EmbedToken(table_->tokens[r], hidden, x);
    if (embedding_scale_ != 1.0f) {
      for (int i = 0; i < hidden; ++i) x[i] *= embedding_scale_;
    }
    if (spec_.learned_positions > 0) {
      const int64_t at = table_->positions[r] + spec_.position_offset;
      ops_.add(x, vectors_.positions + at * hidden, nullptr, 1.0f, hidden);
    }
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

// What a branch has made, into the residual stream, and the next branch's rows of that.
void CpuSPart::Join(const Step& step, Range rows) {
  const int hidden = spec_.hidden;
  const bool adds = step.op.join.adds != StageOp::Branch::kNone;
  const bool norms_branch = step.after.kind != RowNorm::Kind::kNone;
  const float scale = static_cast<float>(spec_.residual_scale);
  for (int r = rows.begin; r < rows.end; ++r) {
    float* x = residual_[micro_batch_].data() + int64_t{r} * hidden;
    float* h = projected_.data() + int64_t{r} * hidden;
    const float* bias = step.bias;
    if (norms_branch) {
      if (bias != nullptr) ops_.add(h, bias, nullptr, 1.0f, hidden);
      ops_.norm_f32(step.after, h, hidden, h);
      bias = nullptr;
    }
    if (adds) ops_.add(x, h, bias, scale, hidden);
    if (step.sum.kind != RowNorm::Kind::kNone) ops_.norm_f32(step.sum, x, hidden, x);
    if (!step.op.join.makes_normed) continue;
    ops_.norm(step.next, x, hidden, normed_.row(r), static_cast<int>(normed_.stride));
  }
}

// The activation for this thread's outputs, a tile of rows at a time, so that gate and up stay in its cache.
void CpuSPart::Mlp(int layer, int t, int n) {
  const PackedMatrix& matrix = weights_.layers[layer].gate_up;
  const LayerVectorsOf<const float*>& vectors = vectors_.layers[layer];
  const int unit = spec_.gated ? 2 : 1;  // panels that make 64 outputs
  const Range panels = Share(static_cast<int>(matrix.panel_count()), t, n, unit);
  const int64_t columns = int64_t{panels.end - panels.begin} * kPanelColumns;
  if (columns == 0) return;
  const size_t element = shape_.element_bytes();
  const float* gate_bias = vectors.gate_bias;
  const float* up_bias = vectors.up_bias;
  float* tile = gate_up_[t].data();
  for (int first = 0; first < table_->rows; first += kTileRows) {
    const int rows = std::min(kTileRows, table_->rows - first);
    MultiplyPanels(matrix, panels, normed_, first, rows, tile, columns, t);
    for (int r = 0; r < rows; ++r) {
      const float* row = tile + r * columns;
      std::byte* out = activated_.row(first + r);
      for (int p = panels.begin; p < panels.end; p += unit, row += unit * kPanelColumns) {
        const int column = p / unit * kPanelColumns;
        const int count = std::min(kPanelColumns, spec_.intermediate - column);
        const float* gate = spec_.gated ? row : nullptr;
        const float* up = spec_.gated ? row + kPanelColumns : row;
        ops_.activate(spec_.activation, gate, up, gate_bias == nullptr ? nullptr : gate_bias + column,
                      up_bias == nullptr ? nullptr : up_bias + column, count, out + column * element);
      }
    }
  }
}

// q and k normed and rotated, v as it is, written where the home will read them.
void CpuSPart::RotateAndSend(int layer, Range rows) {
  const int d = spec_.head_dim;
  const int padded = static_cast<int>(shape_.head_dim);
  const size_t padded_bytes = padded * shape_.element_bytes();
  const int64_t width = weights_.layers[layer].qkv.n;
  const LayerVectorsOf<const float*>& vectors = vectors_.layers[layer];
  const bool norms = spec_.qk_norm != ModelSpec::QkNorm::kNone || spec_.clip_qkv > 0;
  const float* bias = norms ? nullptr : vectors.qkv_bias;
  const RopeTables::OfLayer& ropes = ropes_.layers[layer];
  for (int r = rows.begin; r < rows.end; ++r) {
    std::byte* to = table_->home_areas[table_->homes[r]].send;
    if (to == nullptr) continue;
    to += table_->home_rows[r] * shape_.hop_row_bytes();
    float* from = projected_.data() + int64_t{r} * width;
    if (norms) NormHeads(vectors, from);
    const int64_t angle = int64_t{table_->positions[r]} * (d / 2);
    const int rotated = spec_.heads + spec_.kv_heads;
    for (int h = 0; h < rotated + spec_.kv_heads; ++h) {
      const float* head_bias = bias == nullptr ? nullptr : bias + int64_t{h} * d;
      const int rope = h < spec_.heads ? ropes.q : h < rotated ? ropes.k : RopeTables::kNone;
      if (rope == RopeTables::kNone) {
        ops_.copy_head(from + int64_t{h} * d, head_bias, d, to, padded);
      } else {
        const RopeTable& table = ropes_.tables[rope];
        ops_.rope_head(from + int64_t{h} * d, head_bias, table.cosines.data() + angle, table.sines.data() + angle, d,
                       to, padded);
      }
      to += padded_bytes;
    }
  }
}

// One row of q, k and v, in place: their biases, what they are kept within, and the norms of q and k.
void CpuSPart::NormHeads(const LayerVectorsOf<const float*>& vectors, float* row) {
  const int d = spec_.head_dim, q_width = spec_.heads * d, kv_width = spec_.kv_heads * d;
  if (vectors.qkv_bias != nullptr) ops_.add(row, vectors.qkv_bias, nullptr, 1.0f, q_width + 2 * kv_width);
  if (spec_.clip_qkv > 0) ops_.clip(row, static_cast<float>(spec_.clip_qkv), q_width + 2 * kv_width);
  if (spec_.qk_norm == ModelSpec::QkNorm::kNone) return;
  const RowNorm q_norm = {RowNorm::Kind::kRms, vectors.q_norm, nullptr, spec_.norm.epsilon};
  const RowNorm k_norm = {RowNorm::Kind::kRms, vectors.k_norm, nullptr, spec_.norm.epsilon};
  if (spec_.qk_norm == ModelSpec::QkNorm::kRow) {
    ops_.norm_f32(q_norm, row, q_width, row);
    ops_.norm_f32(k_norm, row + q_width, kv_width, row + q_width);
    return;
  }
  for (int h = 0; h < spec_.heads + spec_.kv_heads; ++h) {
    ops_.norm_f32(h < spec_.heads ? q_norm : k_norm, row + h * d, d, row + h * d);
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
    float* logits = logits_.data() + int64_t{i} * spec_.vocab;
    if (spec_.logit_cap > 0) ops_.soft_cap(logits, static_cast<float>(spec_.logit_cap), spec_.vocab);
    if (row.logits_out != nullptr) std::memcpy(row.logits_out, logits, spec_.vocab * sizeof(float));
    if (!row.sample) continue;
    row.args.logits = logits;
    row.args.scratch = sample_scratch_[t].get();
    row.result = Sample(row.args);
  }
}

void CpuSPart::Multiply(const PackedMatrix& matrix, Activations& x, int rows, float* y, int64_t y_stride, int t,
                        int n) {
  const Range panels = Share(static_cast<int>(matrix.panel_count()), t, n);
  MultiplyPanels(matrix, panels, x, 0, rows, y + int64_t{panels.begin} * kPanelColumns, y_stride, t);
}

void CpuSPart::MultiplyPanels(const PackedMatrix& matrix, Range panels, Activations& x, int first_row, int rows,
                              float* y, int64_t y_stride, int t) {
  if (panels.begin == panels.end || rows == 0) return;
  GemmArgs args;
  args.x = x.row(first_row);
  args.x_stride = x.stride;
  args.rows = rows;
  args.k = matrix.k;
  args.panels = matrix.panel(panels.begin);
  args.columns =
      std::min<int64_t>(matrix.n, int64_t{panels.end} * kPanelColumns) - int64_t{panels.begin} * kPanelColumns;
  args.y = y;
  args.y_stride = y_stride;
  if (rows > own_rows_max_ && onednn_->Multiply(args, t)) return;
  gemm_.gemm(args);
}

}  // namespace fastdecode
