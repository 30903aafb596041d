#include "engine/rpart/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace fastdecode {
namespace {

constexpr int kKvHeads = 3;
constexpr uint32_t kMaxRows = 200;
constexpr uint32_t kMaxContext = 20000;

AttentionShape Shape(int window = 0) { return {ElementType::kBf16, KvType::kBf16, kKvHeads, 4, 64, 0.125f, 0, window}; }

constexpr uint32_t kPromptRows = 128;

HopPlan MakePlan(int threads, int window = 0, size_t cut_floats = SIZE_MAX, size_t shared_floats = SIZE_MAX) {
  AttentionKernels kernels;
  kernels.many_prompt_rows = true;
  PlanLimits limits = PlanLimitsFor(Shape(window), kMaxRows, threads, kMaxContext, kernels);
  limits.cut_floats = std::min(limits.cut_floats, cut_floats);
  limits.shared_floats = std::min(limits.shared_floats, shared_floats);
  return HopPlan(Shape(window), limits);
}

// Of a sequence that begins with `shared_blocks` of another one's blocks, and has the other pages for itself.
StepEntry Fork(const StepEntry& of, uint32_t shared_blocks, uint32_t first_row, uint32_t position, uint32_t rows) {
  static std::deque<KvSequence> sequences;
  static PageId next_page = 0;
  KvSequence& sequence = sequences.emplace_back();
  for (uint32_t page = 0; page * kPageTokens < position + rows; ++page) {
    sequence.pages.push_back(page < shared_blocks * kBlockPages ? of.sequence->pages[page] : next_page++);
  }
  StepEntry entry;
  entry.sequence = &sequence;
  entry.first_row = first_row;
  entry.rows = rows;
  entry.first_position = position;
  return entry;
}

StepEntry Entry(uint32_t first_row, uint32_t position, uint32_t rows) { return Fork({}, 0, first_row, position, rows); }

// Every second entry a fork of another one, if `forks`.
std::vector<StepEntry> RandomEntries(std::mt19937* random, bool forks = false) {
  std::vector<StepEntry> entries;
  uint32_t row = 0;
  const uint32_t count = 1 + (*random)() % (forks ? 50 : 20);
  for (uint32_t i = 0; i < count && row < kMaxRows; ++i) {
    const uint32_t most = (*random)() % 4 == 0 ? 60 : (*random)() % 3 == 0 ? 8 : 1;
    const uint32_t rows = std::min(kMaxRows - row, 1 + static_cast<uint32_t>((*random)()) % most);
    uint32_t position = (*random)() % ((*random)() % 2 == 0 ? 300 : kMaxContext - 100);
    if (forks && i > 0 && (*random)() % 2 == 0) {
      const StepEntry& of = entries[(*random)() % std::min<size_t>(i, 3)];
      const uint32_t shared_blocks = of.first_position / kBlockTokens;
      position = shared_blocks * kBlockTokens + (*random)() % 1500;
      entries.push_back(Fork(of, shared_blocks, row, position, rows));
    } else {
      entries.push_back(Entry(row, position, rows));
    }
    entries.back().bad = (*random)() % 10 == 0;
    entries.back().of_prompt = !forks && (*random)() % 2 == 0;
    row += rows;
  }
  return entries;
}

// Calls visit(thread, chain, block of the chain) for every block as the threads would come to it.
template <class Visit>
void ForEachBlock(const HopPlan& plan, int threads, Visit visit) {
  for (int thread = 0; thread < threads; ++thread) {
    const PlanCut begin = plan.cut(thread), end = plan.cut(thread + 1);
    ASSERT_LE(begin, end);
    for (uint32_t i = begin.chain; i <= end.chain && i < plan.chains().size(); ++i) {
      const uint32_t last = i == end.chain ? end.block : plan.chains()[i].blocks;
      for (uint32_t b = i == begin.chain ? begin.block : 0; b < last; ++b) visit(thread, i, b);
    }
  }
}

// Each thread's blocks cost as much as the others', within a share; cost(chain): of a block of one of its heads.
template <class Cost>
void ExpectEvenCosts(const HopPlan& plan, int threads, double share, Cost cost) {
  std::map<int, int> of_thread;
  int total = 0;
  ForEachBlock(plan, threads, [&](int thread, uint32_t chain, uint32_t) {
    const int of_block = plan.chains()[chain].heads * cost(plan.chains()[chain]);
    of_thread[thread] += of_block;
    total += of_block;
  });
  for (int thread = 0; thread < threads; ++thread) {
    EXPECT_NEAR(of_thread[thread], total / threads, share * total / threads) << thread;
  }
}

// How many shared chains a chain goes on from.
uint32_t CountFeeders(const HopPlan& plan, uint32_t index) {
  const Chain& own = plan.chains()[index];
  uint32_t feeders = 0;
  for (const Chain& chain : plan.chains()) {
    const bool common_head =
        chain.first_head < own.first_head + own.heads && own.first_head < chain.first_head + chain.heads;
    for (const Sharer& sharer : plan.sharers(chain)) {
      if (index < sharer.first_chain || index >= sharer.first_chain + sharer.chains) continue;
      EXPECT_EQ(sharer.entry, own.entry);
      EXPECT_EQ(chain.first_block + chain.blocks, own.first_block);
      EXPECT_LT(&chain, &own) << "one thread would come to the chain before what it goes on from";
      feeders += common_head ? 1 : 0;
    }
  }
  return feeders;
}

// The rows of the hop that a chain carries.
std::vector<uint32_t> RowsOf(const HopPlan& plan, const Chain& chain, const std::vector<StepEntry>& entries) {
  std::vector<uint32_t> rows;
  for (uint32_t r = 0; chain.sharers == 0 && r < chain.rows; ++r) {
    rows.push_back(entries[chain.entry].first_row + chain.tile_row + r);
  }
  for (const Sharer& sharer : plan.sharers(chain)) {
    const StepEntry& entry = entries[sharer.entry];
    EXPECT_EQ(sharer.first_row, rows.size());
    EXPECT_GE(entry.first_position, (chain.first_block + chain.blocks) * kBlockTokens);
    for (uint32_t i = 0; i < (chain.first_block + chain.blocks) * kBlockPages; ++i) {
      EXPECT_EQ(entry.sequence->pages[i], entries[chain.entry].sequence->pages[i]);
    }
    for (uint32_t r = 0; r < entry.rows; ++r) rows.push_back(entry.first_row + r);
  }
  EXPECT_EQ(rows.size(), chain.rows);
  EXPECT_LE(chain.rows, chain.sharers > 0 && chain.heads == 1 ? kSharedRowsMax
                        : chain.of_prompt && chain.heads == 1 ? kPromptRows
                        : chain.heads == 1                    ? kMaxAttendRows
                                                              : kMaxRowsOfHeads);
  return rows;
}

// What is known of the pieces of chains that come from several hands.
void CheckSplits(HopPlan* plan, int threads) {
  std::map<uint32_t, std::vector<int>> chain_threads;  // by block
  ForEachBlock(*plan, threads, [&](int thread, uint32_t index, uint32_t) { chain_threads[index].push_back(thread); });
  uint32_t splits = 0;
  for (auto& [index, working] : chain_threads) {
    const Chain& chain = plan->chains()[index];
    const uint32_t first_piece = static_cast<uint32_t>(std::count(working.begin(), working.end(), working[0]));
    working.erase(std::unique(working.begin(), working.end()), working.end());
    const uint32_t feeders = CountFeeders(*plan, index);
    EXPECT_EQ(chain.goes_on, feeders > 0);
    EXPECT_EQ(chain.split >= 0, feeders + working.size() > 1);
    if (chain.split < 0) continue;
    ++splits;
    const Split& split = plan->split(chain.split);
    EXPECT_EQ(split.pieces, feeders + working.size());
    EXPECT_EQ(split.unfinished.load(), split.pieces) << "or two chains share a split";
    EXPECT_EQ(split.folded_blocks, feeders == 0 ? first_piece : threads == 1 ? chain.blocks : 0);
  }
  EXPECT_EQ(splits, plan->split_count());
}

// Every (row, KV head) sees each block that it must exactly once, and nobody else's thread count changes what is seen.
void CheckCoverage(HopPlan* plan, const std::vector<StepEntry>& entries, int threads, int window) {
  std::map<std::tuple<uint32_t, int, uint32_t>, int> seen;  // (row of the hop, head, block)
  ForEachBlock(*plan, threads, [&](int, uint32_t index, uint32_t block) {
    const Chain& chain = plan->chains()[index];
    ASSERT_GE(chain.heads, 1);
    for (const uint32_t row : RowsOf(*plan, chain, entries)) {
      for (int head = chain.first_head; head < chain.first_head + chain.heads; ++head) {
        ++seen[{row, head, chain.first_block + block}];
      }
    }
  });
  size_t expected = 0;
  for (const StepEntry& entry : entries) {
    if (entry.bad) continue;
    for (uint32_t r = 0; r < entry.rows; ++r) {
      const uint32_t position = entry.first_position + r;
      const uint32_t from = window > 0 && position + 1 > static_cast<uint32_t>(window) ? position + 1 - window : 0;
      for (uint32_t block = from / kBlockTokens; block <= position / kBlockTokens; ++block) {
        for (int head = 0; head < kKvHeads; ++head) {
          ASSERT_EQ((seen[{entry.first_row + r, head, block}]), 1) << "position " << position << " block " << block;
          ++expected;
        }
      }
    }
  }
  // A row may be taken along to blocks that only its tile's other rows see, but to none twice.
  EXPECT_GE(seen.size(), expected);
  for (const auto& [key, times] : seen) ASSERT_EQ(times, 1);
  CheckSplits(plan, threads);
}

// Of one part of the workspace: slots lie one behind the other, in the order of `chains`, up to `most`.
void CheckSlots(HopPlan* plan, bool shared, size_t begin, size_t most) {
  size_t used = begin;
  for (const Chain& chain : plan->chains()) {
    if (chain.split < 0 || chain.goes_on != shared) continue;
    EXPECT_EQ(plan->split(chain.split).first_slot_floats, used) << "slots overlap or leave gaps";
    used += plan->split(chain.split).slots(chain) * PartialFloats(Shape(), chain.heads, chain.rows);
  }
  EXPECT_LE(used - begin, most);
}

uint32_t CountShared(const HopPlan& plan) {
  return static_cast<uint32_t>(
      std::count_if(plan.chains().begin(), plan.chains().end(), [](const Chain& chain) { return chain.sharers > 0; }));
}

TEST(HopPlanTest, EveryBlockIsAttendedToExactlyOnce) {
  std::mt19937 random(11);
  uint32_t splits = 0, shared = 0;
  for (int i = 0; i < 400; ++i) {
    const int window = i % 3 == 0 ? 1 + static_cast<int>(random() % 2000) : 0;
    const int threads = 1 + static_cast<int>(random() % 12);
    const std::vector<StepEntry> entries = RandomEntries(&random, /*forks=*/i % 2 == 0);
    HopPlan plan = MakePlan(threads, window);
    plan.Build(entries);
    CheckCoverage(&plan, entries, threads, window);
    splits += plan.split_count();
    shared += CountShared(plan);
    EXPECT_TRUE(window == 0 || CountShared(plan) == 0);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(splits, 100u);
  EXPECT_GT(shared, 100u);
}

TEST(HopPlanTest, WithLittleWorkspaceChainsStayWhole) {
  std::mt19937 random(12);
  const size_t slots = PartialFloats(Shape(), kKvHeads, 1) * 6;
  for (int i = 0; i < 200; ++i) {
    const std::vector<StepEntry> entries = RandomEntries(&random);
    HopPlan plan = MakePlan(7, 0, i % 2 == 0 ? 0 : slots);
    plan.Build(entries);
    CheckCoverage(&plan, entries, 7, 0);
    if (i % 2 == 0) {
      EXPECT_EQ(plan.split_count(), 0u);
    }
    CheckSlots(&plan, /*shared=*/false, 0, slots);
    if (HasFatalFailure()) return;
  }
}

TEST(HopPlanTest, WithLittleWorkspaceEntriesReadAllOfTheirBlocks) {
  std::mt19937 random(14);
  const size_t slots = PartialFloats(Shape(), kKvHeads, 1) * 10;
  uint32_t shared = 0, shared_with_more = 0;
  for (int i = 0; i < 200; ++i) {
    const int threads = 1 + i % 3;
    const std::vector<StepEntry> entries = RandomEntries(&random, /*forks=*/true);
    const size_t most = i % 4 == 0 ? 0 : slots;
    HopPlan plan = MakePlan(threads, 0, SIZE_MAX, most), larger = MakePlan(threads);
    plan.Build(entries);
    larger.Build(entries);
    CheckCoverage(&plan, entries, threads, 0);
    CheckSlots(&plan, /*shared=*/true, PlanLimitsFor(Shape(), kMaxRows, threads, kMaxContext).cut_floats, most);
    EXPECT_TRUE(most > 0 || CountShared(plan) == 0);
    EXPECT_EQ(plan.kv_bytes(), larger.kv_bytes());
    shared += CountShared(plan);
    shared_with_more += CountShared(larger);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(shared, 50u);
  EXPECT_GT(shared_with_more, shared);
}

// 32 sequences of 4096 tokens that they share and 256 of their own.
TEST(HopPlanTest, SharedBlocksAreReadOnceForAllSharers) {
  std::vector<StepEntry> entries = {Entry(0, 4351, 1)};
  for (uint32_t i = 1; i < 32; ++i) entries.push_back(Fork(entries[0], 8, i, 4351, 1));
  for (const int threads : {1, 2, 4}) {
    HopPlan plan = MakePlan(threads);
    plan.Build(entries);
    CheckCoverage(&plan, entries, threads, 0);
    EXPECT_EQ(plan.kv_bytes(), (4096u + 32u * 256u) * kKvHeads * 64 * 2 * 2);
    std::map<int, uint32_t> readings;  // by head
    for (const Chain& chain : plan.chains()) {
      for (int head = chain.first_head; chain.first_block == 0 && head < chain.first_head + chain.heads; ++head) {
        readings[head] += chain.blocks;
      }
    }
    EXPECT_EQ(readings, (std::map<int, uint32_t>{{0, 8}, {1, 8}, {2, 8}})) << threads << " threads";
  }
}

// Their kernels may differ.
TEST(HopPlanTest, RowsOfPromptsShareWithNobody) {
  std::vector<StepEntry> entries = {Entry(0, 17 * kBlockTokens - 1, 1)};
  for (uint32_t i = 1; i < 4; ++i) entries.push_back(Fork(entries[0], 16, i, 17 * kBlockTokens - 1, 1));
  entries[2].of_prompt = true;
  HopPlan plan = MakePlan(1);
  plan.Build(entries);
  for (const Chain& chain : plan.chains()) {
    EXPECT_EQ(chain.of_prompt, chain.entry == 2);
    EXPECT_EQ(chain.sharers > 0 || chain.goes_on, chain.entry != 2);
    for (const Sharer& sharer : plan.sharers(chain)) EXPECT_NE(sharer.entry, 2u);
  }
}

TEST(HopPlanTest, AShortPrefixOfALongSequenceIsNotShared) {
  const StepEntry first = Entry(0, 17 * kBlockTokens - 1, 1);  // 17 blocks, its own row in the last one
  const StepEntry second = Fork(first, 1, 1, 600, 1), longer = Fork(first, 1, 1, 17 * kBlockTokens, 1);
  HopPlan plan = MakePlan(2);
  plan.Build(std::vector<StepEntry>{first, second});
  EXPECT_EQ(plan.chains()[0].sharers, 2u);
  plan.Build(std::vector<StepEntry>{first, longer});
  EXPECT_EQ(CountShared(plan), 0u);
}

TEST(HopPlanTest, WhatSharesAPrefixIsCutByItsRows) {
  std::vector<StepEntry> entries = {Entry(0, 8192, 1)};
  for (uint32_t i = 1; i < 32; ++i) entries.push_back(Fork(entries[0], 16, i, 8192, 1));
  HopPlan plan = MakePlan(3);
  plan.Build(entries);
  // 32 rows of 4 query heads each: the shared blocks are nearly all of the work, a third of them each thread's.
  std::map<int, int> shared_blocks;
  ForEachBlock(plan, 3, [&](int thread, uint32_t chain, uint32_t) {
    if (plan.chains()[chain].sharers > 0) shared_blocks[thread] += plan.chains()[chain].heads;
  });
  for (int thread = 0; thread < 3; ++thread) EXPECT_NEAR(shared_blocks[thread], 16, 2) << thread;
}

// Kernels to whom 128 row-heads are no more than a read share out by bytes: 16 shared blocks of three heads, and one of
// each of 32 sequences.
TEST(HopPlanTest, WhereArithmeticIsForFreeBytesAreCut) {
  std::vector<StepEntry> entries = {Entry(0, 17 * kBlockTokens - 1, 1)};
  for (uint32_t i = 1; i < 32; ++i) entries.push_back(Fork(entries[0], 16, i, 17 * kBlockTokens - 1, 1));
  PlanLimits limits = PlanLimitsFor(Shape(), kMaxRows, 3, kMaxContext);
  limits.cost.read = 128;
  HopPlan plan(Shape(), limits);
  plan.Build(entries);
  std::map<int, int> blocks;
  ForEachBlock(plan, 3, [&](int thread, uint32_t chain, uint32_t) { blocks[thread] += plan.chains()[chain].heads; });
  for (int thread = 0; thread < 3; ++thread) EXPECT_NEAR(blocks[thread], 16 + 32, 4) << thread;
}

// Rows of a prompt, whose kernel takes a tenth of the time, are a tenth of the cost: of three chunks of 96 rows over 16
// blocks, one of which is no prompt's, that one keeps most threads busy.
TEST(HopPlanTest, RowsOfPromptsCostWhatTheirKernelDoes) {
  std::vector<StepEntry> entries;
  for (uint32_t i = 0; i < 3; ++i) entries.push_back(Entry(i, 16 * kBlockTokens - 96, 96));
  entries[0].of_prompt = entries[1].of_prompt = true;
  PlanLimits limits = PlanLimitsFor(Shape(), 3 * 96, 3, kMaxContext);
  limits.cost = {.read = 0, .row_head = 10, .adds_up = true};
  limits.prompt_cost = {.read = 0, .row_head = 1, .adds_up = true};
  HopPlan plan(Shape(), limits);
  plan.Build(entries);
  for (const Chain& chain : plan.chains()) EXPECT_EQ(chain.of_prompt, chain.entry < 2);
  ExpectEvenCosts(plan, 3, .15, [](const Chain& chain) { return chain.rows * (chain.of_prompt ? 1 : 10); });
}

// Kernels that read and multiply one after the other share out both: of the shared blocks with 128 row-heads and the
// others with 4 each thread has a third of the cost.
TEST(HopPlanTest, WhereReadsAndArithmeticAddUpBothAreCut) {
  std::vector<StepEntry> entries = {Entry(0, 17 * kBlockTokens - 1, 1)};
  for (uint32_t i = 1; i < 32; ++i) entries.push_back(Fork(entries[0], 16, i, 17 * kBlockTokens - 1, 1));
  PlanLimits limits = PlanLimitsFor(Shape(), kMaxRows, 3, kMaxContext);
  limits.cost = {.read = 100, .adds_up = true};
  HopPlan plan(Shape(), limits);
  plan.Build(entries);
  ExpectEvenCosts(plan, 3, .1, [](const Chain& chain) { return 100 + chain.rows * Shape().group; });
}

TEST(HopPlanTest, IsDeterministic) {
  std::mt19937 random(13);
  const std::vector<StepEntry> entries = RandomEntries(&random);
  HopPlan first = MakePlan(5), second = MakePlan(5);
  second.Build(RandomEntries(&random));  // whatever was planned before
  first.Build(entries);
  second.Build(entries);
  ASSERT_EQ(first.chains().size(), second.chains().size());
  for (int t = 0; t <= 5; ++t) EXPECT_EQ(first.cut(t), second.cut(t));
  for (size_t i = 0; i < first.chains().size(); ++i) EXPECT_EQ(first.chains()[i].split, second.chains()[i].split);
}

TEST(HopPlanTest, OneLongSequenceIsSharedEvenly) {
  HopPlan plan = MakePlan(4);
  plan.Build(std::vector<StepEntry>{Entry(0, 40 * kBlockTokens - 1, 1)});  // 40 blocks of 3 heads over 4 threads
  std::map<int, int> blocks;
  ForEachBlock(plan, 4, [&](int thread, uint32_t chain, uint32_t) { blocks[thread] += plan.chains()[chain].heads; });
  for (int t = 0; t < 4; ++t) EXPECT_NEAR(blocks[t], 30, kKvHeads);
}

TEST(HopPlanTest, AChainTakesAllHeadsWhereThereAreBlocksEnough) {
  HopPlan plan = MakePlan(4);
  const auto heads_of_chains = [&](uint32_t blocks) {
    plan.Build(std::vector<StepEntry>{Entry(0, blocks * kBlockTokens - 1, 1)});
    std::vector<int> heads;
    for (const Chain& chain : plan.chains()) heads.push_back(chain.heads);
    return heads;
  };
  EXPECT_EQ(heads_of_chains(32), std::vector<int>{3});
  EXPECT_EQ(heads_of_chains(16), (std::vector<int>{2, 1}));
  EXPECT_EQ(heads_of_chains(1), (std::vector<int>{1, 1, 1})) << "so that three threads have work";
  HopPlan windowed = MakePlan(4, /*window=*/512);
  windowed.Build(std::vector<StepEntry>{Entry(0, 32 * kBlockTokens - 1, 1)});
  EXPECT_EQ(windowed.chains().size(), 3u) << "of 32 blocks it sees two";
  plan.Build(std::vector<StepEntry>{Entry(0, 32 * kBlockTokens - 3, 3)});
  EXPECT_EQ(plan.chains().size(), 3u) << "three rows of one head fit where one row of three does";
  HopPlan alone = MakePlan(1);
  alone.Build(std::vector<StepEntry>{Entry(0, 5, 1)});
  EXPECT_EQ(alone.chains().size(), 1u);
}

TEST(HopPlanTest, TilesOfPromptsHaveManyRowsWhereThereAreTilesEnough) {
  const auto rows_of_tiles = [&](int threads, uint32_t rows, bool of_prompt) {
    HopPlan plan = MakePlan(threads);
    StepEntry entry = Entry(0, 40, rows);
    entry.of_prompt = of_prompt;
    plan.Build(std::vector<StepEntry>{entry});
    std::vector<uint32_t> tiles;
    for (const Chain& chain : plan.chains()) {
      if (chain.first_head == 0) tiles.push_back(chain.rows);
    }
    return tiles;
  };
  EXPECT_EQ(rows_of_tiles(1, 150, true), (std::vector<uint32_t>{kPromptRows, 22}));
  EXPECT_EQ(rows_of_tiles(1, 150, false), (std::vector<uint32_t>{32, 32, 32, 32, 22}));
  EXPECT_EQ(rows_of_tiles(2, 150, true), (std::vector<uint32_t>{32, 32, 32, 32, 22})) << "five tiles of three heads";
}

// Rows of 3 KV heads behind `position` tokens, two threads; of up to kPromptRows.
HopPlan PlanOfPrompts(const AttentionShape& shape, const std::vector<std::pair<uint32_t, uint32_t>>& position_and_rows,
                      std::vector<StepEntry>* entries) {
  AttentionKernels kernels;
  kernels.many_prompt_rows = true;
  HopPlan plan(shape, PlanLimitsFor(shape, 4096, 2, kMaxContext, kernels));
  uint32_t row = 0;
  for (const auto& [position, rows] : position_and_rows) {
    entries->push_back(Entry(row, position, rows));
    entries->back().of_prompt = true;
    row += rows;
  }
  plan.Build(*entries);
  return plan;
}

TEST(HopPlanTest, TilesOfPromptsAreSmallBesideWhatIsSharedOut) {
  const auto largest = [](const std::vector<std::pair<uint32_t, uint32_t>>& position_and_rows) {
    std::vector<StepEntry> entries;
    HopPlan plan = PlanOfPrompts(Shape(), position_and_rows, &entries);
    CheckCoverage(&plan, entries, 2, 0);
    CheckSlots(&plan, /*shared=*/false, 0, SIZE_MAX);
    uint32_t rows = 0;
    for (const Chain& chain : plan.chains()) rows = std::max<uint32_t>(rows, chain.rows);
    return rows;
  };
  EXPECT_EQ(largest({{0, 2048}}), kPromptRows);
  EXPECT_EQ(largest({{5000, 600}}), 64u) << "a tile of 128 rows would be more than a 16th";
  EXPECT_EQ(largest({{5000, 100}}), 32u);
  EXPECT_EQ(largest({{0, 500}, {0, 500}, {0, 500}, {0, 500}}), kPromptRows);
  EXPECT_EQ(largest({{0, 500}, {0, 500}, {0, 500}, {0, 500}, {18000, 40}}), 32u) << "many tiles, but one is long";
}

TEST(HopPlanTest, TilesOfPromptsShareNoOpenPage) {
  AttentionShape shape = Shape();
  shape.kv_type = KvType::kInt4;
  std::vector<StepEntry> entries;
  HopPlan plan = PlanOfPrompts(shape, {{21, 1000}, {480, 1000}}, &entries);
  uint32_t largest = 0;
  for (const Chain& chain : plan.chains()) {
    const uint32_t last = chain.first_position + chain.rows - 1, first_page = chain.first_position / kPageTokens;
    const StepEntry& entry = entries[chain.entry];
    EXPECT_TRUE(chain.tile_row == 0 || chain.first_position % kPageTokens == 0) << chain.first_position;
    EXPECT_TRUE(last + 1 == entry.end_position() || last % kPageTokens == kPageTokens - 1) << last;
    EXPECT_LE(last / kPageTokens + 1 - first_page, OpenPagesMax(shape));
    largest = std::max<uint32_t>(largest, chain.rows);
  }
  EXPECT_EQ(largest, kPromptRows);
}

TEST(HopPlanTest, ChunksAppendEachOfTheirPagesOnce) {
  HopPlan plan = MakePlan(2);
  plan.Build(std::vector<StepEntry>{Entry(0, 5, kDecodeRowsMax), Entry(8, 30, 40), Entry(48, 64, 32)});
  std::vector<std::pair<uint32_t, uint32_t>> runs;
  for (const AppendRun& run : plan.append_runs()) runs.emplace_back(run.entry, run.page_index);
  EXPECT_EQ(runs, (std::vector<std::pair<uint32_t, uint32_t>>{{1, 0}, {1, 1}, {1, 2}, {2, 2}}));
}

TEST(HopPlanTest, CountsStoredBytesOnce) {
  HopPlan plan = MakePlan(2);
  plan.Build(std::vector<StepEntry>{Entry(0, 99, 1), Entry(1, 0, 32)});
  EXPECT_EQ(plan.kv_bytes(), (100u + 32u) * kKvHeads * 64 * 2 * 2);
  const StepEntry first = Entry(0, 1300, 1);
  const StepEntry longer = Fork(first, 2, 1, 1500, 1), shorter = Fork(first, 1, 2, 600, 1);
  plan.Build(std::vector<StepEntry>{first, longer, shorter});
  EXPECT_EQ(plan.kv_bytes(), (1301u + 477u + 89u) * kKvHeads * 64 * 2 * 2);
}

TEST(HopPlanTest, AnEmptyOrAllBadStepHasNoWork) {
  HopPlan plan = MakePlan(3);
  plan.Build({});
  EXPECT_TRUE(plan.chains().empty());
  std::vector<StepEntry> entries = {Entry(0, 0, 1)};
  entries[0].bad = true;
  plan.Build(entries);
  EXPECT_TRUE(plan.chains().empty());
  for (int t = 0; t <= 3; ++t) EXPECT_EQ(plan.cut(t), PlanCut{});
}

}  // namespace
}  // namespace fastdecode
