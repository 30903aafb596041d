#include "engine/bench/gpu_home_bench.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/rpart/rpart_shape.h"
#include "kernels/cuda/kv_pages.h"
#include "numa/check.h"
#include "numa/clock.h"

namespace fastdecode {

absl::StatusOr<std::unique_ptr<GpuHomeBench>> GpuHomeBench::Create(const std::map<std::string, std::string>& options,
                                                                   int sequences_max, int chunk,
                                                                   const std::vector<int>& cores, Logger* log) {
  absl::StatusOr<GpuBenchSPart> loaded = LoadGpuBenchSPart(
      options, {.sequences_max = sequences_max, .chunk = chunk, .is_home = true, .pushes = true, .cores = cores}, log);
  if (!loaded.ok()) return loaded.status();
  std::unique_ptr<GpuHomeBench> bench(new GpuHomeBench(*std::move(loaded), chunk));
  absl::StatusOr<DeviceHome::Attached> home = bench->loaded_.spart->device_home()->Attach(/*index=*/0);
  if (!home.ok()) return home.status();
  bench->home_ = std::move(home->link);
  bench->read_rate_ = home->description.read_mb_per_s * 1e6;
  bench->table_.home_areas = {{bench->home_->SendArea(0), bench->home_->ReceiveArea(0)}};
  return bench;
}

GpuHomeBench::GpuHomeBench(GpuBenchSPart loaded, int chunk)
    : loaded_(std::move(loaded)), chunk_(chunk), table_(MakeBenchTable(loaded_.shape)) {
  greedy_.temperature = 0;
  table_.push_rows.resize(loaded_.shape.max_rows);
  const LinkSize size = LinkSizeFor(loaded_.shape, /*push=*/true);
  segments_.resize(static_cast<size_t>(size.bulk_segments), std::vector<std::byte>(size.bulk_segment_bytes_max));
}

absl::Status GpuHomeBench::Send(const void* message, size_t bytes) {
  if (home_->TrySendControl(message, bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat("the GPU's home: %s", home_->lost_cause()));
}

absl::Status GpuHomeBench::Clear() {
  for (; sequences_ > 0; --sequences_) {
    const SequenceMessage release = {
        .kind = static_cast<uint32_t>(ControlKind::kRelease), .tokens = 0, .sequence = sequences_ - 1};
    if (absl::Status bad = Send(&release, sizeof(release)); !bad.ok()) return bad;
  }
  return absl::OkStatus();
}

// Each sequence has `rows` rows from `position` on.
absl::Status GpuHomeBench::SendRoster(int sequences, uint32_t position, uint32_t rows) {
  std::vector<std::byte> message(sizeof(RosterMessage) + static_cast<size_t>(sequences) * sizeof(RosterEntry));
  RosterMessage header;
  header.version = ++roster_version_;
  header.entries = static_cast<uint32_t>(sequences);
  std::memcpy(message.data(), &header, sizeof(header));
  for (size_t s = 0; s < static_cast<size_t>(sequences); ++s) {
    const RosterEntry entry = {.sequence = s, .step_from = 0, .first_position = position, .query_tokens = rows};
    std::memcpy(message.data() + sizeof(header) + s * sizeof(entry), &entry, sizeof(entry));
  }
  return Send(message.data(), message.size());
}

void GpuHomeBench::PutRow(int row, int position) {
  const auto r = static_cast<size_t>(row);
  const uint64_t drawn = ++drawn_ * 0x9e3779b97f4a7c15u >> 20;
  table_.tokens[r] = static_cast<int32_t>(drawn % static_cast<uint64_t>(loaded_.vocab));
  table_.positions[r] = position;
  table_.home_rows[r] = static_cast<uint32_t>(row);
  table_.push_rows[r] = StepTable::kNoPushRow;
}

void GpuHomeBench::SampleRow(int row, int position) {
  LogitRow& logits = table_.logits[static_cast<size_t>(table_.logit_rows++)];
  logits.row = static_cast<uint32_t>(row);
  logits.args = {};
  logits.args.vocab = loaded_.vocab;
  logits.args.params = &greedy_;
  logits.args.position = static_cast<uint64_t>(position) + 1;
}

absl::Status GpuHomeBench::Place(int sequences, int context) {
  FD_CHECK(context >= 1 && context <= max_context(), "a context that the model has");
  if (absl::Status bad = Clear(); !bad.ok()) return bad;
  for (; sequences_ < static_cast<uint64_t>(sequences); ++sequences_) {
    if (context == 1) continue;  // it begins empty
    const SequenceMessage fill = {.kind = static_cast<uint32_t>(ControlKind::kFill),
                                  .tokens = static_cast<uint32_t>(context - 1),
                                  .sequence = sequences_};
    if (absl::Status bad = Send(&fill, sizeof(fill)); !bad.ok()) return bad;
  }
  if (absl::Status bad = SendRoster(sequences, static_cast<uint32_t>(context - 1), 1); !bad.ok()) return bad;
  table_.rows = sequences;
  table_.logit_rows = 0;
  for (int s = 0; s < sequences; ++s) {
    PutRow(s, context - 1);
    SampleRow(s, context - 1);
  }
  return RunBenchStep(loaded_.spart.get(), &table_, nullptr).status();
}

absl::StatusOr<double> GpuHomeBench::RunAttention(int times) { return probe_.MeasureAttention(table_.rows, times); }

uint64_t GpuHomeBench::kv_bytes(int sequences, int context) const {
  const KvType type = static_cast<KvType>(loaded_.shape.kv_type);
  uint64_t pages = 0;  // of a sequence, in all layers
  for (uint32_t layer = 0; layer < loaded_.shape.layers; ++layer) {
    const auto window = static_cast<int>(loaded_.shape.sliding_window);
    const int seen = loaded_.shape.windowed(layer) ? std::min(context, window) : context;
    pages += static_cast<uint64_t>(seen + kPageTokens - 1) / kPageTokens;
  }
  const size_t page_bytes = loaded_.shape.kv_heads * GpuHeadBytes(type, static_cast<int>(loaded_.shape.head_dim));
  return pages * page_bytes * static_cast<uint64_t>(sequences);
}

// The step's next rows, of `layers` layers that are there, to where a link's segments would lie. False: there is none.
bool GpuHomeBench::PushSegment(int layers) {
  if (pushed_layers_ >= layers) return false;
  FD_CHECK(!segments_.empty(), "a segment holds a row of the shape");
  const size_t row_bytes = loaded_.shape.kv_row_bytes(), row = static_cast<size_t>(pushed_rows_);
  const int rows = std::min(table_.rows - pushed_rows_, static_cast<int>(PushTokensMax(loaded_.shape)));
  std::vector<std::byte>& segment = segments_[segment_++ % segments_.size()];
  std::memcpy(segment.data(), loaded_.spart->device_home()->PushedRows(/*micro_batch=*/0, pushed_layers_) + row * row_bytes,
              static_cast<size_t>(rows) * row_bytes);
  pushed_rows_ += rows;
  if (pushed_rows_ < table_.rows) return true;
  pushed_rows_ = 0;
  ++pushed_layers_;
  return true;
}

absl::StatusOr<uint64_t> GpuHomeBench::RunPrompt(int tokens, bool pushed) {
  FD_CHECK(tokens >= 1 && tokens <= max_context(), "a prompt that the model has room for");
  if (absl::Status bad = Clear(); !bad.ok()) return bad;
  sequences_ = 1;
  uint64_t ns = 0;
  for (int first = 0; first < tokens; first += chunk_) {
    const int rows = std::min(chunk_, tokens - first);
    if (absl::Status bad = SendRoster(1, static_cast<uint32_t>(first), static_cast<uint32_t>(rows)); !bad.ok()) {
      return bad;
    }
    table_.rows = rows;
    table_.logit_rows = 0;
    for (int r = 0; r < rows; ++r) {
      PutRow(r, first + r);
      if (pushed) table_.push_rows[static_cast<size_t>(r)] = static_cast<uint32_t>(r);
    }
    if (first + rows == tokens) SampleRow(rows - 1, tokens - 1);
    pushed_layers_ = pushed_rows_ = 0;
    const uint64_t start_ns = NowNs();
    // Rows of a layer are there when the stage behind it is over.
    const auto push = [&](int stages_over) {
      if (pushed) PushSegment(stages_over - 1);
    };
    const absl::StatusOr<uint64_t> step_ns = RunBenchStep(loaded_.spart.get(), &table_, nullptr, push);
    if (!step_ns.ok()) return step_ns.status();
    while (pushed && PushSegment(layers())) continue;
    ns += NowNs() - start_ns;
  }
  return ns;
}

double GpuHomeBench::prompt_flop(int tokens) const {
  const uint64_t weights = loaded_.spart->weight_bytes() / ElementBytes(loaded_.type);
  const uint64_t head = loaded_.spart->head_weights();
  const int chunks = (tokens + chunk_ - 1) / chunk_;
  return 2 * (static_cast<double>(weights - head) * tokens + static_cast<double>(head) * chunks);
}

absl::StatusOr<double> GpuHomeBench::RunPromptGemms(int tokens) {
  double ns = 0;
  for (int first = 0; first < tokens; first += chunk_) {
    const absl::StatusOr<double> step_ns = probe_.MeasureGemms(std::min(chunk_, tokens - first), /*times=*/1);
    if (!step_ns.ok()) return step_ns.status();
    ns += *step_ns;
  }
  return ns;
}

}  // namespace fastdecode
