#include "engine/rpart/page_account.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/rpart/sequence_table.h"

namespace fastdecode {
namespace {

constexpr int kLayers = 2;
constexpr uint32_t kPages = 20;

AttentionShape Shape() { return {ElementType::kF32, KvType::kF32, 1, 1, 16, 0.25f, 0, 0}; }

class PageAccountTest : public testing::Test {
 protected:
  std::vector<std::byte> memory_ = std::vector<std::byte>(KvPool::PageBytesAllLayers(Shape(), kLayers) * kPages);
  KvPool pool_{Shape(), kLayers, memory_};
};

TEST_F(PageAccountTest, ThePeersGrantIsItsLimitThoughThePoolHasMore) {
  PageAccount first(&pool_, 3), second(&pool_, 17);
  std::vector<PageId> pages;
  for (int i = 0; i < 3; ++i) pages.push_back(first.Take());
  EXPECT_EQ(first.Take(), kNoPage);
  EXPECT_EQ(first.free(), 0u);
  EXPECT_EQ(second.free(), 17u) << "of another's account";
  first.AddReference(pages[0]);
  EXPECT_EQ(first.used(), 3u) << "a page counts once";
  first.Return(pages[0]);
  EXPECT_EQ(first.used(), 3u);
  for (const PageId page : pages) first.Return(page);
  EXPECT_EQ(first.used(), 0u);
  EXPECT_EQ(pool_.free(), kPages);
}

TEST_F(PageAccountTest, AMovedPageIsTheReceiversAndASharedOneBoths) {
  PageAccount from(&pool_, 2), to(&pool_, 1);
  const PageId alone = from.Take(), forked = from.Take();
  from.AddReference(forked);
  EXPECT_EQ(to.CountMissing(std::vector<PageId>{alone, forked}), 2u);
  from.MoveReference(forked, &to);
  EXPECT_EQ(from.used(), 2u);
  EXPECT_EQ(to.used(), 1u);
  EXPECT_EQ(pool_.free(), kPages - 2) << "counted twice, there once";
  EXPECT_EQ(to.CountMissing(std::vector<PageId>{alone, forked}), 1u);
  EXPECT_TRUE(to.shared(forked));

  // Its copy takes the place of the page in the full account.
  std::memset(pool_.Address(1, forked), 7, PageBytes(Shape()));
  const PageId copy = to.Unshare(forked);
  EXPECT_NE(copy, forked);
  EXPECT_EQ(pool_.Address(1, copy)[0], std::byte{7});
  EXPECT_EQ(to.used(), 1u);
  EXPECT_FALSE(from.shared(forked));
  to.Return(copy);
  from.MoveReference(alone, &to);
  EXPECT_EQ(from.used(), 1u);
  to.Return(alone);
  from.Return(forked);
  EXPECT_EQ(pool_.free(), kPages);
}

using PageAccountDeathTest = PageAccountTest;

TEST_F(PageAccountDeathTest, TouchingAnothersPageIsABug) {
  PageAccount first(&pool_, 2), second(&pool_, 1);
  const PageId page = first.Take();
  const PageId other = second.Take();
  EXPECT_DEATH(second.Return(page), "someone else");
  EXPECT_DEATH(second.AddReference(page), "someone else");
  EXPECT_DEATH(first.MoveReference(page, &second), "beyond the receiver's grant");
  first.Return(page);
  second.Return(other);
}

struct History {
  int kv_heads;
  uint32_t run_pages;  // what that makes a run
  std::array<uint32_t, 3> grants;
  uint32_t max_context;
  uint32_t growth_max;  // tokens
};

class PageAccountRandomTest : public testing::TestWithParam<History> {};

// Three peers that grow, fork, truncate, release and hand sequences to each other. After each step every account has
// just the pages that its sequences list, no more than granted, and the pool is free of what nobody lists. Holding
// pages behind sequences changes none of this; an account that did not find a page within its grant would abort.
TEST_P(PageAccountRandomTest, HistoriesOfSeveralPeersKeepTheAccounts) {
  const auto [kv_heads, run_pages, grants, max_context, growth_max] = GetParam();
  const uint32_t pages_total = grants[0] + grants[1] + grants[2];
  const AttentionShape shape{ElementType::kF32, KvType::kF32, kv_heads, 1, 16, 0.25f, 0, 0};
  ASSERT_EQ(KvPool::RunPages(shape), run_pages);
  std::vector<std::byte> memory(KvPool::PageBytesAllLayers(shape, kLayers) * pages_total);
  KvPool pool(shape, kLayers, memory);
  std::mt19937 random(3);
  std::vector<std::unique_ptr<PageAccount>> accounts;
  std::vector<std::unique_ptr<SequenceTable>> tables;
  for (const uint32_t grant : grants) {
    accounts.push_back(std::make_unique<PageAccount>(&pool, grant));
    tables.push_back(std::make_unique<SequenceTable>(accounts.back().get(), kLayers, max_context, 6));
  }
  int refused = 0, forked = 0, moved = 0, unmoved = 0, given_back = 0;
  for (int i = 0; i < 20000; ++i) {
    SequenceTable& table = *tables[random() % 3];
    const uint64_t id = random() % 6;
    const KvSequence* const sequence = table.Find(id);
    switch (random() % 6) {
      case 0:
      case 1: {
        KvSequence* const grow = table.FindOrCreate(id);
        const uint32_t stored = grow->stored_tokens[0];
        const uint32_t tokens = std::min<uint32_t>(1 + random() % growth_max, max_context - stored);
        if (tokens == 0) break;
        const uint32_t free_before = pool.free(), unheld = free_before - pool.held();
        if (table.Grow(grow, stored, tokens) == GrowOutcome::kOk) {
          grow->stored_tokens.assign(kLayers, stored + tokens);
          given_back += free_before - pool.free() > unheld;  // there were no others
        } else {
          ++refused;
        }
        break;
      }
      case 2:
        if (sequence != nullptr) {
          ASSERT_TRUE(table.Truncate(id, random() % (sequence->stored_tokens[0] + 1)).ok());
        }
        break;
      case 3:
        if (sequence != nullptr) {
          forked += table.Fork(id, random() % (sequence->stored_tokens[0] + 1), random() % 6).ok();
        }
        break;
      case 4: {
        SequenceTable& to = *tables[random() % 3];
        const uint64_t new_id = random() % 6;
        if (sequence == nullptr || &to == &table || to.Find(new_id) != nullptr) break;
        PageAccount& receiver = *accounts[static_cast<size_t>(&to == tables[1].get()   ? 1
                                                              : &to == tables[2].get() ? 2
                                                                                       : 0)];
        if (receiver.CountMissing(sequence->pages) > receiver.free()) {
          ++unmoved;
          break;
        }
        const std::vector<PageId> pages = sequence->pages;
        const uint64_t changes = table.changes();
        table.MoveTo(&to, id, new_id);
        ASSERT_EQ(to.Find(new_id)->pages, pages);
        ASSERT_EQ(table.Find(id), nullptr);
        ASSERT_GT(table.changes(), changes);
        ++moved;
        break;
      }
      case 5:
        table.Release(id);
    }
    std::map<PageId, uint32_t> users;
    for (size_t peer = 0; peer < 3; ++peer) {
      std::set<PageId> own;
      for (uint64_t s = 0; s < 6; ++s) {
        const KvSequence* const each = tables[peer]->Find(s);
        if (each == nullptr) continue;
        own.insert(each->pages.begin(), each->pages.end());
        for (const PageId page : each->pages) ++users[page];
      }
      ASSERT_EQ(accounts[peer]->used(), own.size());
      ASSERT_LE(own.size(), grants[peer]);
    }
    ASSERT_EQ(pool.free(), pages_total - users.size());
    ASSERT_LE(pool.held(), pool.free());
    for (const auto& [page, count] : users) ASSERT_EQ(pool.references(page), count);
  }
  for (const int each : {refused, forked, moved, unmoved}) EXPECT_GT(each, 100);
  EXPECT_EQ(given_back > 50, run_pages > 1) << given_back;
  for (const auto& table : tables) table->ReleaseAll();
  EXPECT_EQ(pool.free(), pages_total);
  EXPECT_EQ(pool.held(), 0u);
}

// Pages of 256 KiB and of 32 KiB.
INSTANTIATE_TEST_SUITE_P(Histories, PageAccountRandomTest,
                         testing::Values(History{64, 1, {9, 7, 4}, 300, 60}, History{8, 8, {60, 50, 34}, 2000, 500}),
                         [](const auto& info) { return "RunsOf" + std::to_string(info.param.run_pages); });

}  // namespace
}  // namespace fastdecode
