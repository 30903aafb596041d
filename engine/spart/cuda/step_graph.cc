#include "engine/spart/cuda/step_graph.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/spart/cuda/row_buckets.h"

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

  void Embed() {
    auto args = OfRows<EmbedNormArgs>();
    args.board = memory_.board;
    args.board_rows = memory_.board_rows;
    args.areas = Areas();
    args.rows = memory_.rows;
    args.embedding = model_.weights.embedding;
    SetNorm(model_.weights.layers[0].attention_norm, &args);
    args.stamps = {&times().begun, &times().normed};
    Add(args);
  }

  // From the normed rows to q, k, v in the send areas of layer `stage`.
  void QkvAndSend(unsigned stage) {
    Qkv(model_.weights.layers[stage]);
    Send(stage);
  }
  void Send(unsigned stage) {
    auto args = OfRows<RopeSendArgs>();
    args.board = memory_.board;
    args.rows = memory_.rows;
    args.areas = memory_.areas;
    args.stage = stage;
    args.wire = Wire();
    args.qkv = memory_.qkv;
    args.bias = model_.weights.layers[stage].qkv_bias;
    args.cosines = model_.cosines;
    args.sines = model_.sines;
    args.stamps.begin = &times().qkv;
    args.times = memory_.times;
    Add(args);
  }

  // The step's rows that have their home here.
  void TakeKvStep() {
    if (!model_.is_home) return;
    TakeKvStepArgs args;
    args.board = memory_.kv.board;
    args.board_entries = memory_.kv.entries;
    args.changes = memory_.kv.changes;
    args.tables = model_.kv.tables;
    args.table_pages = model_.kv.pages.table_pages;
    args.roster = memory_.kv.roster;
    args.split = Split();
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
    attend.roster = memory_.kv.roster;
    attend.split = Split();
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

  // From o in the receive areas to the normed rows of the layer after it, or of the head.
  void OutputAndMlp(unsigned stage) {
    const GpuLayer& layer = model_.weights.layers[stage - 1];
    Add(WaitArgs{memory_.board, memory_.state, stage, model_.wait_bound_ns, {nullptr, &times().begun}, Areas()});
    Gather();
    Output(layer);
    Norm(layer.o_bias, layer.mlp_norm, {&times().projected, &times().mlp_normed});
    GateUp(layer);
    auto glu = OfRows<SwiGluArgs>();
    glu.gate_up = memory_.gate_up;
    glu.gate_bias = layer.gate_bias;
    glu.up_bias = layer.up_bias;
    glu.intermediate = spec_.intermediate;
    glu.out = memory_.activated;
    glu.stamps.end = &times().activated;
    Add(glu);
    Down(layer);
    const bool last = stage == static_cast<unsigned>(spec_.layers);
    Norm(layer.down_bias, last ? model_.weights.final_norm : model_.weights.layers[stage].attention_norm,
         {&times().mlp_projected, &times().normed});
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
    Output(layer);
    GateUp(layer);
    Down(layer);
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
  KvSplit Split() const {
    KvSplit split = KvSplitFor(model_.shape);
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

  // From x to the normed rows.
  template <class Args>
  void SetNorm(const float* norm, Args* args) const {
    args->norm = norm;
    args->epsilon = static_cast<float>(spec_.norm_epsilon);
    args->hidden = spec_.hidden;
    args->x = memory_.x;
    args->normed = memory_.normed;
  }

  void Norm(const float* bias, const float* norm, const KernelStamps& stamps) {
    auto args = OfRows<BiasNormArgs>();
    args.bias = bias;
    SetNorm(norm, &args);
    args.stamps = stamps;
    Add(args);
  }

  void Qkv(const GpuLayer& layer) { Multiply(layer.qkv, memory_.normed, memory_.qkv); }
  void Output(const GpuLayer& layer) { MultiplyIntoX(layer.o, memory_.attended); }
  void GateUp(const GpuLayer& layer) { Multiply(layer.gate_up, memory_.normed, memory_.gate_up); }
  void Down(const GpuLayer& layer) { MultiplyIntoX(layer.down, memory_.activated); }

  void Multiply(const GpuMatrix& matrix, const void* x, void* y) {
    Add(DeviceGemm{type(), type(), matrix.n, matrix.k, rows_, matrix.data, x, y});
  }
  // What a layer adds to the residual stream is not rounded before.
  void MultiplyIntoX(const GpuMatrix& matrix, const void* x) {
    Add(DeviceGemm{type(), ElementType::kF32, matrix.n, matrix.k, rows_, matrix.data, x, memory_.x, /*adds=*/true});
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
    maker.Embed();
    maker.TakeKvStep();
    maker.QkvAndSend(0);
    maker.AppendAndAttend(0);
    for (unsigned stage = 1; stage <= layers; ++stage) {
      maker.OutputAndMlp(stage);
      if (stage == layers) break;
      maker.QkvAndSend(stage);
      maker.AppendAndAttend(stage);
    }
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
