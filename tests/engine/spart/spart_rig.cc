#include "tests/engine/spart/spart_rig.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/model/synth.h"
#include "numa/check.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr int kHomesMax = 64;

ModelSpec TinySpec() {
  ModelSpec spec;
  spec.family = "llama";
  spec.layers = 3;
  spec.hidden = 48;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 20;  // padded on the wire
  spec.intermediate = 72;
  spec.vocab = 100;
  spec.max_context = 512;
  return spec;
}

template <class T>
T OrDie(absl::StatusOr<T> value) {
  FD_CHECK(value.ok(), std::string(value.status().message()).c_str());
  return *std::move(value);
}

Checkpoint WriteAndOpen(const ModelSpec& spec, const std::string& dir) {
  SynthOptions options;
  options.out_dir = dir;
  options.dtype = DType::kF32;
  const absl::Status written = WriteSynthetic(spec, options);
  FD_CHECK(written.ok(), std::string(written.message()).c_str());
  return OrDie(Checkpoint::Open(dir));
}

RPartShape ShapeOf(const ModelSpec& spec, ElementType wire, int rows_max, int micro_batches) {
  RPartShape shape;
  shape.layers = static_cast<uint32_t>(spec.layers);
  shape.kv_heads = static_cast<uint32_t>(spec.kv_heads);
  shape.group = static_cast<uint32_t>(spec.group());
  shape.head_dim = static_cast<uint32_t>((spec.head_dim + 15) / 16 * 16);
  shape.element_type = static_cast<uint32_t>(wire);
  shape.micro_batches = static_cast<uint32_t>(micro_batches);
  shape.max_rows = static_cast<uint32_t>(rows_max);
  shape.max_context = static_cast<uint32_t>(spec.max_context);
  return shape;
}

std::byte* AllocatePages(size_t bytes) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes));
  std::memset(memory, 0xff, bytes);  // NaNs: what was not sent shows
  return memory;
}

float ReadElement(const std::byte* at, ElementType type) {
  if (type == ElementType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  Bf16 value;
  std::memcpy(&value, at, sizeof(value));
  return FromBf16(value);
}

void WriteElement(float value, ElementType type, std::byte* at) {
  if (type == ElementType::kF32) {
    std::memcpy(at, &value, sizeof(value));
  } else {
    const Bf16 rounded = ToBf16(value);
    std::memcpy(at, &rounded, sizeof(rounded));
  }
}

}  // namespace

RigModel::RigModel(const std::string& dir, ElementType wire, int rows_max, int micro_batches)
    : spec(TinySpec()),
      checkpoint(WriteAndOpen(spec, dir)),
      weights(OrDie(MapWeights(spec, checkpoint))),
      shape(ShapeOf(spec, wire, rows_max, micro_batches)) {}

StageState AwaitPatiently(SPart* spart, int micro_batch) {
  for (std::chrono::microseconds pause(10);; pause *= 4) {
    const StageState state = spart->PollStage(micro_batch);
    if (state != StageState::kRunning) return state;
    std::this_thread::sleep_for(pause);
  }
}

SPartRig::SPartRig(const RigModel& model, SPart* spart, int homes, uint64_t seed)
    : model_(model),
      spart_(spart),
      homes_(homes),
      seed_(seed),
      tables_(model.shape.micro_batches),
      allowed_(spart->sampling_memory()) {
  const size_t rows = model.shape.max_rows;
  for (StepTable& table : tables_) {
    table.tokens.resize(rows);
    table.positions.resize(rows);
    table.homes.resize(rows);
    table.home_rows.resize(rows);
    table.logits.resize(rows);
    table.home_areas.resize(kHomesMax);
    send_.emplace_back();
    receive_.emplace_back();
    for (int h = 0; h < homes; ++h) {
      const size_t send_bytes = rows * model.shape.hop_row_bytes(),
                   receive_bytes = rows * model.shape.reply_row_bytes();
      send_.back().push_back(AllocatePages(send_bytes));
      receive_.back().push_back(AllocatePages(receive_bytes));
      AreaRegistry* const areas = spart->areas();
      if (areas == nullptr) continue;
      FD_CHECK(areas->RegisterAreas(send_.back().back(), send_bytes).ok(), "the areas can be registered");
      FD_CHECK(areas->RegisterAreas(receive_.back().back(), receive_bytes).ok(), "the areas can be registered");
    }
  }
}

SPartRig::~SPartRig() {
  for (const auto* areas : {&send_, &receive_}) {
    for (const std::vector<std::byte*>& of_micro_batch : *areas) {
      for (std::byte* memory : of_micro_batch) {
        if (AreaRegistry* const registry = spart_->areas()) registry->UnregisterAreas(memory);
        std::free(memory);
      }
    }
  }
}

SPartRig::Outcome SPartRig::Step(const Ask& ask) {
  StepTable& table = tables_[static_cast<size_t>(ask.micro_batch)];
  Outcome outcome;
  std::mt19937_64 random(seed_ + ++steps_);
  table.rows = ask.rows;
  uint32_t next_row[kHomesMax] = {};
  for (int r = 0; r < ask.rows; ++r) {
    const auto row = static_cast<size_t>(r);
    table.tokens[row] = static_cast<int32_t>(random() % static_cast<uint64_t>(model_.spec.vocab));
    table.positions[row] = static_cast<int32_t>(random() % model_.shape.max_context);
    table.homes[row] = static_cast<uint16_t>(random() % static_cast<uint64_t>(homes_));
    table.home_rows[row] = next_row[table.homes[row]]++;
  }
  FillTable(ask, &table, &outcome);
  for (int h = 0; h < homes_; ++h) {
    table.home_areas[static_cast<size_t>(h)] = {send_[static_cast<size_t>(ask.micro_batch)][static_cast<size_t>(h)],
                                                receive_[static_cast<size_t>(ask.micro_batch)][static_cast<size_t>(h)]};
  }
  outcome.stages.reserve(static_cast<size_t>(model_.spec.layers) + 1);  // their addresses stay
  for (int stage = 0; stage <= model_.spec.layers; ++stage) {
    if (stage == ask.lose_home_at) table.home_areas[0] = {};
    if (stage > 0) FillReceiveAreas(ask, stage, &table);
    ask.before_start(stage);
    Outcome::Stage& traced = outcome.stages.emplace_back();
    table.trace = ask.trace_from >= 0 && stage >= ask.trace_from ? &traced.trace : nullptr;
    traced.start_ns = NowNs();
    spart_->StartStage(ask.micro_batch, stage, table);
    StageState state = StageState::kRunning;
    if (ask.patient) state = AwaitPatiently(spart_, ask.micro_batch);
    while (state == StageState::kRunning) state = spart_->PollStage(ask.micro_batch);
    if (state == StageState::kFailed) {
      outcome.failed = true;
      return outcome;
    }
    traced.end_ns = NowNs();
    if (stage < model_.spec.layers) outcome.sent.push_back(TakeSent(table));
  }
  for (size_t i = 0; i < static_cast<size_t>(table.logit_rows); ++i) {
    outcome.samples.push_back(table.logits[i].result);
    outcome.most_likely[i].resize(static_cast<size_t>(outcome.samples[i].top_logprobs));
  }
  return outcome;
}

void SPartRig::FillTable(const Ask& ask, StepTable* table, Outcome* outcome) {
  table->logit_rows = ask.logit_rows;
  outcome->logits.assign(static_cast<size_t>(ask.logit_rows),
                         std::vector<float>(static_cast<size_t>(model_.spec.vocab)));
  outcome->most_likely.assign(static_cast<size_t>(ask.logit_rows), std::vector<TokenLogprob>(kMaxLogprobs));
  allowed_.assign(ask.allowed.begin(), ask.allowed.end());
  for (int i = 0; i < ask.logit_rows; ++i) {
    LogitRow& row = table->logits[static_cast<size_t>(i)];
    row.row = static_cast<uint32_t>(ask.rows - ask.logit_rows + i);
    row.sample = true;
    row.result = {};
    row.args = {};
    row.args.vocab = model_.spec.vocab;
    row.args.params = &ask.sampling;
    row.args.position = static_cast<uint64_t>(i) + 1;
    row.args.top_logprobs = outcome->most_likely[static_cast<size_t>(i)].data();
    if (!allowed_.empty()) row.args.allowed = {&allowed_[static_cast<size_t>(i)], 1};
    row.logits_out = ask.show_logits ? outcome->logits[static_cast<size_t>(i)].data() : nullptr;
  }
}

void SPartRig::FillReceiveAreas(const Ask& ask, int stage, StepTable* table) {
  std::mt19937_64 random(seed_ + 1'000'003 * steps_ + static_cast<uint64_t>(stage));
  const auto type = static_cast<ElementType>(model_.shape.element_type);
  std::uniform_real_distribution<float> value(-1, 1);
  for (int r = 0; r < ask.rows; ++r) {
    const uint16_t home = table->homes[static_cast<size_t>(r)];
    std::byte* to = receive_[static_cast<size_t>(ask.micro_batch)][home] +
                    table->home_rows[static_cast<size_t>(r)] * model_.shape.reply_row_bytes();
    for (size_t i = 0; i < model_.shape.reply_row_bytes(); i += ElementBytes(type))
      WriteElement(value(random), type, to + i);
  }
}

// Rows of homes that are lost are left out.
std::vector<float> SPartRig::TakeSent(const StepTable& table) const {
  const auto type = static_cast<ElementType>(model_.shape.element_type);
  std::vector<float> values;
  for (int r = 0; r < table.rows; ++r) {
    const std::byte* from = table.home_areas[table.homes[static_cast<size_t>(r)]].send;
    if (from == nullptr) continue;
    from += table.home_rows[static_cast<size_t>(r)] * model_.shape.hop_row_bytes();
    for (size_t i = 0; i < model_.shape.hop_row_bytes(); i += ElementBytes(type))
      values.push_back(ReadElement(from + i, type));
  }
  return values;
}

}  // namespace fastdecode
