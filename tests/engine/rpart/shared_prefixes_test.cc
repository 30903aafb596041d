#include "engine/rpart/shared_prefixes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace fastdecode {
namespace {

// Sequences given by what their blocks are; block b is on the pages 16 b to 16 b + 15.
class SharedPrefixesTest : public testing::Test {
 protected:
  static constexpr uint32_t kMaxRows = 100;

  // The first row is that many tokens behind the last block.
  StepEntry& Add(const std::vector<uint32_t>& blocks, uint32_t rows = 1, uint32_t tokens_behind = 0) {
    KvSequence& sequence = sequences_.emplace_back();
    for (const uint32_t block : blocks) {
      for (uint32_t i = 0; i < kBlockPages; ++i) sequence.pages.push_back(block * kBlockPages + i);
    }
    sequence.pages.push_back(next_own_page_++);
    StepEntry entry;
    entry.sequence = &sequence;
    entry.rows = rows;
    entry.first_position = static_cast<uint32_t>(blocks.size()) * kBlockTokens + tokens_behind;
    entries_.push_back(entry);
    return entries_.back();
  }

  // The groups' entries and blocks.
  std::map<std::set<uint32_t>, uint32_t> Find() {
    prefixes_.Find(entries_);
    std::map<std::set<uint32_t>, uint32_t> groups;
    for (const PrefixGroup& group : prefixes_.groups()) {
      std::set<uint32_t> members;
      for (uint32_t i = 0; i < group.count; ++i) members.insert(prefixes_.member(group, i));
      EXPECT_EQ(members.size(), group.count);
      groups[members] = group.blocks;
    }
    return groups;
  }

  using Groups = std::map<std::set<uint32_t>, uint32_t>;
  std::deque<KvSequence> sequences_;
  std::vector<StepEntry> entries_;
  PageId next_own_page_ = 1000000;
  SharedPrefixes prefixes_{kMaxRows};
};

TEST_F(SharedPrefixesTest, FindsFamiliesWhereverTheySit) {
  Add({1, 2, 3});
  Add({7, 8});
  Add({1, 2, 3, 4}, 1, 500);
  Add({9});
  Add({7, 8, 5});
  Add({1, 2, 3}, 8, 100);
  Add({});
  EXPECT_EQ(Find(), (Groups{{{0, 2, 5}, 3}, {{1, 4}, 2}}));
  EXPECT_EQ(prefixes_.repeated_blocks(), 3u + 3u + 2u);
}

TEST_F(SharedPrefixesTest, SharesNothingWhereNothingIsShared) {
  Add({1, 2});
  Add({2, 1});
  Add({3, 2});
  EXPECT_EQ(Find(), Groups{});
  EXPECT_EQ(prefixes_.repeated_blocks(), 0u);
}

TEST_F(SharedPrefixesTest, LeavesOutBadEntriesChunksAndBlocksThatRowsAreIn) {
  Add({1, 2});
  Add({1, 2}).bad = true;
  Add({1, 2}, kDecodeRowsMax + 1);
  EXPECT_EQ(Find(), Groups{});
  // A replay: the row lies in the second block.
  Add({1, 2}).first_position = 2 * kBlockTokens - 1;
  EXPECT_EQ(Find(), (Groups{{{0, 3}, 1}}));
  Add({1}).first_position = kBlockTokens - 1;
  EXPECT_EQ(Find(), (Groups{{{0, 3}, 1}}));
}

TEST_F(SharedPrefixesTest, ABlockIsTheSameOnlyWithAllOfItsPages) {
  Add({1, 2});
  Add({1, 2}).sequence->pages[2 * kBlockPages - 1] = 77;
  EXPECT_EQ(Find(), (Groups{{{0, 1}, 1}}));
  entries_[1].sequence->pages[0] = 78;
  EXPECT_EQ(Find(), Groups{});
}

TEST_F(SharedPrefixesTest, TakesTheGroupsThatSaveMost) {
  // Two deep families of one root: one block of all four would save three reads, their own prefixes save twelve.
  Add({1, 2, 3, 4, 5, 6, 7});
  Add({1, 2, 3, 4, 5, 6, 7});
  Add({1, 8, 9, 10, 11});
  Add({1, 8, 9, 10, 11});
  EXPECT_EQ(Find(), (Groups{{{0, 1}, 7}, {{2, 3}, 5}}));
  EXPECT_EQ(prefixes_.repeated_blocks(), 7u + 1u + 5u);
}

TEST_F(SharedPrefixesTest, AShortMemberSpoilsNoLongPrefix) {
  Add({1});
  for (int i = 0; i < 5; ++i) Add({1, 2, 3, 4});
  EXPECT_EQ(Find(), (Groups{{{1, 2, 3, 4, 5}, 4}}));
}

TEST_F(SharedPrefixesTest, GroupsHaveNoMoreRowsThanAChain) {
  for (int i = 0; i < 70; ++i) Add({1, 2});
  size_t members = 0;
  for (const auto& [group, blocks] : Find()) {
    EXPECT_LE(group.size(), kSharedRowsMax);
    members += group.size();
  }
  EXPECT_EQ(members, 70u);
  EXPECT_EQ(prefixes_.groups().size(), 3u);
  entries_.clear();
  for (int i = 0; i < 12; ++i) Add({1, 2}, 8);
  for (const auto& [group, blocks] : Find()) EXPECT_EQ(group.size(), kSharedRowsMax / 8);
}

// Against all ways to cut the sorted entries into groups.
TEST_F(SharedPrefixesTest, NoOtherGroupingOfNeighboursSavesMore) {
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    entries_.clear();
    sequences_.clear();
    // Numbers of one byte, so that they are sorted as bytes are.
    std::vector<std::vector<uint32_t>> sorted;
    const size_t count = 2 + random() % 7;
    for (size_t e = 0; e < count; ++e) {
      std::vector<uint32_t> blocks;
      const size_t length = 1 + random() % 5;
      for (size_t b = 0; b < length; ++b) blocks.push_back(static_cast<uint32_t>(random() % (b == 0 ? 2 : 3)));
      sorted.push_back(blocks);
      Add(blocks);
    }
    std::sort(sorted.begin(), sorted.end());
    uint64_t best = 0;
    for (uint32_t cuts = 0; cuts < 1u << (count - 1); ++cuts) {  // bit e: a group ends behind entry e
      uint64_t saved = 0;
      for (size_t first = 0, e = 0; e < count; ++e) {
        if (e + 1 < count && (cuts >> e & 1) == 0) continue;
        const auto differ =
            std::mismatch(sorted[first].begin(), sorted[first].end(), sorted[e].begin(), sorted[e].end());
        saved += (e - first) * static_cast<uint64_t>(differ.first - sorted[first].begin());
        first = e + 1;
      }
      best = std::max(best, saved);
    }
    uint64_t saved = 0;
    for (const auto& [group, blocks] : Find()) {
      for (const uint32_t member : group) {
        for (uint32_t page = 0; page < blocks * kBlockPages; ++page) {
          ASSERT_EQ(entries_[member].sequence->pages[page], entries_[*group.begin()].sequence->pages[page]);
        }
      }
      saved += (group.size() - 1) * blocks;
    }
    ASSERT_EQ(saved, best);
  }
}

}  // namespace
}  // namespace fastdecode
