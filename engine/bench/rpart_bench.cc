#include "engine/bench/rpart_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/rpart/page_counts.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

// What fragments the pool: sequences of random lengths, of which every second one goes.
constexpr uint32_t kOtherTokensMin = 512;
constexpr uint32_t kOtherTokensMax = 4096;
constexpr uint64_t kFirstOtherId = uint64_t{1} << 32;
// What a measured sequence grows by before the next one has its turn, at most.
constexpr uint32_t kTurnPagesMax = 4;

uint32_t PagesFor(uint32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

// Of one sequence, its open page included.
uint64_t PagesForASequence(const RPartBenchOptions& o) {
  return PageCounts(o.kv_type == KvType::kInt4).Most(o.context);
}

// How many sequences have room in so many pages.
uint32_t SequencesIn(const RPartBenchOptions& o, uint64_t pages) {
  const uint64_t shared = PagesFor(o.shared_prefix);
  return pages < shared ? 0 : static_cast<uint32_t>((pages - shared) / (PagesForASequence(o) - shared));
}

absl::Status CheckOptions(const RPartBenchOptions& o) {
  if (o.heads % o.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--heads: %d is no multiple of --kv-heads %d", o.heads, o.kv_heads));
  }
  if (o.head_size % 16 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("--head-size: %d is no multiple of 16", o.head_size));
  }
  if (o.context == 0) return absl::InvalidArgumentError("--context: 0 leaves nothing to attend to");
  if (o.rows > o.context) {
    return absl::InvalidArgumentError(absl::StrFormat("--rows: %d are more than --context %d", o.rows, o.context));
  }
  const bool chunks = o.rows > kDecodeRowsMax || (o.kv_type == KvType::kInt4 && o.rows > 1);
  if (o.shared_prefix > 0 && chunks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shared-prefix: with --rows %d and %s each sequence reads for itself and there is nothing to "
                        "measure; give --rows %d or less",
                        o.rows, KvTypeName(o.kv_type), o.kv_type == KvType::kInt4 ? 1 : kDecodeRowsMax));
  }
  if (o.shared_prefix % kBlockTokens != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--shared-prefix: %d is no multiple of %d, and only whole blocks are shared", o.shared_prefix, kBlockTokens));
  }
  if (o.shared_prefix > o.context - o.rows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shared-prefix: %d tokens and %d rows of their own are more than --context %d",
                        o.shared_prefix, o.rows, o.context));
  }
  return absl::OkStatus();
}

double Gib(const RPartBenchOptions& o) { return static_cast<double>(o.pool_bytes) / (uint64_t{1} << 30); }

// With room for as many rows as are asked for or as fill the memory.
absl::StatusOr<RPartShape> ShapeOf(const RPartBenchOptions& o) {
  RPartShape shape;
  shape.layers = o.layers;
  shape.kv_heads = o.kv_heads;
  shape.group = o.heads / o.kv_heads;
  shape.head_dim = o.head_size;
  shape.element_type = static_cast<uint32_t>(o.kv_type == KvType::kF32 ? ElementType::kF32 : ElementType::kBf16);
  shape.kv_type = static_cast<uint32_t>(o.kv_type);
  shape.scale = 1.0f / std::sqrt(static_cast<float>(o.head_size));
  shape.micro_batches = 1;
  shape.max_context = o.context;
  const uint64_t page_bytes = KvPool::PageBytesAllLayers(shape.attention(), static_cast<int>(o.layers));
  const uint64_t fit = SequencesIn(o, o.pool_bytes / page_bytes);
  const uint64_t most = o.sequences > 0 ? o.sequences : fit;
  if (fit == 0 || most > fit) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: %g GiB have room for %d sequences of %d tokens, each of which takes %d pages of %d bytes",
                        fit == 0 ? "--gib" : absl::StrCat("--sequences: ", o.sequences), Gib(o), fit, o.context,
                        PagesForASequence(o) - PagesFor(o.shared_prefix), page_bytes));
  }
  shape.max_rows = static_cast<uint32_t>(std::min<uint64_t>(most * o.rows, UINT32_MAX));
  // Short sequences may fill the memory with more rows than a hop carries: then fewer are measured.
  const auto too_many = [&] { return o.sequences == 0 && shape.max_rows >= 2 * o.rows && !ValidateShape(shape).ok(); };
  while (too_many()) shape.max_rows = shape.max_rows / 2 / o.rows * o.rows;
  if (absl::Status status = ValidateShape(shape); !status.ok()) return status;
  return shape;
}

PlanLimits LimitsOf(const RPartBenchOptions& o, const RPartShape& shape) {
  return PlanLimitsFor(shape.attention(), shape.max_rows, static_cast<int>(o.cores.size()), shape.max_context,
                       SelectAttention(o.isa, shape.attention()));
}

// Where o begins behind the rows.
size_t ReplyOffsetBytes(const RPartShape& shape) {
  const size_t bytes = shape.max_rows * shape.hop_row_bytes();
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

absl::StatusOr<Arena> MakeArena(const RPartBenchOptions& o, uint64_t bytes) {
  ArenaOptions options;
  options.bytes = bytes;
  options.node = o.node;
  options.prefault_cores = o.cores;
  return Arena::Create(options);
}

absl::Status Fault(const char* what) {
  return absl::InternalError(absl::StrCat("the R-Part finds fault with the step: ", what));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RPartBench>> RPartBench::Create(const RPartBenchOptions& options) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  const absl::StatusOr<RPartShape> shape = ShapeOf(options);
  if (!shape.ok()) return shape.status();
  absl::StatusOr<Arena> memory = MakeArena(options, options.pool_bytes);
  if (!memory.ok())
    return absl::Status(memory.status().code(), absl::StrCat("--gib: ", Gib(options), ": ", memory.status().message()));
  absl::StatusOr<Arena> rows =
      MakeArena(options, ReplyOffsetBytes(*shape) + shape->max_rows * shape->reply_row_bytes());
  if (!rows.ok()) return rows.status();
  absl::StatusOr<TeamWorkspace> workspace = TeamWorkspace::Create(
      shape->attention(), options.cores.size(), options.node, LimitsOf(options, *shape).workspace_floats());
  if (!workspace.ok()) return workspace.status();
  SetFlushDenormals();
  std::unique_ptr<RPartBench> bench(
      new RPartBench(options, *shape, *std::move(memory), *std::move(rows), *std::move(workspace)));
  if (absl::Status status = bench->MakeSequences(); !status.ok()) return status;
  return bench;
}

RPartBench::RPartBench(const RPartBenchOptions& options, const RPartShape& shape, Arena memory, Arena rows,
                       TeamWorkspace workspace)
    : options_(options),
      shape_(shape),
      memory_(std::move(memory)),
      rows_(std::move(rows)),
      workspace_(std::move(workspace)),
      pool_(shape.attention(), static_cast<int>(shape.layers),
            {reinterpret_cast<std::byte*>(memory_.data()), memory_.bytes()}),
      account_(&pool_, pool_.total()),
      table_(&account_, static_cast<int>(shape.layers), std::max(shape.max_context, kOtherTokensMax),
             pool_.total() + 1),
      micro_batch_(0, shape, LimitsOf(options, shape)),
      team_(std::make_unique<TicketTeam>("attend", options.cores, PollMode::kSpin)),
      random_kv_(shape.attention(), SelectAttention(options.isa, shape.attention()), &pool_) {
  served_.team = team_.get();
  work_.shape = shape_;
  work_.kernels = SelectAttention(options.isa, shape_.attention());
  work_.pool = &pool_;
  work_.workspace = &workspace_;
  work_.served = &served_;
  work_.rows = reinterpret_cast<const std::byte*>(rows_.data());
  work_.o = reinterpret_cast<std::byte*>(rows_.data()) + ReplyOffsetBytes(shape_);
  FillRows();
}

RPartBench::~RPartBench() = default;

// q, k and v in [-1, 1), as RandomKv's are.
void RPartBench::FillRows() {
  const size_t element_bytes = shape_.element_bytes();
  const size_t count = shape_.max_rows * shape_.hop_row_bytes() / element_bytes;
  std::uniform_real_distribution<float> distribution(-1, 1);
  for (size_t i = 0; i < count; ++i) {
    const float value = distribution(random_);
    const Bf16 rounded = ToBf16(value);
    std::memcpy(rows_.data() + i * element_bytes,
                element_bytes == sizeof(float) ? static_cast<const void*>(&value) : &rounded, element_bytes);
  }
}

// Fresh memory: one sequence after the other. Fragmented memory: in turns, as they decode.
absl::Status RPartBench::MakeSequences() {
  if (options_.fragmented) LeaveHoles();
  const uint32_t fit = SequencesIn(options_, account_.free());
  const uint32_t count = std::min(shape_.max_rows / options_.rows, options_.sequences > 0 ? UINT32_MAX : fit);
  if (count == 0 || count > fit) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "--sequences: %d of %d tokens do not fit the %d of %d pages that are free, %d do; give more --gib",
        std::max(count, 1u), options_.context, account_.free(), pool_.total(), fit));
  }
  if (absl::Status status = MakePrefix(count); !status.ok()) return status;
  std::uniform_int_distribution<uint32_t> turn_pages(1, kTurnPagesMax);
  for (uint32_t lowest = 0; lowest < stored_tokens();) {
    lowest = stored_tokens();
    for (KvSequence* sequence : sequences_) {
      const uint64_t turn = options_.fragmented ? turn_pages(random_) * kPageTokens : UINT32_MAX;
      const uint64_t tokens = std::min<uint64_t>(sequence->StoredTokensMin() + turn, stored_tokens());
      if (absl::Status status = GrowTo(sequence, static_cast<uint32_t>(tokens)); !status.ok()) return status;
      lowest = std::min(lowest, sequence->StoredTokensMin());
    }
  }
  return absl::OkStatus();
}

// The sequences as far as they share: the first one's beginning, and its forks.
absl::Status RPartBench::MakePrefix(uint32_t count) {
  for (uint64_t id = 1; id <= count; ++id) {
    if (id == 1 || options_.shared_prefix == 0) {
      sequences_.push_back(table_.FindOrCreate(id));
    } else {
      if (absl::Status status = table_.Fork(1, options_.shared_prefix, id); !status.ok()) return status;
      sequences_.push_back(table_.Find(id));
    }
    if (id > 1) continue;
    if (absl::Status status = GrowTo(sequences_[0], options_.shared_prefix); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Fills the pool with other sequences, as far as a whole one goes in, and releases a random half of them.
void RPartBench::LeaveHoles() {
  std::uniform_int_distribution<uint32_t> length(kOtherTokensMin, kOtherTokensMax);
  const PageCounts counts(shape_.attention());
  std::vector<uint64_t> ids;
  for (uint64_t id = kFirstOtherId; account_.free() > 0; ++id) {
    const uint64_t tokens = std::min<uint64_t>(length(random_), counts.TokensIn(account_.free()));
    KvSequence* const sequence = table_.FindOrCreate(id);
    if (table_.Grow(sequence, 0, static_cast<uint32_t>(tokens)) == GrowOutcome::kNoPage) {
      table_.Release(id);
      break;
    }
    sequence->stored_tokens.assign(shape_.layers, static_cast<uint32_t>(tokens));
    ids.push_back(id);
  }
  std::shuffle(ids.begin(), ids.end(), random_);
  for (size_t i = 0; i < ids.size() / 2; ++i) table_.Release(ids[i]);
}

// Random tokens up to `tokens` in all. REQUIRES: the sequence's last page is full.
absl::Status RPartBench::GrowTo(KvSequence* sequence, uint32_t tokens) {
  const uint32_t first = sequence->StoredTokensMin();
  if (tokens <= first) return absl::OkStatus();
  if (table_.Grow(sequence, first, tokens - first) == GrowOutcome::kNoPage) {
    return absl::ResourceExhaustedError(absl::StrFormat("--sequences: page %d of sequence %d of %d is not to be had",
                                                        first / kPageTokens, sequence->id, sequences_.size()));
  }
  for (uint32_t page = first / kPageTokens; page * kPageTokens < tokens; ++page) {
    random_kv_.FillPage(team_.get(), *sequence, page, tokens);
  }
  sequence->stored_tokens.assign(shape_.layers, tokens);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RPartBench::RunStep() {
  ++step_;
  if (absl::Status status = ReplaceRoster(); !status.ok()) return status;
  const uint64_t start_ns = NowNs();
  if (absl::Status status = RunHops(nullptr); !status.ok()) return status;
  const uint64_t ns = NowNs() - start_ns;
  if (absl::Status status = CutBack(); !status.ok()) return status;
  return ns;
}

absl::StatusOr<RPartBench::ChunkTimes> RPartBench::RunChunks() {
  ++step_;
  if (absl::Status status = ReplaceRoster(); !status.ok()) return status;
  ChunkTimes times;
  if (absl::Status status = RunHops(&times); !status.ok()) return status;
  if (absl::Status status = CutBack(); !status.ok()) return status;
  return times;
}

uint64_t RPartBench::appended_bytes_per_step() const {
  const uint64_t row_bytes = 2 * shape_.kv_heads * shape_.head_dim * shape_.element_bytes();
  const uint64_t rows = uint64_t{sequences()} * options_.rows * options_.layers;
  return rows * (row_bytes + PageBytes(shape_.attention()) / kPageTokens);
}

absl::Status RPartBench::ReplaceRoster() {
  RosterMessage message;
  message.version = static_cast<uint32_t>(step_);
  message.entries = sequences();
  roster_.resize(sizeof(message) + sequences_.size() * sizeof(RosterEntry));
  std::memcpy(roster_.data(), &message, sizeof(message));
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const RosterEntry entry = {sequences_[i]->id, step_, stored_tokens(), options_.rows,
                               options_.of_prompts ? options_.context : 0};
    std::memcpy(roster_.data() + sizeof(message) + i * sizeof(entry), &entry, sizeof(entry));
  }
  return micro_batch_.roster().Replace(roster_);
}

// As PeerSession::ComputeHop, layer by layer.
absl::Status RPartBench::RunHops(ChunkTimes* parts) {
  HopHeader header;
  header.step = step_;
  header.roster_version = micro_batch_.roster().version();
  header.rows = micro_batch_.roster().rows();
  header.payload_bytes = static_cast<uint32_t>(header.rows * shape_.hop_row_bytes());
  kv_bytes_per_step_ = 0;
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    header.layer = static_cast<uint16_t>(layer);
    if (const char* error = micro_batch_.Check(header)) return Fault(error);
    if (const char* error = micro_batch_.Prepare(header, &table_)) return Fault(error);
    work_.plan = &micro_batch_.plan(layer);
    work_.attention = shape_.attention(layer);
    work_.entries = micro_batch_.entries();
    work_.layer = static_cast<int>(layer);
    if (parts == nullptr) {
      team_->Run(&HopWork::RunShare, &work_);
    } else {
      RunParts(parts);
    }
    micro_batch_.Finish(layer);
    kv_bytes_per_step_ += work_.plan->kv_bytes();
  }
  if (micro_batch_.ReportBadEntry() != nullptr) return Fault("a sequence cannot be computed");
  return absl::OkStatus();
}

void RPartBench::RunParts(ChunkTimes* times) {
  const uint64_t start_ns = NowNs();
  team_->Run(&HopWork::AppendShare, &work_);
  const uint64_t appended_ns = NowNs();
  team_->Run(&HopWork::AttendShare, &work_);
  times->append_ns += appended_ns - start_ns;
  times->attend_ns += NowNs() - appended_ns;
}

// So that the next step appends and attends to the same again.
absl::Status RPartBench::CutBack() {
  page_use_ = {pool_.total(), pool_.total() - pool_.free(), pool_.held()};
  for (const KvSequence* sequence : sequences_) {
    if (absl::Status status = table_.Truncate(sequence->id, stored_tokens()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

double RPartBench::contiguous_bytes_mean() const {
  uint64_t pages = 0, pieces = 0;
  for (const KvSequence* sequence : sequences_) {
    const size_t used = std::min<size_t>(PagesFor(stored_tokens()), sequence->pages.size());
    for (size_t i = 0; i < used; ++i) {
      ++pages;
      if (i == 0 || sequence->pages[i] != sequence->pages[i - 1] + 1) ++pieces;
    }
  }
  return static_cast<double>(pages * pool_.page_stride_bytes()) / static_cast<double>(std::max<uint64_t>(pieces, 1));
}

}  // namespace fastdecode
