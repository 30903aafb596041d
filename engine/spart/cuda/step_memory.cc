#include "engine/spart/cuda/step_memory.h"

#include <cstring>
#include <vector>

namespace fastdecode {

namespace {

struct DevicePiece {
  void* to;  // the address of a pointer
  size_t bytes;
};

size_t AlignUp(size_t bytes) { return (bytes + 255) / 256 * 256; }

// What the GPU has as a home besides.
void AddKvDevicePieces(const StepModel& model, unsigned rows_max, KvStepMemory* kv, std::vector<DevicePiece>* pieces) {
  if (!model.is_home) return;
  const size_t queries = size_t{rows_max} * model.shape.heads();
  const size_t cuts = queries * KvSplitFor(model.shape, /*windowed=*/false).cuts_max;
  for (const bool windowed : {false, true}) {
    if (!model.shape.has_layers(windowed)) continue;
    KvRoster& roster = kv->rosters[windowed];
    pieces->insert(pieces->end(), {
                                      {&roster.counts, sizeof(KvCounts)},
                                      {&roster.entry, model.sequences_max * sizeof(KvEntry)},
                                      {&roster.first_items, (model.sequences_max + 1) * sizeof(uint32_t)},
                                  });
  }
  pieces->insert(pieces->end(), {
                                    {&kv->area, rows_max * model.shape.hop_row_bytes()},
                                    {&kv->partials, cuts * model.shape.head_dim * sizeof(float)},
                                    {&kv->maxima, cuts * sizeof(float)},
                                    {&kv->sums, cuts * sizeof(float)},
                                    {&kv->arrived, queries * sizeof(uint32_t)},
                                    {&kv->drawn, sizeof(uint32_t)},
                                });
}

void AddKvPinnedPieces(const StepModel& model, KvStepMemory* kv, std::vector<DevicePiece>* pieces) {
  if (!model.is_home) return;
  const size_t sequences = model.sequences_max;
  pieces->insert(pieces->end(), {
                                    {&kv->board, sizeof(KvBoard)},
                                    {&kv->entries, sequences * sizeof(KvEntry)},
                                    {&kv->changes, sequences * TablePages(model.shape) * sizeof(KvTableChange)},
                                });
  if (model.push_rows_max == 0) return;
  pieces->push_back({&kv->push, model.shape.layers * model.push_rows_max * model.shape.kv_row_bytes()});
}

std::vector<DevicePiece> DevicePieces(const StepModel& model, unsigned rows_max, int homes_max, StepMemory* memory) {
  const ModelSpec& spec = model.spec;
  const size_t element = ElementBytes(model.weights.type);
  const size_t rows = rows_max, tile = LogitTileRows(rows_max);
  const size_t heads = static_cast<size_t>(spec.heads), kv_heads = static_cast<size_t>(spec.kv_heads);
  const size_t head_dim = static_cast<size_t>(spec.head_dim), hidden = static_cast<size_t>(spec.hidden);
  const size_t intermediate = static_cast<size_t>(spec.intermediate), vocab = static_cast<size_t>(spec.vocab);
  std::vector<DevicePiece> pieces = {
      {&memory->state, sizeof(StepState)},
      {&memory->times, sizeof(StageStamps)},
      {&memory->rows, rows * sizeof(StepRow)},
      {&memory->areas, static_cast<size_t>(homes_max) * sizeof(StepArea)},
      {&memory->x, rows * hidden * sizeof(float)},
      {&memory->normed, rows * hidden * element},
      {&memory->qkv, rows * (heads + 2 * kv_heads) * head_dim * ElementBytes(QkvType(model))},
      {&memory->attended, rows * heads * head_dim * element},
      {&memory->gate_up, rows * 2 * intermediate * element},
      {&memory->activated, rows * intermediate * element},
      {&memory->logit_inputs, tile * hidden * element},
      {&memory->logits, tile * vocab * sizeof(float)},
      {&memory->scratch, tile * SampleScratchBytes(spec.vocab)},
  };
  if (spec.norm_after) pieces.push_back({&memory->projected, rows * hidden * sizeof(float)});
  AddKvDevicePieces(model, rows_max, &memory->kv, &pieces);
  return pieces;
}

std::vector<DevicePiece> PinnedPieces(const StepModel& model, unsigned rows_max, int homes_max, StepMemory* memory) {
  const size_t tile = LogitTileRows(rows_max);
  std::vector<DevicePiece> pieces = {
      {&memory->board, sizeof(StepBoard)},
      {&memory->board_rows, rows_max * sizeof(StepRow)},
      {&memory->board_areas, static_cast<size_t>(homes_max) * sizeof(StepArea)},
      {&memory->logit_rows, rows_max * sizeof(uint32_t)},
      {&memory->samples, rows_max * sizeof(SampleRow)},
      {&memory->sampled, rows_max * sizeof(SampledRow)},
      {&memory->logits_out, tile * static_cast<size_t>(model.spec.vocab) * sizeof(float)},
  };
  AddKvPinnedPieces(model, &memory->kv, &pieces);
  return pieces;
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

uint64_t StepMemoryBytes(const StepModel& model, unsigned rows_max, int homes_max) {
  StepMemory memory;
  return SumOf(DevicePieces(model, rows_max, homes_max, &memory));
}

absl::StatusOr<StepMemory> AllocateStepMemory(const StepModel& model, unsigned rows_max, int homes_max,
                                              SPartDevice* device) {
  StepMemory memory;
  memory.homes_max = static_cast<unsigned>(homes_max);
  const std::vector<DevicePiece> pieces = DevicePieces(model, rows_max, homes_max, &memory);
  absl::StatusOr<std::byte*> on_device = device->Allocate(SumOf(pieces));
  if (!on_device.ok()) return on_device.status();
  Place(pieces, *on_device);
  const std::vector<DevicePiece> pinned_pieces = PinnedPieces(model, rows_max, homes_max, &memory);
  absl::StatusOr<std::byte*> pinned = device->AllocatePinned(SumOf(pinned_pieces));
  if (!pinned.ok()) return pinned.status();
  Place(pinned_pieces, *pinned);
  return memory;
}

}  // namespace fastdecode
