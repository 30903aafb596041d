#include "engine/rpart/kv_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

namespace fastdecode {
namespace {

AttentionShape Shape() { return {ElementType::kBf16, KvType::kBf16, 2, 1, 16, 0.25f, 0, 0}; }

class KvPoolTest : public testing::Test {
 protected:
  static constexpr int kLayers = 3;
  static constexpr size_t kPages = 5;

  // Half a page too many bytes: only whole pages count.
  std::vector<std::byte> memory_ =
      std::vector<std::byte>(KvPool::PageBytesAllLayers(Shape(), kLayers) * kPages + PageBytes(Shape()) / 2);
  KvPool pool_{Shape(), kLayers, memory_};
};

TEST_F(KvPoolTest, HandsOutEveryPageOnceAndThenNone) {
  EXPECT_EQ(pool_.total(), kPages);
  std::set<PageId> pages;
  for (size_t i = 0; i < kPages; ++i) pages.insert(pool_.Take());
  EXPECT_EQ(pages.size(), kPages);
  EXPECT_EQ(pool_.free(), 0u);
  EXPECT_EQ(pool_.Take(), kNoPage);
  for (const PageId page : pages) pool_.Return(page);
  EXPECT_EQ(pool_.free(), kPages);
}

TEST_F(KvPoolTest, PagesOfALayerLieSideBySideAndNeverOverlap) {
  std::set<std::byte*> addresses;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (PageId page = 0; page < kPages; ++page) {
      EXPECT_EQ(pool_.Address(layer, page), pool_.LayerBase(layer) + page * pool_.page_stride_bytes());
      EXPECT_GE(pool_.Address(layer, page), memory_.data());
      EXPECT_LE(pool_.Address(layer, page) + PageBytes(Shape()), memory_.data() + memory_.size());
      addresses.insert(pool_.Address(layer, page));
    }
  }
  ASSERT_EQ(addresses.size(), kLayers * kPages);
  std::byte* last = nullptr;
  for (std::byte* address : addresses) {
    if (last != nullptr) {
      EXPECT_GE(address - last, static_cast<ptrdiff_t>(PageBytes(Shape())));
    }
    last = address;
  }
}

// The memory is where nobody may read.
TEST(KvPoolCopiesTest, APoolThatOnlyCountsTouchesNoMemory) {
  const size_t bytes = KvPool::PageBytesAllLayers(Shape(), 3) * 5;
  auto* const nowhere = reinterpret_cast<std::byte*>(uintptr_t{64});
  KvPool pool(Shape(), 3, {nowhere, bytes}, PageCopies::kElsewhere);
  const PageId from = pool.Take(), to = pool.Take();
  pool.CopyPage(from, to);
  pool.Return(from);
  pool.Return(to);
  EXPECT_EQ(pool.free(), 5u);
}

TEST_F(KvPoolTest, ASharedPageIsFreeWhenItsLastUserLeaves) {
  const PageId page = pool_.Take();
  pool_.AddReference(page);
  EXPECT_EQ(pool_.references(page), 2u);
  pool_.Return(page);
  EXPECT_EQ(pool_.free(), kPages - 1);
  pool_.Return(page);
  EXPECT_EQ(pool_.free(), kPages);
}

TEST_F(KvPoolTest, CopiesAllLayers) {
  const PageId from = pool_.Take(), to = pool_.Take();
  for (int layer = 0; layer < kLayers; ++layer) std::memset(pool_.Address(layer, from), layer + 1, PageBytes(Shape()));
  pool_.CopyPage(from, to);
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(std::memcmp(pool_.Address(layer, from), pool_.Address(layer, to), PageBytes(Shape())), 0);
    EXPECT_EQ(pool_.Address(layer, to)[0], std::byte(layer + 1));
  }
}

TEST_F(KvPoolTest, ARunIsTheMostPagesThatAre256KiBOfALayer) {
  const auto run_pages = [](ElementType type, int kv_heads, int head_dim) {
    return KvPool::RunPages({type, KvTypeOf(type), kv_heads, 4, head_dim, 0.1f, 0, 0});
  };
  EXPECT_EQ(run_pages(ElementType::kBf16, 8, 128), 2u);
  EXPECT_EQ(run_pages(ElementType::kBf16, 5, 128), 2u) << "3 is no power of two";
  EXPECT_EQ(run_pages(ElementType::kBf16, 4, 64), 8u);
  EXPECT_EQ(run_pages(ElementType::kF32, 8, 128), 1u);
  EXPECT_EQ(run_pages(ElementType::kF32, 32, 128), 1u) << "a page of 1 MiB";
  EXPECT_EQ(run_pages(ElementType::kBf16, 1, 16), 32u) << "not 128";
}

// Pages are 2 KiB, so that a run would be 32 pages; of five the largest piece has four.
TEST_F(KvPoolTest, WhatIsHeldBehindAPageIsFreeYetAndGoesWithItsLastUser) {
  const PageId page = pool_.TakeBehind(kNoPage, 5);
  EXPECT_EQ(pool_.held(), 3u);
  EXPECT_EQ(pool_.free(), kPages - 1);
  pool_.AddReference(page);
  pool_.Return(page);
  EXPECT_EQ(pool_.held(), 3u);
  pool_.Return(page);
  EXPECT_EQ(pool_.held(), 0u);
  EXPECT_EQ(pool_.free(), kPages);
}

using KvPoolDeathTest = KvPoolTest;

TEST_F(KvPoolDeathTest, ReturningTwiceIsABug) {
  const PageId page = pool_.Take();
  pool_.Return(page);
  EXPECT_DEATH(pool_.Return(page), "a free page is returned");
  EXPECT_DEATH(pool_.AddReference(page), "a free page is shared");
}

}  // namespace
}  // namespace fastdecode
