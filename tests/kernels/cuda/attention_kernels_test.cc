// Attention over pages in a GPU's memory, on emulated threads: against its definition in double, and bit for bit
// against itself in other company.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_items.cuh"
#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/cuda/kv_expectation.h"
#include "tests/kernels/cuda/kv_rig.h"
#include "tests/kernels/cuda/step_fixture.h"

namespace fastdecode {
namespace {

struct How {
  KvType kv;
  bool tensor_cores = false;
  bool of_chunks = false;
};
constexpr How kHows[] = {{KvType::kF32},        {KvType::kBf16},
                         {KvType::kFp16},       {KvType::kInt8},
                         {KvType::kBf16, true}, {KvType::kBf16, true, true},
                         {KvType::kFp16, true}, {KvType::kFp16, true, true},
                         {KvType::kInt8, true}, {KvType::kInt8, true, true}};
// Of random numbers.
unsigned SeedOf(const How& how) {
  return static_cast<unsigned>(how.kv) + (how.of_chunks ? 20 : how.tensor_cores ? 10 : 0);
}
KvCase CaseOf(const How& how) {
  KvCase c;
  c.kv = how.kv;
  c.tensor_cores = how.tensor_cores;
  c.of_chunks = how.of_chunks;
  return c;
}

int PagesOf(int context) { return (context + kPageTokens - 1) / kPageTokens; }

KvCase RandomCase(std::mt19937* random, const How& how) {
  static constexpr struct {
    int head_dim, padded;
  } kHeads[] = {{16, 16}, {20, 32}, {48, 48}, {64, 64}, {80, 80}, {90, 96}, {128, 128}, {192, 192}, {256, 256}};
  KvCase c = CaseOf(how);
  c.wire = Pick(random, 0, 1) == 0 ? ElementType::kF32 : ElementType::kBf16;
  c.out = static_cast<ElementType>(Pick(random, 0, 2));
  const auto [head_dim, padded] = kHeads[Pick(random, 0, std::size(kHeads) - (how.of_chunks ? 3 : 1))];
  c.head_dim = head_dim;
  c.padded_head_dim = padded;
  c.kv_heads = Pick(random, 1, 3);
  c.group = Pick(random, 1, 16);
  static constexpr int kWindows[] = {0, 0, 1, 40, 600};
  c.window = kWindows[Pick(random, 0, 4)];
  static constexpr float kCaps[] = {0, 0, 3, 50};
  c.soft_cap = kCaps[Pick(random, 0, 3)];
  c.max_context = Pick(random, 0, 3) == 0 ? 16384 : 2048;
  c.uneven_v = Pick(random, 0, 2) == 0;
  return c;
}

int RandomContext(std::mt19937* random) {
  static constexpr int kContexts[] = {1, 2, 31, 32, 33, 63, 65, 511, 512, 513, 1024, 1025, 1500, 2000};
  return Pick(random, 0, 2) == 0 ? Pick(random, 1, 2000) : kContexts[Pick(random, 0, std::size(kContexts) - 1)];
}

class AttentionKernelsTest : public testing::TestWithParam<How> {};

// Sequences of all lengths in one step, in chunks and one by one, step after step.
TEST_P(AttentionKernelsTest, StepsAreNearTheReference) {
  std::mt19937 random(SeedOf(GetParam()) + 1);
  for (uint64_t trial = 0; trial < 9; ++trial) {
    const KvCase c = RandomCase(&random, GetParam());
    SCOPED_TRACE(Describe(c) + " trial " + std::to_string(trial));
    const int sequences = Pick(&random, 1, 4);
    std::vector<int> contexts(static_cast<size_t>(sequences)), left, done;
    std::vector<KvExpectation> expectations;
    int pages = 2;
    for (int& context : contexts) pages += PagesOf(context = RandomContext(&random));
    KvRig rig(c, sequences, pages, trial);
    for (int s = 0; s < sequences; ++s) {
      const int queries =
          std::min(contexts[static_cast<size_t>(s)], Pick(&random, 0, 1) == 0 ? 1 : Pick(&random, 1, 37));
      rig.Add(contexts[static_cast<size_t>(s)], queries, 100 * trial + static_cast<uint64_t>(s));
      expectations.emplace_back(rig, s);
      left.push_back(queries);
      done.push_back(0);
    }
    while (std::any_of(left.begin(), left.end(), [](int rows) { return rows > 0; })) {
      std::vector<KvRig::Part> parts;
      for (int s = 0; s < sequences; ++s) {
        const int rows_left = left[static_cast<size_t>(s)];
        if (rows_left == 0 || Pick(&random, 0, 3) == 0) continue;  // some sit out
        parts.push_back({s, Pick(&random, 0, 1) == 0 ? 1 : Pick(&random, 1, rows_left)});
      }
      const KvRig::How how = {
          .tile_queries = Pick(&random, 1, 32), .blocks = static_cast<unsigned>(Pick(&random, 1, 40)), .seed = trial};
      const std::vector<std::vector<float>> outputs = rig.Step(parts, how);
      for (size_t p = 0; p < parts.size(); ++p) {
        const auto s = static_cast<size_t>(parts[p].sequence);
        ASSERT_NO_FATAL_FAILURE(expectations[s].ExpectNear(done[s], outputs[p]));
        done[s] += parts[p].rows;
        left[s] -= parts[p].rows;
      }
    }
  }
}

// Over 8192 tokens, from where on cuts become longer: by one query alone, by a tile of which some see no more than the
// cuts before, and through windows that begin in cuts of 512, 1024 and 2048 tokens.
TEST_P(AttentionKernelsTest, LongContextsAreNearTheReference) {
  KvCase c = CaseOf(GetParam());
  c.head_dim = c.padded_head_dim = 16;
  c.kv_heads = 1;
  c.group = 2;
  c.max_context = 20000;
  struct Context {
    int tokens, queries;
  };
  for (const auto& [window, contexts] :
       {std::pair(0, std::vector<Context>{{8197, 9}, {9500, 1}}),
        std::pair(1500, std::vector<Context>{{8197, 9}, {9500, 2}, {11000, 2}, {18500, 1}})}) {
    SCOPED_TRACE(window);
    c.window = window;
    KvRig rig(c, 4, 4 * PagesOf(c.max_context), 3);
    std::vector<KvRig::Part> parts;
    for (const auto& [tokens, queries] : contexts) {
      parts.push_back({rig.Add(tokens, queries, static_cast<uint64_t>(tokens)), queries});
    }
    const std::vector<std::vector<float>> outputs = rig.Step(parts, {.blocks = 7});
    for (size_t p = 0; p < parts.size(); ++p) {
      ASSERT_NO_FATAL_FAILURE(KvExpectation(rig, parts[p].sequence).ExpectNear(0, outputs[p]));
    }
  }
}

// Pages hold what the types' definition says, bit for bit, and nothing in slots that nobody has appended to.
TEST_P(AttentionKernelsTest, PagesHoldWhatWasAppended) {
  std::mt19937 random(7);
  for (uint64_t trial = 0; trial < 6; ++trial) {
    const KvCase c = RandomCase(&random, GetParam());
    SCOPED_TRACE(Describe(c));
    const int context = Pick(&random, 1, 200);
    KvRig rig(c, 1, PagesOf(context) + 1, trial);
    const int index = rig.Add(context, 1, trial);
    rig.Step({{index, 1}}, {});
    const ReferenceAttentionInput& held = rig.sequence(index).held;
    for (int t = 0; t < context; ++t) {
      for (int h = 0; h < c.kv_heads; ++h) {
        for (int d = 0; d < c.padded_head_dim; ++d) {
          const auto at = static_cast<size_t>((t * c.kv_heads + h) * c.padded_head_dim + d);
          ASSERT_EQ(rig.Held(index, false, t, h, d), held.k[at]) << "k " << t << " head " << h << " dim " << d;
          ASSERT_EQ(rig.Held(index, true, t, h, d), held.v[at]) << "v " << t << " head " << h << " dim " << d;
        }
      }
    }
  }
}

// What a fork writes to a page that it shared finds what was there before it, bit for bit, and nothing that came later.
TEST_P(AttentionKernelsTest, AForkCopiesWhatIsBeforeIt) {
  std::mt19937 random(SeedOf(GetParam()) + 90);
  for (uint64_t trial = 0; trial < 8; ++trial) {
    const KvCase c = RandomCase(&random, GetParam());
    SCOPED_TRACE(Describe(c));
    const int queries = Pick(&random, 2, 40), stored = Pick(&random, 1, 150);
    KvRig rig(c, 2, 2 * PagesOf(stored + queries), trial);
    const int parent = rig.Add(stored + queries, queries, trial), fork = rig.Fork(parent);
    const std::vector<float> of_parent = rig.Step({{parent, queries}}, {.seed = trial})[0];
    std::vector<float> of_fork = rig.Step({{fork, 1}}, {.seed = trial + 7})[0];
    const auto expect_held = [&](int position, bool is_held) {
      for (int h = 0; h < c.kv_heads; ++h) {
        for (int d = 0; d < c.padded_head_dim; ++d) {
          for (const bool of_v : {false, true}) {
            const float held = rig.Held(fork, of_v, position, h, d);
            ASSERT_EQ(std::bit_cast<uint32_t>(held) == std::bit_cast<uint32_t>(rig.Held(parent, of_v, position, h, d)),
                      is_held)
                << (of_v ? "v " : "k ") << position << " head " << h << " dim " << d;
            ASSERT_EQ(std::isnan(held), !is_held) << (of_v ? "v " : "k ") << position << " head " << h << " dim " << d;
          }
        }
      }
    };
    for (int t = 0; t <= stored; ++t) ASSERT_NO_FATAL_FAILURE(expect_held(t, true));
    for (int t = stored + 1; t < stored + queries && t % kPageTokens != 0; ++t) {
      ASSERT_NO_FATAL_FAILURE(expect_held(t, false));
    }
    const std::vector<float> rest = rig.Step({{fork, queries - 1}}, {.seed = trial + 8})[0];
    of_fork.insert(of_fork.end(), rest.begin(), rest.end());
    EXPECT_EQ(of_fork, of_parent);
  }
}

// A query's bits are the same alone and in company, in a chunk and one by one, in tiles of any size, by any number of
// blocks, at other pages.
TEST_P(AttentionKernelsTest, CompanyChangesNoBit) {
  std::mt19937 random(SeedOf(GetParam()) + 50);
  for (uint64_t trial = 0; trial < 4; ++trial) {
    KvCase c = RandomCase(&random, GetParam());
    c.out = ElementType::kF32;  // rounds nothing away
    SCOPED_TRACE(Describe(c) + " trial " + std::to_string(trial));
    constexpr int kQueries = 11;
    const int context = Pick(&random, kQueries, 1200), other = RandomContext(&random);
    KvRig rig(c, 3, 2 * PagesOf(context) + PagesOf(other), trial);
    const int subject = rig.Add(context, kQueries, 1000 + trial), twin = rig.Add(context, kQueries, 1000 + trial);
    const int company = rig.Add(other, 1, trial);
    const auto one_by_one = [&](int sequence) {
      std::vector<float> all;
      for (int r = 0; r < kQueries; ++r) {
        const KvRig::How how = {.tile_queries = Pick(&random, 1, 16), .blocks = 7, .seed = trial};
        const auto outputs = rig.Step({{sequence, 1}}, how);
        all.insert(all.end(), outputs[0].begin(), outputs[0].end());
      }
      return all;
    };
    const std::vector<float> expected = one_by_one(subject);
    for (const int tile : {1, 6, 200}) {
      KvRig::How how = {.tile_queries = tile, .blocks = static_cast<unsigned>(Pick(&random, 1, 30)), .seed = 9 + trial};
      how.takes_back = true;
      EXPECT_EQ(rig.Step({{twin, kQueries}}, how)[0], expected) << "tiles of " << tile;
      EXPECT_EQ(rig.Step({{company, 1}, {twin, kQueries}}, how)[1], expected) << "in company, tiles of " << tile;
    }
  }
}

// A window that begins in another cut for the row before: its nine cuts and this row's eight are merged alike.
TEST_P(AttentionKernelsTest, CutsOfANeighbourChangeNoBit) {
  KvCase c = CaseOf(GetParam());
  c.out = ElementType::kF32;
  c.head_dim = c.padded_head_dim = 16;
  c.kv_heads = 1;
  c.group = 4;
  c.max_context = 6000;
  c.window = 4096;
  constexpr int kQueries = 2, kContext = 5120;  // positions 5118 and 5119, which see from 1023 and from 1024 on
  constexpr uint64_t kSeed = 3;                 // of scores that are largest in the last cut
  KvRig rig(c, 2, 2 * PagesOf(kContext), 3);
  const int alone = rig.Add(kContext, kQueries, kSeed), together = rig.Add(kContext, kQueries, kSeed);
  std::vector<float> expected = rig.Step({{alone, 1}}, {})[0];
  const std::vector<float> second = rig.Step({{alone, 1}}, {})[0];
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(rig.Step({{together, kQueries}}, {.tile_queries = 16})[0], expected);
}

// Nor does how long the longest context may become.
TEST_P(AttentionKernelsTest, MaxContextChangesNoBit) {
  for (const int context : {1500, 9000}) {
    const auto outputs = [&](int max_context) {
      KvCase c = CaseOf(GetParam());
      c.head_dim = c.padded_head_dim = 16;
      c.kv_heads = 1;
      c.group = 3;
      c.max_context = max_context;
      KvRig rig(c, 1, PagesOf(context), 3);
      rig.Add(context, 2, 5);
      return rig.Step({{0, 2}}, {});
    };
    EXPECT_EQ(outputs(context), outputs(131072)) << context;
  }
}

// What one query has of NaN is its own.
TEST_P(AttentionKernelsTest, NaNStaysInItsRow) {
  KvCase c = CaseOf(GetParam());
  c.group = 4;
  c.kv_heads = 2;
  KvRig clean(c, 1, 40, 3), dirty(c, 1, 40, 3);
  clean.Add(1100, 6, 5);
  dirty.Add(1100, 6, 5);
  const std::vector<float> expected = clean.Step({{0, 6}}, {})[0];
  constexpr size_t kRow = 2, kHead = 5, kHeads = 8, kDims = 64;
  dirty.SpoilQuery(0, kRow, kHead);
  const std::vector<float> outputs = dirty.Step({{0, 6}}, {})[0];
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool spoilt = i / kDims == kRow * kHeads + kHead;
    ASSERT_TRUE(spoilt ? std::isnan(outputs[i]) : outputs[i] == expected[i]) << i;
  }
}

TEST_P(AttentionKernelsTest, NothingIsDoneAfterAWaitInVain) {
  const KvCase c = CaseOf(GetParam());
  KvRig rig(c, 1, 40, 3);
  rig.Add(64, 1, 5);
  KvRig::How how;
  how.gave_up = true;
  rig.Step({{0, 1}}, how);  // expects that no row of o was touched
  EXPECT_TRUE(std::isnan(rig.Held(0, false, 63, 0, 0)));
  EXPECT_TRUE(std::isnan(rig.Held(0, true, 63, 0, 0)));
  EXPECT_FALSE(std::isnan(rig.Held(0, true, 62, 0, 0)));
}

INSTANTIATE_TEST_SUITE_P(All, AttentionKernelsTest, testing::ValuesIn(kHows), [](const auto& info) {
  return std::string(KvTypeName(info.param.kv)) + (info.param.of_chunks      ? "_tensor_cores_chunks"
                                                   : info.param.tensor_cores ? "_tensor_cores"
                                                                             : "");
});

TEST(KvPagesTest, AreAsLargeAsTheCpuHomes) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kFp16, KvType::kInt8}) {
    for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
      AttentionShape shape;
      shape.kv_type = type;
      shape.kv_heads = 3;
      shape.group = 2;
      shape.head_dim = head_dim;
      EXPECT_EQ(3 * GpuHeadBytes(type, head_dim), PageBytes(shape)) << KvTypeName(type) << " " << head_dim;
      EXPECT_EQ(GpuHeadBytes(type, head_dim) % 16, 0u);
    }
  }
}

// The first position of each cut up to that of `position`, one after another as their definition says.
std::vector<unsigned> CutsUpTo(unsigned position) {
  std::vector<unsigned> begins;
  for (unsigned begin = 0; begin <= position; begin += begin < 8192 ? 512 : std::bit_floor(begin) / 8) {
    begins.push_back(begin);
  }
  return begins;
}

TEST(CutsTest, FollowFromThePosition) {
  static_assert(CutOf(511) == 0 && CutOf(8191) == 15 && CutOf(16383) == 23 && CutOf(131071) == 47);
  constexpr unsigned kEnd = 1 << 21;  // twice what --max-context may be
  const std::vector<unsigned> begins = CutsUpTo(kEnd);
  ASSERT_EQ(begins.back(), kEnd);
  for (unsigned cut = 0; cut + 1 < begins.size(); ++cut) {
    ASSERT_EQ(begins[cut] % kBlockTokens, 0u);
    ASSERT_EQ(CutBegin(cut), begins[cut]);
    for (unsigned position = begins[cut]; position < begins[cut + 1]; ++position) ASSERT_EQ(CutOf(position), cut);
  }
}

KvEntry RandomEntry(std::mt19937* random) {
  KvEntry entry;
  entry.slot = static_cast<uint32_t>(Pick(random, 0, 9));
  entry.rows = static_cast<uint32_t>(Pick(random, 1, 20));
  entry.position = static_cast<uint32_t>(Pick(random, 0, Pick(random, 0, 1) == 0 ? 4000 : 70000));
  return entry;
}

// The cuts that a tile sees are handed out from the last to the first, and leave nothing between them.
TEST(FindItemTest, GoesFromWhatTheTileSeesLastToWhatItSeesFirst) {
  std::mt19937 random(5);
  for (const unsigned window : {0u, 1u, 700u, 20000u}) {
    const KvSplit split = {.kv_heads = 3, .group = 5, .tile_queries = 8, .cuts_max = 48, .window = window};
    uint32_t count = 40;
    std::vector<KvEntry> entries(count);
    std::vector<uint32_t> first_items = {0};
    for (KvEntry& entry : entries) {
      entry = RandomEntry(&random);
      first_items.push_back(first_items.back() + simt::ItemsOf(split, entry));
    }
    KvCounts counts = {count, first_items.back()};
    const KvRoster roster = {&counts, entries.data(), first_items.data()};
    for (size_t e = 0; e < count; ++e) {
      const auto position_of = [&](unsigned query) { return entries[e].position + query / 5; };
      std::map<std::pair<unsigned, unsigned>, unsigned> begins;  // by KV head and first query
      for (uint32_t number = first_items[e]; number < first_items[e + 1]; ++number) {
        simt::AttendItem item;
        if (!simt::FindItem(roster, counts, split, number, &item)) continue;
        const unsigned end = position_of(item.first_query + item.queries - 1) + 1;
        unsigned& begin = begins.try_emplace({item.kv.kv_head, item.first_query}, end).first->second;
        ASSERT_EQ(item.kv.end, begin);
        ASSERT_LT(item.kv.begin, item.kv.end);
        begin = item.kv.begin;
      }
      ASSERT_EQ(begins.size(), 3 * simt::TilesOf(split, entries[e]));
      for (const auto& [tile, begin] : begins) EXPECT_EQ(begin, simt::FirstSeen(split, position_of(tile.second)));
    }
  }
}

// More entries than threads: each has as many items as it has tiles and cuts, for each KV head.
TEST(TakeKvStepTest, CountsItemsAndChangesTables) {
  std::mt19937 random(3);
  for (const uint32_t count : {0u, 1u, 255u, 256u, 257u, 700u}) {
    const KvSplit split = {.kv_heads = 3, .group = 5, .tile_queries = 8, .cuts_max = 48, .window = 700};
    std::vector<KvEntry> entries(count), taken(count);
    std::vector<uint32_t> expected = {0}, first_items(count + 1, ~0u), tables(10 * 4, ~0u);
    for (KvEntry& entry : entries) {
      entry = RandomEntry(&random);
      const size_t tiles = (entry.rows * 5 + 7) / 8;
      const size_t not_seen = CutsUpTo(entry.position < 699 ? 0 : entry.position - 699).size() - 1;
      const size_t cuts = CutsUpTo(entry.position + entry.rows - 1).size() - not_seen;
      expected.push_back(expected.back() + static_cast<uint32_t>(3 * tiles * cuts));
    }
    std::vector<KvTableChange> changes;
    std::vector<uint32_t> expected_tables = tables;
    for (uint32_t i = 0; i < 40; i += 1 + random() % 3) {
      changes.push_back({i / 4, i % 4, static_cast<uint32_t>(random())});
      expected_tables[i] = changes.back().page;
    }
    KvCounts counts;
    const KvBoard board = {count, static_cast<uint32_t>(changes.size())};
    TakeKvStepArgs args;
    args.board = &board;
    args.board_entries = entries.data();
    args.changes = changes.data();
    args.tables = tables.data();
    args.table_pages = 4;
    args.roster = {&counts, taken.data(), first_items.data()};
    args.split = split;
    EmulateKernel(args, {.seed = count});
    EXPECT_EQ(counts.entries, count);
    EXPECT_EQ(counts.items, expected.back());
    EXPECT_EQ(first_items, expected);
    EXPECT_EQ(tables, expected_tables);
    for (uint32_t i = 0; i < count; ++i) EXPECT_EQ(taken[i].position, entries[i].position);
  }
}

}  // namespace
}  // namespace fastdecode
