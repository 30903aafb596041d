#include "engine/spart/cuda/step_graph.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/spart/cuda/row_buckets.h"
#include "engine/spart/forward_pass.h"

namespace fastdecode {

namespace {

// More than any GPU has room for at once: as many begin as it has (launch_any.cuh).
constexpr unsigned kAttendBlocksMax = 1024;
constexpr unsigned kTileQueriesMax = 16;

// Adds work until something fails, and keeps the first error.
class GraphMaker {
 public:
  GraphMaker(const StepModel& model, const StepMemory& memory, unsigned rows, SPartDevice* device,
             bool with_chunk = false)
      : model_(model),
        spec_(model.spec),
        memory_(memory),
        rows_(rows),
        with_chunk_(with_chunk && !model.batch_invariant),
        device_(device) {}

  // A stage's operations, as ForwardPass lists them; but for kLogits, which graphs have tile by tile.
  void AddStage(unsigned stage, const std::vector<StageOp>& ops) {
    for (size_t i = 0; i < ops.size(); ++i) {
      const StageOp& op = ops[i];
      const GpuLayer* const layer =
          op.layer < spec_.layers ? &model_.weights.layers[static_cast<size_t>(op.layer)] : nullptr;
      switch (op.kind) {
        case StageOp::Kind::kEmbed:
          Embed(ops[++i].join.next);  // with the norm behind it
          TakeKvSteps();
          break;
        case StageOp::Kind::kGather:
          Add(WaitArgs{memory_.board, memory_.state, stage, model_.wait_bound_ns, {nullptr, &times().begun}, Areas()});
          Gather();
          break;
        case StageOp::Kind::kOut:
          Project(layer->o, memory_.attended);
          break;
        case StageOp::Kind::kGateUp:
          GateUp(*layer);
          Activate(op.layer);
          break;
        case StageOp::Kind::kDown:
          Project(layer->down, memory_.activated);
          break;
        case StageOp::Kind::kJoin:
          Join(op);
          break;
        case StageOp::Kind::kQkv:
          Qkv(*layer);
          break;
        case StageOp::Kind::kSend:
          NormHeads(op.layer);
          Send(stage);
          AppendAndAttend(stage);
          break;
        case StageOp::Kind::kLogits:
          break;
      }
    }
  }

  void Embed(const NormPlace& norm) {
    auto args = OfRows<EmbedNormArgs>();
    args.board = memory_.board;
    args.board_rows = memory_.board_rows;
    args.areas = Areas();
    args.rows = memory_.rows;
    args.embedding = model_.weights.embedding;
    args.scale = EmbeddingScale(spec_, type());
    args.positions = vectors().positions;
    args.position_offset = spec_.position_offset;
    args.norm = NormOf(norm);
    args.hidden = spec_.hidden;
    args.x = memory_.x;
    args.normed = memory_.normed;
    args.stamps = {&times().begun, &times().normed};
    Add(args);
  }

  void Send(unsigned stage) {
    auto args = OfRows<RopeSendArgs>();
    args.type = QkvType(model_);
    args.board = memory_.board;
    args.rows = memory_.rows;
    args.areas = memory_.areas;
    args.stage = stage;
    args.wire = Wire();
    args.qkv = memory_.qkv;
    if (!NormsHeads()) args.bias = vectors().layers[stage].qkv_bias;
    const RopeTables::OfLayer& ropes = model_.layer_ropes[stage];
    if (ropes.k != RopeTables::kNone) {
      const StepModel::Rope& q = model_.ropes[static_cast<size_t>(ropes.q)];
      const StepModel::Rope& k = model_.ropes[static_cast<size_t>(ropes.k)];
      args.q_cosines = q.cosines;
      args.q_sines = q.sines;
      args.k_cosines = k.cosines;
      args.k_sines = k.sines;
    }
    if (!NormsHeads()) args.stamps.begin = &times().qkv;
    args.times = memory_.times;
    Add(args);
  }

  // The step's rows that have their home here, for the layers with a window and for those without.
  void TakeKvSteps() {
    if (!model_.is_home) return;
    for (const bool windowed : {false, true}) {
      if (model_.shape.has_layers(windowed)) TakeKvStep(windowed);
    }
  }
  void TakeKvStep(bool windowed) {
    TakeKvStepArgs args;
    args.board = memory_.kv.board;
    args.board_entries = memory_.kv.entries;
    args.changes = memory_.kv.changes;
    args.tables = model_.kv.tables;
    args.table_pages = model_.kv.pages.table_pages;
    args.roster = memory_.kv.rosters[windowed];
    args.split = Split(windowed);
    Add(args);
  }

  // The R-Part of these rows in layer `stage`.
  void AppendAndAttend(unsigned stage) {
    if (!model_.is_home) return;
    AppendKvArgs append;
    append.bucket = rows_;
    append.state = memory_.state;
    append.rows = memory_.rows;
    append.wire = Wire();
    append.area = memory_.kv.area;
    append.pages = model_.kv.LayerPages(stage);
    append.push = LayerPush(model_, memory_, stage);
    Add(append);
    AttendKvArgs attend;
    attend.state = memory_.state;
    const bool windowed = model_.shape.windowed(stage);
    attend.roster = memory_.kv.rosters[windowed];
    attend.split = Split(windowed);
    attend.pages = append.pages;
    attend.wire = append.wire;
    attend.area = append.area;
    attend.scale = model_.shape.scale;
    attend.soft_cap = model_.shape.soft_cap;
    attend.type = type();
    attend.out = memory_.attended;
    attend.blocks = std::min(kAttendBlocksMax, rows_ * model_.shape.kv_heads * attend.split.cuts_max);
    attend.tensor_cores = UsesTensorCores();
    attend.thread_queries = ThreadQueries();
    attend.partials = memory_.kv.partials;
    attend.maxima = memory_.kv.maxima;
    attend.sums = memory_.kv.sums;
    attend.arrived = memory_.kv.arrived;
    attend.drawn = memory_.kv.drawn;
    Add(attend);
  }

  void Gather() {
    auto gather = OfRows<GatherOutputsArgs>();
    gather.rows = memory_.rows;
    gather.areas = memory_.areas;
    gather.wire = Wire();
    gather.out = memory_.attended;
    gather.stamps.end = &times().gathered;
    Add(gather);
  }

  void Cross(unsigned stage, const Crossing& crossing) {
    if (crossing.way == Way::kThere) Send(stage);
    if (crossing.copy.bytes > 0) Add(crossing.copy);
    if (crossing.way == Way::kBack) Gather();
  }

  // Logits and tokens of up to kLogitTileRowsMax logit rows.
  void Logits(unsigned first, unsigned count) {
    GatherLogitRowsArgs gather;
    gather.type = type();
    gather.bucket = count;
    gather.state = memory_.state;
    gather.logit_rows = memory_.logit_rows;
    gather.first = first;
    gather.normed = memory_.normed;
    gather.hidden = spec_.hidden;
    gather.out = memory_.logit_inputs;
    Add(gather);
    Head(count);
    if (spec_.logit_cap > 0) {
      Add(SoftCapArgs{count, memory_.state, first, memory_.logits, spec_.vocab, static_cast<float>(spec_.logit_cap)});
    }
    SampleRowsArgs sample;
    sample.bucket = count;
    sample.state = memory_.state;
    sample.first = first;
    sample.rows = memory_.samples;
    sample.logits = memory_.logits;
    sample.vocab = spec_.vocab;
    sample.scratch = memory_.scratch;
    sample.out = memory_.sampled;
    Add(sample);
  }

  void ShowLogits(unsigned count) {
    const size_t bytes = size_t{count} * static_cast<size_t>(spec_.vocab) * sizeof(float);
    Add(DeviceCopy{reinterpret_cast<std::byte*>(memory_.logits_out), reinterpret_cast<std::byte*>(memory_.logits),
                   bytes});
  }

  // What there is to multiply in a layer's stages, on whatever the memory holds.
  void MultiplyLayer(const GpuLayer& layer) {
    Qkv(layer);
    Project(layer.o, memory_.attended);
    GateUp(layer);
    Project(layer.down, memory_.activated);
  }
  void Head(unsigned count) {
    const GpuMatrix& head = model_.weights.head;
    Add(DeviceGemm{type(), ElementType::kF32, head.n, head.k, count, head.data, memory_.logit_inputs, memory_.logits});
  }

  void Publish(unsigned stage) { Add(PublishArgs{memory_.board, memory_.state, stage, memory_.times}); }

  absl::Status status() const { return status_; }

 private:
  ElementType type() const { return model_.weights.type; }
  StageStamps& times() const { return *memory_.times; }
  StepAreas Areas() const { return {memory_.board_areas, memory_.areas, memory_.homes_max}; }

  WireRows Wire() const {
    return {static_cast<ElementType>(model_.shape.element_type), spec_.heads, spec_.kv_heads, spec_.head_dim,
            static_cast<int>(model_.shape.head_dim)};
  }

  int head_dim() const { return static_cast<int>(model_.shape.head_dim); }
  bool UsesTensorCores() const { return TensorCoresAttend(model_.kv.pages.type, type()); }
  // Results do not depend on it without tensor cores, with them they do.
  unsigned TileQueries() const {
    if (!UsesTensorCores()) return AttendTileQueries(ThreadQueries(), head_dim());
    return TensorTileQueries(with_chunk_, head_dim(), static_cast<int>(model_.shape.group));
  }
  int ThreadQueries() const {
    const unsigned queries = with_chunk_ ? kTileQueriesMax : std::min(model_.shape.group, kTileQueriesMax);
    return AttendThreadQueries(static_cast<int>(queries), head_dim());
  }
  KvSplit Split(bool windowed) const {
    KvSplit split = KvSplitFor(model_.shape, windowed);
    split.tile_queries = TileQueries();
    return split;
  }

  // What all kernels have that work on the step's rows.
  template <class Args>
  Args OfRows() const {
    Args args;
    args.type = type();
    args.bucket = rows_;
    args.state = memory_.state;
    return args;
  }

  const ModelVectorsOf<const float*>& vectors() const { return model_.weights.vectors; }

  DeviceNorm NormOf(const NormPlace& place) const {
    if (place.kind == NormPlace::Kind::kNone) return {};
    const NormVectorsOf<const float*> norm = FindNorm(vectors(), place);
    const auto kind = spec_.norm.kind == NormSpec::Kind::kRms ? RowNorm::Kind::kRms : RowNorm::Kind::kLayer;
    return {kind, norm.weight, norm.bias, static_cast<float>(spec_.norm.epsilon)};
  }

  // What is normed before it is added to x is not added by the GEMM.
  bool AddsIntoX() const { return !spec_.norm_after; }

  void Join(const StageOp& op) {
    using Branch = StageOp::Branch;
    const bool of_attention = op.join.adds == Branch::kAttention;
    const LayerVectorsOf<const float*>& layer = vectors().layers[static_cast<size_t>(op.layer)];
    const float* bias = nullptr;
    if (op.join.adds != Branch::kNone) bias = of_attention ? layer.o_bias : layer.down_bias;
    // With parallel branches the norm comes before both GEMMs: their times are all the MLP's.
    KernelStamps stamps = {&times().projected, &times().mlp_normed};
    if (op.join.adds == Branch::kMlp) stamps = {&times().mlp_projected, &times().normed};
    // Parallel branches: the GEMM has added all, and the other branch's sum adds the biases of both.
    if (!op.join.makes_normed) return;
    const DeviceNorm before = NormOf(op.join.next), sum = NormOf(op.join.sum), after = NormOf(op.join.after);
    const bool is_plain = before.kind == RowNorm::Kind::kRms && before.weight != nullptr && before.bias == nullptr &&
                          sum.kind == RowNorm::Kind::kNone && after.kind == RowNorm::Kind::kNone &&
                          (bias == nullptr || spec_.residual_scale == 1.0);
    if (is_plain) return BiasAndNorm(bias, before, stamps);
    auto args = OfRows<JoinNormArgs>();
    if (op.join.adds != Branch::kNone && !AddsIntoX()) args.projected = memory_.projected;
    args.bias = bias;
    args.scale = static_cast<float>(spec_.residual_scale);
    args.branch = after;
    args.sum = sum;
    args.before = before;
    args.hidden = spec_.hidden;
    args.x = memory_.x;
    args.normed = memory_.normed;
    args.stamps = stamps;
    Add(args);
  }

  void BiasAndNorm(const float* bias, const DeviceNorm& norm, const KernelStamps& stamps) {
    auto args = OfRows<BiasNormArgs>();
    args.bias = bias;
    args.norm = norm.weight;
    args.epsilon = norm.epsilon;
    args.hidden = spec_.hidden;
    args.x = memory_.x;
    args.normed = memory_.normed;
    args.stamps = stamps;
    Add(args);
  }

  void Activate(int layer) {
    auto args = OfRows<ActivateArgs>();
    args.activation = spec_.activation;
    args.gated = spec_.gated;
    args.gate_up = memory_.gate_up;
    args.gate_bias = vectors().layers[static_cast<size_t>(layer)].gate_bias;
    args.up_bias = vectors().layers[static_cast<size_t>(layer)].up_bias;
    args.intermediate = spec_.intermediate;
    args.out = memory_.activated;
    args.stamps.end = &times().activated;
    Add(args);
  }

  bool NormsHeads() const { return spec_.qk_norm != ModelSpec::QkNorm::kNone || spec_.clip_qkv > 0; }
  void NormHeads(int layer) {
    if (!NormsHeads()) return;
    const LayerVectorsOf<const float*>& of_layer = vectors().layers[static_cast<size_t>(layer)];
    auto args = OfRows<QkNormArgs>();
    args.type = QkvType(model_);
    args.norm = spec_.qk_norm == ModelSpec::QkNorm::kHead  ? QkNormArgs::Norm::kHead
                : spec_.qk_norm == ModelSpec::QkNorm::kRow ? QkNormArgs::Norm::kRow
                                                           : QkNormArgs::Norm::kNone;
    args.heads = spec_.heads;
    args.kv_heads = spec_.kv_heads;
    args.head_dim = spec_.head_dim;
    args.bias = of_layer.qkv_bias;
    args.clip = static_cast<float>(spec_.clip_qkv);
    args.q_norm = of_layer.q_norm;
    args.k_norm = of_layer.k_norm;
    args.epsilon = static_cast<float>(spec_.norm.epsilon);
    args.qkv = memory_.qkv;
    args.stamps.begin = &times().qkv;
    Add(args);
  }

  void Qkv(const GpuLayer& layer) { Multiply(layer.qkv, memory_.normed, memory_.qkv, QkvType(model_)); }
  void GateUp(const GpuLayer& layer) { Multiply(layer.gate_up, memory_.normed, memory_.gate_up, type()); }

  void Multiply(const GpuMatrix& matrix, const void* x, void* y, ElementType out) {
    Add(DeviceGemm{type(), out, matrix.n, matrix.k, rows_, matrix.data, x, y});
  }
  // What a layer adds to the residual stream is not rounded before.
  void Project(const GpuMatrix& matrix, const void* x) {
    DeviceGemm gemm = {type(), ElementType::kF32, matrix.n, matrix.k, rows_, matrix.data, x, memory_.projected};
    if (AddsIntoX()) {
      gemm.y = memory_.x;
      gemm.adds = true;
      gemm.alpha = static_cast<float>(spec_.residual_scale);
    }
    Add(gemm);
  }

  void Add(const DeviceWork& work) {
    if (status_.ok()) status_ = device_->Add(work);
  }

  const StepModel& model_;
  const ModelSpec& spec_;
  const StepMemory& memory_;
  const unsigned rows_;
  const bool with_chunk_;
  SPartDevice* const device_;
  absl::Status status_;
};

template <class Fill>
absl::StatusOr<SPartDevice::Graph> MakeGraph(const std::string& name, SPartDevice::Stream stream, SPartDevice* device,
                                             GraphMaker* maker, const Fill& fill) {
  if (absl::Status bad = device->BeginGraph(stream, name); !bad.ok()) return bad;
  fill();
  absl::StatusOr<SPartDevice::Graph> graph = device->EndGraph();  // also after an error: ends what was begun
  if (!maker->status().ok()) return maker->status();
  return graph;
}

}  // namespace

absl::StatusOr<SPartDevice::Graph> MakeStepGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                 unsigned logit_rows, bool with_chunk, SPartDevice::Stream stream,
                                                 SPartDevice* device) {
  GraphMaker maker(model, memory, rows, device, with_chunk);
  return MakeGraph(absl::StrCat("step of up to ", rows, " rows"), stream, device, &maker, [&] {
    const auto layers = static_cast<unsigned>(model.spec.layers);
    const std::vector<std::vector<StageOp>> stages = ForwardPass(model.spec);
    for (unsigned stage = 0; stage <= layers; ++stage) maker.AddStage(stage, stages[stage]);
    for (unsigned first = 0; first < logit_rows; first += kLogitTileRowsMax) {
      maker.Logits(first, LogitTileRows(logit_rows - first));
    }
    maker.Publish(layers);
  });
}

absl::StatusOr<SPartDevice::Graph> MakeLogitGraph(const StepModel& model, const StepMemory& memory, unsigned first,
                                                  unsigned count, bool shown, unsigned stage,
                                                  SPartDevice::Stream stream, SPartDevice* device) {
  GraphMaker maker(model, memory, /*rows=*/0, device);
  const std::string name = absl::StrCat(shown ? "logits of up to " : "samples of up to ", count, " rows");
  return MakeGraph(name, stream, device, &maker, [&] {
    maker.Logits(first, count);
    if (shown) maker.ShowLogits(count);
    maker.Publish(stage);
  });
}

absl::StatusOr<SPartDevice::Graph> MakeGemmGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                 unsigned logit_rows, SPartDevice::Stream stream, SPartDevice* device) {
  GraphMaker maker(model, memory, rows, device);
  return MakeGraph(absl::StrCat("GEMMs of ", rows, " rows"), stream, device, &maker, [&] {
    for (const GpuLayer& layer : model.weights.layers) maker.MultiplyLayer(layer);
    for (unsigned first = 0; first < logit_rows; first += kLogitTileRowsMax) {
      maker.Head(LogitTileRows(logit_rows - first));
    }
  });
}

absl::StatusOr<SPartDevice::Graph> MakeCrossingGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                     const Crossing& crossing, SPartDevice::Stream stream,
                                                     SPartDevice* device) {
  StepMemory there = memory;
  there.areas = crossing.areas;
  GraphMaker maker(model, there, rows, device);
  return MakeGraph(absl::StrCat("ways of ", rows, " rows"), stream, device, &maker, [&] {
    for (unsigned stage = 0; stage < static_cast<unsigned>(model.spec.layers); ++stage) maker.Cross(stage, crossing);
  });
}

absl::StatusOr<SPartDevice::Graph> MakeAttentionGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                      SPartDevice::Stream stream, SPartDevice* device) {
  GraphMaker maker(model, memory, rows, device);
  return MakeGraph(absl::StrCat("attention of ", rows, " rows"), stream, device, &maker, [&] {
    for (unsigned stage = 0; stage < static_cast<unsigned>(model.spec.layers); ++stage) maker.AppendAndAttend(stage);
  });
}

}  // namespace fastdecode
