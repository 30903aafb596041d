#include "engine/rpart/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
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

HopPlan MakePlan(int threads, int window = 0, size_t partial_floats = SIZE_MAX) {
  const size_t enough = PartialWorkspaceFloats(Shape(), threads, kMaxContext);
  return HopPlan(Shape(window), {kMaxRows, threads, std::min(enough, partial_floats)});
}

StepEntry Entry(uint32_t first_row, uint32_t position, uint32_t rows) {
  StepEntry entry;
  entry.first_row = first_row;
  entry.rows = rows;
  entry.first_position = position;
  return entry;
}

std::vector<StepEntry> RandomEntries(std::mt19937* random) {
  std::vector<StepEntry> entries;
  uint32_t row = 0;
  const uint32_t count = 1 + (*random)() % 20;
  for (uint32_t i = 0; i < count && row < kMaxRows; ++i) {
    const uint32_t most = (*random)() % 4 == 0 ? 60 : (*random)() % 3 == 0 ? 8 : 1;
    const uint32_t rows = std::min(kMaxRows - row, 1 + static_cast<uint32_t>((*random)()) % most);
    entries.push_back(Entry(row, (*random)() % ((*random)() % 2 == 0 ? 300 : kMaxContext - 100), rows));
    entries.back().bad = (*random)() % 10 == 0;
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

// Every (row, KV head) sees each block that it must exactly once, and nobody else's thread count changes what is seen.
void CheckCoverage(HopPlan* plan, const std::vector<StepEntry>& entries, int threads, int window) {
  std::map<std::tuple<uint32_t, int, uint32_t>, int> seen;  // (row of the hop, head, block)
  std::map<int32_t, std::map<uint32_t, std::vector<int>>> split_threads;
  ForEachBlock(*plan, threads, [&](int thread, uint32_t index, uint32_t block) {
    const Chain& chain = plan->chains()[index];
    ASSERT_LE(chain.rows, kMaxAttendRows);
    ASSERT_GE(chain.heads, 1);
    for (uint32_t r = 0; r < chain.rows; ++r) {
      for (int head = chain.first_head; head < chain.first_head + chain.heads; ++head) {
        ++seen[{entries[chain.entry].first_row + chain.tile_row + r, head, chain.first_block + block}];
      }
    }
    if (chain.split >= 0) split_threads[chain.split][index].push_back(thread);
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

  ASSERT_EQ(split_threads.size(), plan->split_count());
  for (auto& [split, chains] : split_threads) {
    ASSERT_EQ(chains.size(), 1u) << "two chains share a split";
    std::vector<int>& working = chains.begin()->second;
    const uint32_t first_piece = static_cast<uint32_t>(std::count(working.begin(), working.end(), working[0]));
    working.erase(std::unique(working.begin(), working.end()), working.end());
    EXPECT_GE(working.size(), 2u);
    EXPECT_EQ(plan->split(split).pieces, working.size());
    EXPECT_EQ(plan->split(split).unfinished.load(), working.size());
    EXPECT_EQ(plan->split(split).first_piece_blocks, first_piece);
  }
}

TEST(HopPlanTest, EveryBlockIsAttendedToExactlyOnce) {
  std::mt19937 random(11);
  int splits = 0;
  for (int i = 0; i < 300; ++i) {
    const int window = i % 3 == 0 ? 1 + static_cast<int>(random() % 2000) : 0;
    const int threads = 1 + static_cast<int>(random() % 12);
    const std::vector<StepEntry> entries = RandomEntries(&random);
    HopPlan plan = MakePlan(threads, window);
    plan.Build(entries);
    CheckCoverage(&plan, entries, threads, window);
    splits += static_cast<int>(plan.split_count());
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(splits, 100);
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
    size_t used = 0;
    for (const Chain& chain : plan.chains()) {
      if (chain.split < 0) continue;
      EXPECT_EQ(plan.split(chain.split).first_slot_floats, used) << "slots overlap or leave gaps";
      used += plan.split(chain.split).slots(chain) * PartialFloats(Shape(), chain.heads, chain.rows);
    }
    EXPECT_LE(used, slots);
    if (HasFatalFailure()) return;
  }
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
