// Where a full pool's sequences lie, and how little of it is empty: the sequence table upon PageRuns.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/rpart/sequence_table.h"

namespace fastdecode {
namespace {

// Addresses that nobody may touch: who only deals out pages needs no more.
class Addresses {
 public:
  explicit Addresses(size_t bytes)
      : bytes_(bytes), start_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Addresses() { munmap(start_, bytes_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;

  std::span<std::byte> span() const { return {static_cast<std::byte*>(start_), bytes_}; }

 private:
  const size_t bytes_;
  void* const start_;
};

// Heads of 128: a page of bf16 is 16 KiB per KV head, of int8 8.1 and of int4 4.75.
struct RunsCase {
  int kv_heads;
  uint32_t run_pages;  // that fit 256 KiB, as a power of two
  KvType kv_type = KvType::kBf16;
};

// A pool of 4096 pages full of sequences that grow side by side, a page at a time.
class RunsTest : public testing::TestWithParam<RunsCase> {
 protected:
  static constexpr uint32_t kPages = 4096;
  static constexpr uint32_t kMaxContext = kPages * kPageTokens;
  static constexpr int kGrowing = 8;

  static AttentionShape Shape() {
    return {ElementType::kBf16, GetParam().kv_type, GetParam().kv_heads, 1, 128, 0.1f, 0, 0};
  }

  // One more page, or what is left of it, for the sequence, or of a page so many tokens. False: the pool is full.
  bool GrowByAPage(uint64_t id, uint32_t tokens, uint32_t page_tokens = kPageTokens) {
    KvSequence* const sequence = table_.FindOrCreate(id);
    const uint32_t stored = sequence->stored_tokens[0];
    const uint32_t more = std::min({page_tokens, kPageTokens - stored % kPageTokens, tokens - stored});
    if (table_.Grow(sequence, stored, more) == GrowOutcome::kNoPage) return false;
    sequence->stored_tokens[0] += more;
    return true;
  }

  // Until there is no page for one that grows. The most pages that were held meanwhile.
  uint32_t FillPool(uint32_t tokens_min, uint32_t tokens_max) {
    struct Growing {
      uint64_t id;
      uint32_t tokens;
    };
    std::vector<Growing> growing;
    uint32_t most_held = 0;
    for (;;) {
      while (growing.size() < kGrowing) {
        table_.FindOrCreate(next_id_);
        ids_.push_back(next_id_);
        growing.push_back({next_id_++, std::uniform_int_distribution<uint32_t>(tokens_min, tokens_max)(random_)});
      }
      Growing& each = growing[random_() % growing.size()];
      const uint32_t page_tokens = 1 + static_cast<uint32_t>(random_()) % kPageTokens;
      if (!GrowByAPage(each.id, each.tokens, page_tokens)) return most_held;
      most_held = std::max(most_held, pool_.held());
      if (table_.Find(each.id)->stored_tokens[0] == each.tokens) {
        each = growing.back();
        growing.pop_back();
      }
    }
  }

  void ReleaseHalf() {
    std::shuffle(ids_.begin(), ids_.end(), random_);
    const uint32_t half = pool_.total() / 2;
    for (; pool_.free() < half; ids_.pop_back()) table_.Release(ids_.back());
  }

  // Aligned runs none of whose pages a sequence lists.
  uint32_t CountWholeRuns() const {
    std::vector<bool> used(kPages);
    for (const uint64_t id : ids_) {
      const KvSequence& sequence = *table_.Find(id);
      for (const PageId page : sequence.pages) used[page] = true;
      for (uint32_t i = 0; i < sequence.pieces; ++i) used[sequence.open_pieces[i]] = true;
    }
    uint32_t count = 0;
    for (auto run = used.begin(); run != used.end(); run += GetParam().run_pages) {
      count += std::find(run, run + GetParam().run_pages, true) == run + GetParam().run_pages;
    }
    return count;
  }

  static uint32_t CountStretches(const std::vector<PageId>& pages) {
    uint32_t stretches = 1;
    for (size_t i = 1; i < pages.size(); ++i) stretches += pages[i] != pages[i - 1] + 1;
    return stretches;
  }

  Addresses memory_{KvPool::PageBytesAllLayers(Shape(), 1) * kPages};
  KvPool pool_{Shape(), 1, memory_.span()};
  PageAccount account_{&pool_, kPages};
  SequenceTable table_{&account_, 1, kMaxContext, 2 * kPages};
  std::mt19937 random_{11};
  std::vector<uint64_t> ids_;
  uint64_t next_id_ = 1;
};

// It is at most run_pages long before it takes whole runs, and then it begins a stretch only with one of these.
TEST_P(RunsTest, ALongSequenceGetsTheWholeRunsOfAFragmentedPool) {
  for (int round = 0; round < 4; ++round) {
    FillPool(512, 4096);
    ReleaseHalf();
  }
  const uint32_t run = GetParam().run_pages;
  const uint32_t whole_runs = CountWholeRuns();
  // Half of the pages were released: were each as likely as any other, 2^(1 - run) of them would be in whole runs.
  EXPECT_GT(whole_runs * run, pool_.free() * (1 + std::exp2(1.0 - run)) / 2);

  const uint32_t pages = (whole_runs - 2) * run;  // it may have had to break two for the first pages
  for (uint32_t i = 0; i < pages; ++i) ASSERT_TRUE(GrowByAPage(next_id_, kMaxContext));
  const std::vector<PageId>& taken = table_.Find(next_id_)->pages;
  ASSERT_EQ(taken.size(), pages);
  EXPECT_LE(CountStretches(taken), run + (pages - run) / run);
}

TEST_P(RunsTest, APromptOfManyPagesTakesRunsFromTheStart) {
  FillPool(512, 4096);
  ReleaseHalf();
  const uint32_t run = GetParam().run_pages;
  KvSequence* const sequence = table_.FindOrCreate(next_id_);
  ASSERT_EQ(table_.Grow(sequence, 0, 4 * run * kPageTokens), GrowOutcome::kOk);
  EXPECT_EQ(sequence->pages[0] % run, 0u);
  EXPECT_LE(CountStretches(sequence->pages), 4u);
}

TEST_P(RunsTest, AFullPoolHoldsTokensInAlmostAllSlots) {
  for (const uint32_t tokens_max : {543u, 4096u}) {
    for (int round = 0; round < 4; ++round) {
      EXPECT_GT(FillPool(512, tokens_max), 0u) << "nothing was ever held";
      EXPECT_LE(pool_.free(), HasOpenPages(Shape()) ? kOpenPieces : 0u) << "those of a page that is closed";
      EXPECT_LE(pool_.held(), pool_.free());
      // In pages: those of an open page hold eight tokens each. It may be full, and its tokens in a closed one, too.
      double full = 0;
      for (const uint64_t id : ids_) {
        const uint32_t tokens = table_.Find(id)->stored_tokens[0];
        const int of_open = HasOpenPages(Shape()) ? kOpenPieceTokens : kPageTokens;
        full += tokens / kPageTokens + static_cast<double>(tokens % kPageTokens) / of_open;
      }
      EXPECT_GT(full, 0.96 * kPages) << "up to " << tokens_max << " tokens";
      ReleaseHalf();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RunsTest,
                         testing::Values(RunsCase{8, 2}, RunsCase{4, 4}, RunsCase{2, 8}, RunsCase{1, 16},
                                         RunsCase{8, 2, KvType::kInt8}, RunsCase{8, 4, KvType::kInt4}),
                         [](const auto& info) {
                           return std::string(KvTypeName(info.param.kv_type)) + "_runs_of_" +
                                  std::to_string(info.param.run_pages);
                         });

}  // namespace
}  // namespace fastdecode
