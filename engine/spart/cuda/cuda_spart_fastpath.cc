// FAST PATH (docs/FAST_PATH.md)
// Starting and ending stages on the GPU. Nothing here allocates, locks, logs or enters the kernel, but for the launch
// of a step's graph.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "engine/spart/cuda/cuda_spart.h"
#include "engine/spart/cuda/row_buckets.h"
#include "engine/spart/cuda/stage_parts.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

// A stage that is not over after so long may have met an error of the device, which only a call can tell.
constexpr uint64_t kCheckAfterNs = 100'000'000;
// A process that stood still has not seen the GPU do nothing: no look counts for more.
constexpr uint64_t kLookNsMax = 2 * kCheckAfterNs;

}  // namespace

void CudaSPart::StartStage(int micro_batch, int stage, StepTable& table) {
  MicroBatch& batch = batches_[static_cast<size_t>(micro_batch)];
  batch.table = &table;
  batch.stage = static_cast<unsigned>(stage);
  batch.started_ns = batch.checked_ns = NowNs();
  batch.waited_ns = 0;
  if (stage == 0) {
    batch.waits_at_gate = true;
    if (gate_.shut()) return;  // PollStage says so
    PutAreas(batch, table);
    BeginStep(micro_batch, table);
    return;
  }
  gate_.GoOn();
  // If nothing waits the GPU may be ahead, and reads areas.
  if (!batch.all_here) PutAreas(batch, table);
  // Release: the GPU, once it has seen this, sees the areas, and o in them.
  const uint64_t word = ReleaseWord(batch.first + batch.stage, batch.areas_version);
  std::atomic_ref<uint64_t>(batch.memory.board->release).store(word, std::memory_order_release);
}

void CudaSPart::BeginStep(int micro_batch, const StepTable& table) {
  MicroBatch& batch = batches_[static_cast<size_t>(micro_batch)];
  StepBoard& board = *batch.memory.board;
  // Numbers of stages go on over all steps, the tiles of logits after the last stage included.
  batch.first += static_cast<uint64_t>(model_.spec.layers) + 1 + batch.logits.size();
  PutRows(batch, table);
  const uint32_t rows_here =
      home_ == nullptr ? 0 : home_->TakeStep(micro_batch, table, batch.memory.kv, batch.memory.board_rows);
  batch.all_here = rows_here == static_cast<uint32_t>(table.rows);
  batch.has_chunk = home_ != nullptr && rows_here >= batch.memory.kv.board->entries + kChunkRowsMin;
  board.step.all_here = batch.all_here;
  board.step.first = batch.first;
  board.step.rows = static_cast<uint32_t>(table.rows);
  board.step.logit_rows = static_cast<uint32_t>(table.logit_rows);
  board.gave_up = 0;
  board.step.areas_version = batch.areas_version;
  // A GPU that runs ahead overwrites a stage's times before they are read.
  batch.timed = table.trace != nullptr && !batch.all_here;
  board.step.timed = batch.timed ? 1 : 0;
  TryLaunch(batch);
}

void CudaSPart::TryLaunch(MicroBatch& batch) {
  if (!gate_.TryEnter()) return;
  batch.waits_at_gate = false;
  const auto bucket = static_cast<size_t>(BucketFor(buckets_, batch.memory.board->step.rows));
  Launch(batch, batch.has_chunk ? batch.chunk_steps[bucket] : batch.steps[bucket]);
}

void CudaSPart::Launch(MicroBatch& batch, SPartDevice::Graph graph) {
  gate_.GoOn();
  batch.waited_ns = 0;
  device_->Launch(graph);
}

void CudaSPart::PutRows(MicroBatch& batch, const StepTable& table) {
  for (int r = 0; r < table.rows; ++r) {
    const uint32_t push_row = table.push_rows.empty() ? kNoPush : table.push_rows[r];
    batch.memory.board_rows[r] = {table.tokens[r], table.positions[r], table.homes[r], table.home_rows[r], kNoSlot,
                                  push_row};
  }
  batch.shown = false;
  for (int i = 0; i < table.logit_rows; ++i) {
    batch.memory.logit_rows[i] = table.logits[i].row;
    PutLogitRow(table.logits[i], &batch.memory.samples[i]);
    batch.shown |= table.logits[i].logits_out != nullptr;
  }
  const unsigned wanted = static_cast<unsigned>(table.logit_rows), tile = LogitTileRows(buckets_.back());
  const bool more =
      batch.shown || wanted > sampled_rows(buckets_[BucketFor(buckets_, static_cast<unsigned>(table.rows))]);
  batch.tiles = more ? (wanted + tile - 1) / tile : 0;
}

// Everything that the arguments point to is in sampling_memory().
void CudaSPart::PutLogitRow(const LogitRow& row, SampleRow* out) {
  out->sample = row.sample;
  if (!row.sample) return;
  const SampleArgs& args = row.args;
  out->params = *args.params;
  out->position = args.position;
  out->prompt_seen = args.history == nullptr ? nullptr : args.history->prompt_seen;
  out->output_counts = args.history == nullptr ? nullptr : args.history->output_counts;
  out->bias = args.bias.data();
  out->bias_count = static_cast<uint32_t>(args.bias.size());
  out->allowed = args.allowed.data();
  out->allowed_count = static_cast<uint32_t>(args.allowed.size());
  out->banned = args.banned.data();
  out->banned_count = static_cast<uint32_t>(args.banned.size());
}

void CudaSPart::PutAreas(MicroBatch& batch, const StepTable& table) {
  bool changed = false;
  for (size_t h = 0; h < table.home_areas.size(); ++h) {
    StepArea& area = batch.memory.board_areas[h];
    const HomeArea& now = table.home_areas[h];
    // A GPU whose stages are started ahead still reads those that stay.
    if (area.send == now.send && area.receive == now.receive) continue;
    area = {now.send, now.receive};
    changed = true;
  }
  if (changed) batch.areas_version = (batch.areas_version + 1) % kAreasVersions;
}

StageState CudaSPart::PollStage(int micro_batch) {
  MicroBatch& batch = batches_[static_cast<size_t>(micro_batch)];
  if (gate_.shut()) return EndStep(batch, StageState::kFailed);
  if (batch.waits_at_gate) TryLaunch(batch);
  // Acquire: pairs with the GPU's release; what the stage wrote is seen.
  if (!batch.waits_at_gate && std::atomic_ref<uint64_t>(batch.memory.board->ready).load(std::memory_order_acquire) >=
                                  batch.first + batch.stage) {
    return StageIsOver(batch);
  }
  const uint64_t now_ns = NowNs(), look_ns = now_ns - batch.checked_ns;
  if (look_ns < kCheckAfterNs) return StageState::kRunning;
  batch.checked_ns = now_ns;
  batch.waited_ns += std::min(look_ns, kLookNsMax);
  return EndStep(batch, CheckDevice(batch));
}

// The last stage may be followed by tiles of logits, each of which is waited for as a stage is.
StageState CudaSPart::StageIsOver(MicroBatch& batch) {
  const auto layers = static_cast<unsigned>(model_.spec.layers);
  if (batch.stage < layers) {
    TakeTimes(batch);
    return StageState::kDone;
  }
  if (batch.stage > layers) TakeLogits(batch, batch.stage - layers - 1);
  if (const unsigned tile = batch.stage - layers; tile < batch.tiles) {
    ++batch.stage;
    Launch(batch, batch.shown ? batch.logits[tile] : batch.hidden_logits[tile]);
    return StageState::kRunning;
  }
  TakeSamples(batch);
  TakeTimes(batch);
  return EndStep(batch, StageState::kDone);
}

StageState CudaSPart::EndStep(MicroBatch& batch, StageState state) {
  if (state == StageState::kRunning) return state;
  if (home_ != nullptr) home_->EndStep(static_cast<int>(&batch - batches_.data()));
  if (!std::exchange(batch.waits_at_gate, false)) gate_.Leave();
  return state;
}

// Whoever records may have come or gone in the middle of the step.
void CudaSPart::TakeTimes(const MicroBatch& batch) {
  if (!batch.timed || batch.table->trace == nullptr) return;
  const int layers = model_.spec.layers;
  const StageStamps& times = batch.memory.board->times;
  const HostStage stage = {std::min(static_cast<int>(batch.stage), layers), layers, batch.started_ns, NowNs()};
  clock_.Learn(stage.start_ns, times.begun, times.published, stage.seen_ns);
  AddStageParts(stage, times, clock_, batch.table->trace);
}

void CudaSPart::TakeSamples(MicroBatch& batch) {
  for (int i = 0; i < batch.table->logit_rows; ++i) {
    LogitRow& row = batch.table->logits[static_cast<size_t>(i)];
    if (!row.sample) continue;
    const SampledRow& sampled = batch.memory.sampled[i];
    row.result = {sampled.outcome, sampled.token, sampled.logprob, sampled.top_logprobs};
    std::copy_n(sampled.top, sampled.top_logprobs, row.args.top_logprobs);
  }
}

void CudaSPart::TakeLogits(MicroBatch& batch, unsigned tile) {
  const unsigned rows = LogitTileRows(buckets_.back());
  const unsigned first = tile * rows, all = static_cast<unsigned>(batch.table->logit_rows);
  const auto vocab = static_cast<size_t>(model_.spec.vocab);
  for (unsigned i = first; i < all && i < first + rows; ++i) {
    float* const to = batch.table->logits[i].logits_out;
    if (to != nullptr) std::memcpy(to, batch.memory.logits_out + (i - first) * vocab, vocab * sizeof(float));
  }
}

}  // namespace fastdecode
