#include "engine/spart/cuda/step_graph.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace fastdecode {

namespace {

// Adds work until something fails, and keeps the first error.
class GraphMaker {
 public:
  GraphMaker(const StepModel& model, const StepMemory& memory, unsigned rows, SPartDevice* device)
      : model_(model), spec_(model.spec), memory_(memory), rows_(rows), device_(device) {}

  void Embed() {
    EmbedNormArgs args;
    args.type = type();
    args.bucket = rows_;
    args.board = memory_.board;
    args.board_rows = memory_.board_rows;
    args.state = memory_.state;
    args.rows = memory_.rows;
    args.embedding = model_.weights.embedding;
    args.norm = model_.weights.layers[0].attention_norm;
    args.epsilon = static_cast<float>(spec_.norm_epsilon);
    args.hidden = spec_.hidden;
    args.x = memory_.x;
    args.normed = memory_.normed;
    args.stamps = {&times().begun, &times().normed};
    Add(args);
  }

  // From the normed rows to q, k, v in the send areas of layer `stage`.
  void QkvAndSend(unsigned stage) {
    const GpuLayer& layer = model_.weights.layers[stage];
    Multiply(layer.qkv, memory_.normed, memory_.qkv, type());
    RopeSendArgs args;
    args.type = type();
    args.bucket = rows_;
    args.board = memory_.board;
    args.state = memory_.state;
    args.rows = memory_.rows;
    args.areas = memory_.areas;
    args.stage = stage;
    args.wire = Wire();
    args.qkv = memory_.qkv;
    args.bias = layer.qkv_bias;
    args.cosines = model_.cosines;
    args.sines = model_.sines;
    args.stamps.begin = &times().qkv;
    args.times = memory_.times;
    Add(args);
  }

  // From o in the receive areas to the normed rows of the layer after it, or of the head.
  void OutputAndMlp(unsigned stage) {
    const GpuLayer& layer = model_.weights.layers[stage - 1];
    Add(WaitArgs{memory_.board, memory_.state, stage, model_.wait_bound_ns, {nullptr, &times().begun}});
    GatherOutputsArgs gather;
    gather.type = type();
    gather.bucket = rows_;
    gather.state = memory_.state;
    gather.rows = memory_.rows;
    gather.areas = memory_.areas;
    gather.wire = Wire();
    gather.out = memory_.attended;
    gather.stamps.end = &times().gathered;
    Add(gather);
    Multiply(layer.o, memory_.attended, memory_.projected, ElementType::kF32);
    AddNorm(layer.o_bias, layer.mlp_norm, {&times().projected, &times().mlp_normed});
    Multiply(layer.gate_up, memory_.normed, memory_.gate_up, type());
    SwiGluArgs glu;
    glu.type = type();
    glu.bucket = rows_;
    glu.state = memory_.state;
    glu.gate_up = memory_.gate_up;
    glu.gate_bias = layer.gate_bias;
    glu.up_bias = layer.up_bias;
    glu.intermediate = spec_.intermediate;
    glu.out = memory_.activated;
    glu.stamps.end = &times().activated;
    Add(glu);
    Multiply(layer.down, memory_.activated, memory_.projected, ElementType::kF32);
    const bool last = stage == static_cast<unsigned>(spec_.layers);
    AddNorm(layer.down_bias, last ? model_.weights.final_norm : model_.weights.layers[stage].attention_norm,
            {&times().mlp_projected, &times().normed});
  }

  // Logits and tokens of up to kLogitTileRowsMax logit rows.
  void Logits(unsigned first, unsigned count, float* logits) {
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
    const GpuMatrix& head = model_.weights.head;
    Add(DeviceGemm{type(), ElementType::kF32, head.n, head.k, count, head.data, memory_.logit_inputs, logits});
    SampleRowsArgs sample;
    sample.bucket = count;
    sample.state = memory_.state;
    sample.first = first;
    sample.rows = memory_.samples;
    sample.logits = logits;
    sample.vocab = spec_.vocab;
    sample.scratch = memory_.scratch;
    sample.out = memory_.sampled;
    Add(sample);
  }

  void Publish(unsigned stage) { Add(PublishArgs{memory_.board, memory_.state, stage, memory_.times}); }

  absl::Status status() const { return status_; }

 private:
  ElementType type() const { return model_.weights.type; }
  StageStamps& times() const { return *memory_.times; }

  WireRows Wire() const {
    return {static_cast<ElementType>(model_.shape.element_type), spec_.heads, spec_.kv_heads, spec_.head_dim,
            static_cast<int>(model_.shape.head_dim)};
  }

  void AddNorm(const float* bias, const float* norm, const KernelStamps& stamps) {
    AddNormArgs args;
    args.type = type();
    args.bucket = rows_;
    args.state = memory_.state;
    args.projected = memory_.projected;
    args.bias = bias;
    args.norm = norm;
    args.epsilon = static_cast<float>(spec_.norm_epsilon);
    args.hidden = spec_.hidden;
    args.x = memory_.x;
    args.normed = memory_.normed;
    args.stamps = stamps;
    Add(args);
  }

  void Multiply(const GpuMatrix& matrix, const void* x, void* y, ElementType out) {
    Add(DeviceGemm{type(), out, matrix.n, matrix.k, rows_, matrix.data, x, y});
  }

  void Add(const DeviceWork& work) {
    if (status_.ok()) status_ = device_->Add(work);
  }

  const StepModel& model_;
  const ModelSpec& spec_;
  const StepMemory& memory_;
  const unsigned rows_;
  SPartDevice* const device_;
  absl::Status status_;
};

template <class Fill>
absl::StatusOr<SPartDevice::Graph> MakeGraph(SPartDevice::Stream stream, SPartDevice* device, GraphMaker* maker,
                                             const Fill& fill) {
  if (absl::Status bad = device->BeginGraph(stream); !bad.ok()) return bad;
  fill();
  absl::StatusOr<SPartDevice::Graph> graph = device->EndGraph();  // also after an error: ends what was begun
  if (!maker->status().ok()) return maker->status();
  return graph;
}

struct DevicePiece {
  void* to;  // the address of a pointer
  size_t bytes;
};

size_t AlignUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

std::vector<DevicePiece> DevicePieces(const StepModel& model, unsigned rows_max, StepMemory* memory) {
  const ModelSpec& spec = model.spec;
  const size_t element = ElementBytes(model.weights.type);
  const size_t rows = rows_max, tile = LogitTileRows(rows_max);
  const size_t heads = static_cast<size_t>(spec.heads), kv_heads = static_cast<size_t>(spec.kv_heads);
  const size_t head_dim = static_cast<size_t>(spec.head_dim), hidden = static_cast<size_t>(spec.hidden);
  const size_t intermediate = static_cast<size_t>(spec.intermediate), vocab = static_cast<size_t>(spec.vocab);
  return {
      {&memory->state, sizeof(StepState)},
      {&memory->times, sizeof(StageStamps)},
      {&memory->rows, rows * sizeof(StepRow)},
      {&memory->x, rows * hidden * sizeof(float)},
      {&memory->normed, rows * hidden * element},
      {&memory->qkv, rows * (heads + 2 * kv_heads) * head_dim * element},
      {&memory->attended, rows * heads * head_dim * element},
      {&memory->projected, rows * hidden * sizeof(float)},
      {&memory->gate_up, rows * 2 * intermediate * element},
      {&memory->activated, rows * intermediate * element},
      {&memory->logit_inputs, tile * hidden * element},
      {&memory->logits, tile * vocab * sizeof(float)},
      {&memory->scratch, tile * SampleScratchBytes(spec.vocab)},
  };
}

std::vector<DevicePiece> PinnedPieces(const StepModel& model, unsigned rows_max, int homes_max, StepMemory* memory) {
  const size_t tile = LogitTileRows(rows_max);
  return {
      {&memory->board, sizeof(StepBoard)},
      {&memory->board_rows, rows_max * sizeof(StepRow)},
      {&memory->areas, static_cast<size_t>(homes_max) * sizeof(StepArea)},
      {&memory->logit_rows, rows_max * sizeof(uint32_t)},
      {&memory->samples, rows_max * sizeof(SampleRow)},
      {&memory->sampled, rows_max * sizeof(SampledRow)},
      {&memory->logits_out, tile * static_cast<size_t>(model.spec.vocab) * sizeof(float)},
  };
}

size_t SumOf(const std::vector<DevicePiece>& pieces) {
  size_t bytes = 0;
  for (const DevicePiece& piece : pieces) bytes += AlignUp(piece.bytes);
  return bytes;
}

void Place(const std::vector<DevicePiece>& pieces, std::byte* at) {
  for (const DevicePiece& piece : pieces) {
    std::memcpy(piece.to, &at, sizeof(at));
    at += AlignUp(piece.bytes);
  }
}

}  // namespace

uint64_t StepMemoryBytes(const StepModel& model, unsigned rows_max) {
  StepMemory memory;
  return SumOf(DevicePieces(model, rows_max, &memory));
}

absl::StatusOr<StepMemory> AllocateStepMemory(const StepModel& model, unsigned rows_max, int homes_max,
                                              SPartDevice* device) {
  StepMemory memory;
  const std::vector<DevicePiece> pieces = DevicePieces(model, rows_max, &memory);
  absl::StatusOr<std::byte*> on_device = device->Allocate(SumOf(pieces));
  if (!on_device.ok()) return on_device.status();
  Place(pieces, *on_device);
  const std::vector<DevicePiece> pinned_pieces = PinnedPieces(model, rows_max, homes_max, &memory);
  absl::StatusOr<std::byte*> pinned = device->AllocatePinned(SumOf(pinned_pieces));
  if (!pinned.ok()) return pinned.status();
  Place(pinned_pieces, *pinned);
  return memory;
}

absl::StatusOr<SPartDevice::Graph> MakeStepGraph(const StepModel& model, const StepMemory& memory, unsigned rows,
                                                 unsigned logit_rows, SPartDevice::Stream stream, SPartDevice* device) {
  GraphMaker maker(model, memory, rows, device);
  return MakeGraph(stream, device, &maker, [&] {
    const auto layers = static_cast<unsigned>(model.spec.layers);
    maker.Embed();
    maker.QkvAndSend(0);
    for (unsigned stage = 1; stage <= layers; ++stage) {
      maker.OutputAndMlp(stage);
      if (stage < layers) maker.QkvAndSend(stage);
    }
    for (unsigned first = 0; first < logit_rows; first += kLogitTileRowsMax) {
      maker.Logits(first, LogitTileRows(logit_rows - first), memory.logits);
    }
    maker.Publish(layers);
  });
}

absl::StatusOr<SPartDevice::Graph> MakeLogitGraph(const StepModel& model, const StepMemory& memory, unsigned first,
                                                  unsigned count, unsigned stage, SPartDevice::Stream stream,
                                                  SPartDevice* device) {
  GraphMaker maker(model, memory, /*rows=*/0, device);
  return MakeGraph(stream, device, &maker, [&] {
    maker.Logits(first, count, memory.logits_out);
    maker.Publish(stage);
  });
}

}  // namespace fastdecode
