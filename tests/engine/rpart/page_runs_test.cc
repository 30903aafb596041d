#include "engine/rpart/page_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace fastdecode {
namespace {

constexpr uint32_t kRun = 8;
constexpr uint32_t kShort = 1;         // pages of a short sequence
constexpr uint32_t kGrown = kRun + 1;  // of one that takes runs of kRun

PageId RunOf(PageId page) { return page / kRun; }

// `count` pages behind `last`, one after the other.
std::vector<PageId> TakeMany(PageRuns* runs, PageId last, uint32_t sequence_pages, int count) {
  std::vector<PageId> pages;
  for (int i = 0; i < count; ++i) pages.push_back(last = runs->Take(last, sequence_pages));
  return pages;
}

TEST(PageRunsTest, AShortSequenceTakesSinglePagesOutOfTheSmallestPiece) {
  PageRuns runs(2 * kRun + 4, kRun);
  std::set<PageId> tail, broken;
  for (int i = 0; i < 4; ++i) tail.insert(runs.Take(kNoPage, kShort));
  EXPECT_EQ(tail, (std::set<PageId>{16, 17, 18, 19}));
  for (uint32_t i = 0; i < kRun; ++i) broken.insert(RunOf(runs.Take(kNoPage, kShort)));
  EXPECT_EQ(broken.size(), 1u) << "a second run was broken";
  EXPECT_EQ(runs.held(), 0u);
  EXPECT_EQ(runs.free(), kRun);
}

TEST(PageRunsTest, HalvesMergeInWhateverOrderTheyReturn) {
  std::mt19937 random(1);
  PageRuns runs(4 * kRun, kRun);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<PageId> pages = TakeMany(&runs, kNoPage, kShort, 4 * kRun);
    std::shuffle(pages.begin(), pages.end(), random);
    for (const PageId page : pages) runs.Return(page);
    std::vector<PageId> firsts;
    for (int i = 0; i < 4; ++i) firsts.push_back(runs.Take(kNoPage, kGrown));
    EXPECT_EQ(runs.held(), 4 * (kRun - 1));
    for (const PageId first : firsts) {
      EXPECT_EQ(first % kRun, 0u);
      runs.Return(first);
    }
    EXPECT_EQ(runs.free(), 4 * kRun);
    EXPECT_EQ(runs.held(), 0u);
  }
}

TEST(PageRunsTest, AGrownSequenceTakesARunAndOthersLeaveItAlone) {
  PageRuns runs(3 * kRun, kRun);
  PageId last = runs.Take(kNoPage, kGrown);
  const PageId first = last;
  EXPECT_EQ(first % kRun, 0u);
  EXPECT_EQ(runs.held(), kRun - 1);
  EXPECT_EQ(runs.free(), 3 * kRun - 1) << "held pages are free ones";
  for (uint32_t i = 1; i < kRun; ++i) {
    const PageId other = runs.Take(kNoPage, i % 2 == 0 ? kShort : kGrown);
    EXPECT_NE(RunOf(other), RunOf(first));
    if (i % 2 == 1) runs.Return(other);
    last = runs.Take(last, kGrown);
    EXPECT_EQ(last, first + i);
  }
  EXPECT_EQ(runs.held(), 0u);
}

TEST(PageRunsTest, ASequenceOfMiddleLengthTakesNoMoreThanItHas) {
  PageRuns runs(128, 32);
  runs.Take(kNoPage, 4);
  EXPECT_EQ(runs.held(), 0u) << "128 tokens are short";
  const PageId middle = runs.Take(kNoPage, 17);
  EXPECT_EQ(middle % 16, 0u);
  EXPECT_EQ(runs.held(), 15u);
  EXPECT_EQ(runs.Take(kNoPage, 32) % 32, 0u);
  EXPECT_EQ(runs.held(), 15u + 31u);
}

TEST(PageRunsTest, OfAFragmentedPoolAGrownSequenceTakesTheLargestPiece) {
  PageRuns runs(2 * kRun, kRun);
  TakeMany(&runs, kNoPage, kShort, 2 * kRun);
  for (const PageId page : {4u, 5u, 6u, 7u, 9u, 12u, 13u, 15u}) runs.Return(page);
  EXPECT_EQ(TakeMany(&runs, kNoPage, kGrown, 4), (std::vector<PageId>{4, 5, 6, 7}));
  EXPECT_EQ(TakeMany(&runs, 7, kGrown, 2), (std::vector<PageId>{12, 13}));
  EXPECT_EQ(runs.free(), 2u);
}

TEST(PageRunsTest, OnlyAGrownSequenceGoesOnIntoAWholeRun) {
  PageRuns runs(3 * kRun, kRun);
  TakeMany(&runs, kNoPage, kShort, 3 * kRun);
  for (PageId page = kRun; page < 2 * kRun; ++page) runs.Return(page);
  runs.Return(20);
  EXPECT_EQ(runs.Take(kRun - 1, kShort), 20u);
  runs.Return(20);
  EXPECT_EQ(runs.Take(kRun - 1, kGrown), kRun);
}

TEST(PageRunsTest, ReturningTheLastPageEndsWhatIsHeldBehindIt) {
  PageRuns runs(kRun, kRun);
  const std::vector<PageId> pages = TakeMany(&runs, kNoPage, kGrown, 3);
  EXPECT_EQ(runs.held(), kRun - 3);
  runs.Return(pages[1]);
  EXPECT_EQ(runs.held(), kRun - 3) << "not the last one";
  runs.Return(pages[2]);
  EXPECT_EQ(runs.held(), 0u);
  EXPECT_EQ(runs.free(), kRun - 1);
  runs.Return(pages[0]);
  EXPECT_EQ(TakeMany(&runs, kNoPage, kGrown, kRun), (std::vector<PageId>{0, 1, 2, 3, 4, 5, 6, 7})) << "not merged";
}

TEST(PageRunsTest, AFullPoolGivesBackWhatIsHeldFromItsEnd) {
  PageRuns runs(kRun, kRun);
  ASSERT_EQ(runs.Take(kNoPage, kGrown), 0u);  // holds 1..7
  std::set<PageId> stolen;
  for (int i = 0; i < 4; ++i) stolen.insert(runs.Take(kNoPage, kShort));
  EXPECT_EQ(stolen, (std::set<PageId>{4, 5, 6, 7})) << "the far half goes first";
  EXPECT_EQ(runs.held(), 3u);
  EXPECT_EQ(runs.Take(0, kGrown), 1u) << "the near one stays held";
  EXPECT_EQ(runs.Take(kNoPage, kShort), 3u);
  EXPECT_EQ(runs.Take(kNoPage, kShort), 2u);
  EXPECT_EQ(runs.held(), 0u);
  EXPECT_EQ(runs.free(), 0u);
  EXPECT_EQ(runs.Take(1, kGrown), kNoPage);
  // A stolen page that is free again is like any other.
  runs.Return(2);
  EXPECT_EQ(runs.Take(1, kGrown), 2u);
}

TEST(PageRunsTest, WhatWasUsedLeastRecentlyIsGivenBackFirst) {
  PageRuns runs(2 * kRun, kRun);
  const PageId first = runs.Take(kNoPage, kGrown);
  const PageId second = runs.Take(kNoPage, kGrown);
  runs.Take(first, kGrown);
  EXPECT_EQ(RunOf(runs.Take(kNoPage, kShort)), RunOf(second));
}

struct Pool {
  uint32_t pages;
  uint32_t run_pages;
};

class PageRunsRandomTest : public testing::TestWithParam<Pool> {
 protected:
  static constexpr size_t kSequences = 12;

  // One page more for a sequence, checked against what must hold whatever was done before.
  bool Take(size_t index, uint32_t sequence_pages) {
    std::vector<PageId>& sequence = sequences_[index];
    const PageId last = sequence.empty() ? kNoPage : sequence.back();
    const uint32_t held_before = runs_.held();
    const bool others = runs_.free() > held_before;
    const PageId page = runs_.Take(last, sequence_pages);
    EXPECT_EQ(page == kNoPage, used_.size() == GetParam().pages);
    if (page == kNoPage) {
      EXPECT_EQ(runs_.held(), 0u);
      return false;
    }
    EXPECT_LT(page, GetParam().pages);
    EXPECT_TRUE(used_.insert(page).second) << "page " << page << " was handed out twice";
    if (page == last + 1 && last != kNoPage) {
      EXPECT_GE(runs_.held() + 1, held_before);
    } else if (others) {
      EXPECT_GE(runs_.held(), held_before) << "a held page was taken though there were others";
    }
    sequence.push_back(page);
    return true;
  }

  void ReturnFrom(size_t index, size_t first) {
    std::vector<PageId>& sequence = sequences_[index];
    for (; sequence.size() > first; sequence.pop_back()) {
      // In either order.
      if (first % 2 == 0) std::reverse(sequence.begin() + static_cast<ptrdiff_t>(first), sequence.end());
      runs_.Return(sequence.back());
      EXPECT_EQ(used_.erase(sequence.back()), 1u);
      if (first % 2 == 0) std::reverse(sequence.begin() + static_cast<ptrdiff_t>(first), sequence.end() - 1);
    }
  }

  void CheckCounts() {
    EXPECT_EQ(runs_.free() + used_.size(), GetParam().pages);
    EXPECT_LE(runs_.held(), runs_.free());
    EXPECT_LE(runs_.held(), kSequences * (GetParam().run_pages - 1));
  }

  std::mt19937 random_{7};
  PageRuns runs_{GetParam().pages, GetParam().run_pages};
  std::vector<std::vector<PageId>> sequences_{kSequences};
  std::set<PageId> used_;
};

TEST_P(PageRunsRandomTest, KeepsTheAccountsAndFindsEveryPage) {
  int full = 0, most_held = 0;
  for (int i = 0; i < 30000 && !HasFailure(); ++i) {
    const size_t index = random_() % kSequences;
    switch (random_() % 8) {
      case 0:
        ReturnFrom(index, 0);
        break;
      case 1:
        ReturnFrom(index, random_() % (sequences_[index].size() + 1));
        break;
      default: {
        const uint32_t count = 1 + (random_() % 8 == 0 ? random_() % 40 : 0);
        const uint32_t after = static_cast<uint32_t>(sequences_[index].size()) + count;
        uint32_t taken = 0;
        while (taken < count && Take(index, after)) ++taken;
        full += taken < count;
      }
    }
    CheckCounts();
    most_held = std::max<int>(most_held, static_cast<int>(runs_.held()));
  }
  EXPECT_GT(full, 100);
  EXPECT_EQ(most_held > 0, GetParam().run_pages > 1);

  for (size_t i = 0; i < kSequences; ++i) ReturnFrom(i, 0);
  EXPECT_EQ(runs_.free(), GetParam().pages);
  EXPECT_EQ(runs_.held(), 0u);
  // All whole runs are whole again.
  for (uint32_t i = 0; i < GetParam().pages / GetParam().run_pages; ++i) {
    EXPECT_EQ(runs_.Take(kNoPage, 2 * PageRuns::kRunPagesMax) % GetParam().run_pages, 0u);
    EXPECT_EQ(runs_.held(), (i + 1) * (GetParam().run_pages - 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Pools, PageRunsRandomTest,
                         testing::Values(Pool{50, 1}, Pool{64, 2}, Pool{99, 4}, Pool{200, 8}, Pool{257, 16},
                                         Pool{191, 32}, Pool{40, 32}),
                         [](const auto& info) {
                           return std::to_string(info.param.pages) + "PagesInRunsOf" +
                                  std::to_string(info.param.run_pages);
                         });

using PageRunsDeathTest = testing::Test;

TEST(PageRunsDeathTest, ARunIsAPowerOfTwo) {
  EXPECT_DEATH(PageRuns(10, 3), "runs of no such size");
  EXPECT_DEATH(PageRuns(10, 64), "runs of no such size");
}

}  // namespace
}  // namespace fastdecode
