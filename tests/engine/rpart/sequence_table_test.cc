#include "engine/rpart/sequence_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace fastdecode {
namespace {

using testing::HasSubstr;

AttentionShape Shape() { return {ElementType::kF32, KvType::kF32, 1, 1, 16, 0.25f, 0, 0}; }

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

// Every way to so many tokens is within Most, and TokensIn is its inverse.
TEST(PageCountsTest, MostIsWhatAnyStepTakes) {
  for (const bool open_pages : {false, true}) {
    const PageCounts counts(open_pages);
    uint32_t most = 0;
    for (uint32_t end = 1; end <= 200; ++end) {
      for (uint32_t first = 0; first < end; ++first) most = std::max(most, counts.OfStep(first, end));
      EXPECT_EQ(counts.Most(end), most) << end;
      EXPECT_GE(counts.TokensIn(counts.Most(end)), end);
      EXPECT_LT(counts.TokensIn(counts.Most(end) - 1), end);
    }
  }
  EXPECT_EQ(PageCounts(false).OfStep(31, 33), 2u);
  EXPECT_EQ(PageCounts(true).OfStep(31, 33), 1u + 4u);
  EXPECT_EQ(PageCounts(true).OfStep(32, 33), 1u + 1u);
}

// int4: the last page's tokens are in pieces, which are pages.
class OpenPiecesTest : public testing::Test {
 protected:
  static constexpr int kLayers = 2;
  static constexpr uint32_t kPages = 20;
  static AttentionShape Shape() { return {ElementType::kF32, KvType::kInt4, 2, 1, 16, 0.25f, 0, 0}; }

  KvSequence* Make(uint64_t id, uint32_t tokens) {
    KvSequence* const sequence = table_.FindOrCreate(id);
    EXPECT_EQ(table_.Grow(sequence, 0, tokens), GrowOutcome::kOk);
    sequence->stored_tokens.assign(kLayers, tokens);
    return sequence;
  }
  // Of stored tokens, in all layers.
  void Grow(KvSequence* sequence, uint32_t tokens) {
    const uint32_t stored = sequence->stored_tokens[0];
    ASSERT_EQ(table_.Grow(sequence, stored, tokens), GrowOutcome::kOk);
    sequence->stored_tokens.assign(kLayers, stored + tokens);
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(KvPool::PageBytesAllLayers(Shape(), kLayers) * kPages);
  KvPool pool_{Shape(), kLayers, memory_};
  PageAccount account_{&pool_, kPages};
  SequenceTable table_{&account_, kLayers, 640, 8};
};

TEST_F(OpenPiecesTest, AreTakenAsTokensComeAndReturnedWithTheNextPage) {
  KvSequence* const sequence = table_.FindOrCreate(1);
  EXPECT_EQ(account_.used(), 0u);
  for (uint32_t tokens = 1; tokens <= 100; ++tokens) {
    const std::vector<PageId> before(sequence->open_pieces, sequence->open_pieces + sequence->pieces);
    Grow(sequence, 1);
    const uint32_t of_page = (tokens - 1) % 32 + 1;
    EXPECT_EQ(sequence->pages.size(), tokens / 32) << tokens;
    EXPECT_EQ(sequence->pieces, (of_page + 7) / 8) << tokens;
    EXPECT_EQ(account_.used(), tokens / 32 + (of_page + 7) / 8) << tokens;
    const size_t same = std::min<size_t>(before.size(), sequence->pieces);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + static_cast<ptrdiff_t>(same), sequence->open_pieces));
    for (uint32_t i = sequence->pieces; i < kOpenPieces; ++i) EXPECT_EQ(sequence->open_pieces[i], kNoPage);
  }
  table_.Release(1);
  EXPECT_EQ(account_.used(), 0u);
  // A released one is used again.
  EXPECT_EQ(table_.FindOrCreate(2)->pieces, 0u);
}

// Layers that are still to come have the old page in them.
TEST_F(OpenPiecesTest, AStepThatClosesAPageKeepsItsPiecesUntilTheNextStep) {
  KvSequence* const sequence = Make(1, 20);
  EXPECT_EQ(account_.used(), 3u);
  Grow(sequence, 15);  // 35
  EXPECT_EQ(account_.used(), 1u + 3u);
  Grow(sequence, 1);
  EXPECT_EQ(account_.used(), 1u + 1u);
  Grow(sequence, 20);  // 56
  // In the midst of a step, again for the layers that are left.
  ASSERT_EQ(table_.Grow(sequence, 56, 10), GrowOutcome::kOk);  // 66
  EXPECT_EQ(account_.used(), 2u + 3u);
  sequence->stored_tokens = {66, 56};
  ASSERT_EQ(table_.Grow(sequence, 56, 10), GrowOutcome::kOk);
  EXPECT_EQ(account_.used(), 2u + 3u);
  // A shorter step in its place needs what its own last token does.
  ASSERT_EQ(table_.Grow(sequence, 56, 8), GrowOutcome::kOk);  // 64
  EXPECT_EQ(account_.used(), 2u + 4u);
}

TEST_F(OpenPiecesTest, WithoutRoomForThemNothingChanges) {
  Make(1, 11 * kPageTokens);  // and four pieces
  EXPECT_EQ(account_.free(), 5u);
  KvSequence* const second = table_.FindOrCreate(2);
  EXPECT_EQ(table_.Grow(second, 0, 3 * kPageTokens - 1), GrowOutcome::kNoPage);
  EXPECT_EQ(second->pieces, 0u);
  EXPECT_TRUE(second->pages.empty());
  EXPECT_EQ(account_.free(), 5u);
  EXPECT_EQ(table_.Grow(second, 0, kPageTokens), GrowOutcome::kOk);
  EXPECT_EQ(account_.free(), 0u);
  second->stored_tokens.assign(kLayers, kPageTokens);
  // What comes free by a growth is there for it.
  Grow(second, 2 * kPageTokens + 1);  // to 97
  EXPECT_EQ(account_.free(), 5u - 4u);
}

TEST_F(OpenPiecesTest, AForkTakesItsOwnAtOnce) {
  KvSequence* const first = Make(1, 70);
  ASSERT_TRUE(table_.Fork(1, 70, 2).ok());
  KvSequence* const second = table_.Find(2);
  EXPECT_EQ(second->pages, first->pages) << "closed ones";
  EXPECT_EQ(account_.used(), 2u + 1u + 1u);
  Grow(second, 26);  // 96
  EXPECT_EQ(account_.used(), 2u + 1u + 1u + 4u);
  ASSERT_TRUE(table_.Fork(1, 0, 3).ok());
  EXPECT_EQ(table_.Find(3)->pieces, 0u);
  Grow(first, 9 * kPageTokens - 6);  // 352
  EXPECT_EQ(account_.free(), 20u - 11u - 4u - 5u);

  const absl::Status status = table_.Fork(1, 63, 4);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("fork: 4 pages for the open page of sequence 4, but only 0"));
  EXPECT_EQ(table_.Find(4), nullptr);
  EXPECT_EQ(account_.free(), 0u);
  // What is behind a full page needs nothing of it open.
  ASSERT_TRUE(table_.Fork(1, 32, 4).ok());
  EXPECT_EQ(table_.Find(4)->pieces, 0u);
  // Of a sequence that never had one nothing is copied.
  table_.FindOrCreate(5);
  EXPECT_TRUE(table_.Fork(5, 0, 6).ok());
  table_.ReleaseAll();
  EXPECT_EQ(account_.used(), 0u);
  EXPECT_EQ(pool_.free(), kPages);
}

TEST_F(OpenPiecesTest, AClosedPageThatIsCutIntoTakesThoseOfItsTokens) {
  KvSequence* const sequence = Make(1, 97);
  EXPECT_EQ(account_.used(), 3u + 1u);
  ASSERT_TRUE(table_.Truncate(1, 80).ok());
  EXPECT_EQ(sequence->pages.size(), 2u);
  EXPECT_EQ(account_.used(), 2u + 2u);
  ASSERT_TRUE(table_.Truncate(1, 73).ok());
  EXPECT_EQ(account_.used(), 2u + 2u);
  ASSERT_TRUE(table_.Truncate(1, 72).ok());
  EXPECT_EQ(account_.used(), 2u + 1u);
  ASSERT_TRUE(table_.Truncate(1, 64).ok());
  EXPECT_EQ(account_.used(), 2u) << "full, and not open any more";
  ASSERT_TRUE(table_.Truncate(1, 0).ok());
  EXPECT_EQ(account_.used(), 0u);
}

TEST_F(OpenPiecesTest, WithoutRoomForThemNothingIsCutBack) {
  KvSequence* const sequence = Make(1, 97);
  Make(2, 15 * kPageTokens + 1);
  ASSERT_EQ(account_.free(), 0u);
  const std::vector<PageId> pages = sequence->pages;
  const absl::Status status = table_.Truncate(1, 95);  // its page makes room, once it is read
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("open page needs more than the 0 free pages"));
  EXPECT_EQ(sequence->pages, pages);
  EXPECT_EQ(sequence->pieces, 1u);
  EXPECT_EQ(sequence->stored_tokens[0], 97u);
  ASSERT_TRUE(table_.Truncate(1, 48).ok()) << "the third page makes room";
  EXPECT_EQ(account_.free(), 4u - 1u - 2u);
}

// Layers may differ in the midst of a step: each has its own open page reopened, or keeps it.
TEST_F(OpenPiecesTest, LayersAreCutBackEachForItself) {
  KvSequence* const sequence = Make(1, 70);
  const auto byte_of = [&](int layer) { return *pool_.OpenPageAt(layer, sequence->open_pieces).pieces[0]; };
  for (int layer = 0; layer < kLayers; ++layer) {
    const OpenPage open = pool_.OpenPageAt(layer, sequence->open_pieces);
    std::vector<std::byte> full(kOpenPieces * pool_.page_stride_bytes(), std::byte{0x3c});
    OpenPage before = open;
    for (size_t i = 0; i < kOpenPieces; ++i) before.pieces[i] = full.data() + i * pool_.page_stride_bytes();
    for (int head = 0; head < 2; ++head) ClosePage(Shape(), head, before, pool_.Address(layer, sequence->pages[1]));
    std::fill_n(open.pieces[0], pool_.page_stride_bytes(), std::byte{0x22});
  }
  sequence->stored_tokens = {70, 65};
  ASSERT_TRUE(table_.Truncate(1, 66).ok());
  EXPECT_EQ(sequence->stored_tokens, (std::vector<uint32_t>{66, 65}));
  EXPECT_EQ(byte_of(0), std::byte{0x22});
  EXPECT_EQ(byte_of(1), std::byte{0x22});
  sequence->stored_tokens = {66, 40};
  ASSERT_TRUE(table_.Truncate(1, 50).ok());
  EXPECT_EQ(sequence->stored_tokens, (std::vector<uint32_t>{50, 40}));
  EXPECT_EQ(byte_of(0), std::byte{0x3c});
  EXPECT_EQ(byte_of(1), std::byte{0x22}) << "what it has is of this page";
}

// Of steps that are begun and given up, each at another layer.
TEST(OpenPiecesOfLayersTest, ACutLeavesThoseOfALayerInBetween) {
  const AttentionShape shape = {ElementType::kF32, KvType::kInt4, 2, 1, 16, 0.25f, 0, 0};
  constexpr int kLayers = 3;
  std::vector<std::byte> memory(KvPool::PageBytesAllLayers(shape, kLayers) * 20);
  KvPool pool(shape, kLayers, memory);
  PageAccount account(&pool, 20);
  SequenceTable table(&account, kLayers, 640, 8);
  KvSequence* const sequence = table.FindOrCreate(1);
  ASSERT_EQ(table.Grow(sequence, 0, 30), GrowOutcome::kOk);
  sequence->stored_tokens = {30, 30, 0};
  ASSERT_EQ(table.Grow(sequence, 30, 10), GrowOutcome::kOk);
  sequence->stored_tokens = {40, 30, 0};
  ASSERT_EQ(sequence->pieces, 4u);
  ASSERT_TRUE(table.Truncate(1, 40).ok());
  EXPECT_EQ(sequence->pieces, 4u) << "the second layer's first page is still in them";
  ASSERT_TRUE(table.Truncate(1, 20).ok());
  EXPECT_EQ(sequence->pieces, 4u) << "of which it is not known that the third layer needs none";
  ASSERT_TRUE(table.Truncate(1, 0).ok());
  EXPECT_EQ(account.used(), 0u);
}

// The layers to come have 64 tokens, whose page is closed, and its pieces are gone.
TEST_F(OpenPiecesTest, APageThatSomeLayersHaveLeftIsOpenedAgain) {
  for (const bool fork : {false, true}) {
    KvSequence* const sequence = Make(1, 64);
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<std::byte> full(kOpenPieces * pool_.page_stride_bytes(), std::byte{0x3c});
      OpenPage before = pool_.OpenPageAt(layer, sequence->open_pieces);
      for (size_t i = 0; i < kOpenPieces; ++i) before.pieces[i] = full.data() + i * pool_.page_stride_bytes();
      for (int head = 0; head < 2; ++head) ClosePage(Shape(), head, before, pool_.Address(layer, sequence->pages[1]));
    }
    ASSERT_EQ(table_.Grow(sequence, 64, 1), GrowOutcome::kOk);
    EXPECT_EQ(sequence->pieces, 1u);
    sequence->stored_tokens = {65, 64};
    if (fork) {
      ASSERT_TRUE(table_.Fork(1, 60, 2).ok());
    } else {
      ASSERT_TRUE(table_.Truncate(1, 60).ok());
    }
    const KvSequence& now = *table_.Find(fork ? 2 : 1);
    ASSERT_EQ(now.pieces, 4u);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (std::byte* const piece : pool_.OpenPageAt(layer, now.open_pieces).pieces) {
        // All of a head's rows: four tokens at least.
        for (size_t i = 0; i < 4 * 2 * 16 * sizeof(Bf16); ++i)
          ASSERT_EQ(piece[i], std::byte{0x3c}) << layer << " " << i;
      }
    }
    table_.ReleaseAll();
  }
}

TEST_F(OpenPiecesTest, MoveWithTheirSequence) {
  PageAccount sender_account(&pool_, 10), receiver_account(&pool_, 10);
  SequenceTable sender(&sender_account, kLayers, 640, 8), receiver(&receiver_account, kLayers, 640, 8);
  KvSequence* const sequence = sender.FindOrCreate(1);
  ASSERT_EQ(sender.Grow(sequence, 0, 40), GrowOutcome::kOk);
  sequence->stored_tokens.assign(kLayers, 40);
  const std::vector<PageId> pieces(std::begin(sequence->open_pieces), std::end(sequence->open_pieces));
  EXPECT_EQ(sender_account.used(), 1u + 1u);
  sender.MoveTo(&receiver, 1, 9);
  EXPECT_EQ(sender_account.used(), 0u);
  EXPECT_EQ(receiver_account.used(), 1u + 1u);
  const KvSequence* const moved = receiver.Find(9);
  EXPECT_EQ(std::vector<PageId>(std::begin(moved->open_pieces), std::end(moved->open_pieces)), pieces);
  EXPECT_EQ(sender.FindOrCreate(2)->pieces, 0u);
  receiver.Release(9);
  EXPECT_EQ(pool_.free(), kPages);
}

}  // namespace
}  // namespace fastdecode
