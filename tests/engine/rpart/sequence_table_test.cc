#include "engine/rpart/sequence_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace fastdecode {
namespace {

using testing::HasSubstr;

AttentionShape Shape() { return {ElementType::kF32, 1, 1, 16, 0.25f, 0, 0}; }

class SequenceTableTest : public testing::Test {
 protected:
  static constexpr int kLayers = 2;
  static constexpr uint32_t kMaxContext = 640;
  static constexpr size_t kPages = 24;

  KvSequence* Make(uint64_t id, uint32_t tokens) {
    KvSequence* const sequence = table_.FindOrCreate(id);
    EXPECT_EQ(table_.Grow(sequence, 0, tokens), GrowOutcome::kOk);
    sequence->stored_tokens.assign(kLayers, tokens);
    return sequence;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(KvPool::PageBytesAllLayers(Shape(), kLayers) * kPages);
  KvPool pool_{Shape(), kLayers, memory_};
  PageAccount account_{&pool_, kPages};
  SequenceTable table_{&account_, kLayers, kMaxContext, 8};
};

TEST_F(SequenceTableTest, TheAppendRuleIsPerLayer) {
  KvSequence* const sequence = Make(1, 10);
  sequence->stored_tokens = {10, 9};
  EXPECT_EQ(sequence->Append(0, 9), AppendRule::kSkip);
  EXPECT_EQ(sequence->Append(0, 10), AppendRule::kWrite);
  EXPECT_EQ(sequence->Append(0, 11), AppendRule::kProtocolError);
  EXPECT_EQ(sequence->Append(1, 9), AppendRule::kWrite);
  EXPECT_EQ(sequence->Append(1, 10), AppendRule::kProtocolError);
}

TEST_F(SequenceTableTest, GrowsByPagesOrNotAtAll) {
  KvSequence* const sequence = Make(1, 33);
  EXPECT_EQ(sequence->pages.size(), 2u);
  EXPECT_EQ(table_.Grow(sequence, 33, 31), GrowOutcome::kOk);
  EXPECT_EQ(sequence->pages.size(), 2u);
  Make(2, 20 * kPageTokens);
  EXPECT_EQ(pool_.free(), 2u);
  EXPECT_EQ(table_.Grow(sequence, 33, 3 * kPageTokens), GrowOutcome::kNoPage);
  EXPECT_EQ(pool_.free(), 2u) << "a failed growth took pages";
  EXPECT_EQ(sequence->pages.size(), 2u);
}

TEST_F(SequenceTableTest, GrowingNeverMovesThePageList) {
  KvSequence* const sequence = Make(1, 1);
  const PageId* const pages = sequence->pages.data();
  EXPECT_EQ(table_.Grow(sequence, 1, kMaxContext - 1), GrowOutcome::kOk);
  EXPECT_EQ(sequence->pages.data(), pages);
}

TEST_F(SequenceTableTest, AForkSharesUntilSomeoneWrites) {
  KvSequence* const first = Make(1, 70);
  ASSERT_TRUE(table_.Fork(1, 40, 2).ok());
  KvSequence* const second = table_.Find(2);
  EXPECT_EQ(pool_.free(), kPages - 3) << "a fork took pages";
  EXPECT_EQ(second->pages, std::vector<PageId>(first->pages.begin(), first->pages.begin() + 2));

  const PageId shared = first->pages[1];
  ASSERT_EQ(table_.Grow(second, 40, 1), GrowOutcome::kOk);
  EXPECT_NE(second->pages[1], shared);
  EXPECT_EQ(second->pages[0], first->pages[0]) << "a full page was copied";
  EXPECT_EQ(first->pages[1], shared);
  EXPECT_EQ(pool_.references(shared), 1u);
  EXPECT_EQ(pool_.free(), kPages - 4);
}

TEST_F(SequenceTableTest, TheOriginalCopiesTooIfItWritesFirst) {
  KvSequence* const first = Make(1, 40);
  ASSERT_TRUE(table_.Fork(1, 40, 2).ok());
  const PageId shared = first->pages[1];
  ASSERT_EQ(table_.Grow(first, 40, 1), GrowOutcome::kOk);
  EXPECT_NE(first->pages[1], shared);
  EXPECT_EQ(table_.Find(2)->pages[1], shared);
}

TEST_F(SequenceTableTest, TruncateReturnsPages) {
  KvSequence* const sequence = Make(1, 100);
  ASSERT_TRUE(table_.Truncate(1, 32).ok());
  EXPECT_EQ(sequence->pages.size(), 1u);
  EXPECT_EQ(sequence->stored_tokens, std::vector<uint32_t>(kLayers, 32));
  EXPECT_EQ(pool_.free(), kPages - 1);
}

TEST_F(SequenceTableTest, ErrorsNameWhatIsWrong) {
  Make(1, 10);
  EXPECT_THAT(std::string(table_.Truncate(9, 1).message()), HasSubstr("no sequence 9"));
  EXPECT_THAT(std::string(table_.Truncate(1, 11).message()), HasSubstr("only 10 are stored"));
  EXPECT_THAT(std::string(table_.Fork(9, 1, 2).message()), HasSubstr("no sequence 9"));
  EXPECT_THAT(std::string(table_.Fork(1, 11, 2).message()), HasSubstr("only 10 are stored"));
  EXPECT_THAT(std::string(table_.Fork(1, 1, 1).message()), HasSubstr("sequence 1 exists"));
  for (uint64_t id = 2; id <= 8; ++id) EXPECT_NE(table_.FindOrCreate(id), nullptr);
  EXPECT_EQ(table_.FindOrCreate(99), nullptr);
  EXPECT_THAT(std::string(table_.Fork(1, 1, 99).message()), HasSubstr("8 sequences already"));
}

TEST_F(SequenceTableTest, ReleaseIsIdempotentAndChangesAreCounted) {
  Make(1, 100);
  const uint64_t changes = table_.changes();
  table_.Release(1);
  EXPECT_GT(table_.changes(), changes);
  EXPECT_EQ(table_.Find(1), nullptr);
  EXPECT_EQ(pool_.free(), kPages);
  table_.Release(1);
  EXPECT_EQ(pool_.free(), kPages);
}

// After any history, each page has as many references as sequences list it, and the others are free.
TEST_F(SequenceTableTest, RandomHistoriesKeepTheAccounts) {
  std::mt19937 random(7);
  int grown = 0, refused = 0, forked = 0;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t id = random() % 8;
    KvSequence* const sequence = table_.Find(id);
    switch (random() % 5) {
      case 0:
      case 1: {
        KvSequence* const grow = table_.FindOrCreate(id);
        const uint32_t stored = grow->stored_tokens[0];
        const uint32_t tokens = std::min<uint32_t>(1 + random() % 60, kMaxContext - stored);
        if (tokens == 0) break;
        const bool ok = table_.Grow(grow, stored, tokens) == GrowOutcome::kOk;
        if (ok) grow->stored_tokens.assign(kLayers, stored + tokens);
        ++(ok ? grown : refused);
        break;
      }
      case 2:
        if (sequence == nullptr) break;
        ASSERT_TRUE(table_.Truncate(id, random() % (sequence->stored_tokens[0] + 1)).ok());
        break;
      case 3:
        if (sequence != nullptr && sequence->stored_tokens[0] > 0) {
          forked += table_.Fork(id, 1 + random() % sequence->stored_tokens[0], random() % 8).ok();
        }
        break;
      case 4:
        if (random() % 3 == 0) table_.Release(id);
    }
    std::map<PageId, uint32_t> users;
    for (uint64_t s = 0; s < 8; ++s) {
      if (const KvSequence* const each = table_.Find(s)) {
        ASSERT_EQ(each->pages.size(), (each->stored_tokens[0] + kPageTokens - 1) / kPageTokens);
        for (const PageId page : each->pages) ++users[page];
      }
    }
    ASSERT_EQ(pool_.free(), kPages - users.size());
    for (const auto& [page, count] : users) ASSERT_EQ(pool_.references(page), count);
  }
  EXPECT_GT(grown, 100);
  EXPECT_GT(refused, 100);
  EXPECT_GT(forked, 100);
  table_.ReleaseAll();
  EXPECT_EQ(pool_.free(), kPages);
}

}  // namespace
}  // namespace fastdecode
