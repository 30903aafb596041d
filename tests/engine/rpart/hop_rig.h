#ifndef FASTDECODE_TESTS_ENGINE_RPART_HOP_RIG_H_
#define FASTDECODE_TESTS_ENGINE_RPART_HOP_RIG_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "engine/rpart/hop_work.h"
#include "engine/rpart/micro_batch.h"
#include "kernels/isa.h"
#include "numa/arena.h"
#include "numa/ticket_team.h"

namespace fastdecode {

inline constexpr uint32_t kLayers = 3;
inline constexpr uint32_t kAllLayers = (1u << kLayers) - 1;
inline constexpr uint32_t kMaxRows = 128;
inline constexpr uint32_t kMaxContext = 4096;
inline constexpr std::byte kUnwritten{0x55};

// The window, if there is one, is that of the layers whose bits are set.
inline RPartShape HopShape(ElementType type, KvType kv_type, uint32_t group, uint32_t sliding_window = 0,
                           uint32_t windowed = kAllLayers) {
  RPartShape shape;
  shape.layers = kLayers;
  shape.kv_heads = 3;
  shape.group = group;
  shape.head_dim = 32;
  shape.element_type = static_cast<uint32_t>(type);
  shape.kv_type = static_cast<uint32_t>(kv_type);
  shape.scale = 0.3f;
  shape.sliding_window = sliding_window;
  if (sliding_window > 0) shape.window_bits[0] = windowed;
  shape.micro_batches = 1;
  shape.max_rows = kMaxRows;
  shape.max_context = kMaxContext;
  return shape;
}

inline constexpr uint32_t kAtEnd = UINT32_MAX;

// `rows` rows of a sequence in the next step.
struct Ask {
  uint64_t sequence = 0;
  uint32_t rows = 1;
  uint64_t content = 0;        // of q, k and v
  bool bad = false;            // from layer 1 on: its tokens are missing there
  uint32_t position = kAtEnd;  // of the first one: the end of what the sequence has, or a replay
  uint32_t prompt_tokens = 0;
};

struct Outcome {
  std::map<uint64_t, std::vector<std::byte>> o;  // by sequence, all layers; of bad ones layer 0
  uint32_t shared_layers = 0;                    // a bit for each layer in which entries read anything together
  uint64_t kv_bytes = 0;                         // of all layers
};

// A home without links: the R-Part's own pages, plan, workspace and team, with KV that follows from (content, position,
// layer).
class HopRig {
 public:
  HopRig(const RPartShape& shape, int threads, uint64_t pool_bytes, size_t shared_floats = SIZE_MAX)
      : shape_(shape),
        limits_(LimitsOf(shape, threads, shared_floats)),
        memory_(MakeArena(pool_bytes)),
        pool_(shape.attention(), kLayers, {reinterpret_cast<std::byte*>(memory_.data()), memory_.bytes()}),
        account_(&pool_, pool_.total()),
        table_(&account_, kLayers, kMaxContext, 200),
        micro_batch_(0, shape, limits_),
        team_("test", std::vector<int>(static_cast<size_t>(threads), -1), PollMode::kYield),
        workspace_(MakeWorkspace(threads)),
        rows_(kMaxRows * shape.hop_row_bytes()),
        o_(kMaxRows * shape.reply_row_bytes()) {
    served_.team = &team_;
    work_.shape = shape;
    work_.kernels = SelectAttention(DetectIsa(), shape.attention());
    work_.pool = &pool_;
    work_.workspace = &workspace_;
    work_.served = &served_;
    work_.rows = rows_.data();
    work_.o = o_.data();
  }
  ~HopRig() { table_.ReleaseAll(); }

  // In place of those that SelectAttention gives.
  void UseForPrompts(AttendFn attend) { work_.kernels.prompts.attend = attend; }

  // Appends tokens up to `tokens` in all; nothing if there are as many.
  void Fill(uint64_t id, uint32_t tokens, uint64_t content) {
    KvSequence* const sequence = table_.FindOrCreate(id);
    for (uint32_t position = sequence->StoredTokensMin(), count; position < tokens; position += count) {
      count = std::min(kPageTokens - position % kPageTokens, tokens - position);
      ASSERT_EQ(table_.Grow(sequence, position, count), GrowOutcome::kOk);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        for (uint32_t i = 0; i < count; ++i) {
          WriteRow(content, position + i, layer, rows_.data() + i * shape_.hop_row_bytes());
        }
        for (uint32_t head = 0; head < shape_.kv_heads; ++head) Append(*sequence, layer, position, count, head);
      }
      sequence->stored_tokens.assign(kLayers, position + count);
    }
  }
  void Fork(uint64_t id, uint32_t tokens, uint64_t new_id) { ASSERT_TRUE(table_.Fork(id, tokens, new_id).ok()); }

  // A sequence without tokens.
  void Make(uint64_t id) { ASSERT_NE(table_.FindOrCreate(id), nullptr); }
  bool has_open_pages() const { return HasOpenPages(pool_.shape()); }
  SequenceTable& table() { return table_; }
  const PageAccount& account() const { return account_; }

  Outcome Step(const std::vector<Ask>& asked) {
    ReplaceRoster(asked);
    return RunStep(asked);
  }
  // The same rows of one token each, one further, by the same roster.
  Outcome StepOn(const std::vector<Ask>& asked) {
    ++step_;
    for (uint32_t& position : positions_) ++position;
    return RunStep(asked);
  }

 private:
  Outcome RunStep(const std::vector<Ask>& asked) {
    Outcome outcome;
    HopHeader header;
    header.step = step_;
    header.roster_version = micro_batch_.roster().version();
    header.rows = micro_batch_.roster().rows();
    header.payload_bytes = static_cast<uint32_t>(header.rows * shape_.hop_row_bytes());
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      header.layer = static_cast<uint16_t>(layer);
      WriteRows(asked, layer);
      EXPECT_EQ(micro_batch_.Check(header), nullptr);
      EXPECT_EQ(micro_batch_.Prepare(header, &table_), nullptr);
      work_.plan = &micro_batch_.plan(layer);
      work_.attention = shape_.attention(layer);
      work_.entries = micro_batch_.entries();
      work_.layer = static_cast<int>(layer);
      for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(work_.entries[i].bad, layer > 0 && asked[i].bad) << i;
      team_.Run(&HopWork::RunShare, &work_);
      micro_batch_.Finish(layer);
      TakeOutcome(asked, layer, &outcome);
    }
    return outcome;
  }

  static PlanLimits LimitsOf(const RPartShape& shape, int threads, size_t shared_floats) {
    const AttentionShape attention = shape.has_layers(/*with_window=*/false) ? shape.attention() : shape.attention(0);
    PlanLimits limits =
        PlanLimitsFor(attention, kMaxRows, threads, kMaxContext, SelectAttention(DetectIsa(), attention));
    limits.shared_floats = std::min(limits.shared_floats, shared_floats);
    return limits;
  }
  static Arena MakeArena(uint64_t bytes) {
    ArenaOptions options;
    options.bytes = bytes;
    absl::StatusOr<Arena> arena = Arena::Create(options);
    FD_CHECK(arena.ok(), "no memory for the test");
    return *std::move(arena);
  }
  TeamWorkspace MakeWorkspace(int threads) const {
    absl::StatusOr<TeamWorkspace> workspace =
        TeamWorkspace::Create(shape_.attention(), static_cast<size_t>(threads), -1, limits_.workspace_floats());
    FD_CHECK(workspace.ok(), "no memory for the test");
    return *std::move(workspace);
  }

  // q, k and v in [-1, 1), multiples of 1/128.
  void WriteRow(uint64_t content, uint32_t position, uint32_t layer, std::byte* row) const {
    const size_t element_bytes = shape_.element_bytes();
    uint32_t random = static_cast<uint32_t>(content * 1000003 + position * 31 + layer);
    for (size_t i = 0; i < shape_.hop_row_bytes() / element_bytes; ++i) {
      random = random * 747796405u + 2891336453u;
      const float value = static_cast<float>(static_cast<int>(random >> 24) - 128) / 128.0f;
      const Bf16 rounded = ToBf16(value);
      std::memcpy(row + i * element_bytes, element_bytes == 4 ? static_cast<const void*>(&value) : &rounded,
                  element_bytes);
    }
  }

  // Of the rows that were just written.
  void Append(const KvSequence& sequence, uint32_t layer, uint32_t position, uint32_t tokens, uint32_t head) const {
    const size_t head_bytes = shape_.head_dim * shape_.element_bytes();
    AppendArgs args = {};
    const bool closes = position % kPageTokens + tokens == kPageTokens;
    if (!has_open_pages() || closes) {
      args.page = pool_.Address(static_cast<int>(layer), sequence.pages[position / kPageTokens]);
    }
    OpenPage open;
    if (has_open_pages()) {
      open = pool_.OpenPageAt(static_cast<int>(layer), sequence.open_pieces);
      args.open_page = &open;
    }
    args.kv_head = static_cast<int>(head);
    args.first_slot = static_cast<int>(position % kPageTokens);
    args.tokens = static_cast<int>(tokens);
    args.k = rows_.data() + shape_.k_offset_bytes() + head * head_bytes;
    args.v = rows_.data() + shape_.v_offset_bytes() + head * head_bytes;
    args.row_stride_bytes = shape_.hop_row_bytes();
    work_.kernels.append(shape_.attention(), args);
    if (has_open_pages() && closes) ClosePage(shape_.attention(), args.kv_head, open, args.page);
  }

  void ReplaceRoster(const std::vector<Ask>& asked) {
    RosterMessage message;
    ++step_;
    message.version = micro_batch_.roster().version() + 1;
    message.entries = static_cast<uint32_t>(asked.size());
    std::vector<std::byte> bytes(sizeof(message) + asked.size() * sizeof(RosterEntry));
    std::memcpy(bytes.data(), &message, sizeof(message));
    positions_.clear();
    for (size_t i = 0; i < asked.size(); ++i) {
      KvSequence* const sequence = table_.Find(asked[i].sequence);
      positions_.push_back(asked[i].position == kAtEnd ? sequence->StoredTokensMin() : asked[i].position);
      const RosterEntry entry = {sequence->id, step_, positions_.back(), asked[i].rows, asked[i].prompt_tokens};
      std::memcpy(bytes.data() + sizeof(message) + i * sizeof(entry), &entry, sizeof(entry));
      if (asked[i].bad) sequence->stored_tokens[1] = positions_.back() - 1;
    }
    ASSERT_TRUE(micro_batch_.roster().Replace(bytes).ok());
  }

  void WriteRows(const std::vector<Ask>& asked, uint32_t layer) {
    std::byte* row = rows_.data();
    for (size_t i = 0; i < asked.size(); ++i) {
      for (uint32_t r = 0; r < asked[i].rows; ++r, row += shape_.hop_row_bytes()) {
        WriteRow(asked[i].content, positions_[i] + r, layer, row);
      }
    }
    // What a hop leaves unwritten shows.
    std::fill(o_.begin(), o_.end(), kUnwritten);
  }

  void TakeOutcome(const std::vector<Ask>& asked, uint32_t layer, Outcome* outcome) {
    const std::byte* o = o_.data();
    for (const Ask& ask : asked) {
      const size_t bytes = ask.rows * shape_.reply_row_bytes();
      std::vector<std::byte>& to = outcome->o[ask.sequence];
      if (layer == 0 || !ask.bad) {
        to.insert(to.end(), o, o + bytes);
      } else {
        EXPECT_EQ(std::count(o, o + bytes, kUnwritten), static_cast<ptrdiff_t>(bytes));
      }
      o += bytes;
    }
    const std::span<const Chain> chains = work_.plan->chains();
    const bool shares = std::any_of(chains.begin(), chains.end(), [](const Chain& chain) { return chain.sharers > 0; });
    if (shares) outcome->shared_layers |= 1u << layer;
    outcome->kv_bytes += work_.plan->kv_bytes();
  }

  const RPartShape shape_;
  const PlanLimits limits_;
  Arena memory_;
  KvPool pool_;
  PageAccount account_;
  SequenceTable table_;
  MicroBatch micro_batch_;
  TicketTeam team_;
  TeamWorkspace workspace_;
  std::vector<std::byte> rows_, o_;
  ServedPeers served_;
  HopWork work_;
  uint64_t step_ = 0;
  std::vector<uint32_t> positions_;  // of the step's entries
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_RPART_HOP_RIG_H_
