#include "engine/spart/cuda/gpu_home.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/spart/cuda/gpu_home_link.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

template <class T>
absl::StatusOr<T> Read(std::span<const std::byte> message) {
  if (message.size() != sizeof(T)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("control message of %d bytes, not %d", message.size(), sizeof(T)));
  }
  T body;
  std::memcpy(&body, message.data(), sizeof(T));
  return body;
}

double Gib(uint64_t bytes) { return static_cast<double>(bytes) * 0x1p-30; }

}  // namespace

absl::StatusOr<std::unique_ptr<GpuHome>> GpuHome::Create(const GpuHomeOptions& options, const RPartShape& shape,
                                                         SPartDevice* device) {
  FD_CHECK(GpuHolds(static_cast<KvType>(shape.kv_type)), "a KV type that a GPU does not hold");
  const size_t page_bytes = KvPool::PageBytesAllLayers(shape.attention(), static_cast<int>(shape.layers));
  if (options.kv_bytes < page_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("--gpu-kv-gib: %.4g GiB hold not even one page: %d tokens of %d layers are %.4g GiB",
                        Gib(options.kv_bytes), kPageTokens, shape.layers, Gib(page_bytes)));
  }
  const uint64_t table_bytes = uint64_t{options.sequences_max} * TablePages(shape) * sizeof(uint32_t);
  if (const uint64_t free = device->free_bytes(); options.kv_bytes + table_bytes > free) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("--gpu-kv-gib: %.2f GiB of KV and %.2f GiB of page tables, but the GPU has %.2f GiB free",
                        Gib(options.kv_bytes), Gib(table_bytes), Gib(free)));
  }
  absl::StatusOr<std::byte*> pages = device->Allocate(options.kv_bytes);
  if (!pages.ok()) return pages.status();
  absl::StatusOr<std::byte*> tables = device->Allocate(table_bytes);
  if (!tables.ok()) return tables.status();
  return std::unique_ptr<GpuHome>(new GpuHome(options, shape, *pages, *tables));
}

GpuHome::GpuHome(const GpuHomeOptions& options, const RPartShape& shape, std::byte* pages, std::byte* tables)
    : options_(options),
      shape_(shape),
      pool_(shape.attention(), static_cast<int>(shape.layers), {pages, options.kv_bytes}, PageCopies::kElsewhere),
      account_(&pool_, pool_.total()),
      table_(&account_, /*layers=*/1, shape.max_context, options.sequences_max) {
  kv_.tables = reinterpret_cast<uint32_t*>(tables);
  kv_.pages = {static_cast<KvType>(shape.kv_type),
               static_cast<int>(shape.kv_heads),
               static_cast<int>(shape.head_dim),
               pages,
               pool_.page_stride_bytes(),
               kv_.tables,
               TablePages(shape)};
  kv_.layer_stride_bytes = pool_.total() * pool_.page_stride_bytes();
  FD_CHECK(kv_.pages.page_stride_bytes == shape.kv_heads * GpuHeadBytes(kv_.pages.type, kv_.pages.head_dim),
           "pages of the GPU's are as large as those of the CPU homes");
  Prepare();
}

GpuHome::~GpuHome() { EndSteps(); }

// Makes all sequences that there will be once, so that later ones need no memory.
void GpuHome::Prepare() {
  kept_.resize(shape_.micro_batches);
  for (std::vector<PageId>& kept : kept_) kept.reserve(options_.sequences_max);
  placed_.reserve(options_.sequences_max);
  for (uint32_t slot = options_.sequences_max; slot-- > 0;) free_slots_.push_back(slot);
  for (uint64_t id = 0; id < options_.sequences_max; ++id) FindOrPlace(id);
  for (uint64_t id = 0; id < options_.sequences_max; ++id) Release(id);
}

HomeDescription GpuHome::Describe() const {
  HomeDescription description;
  description.pages = pool_.total();
  description.read_mb_per_s = static_cast<uint32_t>(std::min(options_.read_rate * 1e-6, 4e9));
  description.page_bytes = KvPool::PageBytesAllLayers(shape_.attention(), static_cast<int>(shape_.layers));
  absl::SNPrintF(description.isa, sizeof(description.isa), "cuda");
  absl::SNPrintF(description.memory, sizeof(description.memory), "%.2f GiB of the GPU's", Gib(options_.kv_bytes));
  return description;
}

std::unique_ptr<EngineLink> GpuHome::Attach(int index, std::vector<std::byte*> areas) {
  if (index_ < 0) index_ = index;
  FD_CHECK(index_ == index, "a home keeps its index");
  while (!placed_.empty()) Release(placed_.begin()->first);
  EndSteps();
  outbox_.Clear();
  told_once_ = false;
  rosters_.clear();
  for (uint32_t m = 0; m < shape_.micro_batches; ++m) rosters_.emplace_back(m, shape_.max_rows, shape_.max_context);
  return std::make_unique<GpuHomeLink>(this, shape_, std::move(areas));
}

absl::Status GpuHome::Apply(std::span<const std::byte> message) {
  uint32_t kind = 0;
  FD_CHECK(message.size() >= sizeof(kind), "a control message has a kind");
  std::memcpy(&kind, message.data(), sizeof(kind));
  const absl::Status applied = ApplyKind(static_cast<ControlKind>(kind), message);
  TellIfDue();
  return applied;
}

absl::Status GpuHome::ApplyKind(ControlKind kind, std::span<const std::byte> message) {
  switch (kind) {
    case ControlKind::kRoster:
      return ApplyRoster(message);
    case ControlKind::kRelease:
    case ControlKind::kTruncate:
    case ControlKind::kFill:
    case ControlKind::kReserve:
      return ApplySequence(kind, message);
    case ControlKind::kFork:
      return ApplyFork(message);
    case ControlKind::kIdle:
      return ApplyIdle(message);
    case ControlKind::kHandOver:
      return ApplyHandOver(message);
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("control message of kind %d, which a GPU has no use for", static_cast<uint32_t>(kind)));
  }
}

absl::Status GpuHome::ApplyRoster(std::span<const std::byte> message) {
  RosterMessage header;
  FD_CHECK(message.size() >= sizeof(header), "a roster has a header");
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.micro_batch >= rosters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("roster: micro_batch %d, there are %d", header.micro_batch, rosters_.size()));
  }
  Roster& roster = rosters_[header.micro_batch];
  if (absl::Status bad = roster.Replace(message); !bad.ok()) return bad;
  for (const RosterEntry& entry : roster.entries()) {
    if (FindOrPlace(entry.sequence) == nullptr) {
      return absl::ResourceExhaustedError(absl::StrFormat("roster of micro-batch %d: sequence %d is one more than %d",
                                                          header.micro_batch, entry.sequence, options_.sequences_max));
    }
  }
  return absl::OkStatus();
}

absl::Status GpuHome::ApplySequence(ControlKind kind, std::span<const std::byte> message) {
  const absl::StatusOr<SequenceMessage> body = Read<SequenceMessage>(message);
  if (!body.ok()) return body.status();
  if (kind == ControlKind::kTruncate) return Truncate(body->sequence, body->tokens);
  if (kind == ControlKind::kFill) return Fill(body->sequence, body->tokens);
  if (kind == ControlKind::kReserve) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reserve: sequence %d, but the link has no bulk channel", body->sequence));
  }
  Release(body->sequence);
  return absl::OkStatus();
}

absl::Status GpuHome::ApplyFork(std::span<const std::byte> message) {
  const absl::StatusOr<ForkMessage> body = Read<ForkMessage>(message);
  if (!body.ok()) return body.status();
  if (absl::Status bad = table_.Fork(body->sequence, body->tokens, body->new_sequence); !bad.ok()) return bad;
  Place(body->new_sequence);
  return absl::OkStatus();
}

// The home serves nobody but its engine.
absl::Status GpuHome::ApplyHandOver(std::span<const std::byte> message) {
  const absl::StatusOr<HandOverMessage> body = Read<HandOverMessage>(message);
  if (!body.ok()) return body.status();
  HandOverAnswer answer;
  answer.sequence = body->sequence;
  answer.outcome = table_.Find(body->sequence) == nullptr ? HandOverOutcome::kNoSequence : HandOverOutcome::kNoPeer;
  if (outbox_.TryPut(answer)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("hand-over of sequence %d: the engine does not read its answers", body->sequence));
}

absl::Status GpuHome::ApplyIdle(std::span<const std::byte> message) {
  const absl::StatusOr<IdleMessage> body = Read<IdleMessage>(message);
  if (body.ok()) Tell(options_.now_ns(), /*idle=*/1);
  return body.status();
}

// Null: sequences_max are there already.
KvSequence* GpuHome::FindOrPlace(uint64_t id) {
  if (KvSequence* const known = table_.Find(id)) return known;
  KvSequence* const sequence = table_.FindOrCreate(id);
  if (sequence == nullptr) return nullptr;
  Place(id);
  return sequence;
}

// All of its pages are told with its next step.
void GpuHome::Place(uint64_t id) {
  placed_[id] = Placed{free_slots_.back(), 0};
  free_slots_.pop_back();
}

void GpuHome::Release(uint64_t id) {
  const auto found = placed_.find(id);
  if (found == placed_.end()) return;
  free_slots_.push_back(found->second.slot);
  placed_.erase(found);
  table_.Release(id);
}

absl::Status GpuHome::Truncate(uint64_t id, uint32_t tokens) {
  if (absl::Status bad = table_.Truncate(id, tokens); !bad.ok()) return bad;
  Placed& placed = placed_.find(id)->second;
  placed.pages = std::min(placed.pages, static_cast<uint32_t>(table_.Find(id)->pages.size()));
  return absl::OkStatus();
}

void GpuHome::EndSteps() {
  for (uint32_t m = 0; m < kept_.size(); ++m) EndStep(static_cast<int>(m));
}

// For measuring: pages that hold whatever they hold, which are numbers.
absl::Status GpuHome::Fill(uint64_t id, uint32_t tokens) {
  KvSequence* const sequence = FindOrPlace(id);
  const bool fits = sequence != nullptr && tokens > 0 && tokens <= shape_.max_context &&
                    sequence->StoredTokensMax() == 0 && table_.Grow(sequence, 0, tokens) == GrowOutcome::kOk;
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrFormat("fill: sequence %d cannot have %d tokens; %d pages are free", id, tokens, account_.free()));
  }
  sequence->stored_tokens[0] = tokens;
  return absl::OkStatus();
}

}  // namespace fastdecode
