// Attention over shared prefixes: bit for bit what it is over private copies of the same KV.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "engine/rpart/hop_work.h"
#include "engine/rpart/micro_batch.h"
#include "kernels/isa.h"
#include "numa/arena.h"
#include "numa/ticket_team.h"

namespace fastdecode {
namespace {

constexpr uint32_t kLayers = 3;
constexpr uint32_t kMaxRows = 128;
constexpr uint32_t kMaxContext = 4096;
constexpr std::byte kUnwritten{0x55};

RPartShape ShapeOf(ElementType type, KvType kv_type, uint32_t group, uint32_t sliding_window = 0) {
  RPartShape shape;
  shape.layers = kLayers;
  shape.kv_heads = 3;
  shape.group = group;
  shape.head_dim = 32;
  shape.element_type = static_cast<uint32_t>(type);
  shape.kv_type = static_cast<uint32_t>(kv_type);
  shape.scale = 0.3f;
  shape.sliding_window = sliding_window;
  shape.micro_batches = 1;
  shape.max_rows = kMaxRows;
  shape.max_context = kMaxContext;
  return shape;
}

// A row of the next step: `rows` from the end of what a sequence has on.
struct Ask {
  uint64_t sequence = 0;
  uint32_t rows = 1;
  uint64_t content = 0;  // of q, k and v
  bool bad = false;      // from layer 1 on: its tokens are missing there
};

struct Outcome {
  std::map<uint64_t, std::vector<std::byte>> o;  // by sequence, all layers; of bad ones layer 0
  uint32_t shared_chains = 0;
  uint64_t kv_bytes = 0;
};

// A home without links: the R-Part's own pages, plan, workspace and team, with KV that follows from (content, position,
// layer).
class Rig {
 public:
  Rig(const RPartShape& shape, int threads, uint64_t pool_bytes, size_t shared_floats = SIZE_MAX)
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
    work_.attention = shape.attention();
    work_.kernels = SelectAttention(DetectIsa(), work_.attention);
    work_.pool = &pool_;
    work_.workspace = &workspace_;
    work_.served = &served_;
    work_.rows = rows_.data();
    work_.o = o_.data();
  }
  ~Rig() { table_.ReleaseAll(); }

  // Appends tokens up to `tokens` in all.
  void Fill(uint64_t id, uint32_t tokens, uint64_t content) {
    KvSequence* const sequence = table_.FindOrCreate(id);
    const uint32_t first = sequence->StoredTokensMin();
    ASSERT_EQ(table_.Grow(sequence, first, tokens - first), GrowOutcome::kOk);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t position = first, count; position < tokens; position += count) {
        count = std::min(kPageTokens - position % kPageTokens, tokens - position);
        for (uint32_t i = 0; i < count; ++i) {
          WriteRow(content, position + i, layer, rows_.data() + i * shape_.hop_row_bytes());
        }
        for (uint32_t head = 0; head < shape_.kv_heads; ++head) Append(*sequence, layer, position, count, head);
      }
    }
    sequence->stored_tokens.assign(kLayers, tokens);
  }
  void Fork(uint64_t id, uint32_t tokens, uint64_t new_id) { ASSERT_TRUE(table_.Fork(id, tokens, new_id).ok()); }

  Outcome Step(const std::vector<Ask>& asked) {
    Outcome outcome;
    ReplaceRoster(asked);
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
      work_.plan = &micro_batch_.plan();
      work_.entries = micro_batch_.entries();
      work_.layer = static_cast<int>(layer);
      for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(work_.entries[i].bad, layer > 0 && asked[i].bad) << i;
      team_.Run(&HopWork::RunShare, &work_);
      micro_batch_.Finish(layer);
      TakeOutcome(asked, layer, &outcome);
    }
    return outcome;
  }

 private:
  static PlanLimits LimitsOf(const RPartShape& shape, int threads, size_t shared_floats) {
    PlanLimits limits = PlanLimitsFor(shape.attention(), kMaxRows, threads, kMaxContext);
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
    args.page = pool_.Address(static_cast<int>(layer), sequence.pages[position / kPageTokens]);
    args.kv_head = static_cast<int>(head);
    args.first_slot = static_cast<int>(position % kPageTokens);
    args.tokens = static_cast<int>(tokens);
    args.k = rows_.data() + shape_.k_offset_bytes() + head * head_bytes;
    args.v = rows_.data() + shape_.v_offset_bytes() + head * head_bytes;
    args.row_stride_bytes = shape_.hop_row_bytes();
    work_.kernels.append(work_.attention, args);
  }

  void ReplaceRoster(const std::vector<Ask>& asked) {
    RosterMessage message;
    message.version = static_cast<uint32_t>(++step_);
    message.entries = static_cast<uint32_t>(asked.size());
    std::vector<std::byte> bytes(sizeof(message) + asked.size() * sizeof(RosterEntry));
    std::memcpy(bytes.data(), &message, sizeof(message));
    positions_.clear();
    for (size_t i = 0; i < asked.size(); ++i) {
      KvSequence* const sequence = table_.Find(asked[i].sequence);
      positions_.push_back(sequence->StoredTokensMin());
      const RosterEntry entry = {sequence->id, step_, positions_.back(), asked[i].rows};
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
    for (const Chain& chain : micro_batch_.plan().chains()) outcome->shared_chains += chain.sharers > 0 ? 1 : 0;
    outcome->kv_bytes = micro_batch_.plan().kv_bytes();
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

// Sequences as trees of forks: each begins with `shared` tokens of `parent` and goes on to `tokens` by itself. 0 is no
// sequence: such a one shares nothing.
struct Member {
  uint64_t id = 0;
  uint64_t parent = 0;
  uint32_t shared = 0;
  uint32_t tokens = 0;
};

void MakeForked(Rig* rig, const std::vector<Member>& members) {
  for (const Member& member : members) {
    if (member.parent > 0) rig->Fork(member.parent, member.shared, member.id);
    if (member.tokens > member.shared) rig->Fill(member.id, member.tokens, member.id);
  }
}

// The same tokens, with a copy of each for itself.
void MakePrivate(Rig* rig, const std::vector<Member>& members) {
  std::map<uint64_t, std::vector<std::pair<uint32_t, uint64_t>>> contents;  // [id]: up to which position whose
  for (const Member& member : members) {
    std::vector<std::pair<uint32_t, uint64_t>>& own = contents[member.id];
    for (const auto& [end, content] : contents[member.parent]) {
      if (own.empty() || own.back().first < member.shared) own.emplace_back(std::min(end, member.shared), content);
    }
    if (member.tokens > member.shared) own.emplace_back(member.tokens, member.id);
    for (const auto& [end, content] : own) rig->Fill(member.id, end, content);
  }
}

constexpr uint64_t kForkedBytes = uint64_t{24} << 20;
constexpr uint64_t kPrivateBytes = uint64_t{80} << 20;

// Two steps (with a bad entry one) over forked sequences with any number of threads, and over private copies by one.
void ExpectTheSame(const RPartShape& shape, const std::vector<Member>& members, const std::vector<Ask>& asked,
                   bool shares = true) {
  const bool has_bad = std::any_of(asked.begin(), asked.end(), [](const Ask& ask) { return ask.bad; });
  std::vector<Outcome> expected;
  {
    Rig rig(shape, 1, kPrivateBytes);
    MakePrivate(&rig, members);
    for (int i = 0; i < (has_bad ? 1 : 2); ++i) expected.push_back(rig.Step(asked));
    EXPECT_EQ(expected[0].shared_chains, 0u);
  }
  // 3000 floats are room for some of the entries.
  for (const size_t shared_floats : {SIZE_MAX, size_t{3000}}) {
    for (const int threads : {1, 2, 3}) {
      if (shared_floats != SIZE_MAX && threads != 2) continue;
      Rig rig(shape, threads, kForkedBytes, shared_floats);
      MakeForked(&rig, members);
      for (const Outcome& wanted : expected) {
        const Outcome outcome = rig.Step(asked);
        ASSERT_TRUE(outcome.o == wanted.o) << threads << " threads, " << shared_floats << " floats";
        if (shared_floats == SIZE_MAX) {
          EXPECT_EQ(outcome.shared_chains > 0, shares);
        }
        EXPECT_EQ(outcome.kv_bytes < wanted.kv_bytes, shares);
      }
    }
  }
}

struct Variant {
  ElementType type;
  KvType kv_type;
  uint32_t group;
};

class SharedAttentionTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  }
  RPartShape shape() const { return ShapeOf(GetParam().type, GetParam().kv_type, GetParam().group); }
};

TEST_P(SharedAttentionTest, AFamilyWithTailsOfAnyLength) {
  const std::vector<Member> members = {{1, 0, 0, 1100},    {2, 1, 1024, 1024}, {3, 1, 1100, 1100},
                                       {4, 1, 1030, 1535}, {5, 1, 1024, 2300}, {6, 0, 0, 700}};
  ExpectTheSame(shape(), members, {{1, 1, 11}, {6, 1, 16}, {2, 1, 12}, {3, 1, 13}, {4, 1, 14}, {5, 1, 15}});
}

TEST_P(SharedAttentionTest, SeveralRowsAndChunksBeside) {
  const std::vector<Member> members = {{1, 0, 0, 1024},    {2, 1, 1024, 1050}, {3, 1, 1024, 1532}, {4, 1, 1024, 1100},
                                       {5, 1, 1024, 1024}, {6, 0, 0, 40},      {7, 1, 1000, 1000}};
  // Of 5 and 7 chunks: they read for themselves.
  ExpectTheSame(shape(), members,
                {{5, 20, 15}, {1, 2, 11}, {2, 8, 12}, {6, 9, 16}, {3, 7, 13}, {4, 1, 14}, {7, 40, 17}});
}

TEST_P(SharedAttentionTest, PrefixesWithinPrefixes) {
  const std::vector<Member> members = {{1, 0, 0, 1600},    {2, 1, 1536, 1600}, {3, 1, 1536, 2100}, {4, 1, 512, 1400},
                                       {5, 4, 1400, 1400}, {6, 4, 1024, 1500}, {7, 1, 700, 701},   {8, 1, 500, 600}};
  ExpectTheSame(shape(), members,
                {{8, 1, 18}, {7, 1, 17}, {6, 1, 16}, {5, 2, 15}, {4, 1, 14}, {3, 3, 13}, {2, 1, 12}, {1, 1, 11}});
}

TEST_P(SharedAttentionTest, MoreThanAChainTakes) {
  std::vector<Member> members = {{1, 0, 0, 600}};
  std::vector<Ask> asked = {{1, 1, 101}};
  for (uint64_t id = 2; id <= 45; ++id) {
    members.push_back({id, 1, 512 + static_cast<uint32_t>(id), 520 + static_cast<uint32_t>(id) * 2});
    asked.push_back({id, 1 + static_cast<uint32_t>(id % 3), 100 + id});
  }
  ExpectTheSame(shape(), members, asked);
}

TEST_P(SharedAttentionTest, ABadEntrySpoilsNoOther) {
  const std::vector<Member> members = {{1, 0, 0, 1100}, {2, 1, 1024, 1030}, {3, 1, 1024, 1600}, {4, 1, 1024, 1024}};
  for (uint64_t bad = 1; bad <= 4; ++bad) {
    std::vector<Ask> asked = {{1, 1, 11}, {2, 2, 12}, {3, 1, 13}, {4, 1, 14}};
    asked[bad - 1].bad = true;
    ExpectTheSame(shape(), members, asked);
  }
}

TEST_P(SharedAttentionTest, NothingIsSharedOfLessThanABlockOrWithAWindow) {
  const std::vector<Member> members = {{1, 0, 0, 800}, {2, 1, 511, 900}, {3, 1, 500, 500}};
  ExpectTheSame(shape(), members, {{1, 1, 11}, {2, 1, 12}, {3, 1, 13}}, /*shares=*/false);
  const std::vector<Member> longer = {{1, 0, 0, 1100}, {2, 1, 1024, 1030}};
  ExpectTheSame(ShapeOf(GetParam().type, GetParam().kv_type, GetParam().group, 600), longer, {{1, 1, 11}, {2, 1, 12}},
                /*shares=*/false);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SharedAttentionTest,
                         testing::Values(Variant{ElementType::kF32, KvType::kF32, 1},
                                         Variant{ElementType::kBf16, KvType::kBf16, 4},
                                         Variant{ElementType::kBf16, KvType::kInt8, 4}));

}  // namespace
}  // namespace fastdecode
