#include "engine/pipeline/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/pipeline/batcher_rig.h"

namespace fastdecode {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Of homes that read at rates far apart, each gets KV as it reads; of others, as there is room.
TEST_F(BatcherTest, TheHomeWithTheMostSpareBandwidthIsTaken) {
  struct {
    uint32_t rates[2];
    uint32_t at_first_home;  // of 22 sequences
  } const cases[] = {{{1000, 100}, 20}, {{100, 1000}, 2}, {{150, 100}, 11},
                     {{0, 100}, 11},    {{100, 0}, 11},   {{0, 0}, 11}};
  for (const auto& c : cases) {
    BatchLimits limits;
    limits.micro_batches = 1;
    Make(limits);
    batcher_->AddHome(0, 100, c.rates[0]);
    batcher_->AddHome(1, 100, c.rates[1]);
    for (uint64_t id = 1; id <= 22; ++id) Add(id, 30, 32);
    Step(0);
    EXPECT_EQ(batcher_->sequences_at(0), c.at_first_home) << c.rates[0] << " " << c.rates[1];
    EXPECT_EQ(batcher_->sequences_at(1), 22 - c.at_first_home);
  }
}

TEST_F(BatcherTest, AFastHomeThatIsFullLeavesTheRestToOthers) {
  BatchLimits limits;
  limits.micro_batches = 1;
  Make(limits);
  batcher_->AddHome(0, 10, 100000);
  batcher_->AddHome(1, 100, 100);
  for (uint64_t id = 1; id <= 20; ++id) Add(id, 30, 32);
  Step(0);
  EXPECT_EQ(batcher_->sequences_at(0) + batcher_->sequences_at(1), 20u);
  EXPECT_EQ(batcher_->sequences_at(0), 5u) << "each may take one more page";
}

TEST_F(BatcherTest, NobodyOvertakes) {
  Make(kOne);
  batcher_->AddHome(0, 6);
  Add(1, 64, 100);
  Add(2, 160, 180);  // 5 pages: not beside the first
  Add(3, 1, 2);      // would fit
  Begin(0);
  EXPECT_THAT(Members(0), ElementsAre(1));
  EXPECT_EQ(batcher_->ready_count(), 2u);
  End(sequences_[0].get());
  Begin(0);
  EXPECT_THAT(Members(0), ElementsAre(2));  // 5 of 6 pages; the watermark keeps the third out
}

TEST_F(BatcherTest, TheWatermarkKeepsOnePageForEverySequence) {
  Make(kOne);
  batcher_->AddHome(0, 4);
  for (uint64_t id = 1; id <= 4; ++id) Add(id, 10, 128);
  Begin(0);
  // 1: 3 left. 2: needs 1 + 1. 3: needs 1 + 2, 2 are left.
  EXPECT_THAT(Members(0), ElementsAre(1, 2));
  EXPECT_EQ(batcher_->pages_free(0), 2u);
}

// int4: pages of eight tokens for those of the last page, until the next one begins, and that is known a step later.
TEST_F(BatcherTest, PiecesOfOpenPagesComeAndGo) {
  BatchLimits limits = kOne;
  limits.open_pages = true;
  Make(limits);
  batcher_->AddHome(0, 20);
  Sequence* const sequence = Add(1, 32, 128);
  Step(0);
  EXPECT_EQ(Pages(sequence), 1u + 4u);
  Step(0);  // the 33rd
  EXPECT_EQ(Pages(sequence), 1u + 4u) << "this step's home returns three, but may not have done so yet";
  for (uint32_t tokens = 34; tokens <= 100; ++tokens) {
    Step(0);
    const uint32_t of_page = (tokens - 1) % 32 + 1;
    EXPECT_EQ(Pages(sequence), of_page == 1 ? tokens / 32 + 4u : tokens / 32 + (of_page + 7) / 8) << tokens;
    EXPECT_EQ(batcher_->pages_free(0), 20 - Pages(sequence));
  }
  End(sequence);
  EXPECT_EQ(batcher_->pages_free(0), 20u);

  Sequence longest, longer;
  longest.length_max = 16 * 32 + 31;
  longer.length_max = 17 * 32;
  EXPECT_TRUE(batcher_->FitsSomewhere(longest));
  EXPECT_FALSE(batcher_->FitsSomewhere(longer)) << "17 pages and four pieces";
}

// A prompt has the pages of all its tokens, and four pieces: no chunk of it takes more.
TEST_F(BatcherTest, APromptKeepsThePiecesOfItsChunks) {
  BatchLimits limits = kOne;
  limits.open_pages = true;
  Make(limits);
  batcher_->AddHome(0, 20);
  Sequence* const sequence = Add(1, 100, 128);
  for (int step = 0; step < 4; ++step) {
    Step(0);
    EXPECT_EQ(Pages(sequence), 3u + 4u) << step;
  }
  Step(0);  // the 101st
  EXPECT_EQ(Pages(sequence), 3u + 1u);
}

// Whoever is let in, nobody has to go while those that are there grow by a page's tokens.
TEST_F(BatcherTest, TheWatermarkKnowsWhenPiecesAreNeeded) {
  // Of like lengths both have 6 pages at their 64th token, and 12 as well if they are one apart, since the first one's
  // pieces count a step longer; far apart 10 or fewer. The newcomer has one.
  for (const uint32_t apart : {0u, 1u, 13u}) {
    uint32_t joined_at = 0;
    for (uint32_t pages = 12; pages <= 20; ++pages) {
      BatchLimits limits = kOne;
      limits.open_pages = true;
      limits.chunk_tokens_max = 64;
      Make(limits);
      sequences_.clear();
      batcher_->AddHome(0, pages);
      Add(1, 32, 128);
      Add(2, 32 + apart, 128);
      for (int step = 0; step < 10; ++step) Step(0);
      if (Members(0).size() < 2) continue;
      Add(3, 1, 128);
      Step(0);
      const bool joined = Members(0).size() == 3;
      if (joined && joined_at == 0) joined_at = pages;
      EXPECT_EQ(joined, joined_at > 0) << "not with more pages";
      for (int step = 0; step < 31; ++step) {
        Step(0);
        // What the third one takes was not counted when it came.
        if (joined && released_ == std::vector<uint64_t>{3}) break;
        EXPECT_THAT(released_, IsEmpty()) << pages << " pages, " << apart << " apart, step " << step;
      }
    }
    EXPECT_EQ(joined_at, apart == 0 ? 13u : apart == 1 ? 13u : 12u) << apart;
  }
}

TEST_F(BatcherTest, AnEmptyHomeTakesWhatFillsIt) {
  Make(kOne);
  batcher_->AddHome(0, 4);
  Add(1, 127, 128);
  Begin(0);
  EXPECT_THAT(Members(0), ElementsAre(1));
  EXPECT_EQ(batcher_->pages_free(0), 0u);
}

TEST_F(BatcherTest, PlacesWhereTheLargestShareIsFree) {
  Make(kOne);
  batcher_->AddHome(0, 10);
  batcher_->AddHome(3, 20);
  std::vector<int> homes;
  for (uint64_t id = 1; id <= 3; ++id) Add(id, 5 * 32, 5 * 32 + 1);
  Begin(0);
  for (const auto& sequence : sequences_) homes.push_back(sequence->seat.home);
  EXPECT_THAT(homes, ElementsAre(3, 0, 3));  // 15/20, then 5/10 and 10/20: the first of equals; then 10/20
}

TEST_F(BatcherTest, MicroBatchesGrowEvenly) {
  Make(kTwo);
  batcher_->AddHome(0, 100);
  for (uint64_t id = 1; id <= 5; ++id) Add(id, 1, 20);
  Begin(0);
  EXPECT_THAT(Members(0), ElementsAre(1));  // one ahead of the other at most
  Begin(1);
  EXPECT_THAT(Members(1), ElementsAre(2, 3));
  Begin(0);
  EXPECT_THAT(Members(0), ElementsAre(1, 4, 5));
}

TEST_F(BatcherTest, SequencesMaxHolds) {
  BatchLimits limits = kOne;
  limits.sequences_max = 2;
  Make(limits);
  batcher_->AddHome(0, 100);
  for (uint64_t id = 1; id <= 3; ++id) Add(id, 1, 20);
  EXPECT_EQ(Begin(0), 2u);
  EXPECT_EQ(batcher_->ready_count(), 1u);
}

TEST_F(BatcherTest, DecodeRowsFirstThenChunksWithinTheirBudget) {
  BatchLimits limits = kOne;
  limits.rows_max = 20;
  limits.chunk_tokens_max = 12;
  Make(limits);
  batcher_->AddHome(0, 100);
  Sequence* first = Add(1, 30, 60);
  EXPECT_EQ(Step(0), 12u);
  EXPECT_EQ(Step(0), 12u);
  EXPECT_EQ(Step(0), 6u);
  Sequence* second = Add(2, 8, 60);
  Sequence* third = Add(3, 50, 60);
  EXPECT_EQ(Begin(0), 13u);
  EXPECT_EQ(first->rows, 1u);
  EXPECT_EQ(second->rows, 8u);
  EXPECT_EQ(third->rows, 4u);  // what the second left of the budget
  Finish(0);
  EXPECT_EQ(Begin(0), 14u);
  EXPECT_EQ(first->rows, 1u);
  EXPECT_EQ(second->rows, 1u);
  EXPECT_EQ(third->rows, 12u);
}

TEST_F(BatcherTest, RowsMaxBoundsChunksToo) {
  BatchLimits limits = kOne;
  limits.rows_max = 10;
  limits.chunk_tokens_max = 32;
  limits.sequences_max = 3;
  Make(limits);
  batcher_->AddHome(0, 100);
  Add(1, 1, 60);
  Add(2, 1, 60);
  Step(0);
  Sequence* third = Add(3, 50, 60);
  EXPECT_EQ(Begin(0), 10u);
  EXPECT_EQ(third->rows, 8u);
}

TEST_F(BatcherTest, TheYoungestGivesItsPagesBack) {
  Make(kOne);
  batcher_->AddHome(0, 4);
  Sequence* old = Add(1, 63, 128);
  Sequence* young = Add(2, 30, 128);
  while (batcher_->preemptions() == 0) Step(0);
  // 65 and 33 tokens need five pages.
  EXPECT_THAT(Members(0), ElementsAre(1));
  EXPECT_THAT(released_, ElementsAre(2));
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_EQ(young->seat.home, -1);
  EXPECT_EQ(young->computed, 0u);
  EXPECT_EQ(Pages(young), 0u);
  EXPECT_EQ(young->length, 33u);  // its tokens stay
  EXPECT_EQ(batcher_->ready_count(), 1u);
  EXPECT_EQ(Pages(old) + batcher_->pages_free(0), 4u);
}

// What was generated before is not in one chunk with the prompt.
TEST_F(BatcherTest, AChunkEndsWhereThePromptDoes) {
  Make(kOne);
  batcher_->AddHome(0, 4);
  Sequence* old = Add(1, 63, 128);
  Sequence* young = Add(2, 20, 128);
  while (batcher_->preemptions() == 0) Step(0);
  ASSERT_GT(young->length, 22u);
  End(old);
  EXPECT_EQ(Step(0), 20u);
  const uint32_t generated = young->length - 20;
  EXPECT_EQ(Step(0), generated);
  EXPECT_EQ(Step(0), 1u);
}

TEST_F(BatcherTest, OneThatIsTheYoungestGoesItself) {
  Make(kOne);
  batcher_->AddHome(0, 6);
  Sequence* old = Add(1, 90, 190);
  Sequence* young = Add(2, 40, 190);
  while (young->length < 65) Step(0);
  ASSERT_EQ(batcher_->preemptions(), 0u);
  ASSERT_EQ(Pages(old), 4u);
  EXPECT_EQ(Begin(0), 1u);
  EXPECT_THAT(Members(0), ElementsAre(1));
  EXPECT_THAT(released_, ElementsAre(2));
  EXPECT_EQ(old->rows, 1u);
  EXPECT_EQ(batcher_->pages_free(0), 2u);
  EXPECT_EQ(batcher_->preemptions(), 1u);
}

TEST_F(BatcherTest, AVictimThatHasRowsAlreadyLosesThem) {
  Make(kOne);
  batcher_->AddHome(0, 4);
  Sequence* young = Add(9, 10, 64);  // joins first, and so comes first in the step
  Step(0);
  Sequence* old = Add(2, 31, 96);
  while (old->length < 65) Step(0);
  ASSERT_THAT(Members(0), ElementsAre(9, 2));
  ASSERT_EQ(Pages(young), 2u);
  EXPECT_EQ(Begin(0), 1u);
  EXPECT_THAT(Members(0), ElementsAre(2));
  EXPECT_THAT(released_, ElementsAre(9));
  EXPECT_EQ(young->seat.home, -1);
  EXPECT_EQ(Pages(old), 3u);
}

TEST_F(BatcherTest, AVictimInAnotherMicroBatchGoesAtItsOwnBoundary) {
  Make(kTwo);
  batcher_->AddHome(0, 3);
  Sequence* old = Add(1, 32, 96);
  Begin(0);
  Sequence* young = Add(2, 10, 64);
  Begin(1);
  ASSERT_THAT(Members(1), ElementsAre(2));
  Finish(0);
  Finish(1);
  Step(0);  // 33 tokens: the last page
  while (old->length < 65) Step(0);
  EXPECT_EQ(Begin(0), 0u);  // sits out
  EXPECT_EQ(young->state, SequenceState::kGivesWay);
  EXPECT_THAT(released_, IsEmpty());
  EXPECT_EQ(Pages(young), 1u);
  EXPECT_EQ(batcher_->preemptions(), 0u);
  EXPECT_EQ(Begin(1), 0u);
  EXPECT_THAT(released_, ElementsAre(2));
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_EQ(batcher_->preemptions(), 1u);
  EXPECT_EQ(Begin(0), 1u);
  EXPECT_TRUE(batcher_->RosterChanged(0, 0));  // it was away for a step
  EXPECT_EQ(Pages(old), 3u);
}

TEST_F(BatcherTest, PreemptedOnesComeBackInOrderOfAge) {
  Make(kOne);
  batcher_->AddHome(0, 4);
  Add(1, 63, 128);
  Add(2, 30, 128);
  Add(3, 1, 10);
  Add(4, 1, 10);
  while (batcher_->preemptions() == 0) Step(0);
  ASSERT_THAT(Members(0), ElementsAre(1));
  ASSERT_EQ(batcher_->ready_count(), 3u);
  End(sequences_[0].get());
  Begin(0);
  ASSERT_FALSE(Members(0).empty());
  EXPECT_EQ(Members(0)[0], 2u);
}

TEST_F(BatcherTest, SteadyDecodeNeedsNoRoster) {
  Make(kTwo);
  batcher_->AddHome(0, 100);
  Add(1, 10, 500);
  Begin(0);
  Add(2, 1, 500);
  Begin(1);
  EXPECT_TRUE(batcher_->RosterChanged(0, 0));
  Finish(0);
  Finish(1);
  EXPECT_EQ(Begin(0), 1u);
  EXPECT_TRUE(batcher_->RosterChanged(0, 0));  // ten rows became one
  Finish(0);
  for (int i = 0; i < 200; ++i) {  // over page ends, too
    EXPECT_EQ(Begin(0), 1u);
    EXPECT_EQ(Begin(1), 1u);
    EXPECT_FALSE(batcher_->RosterChanged(0, 0));
    EXPECT_FALSE(batcher_->RosterChanged(1, 0));
    Finish(0);
    Finish(1);
  }
  Add(3, 1, 500);
  Begin(0);
  EXPECT_TRUE(batcher_->RosterChanged(0, 0));
  EXPECT_FALSE(batcher_->RosterChanged(0, 1));
  EXPECT_FALSE(batcher_->RosterChanged(1, 0));
  Finish(0);
  End(sequences_[2].get());
  Begin(0);
  EXPECT_TRUE(batcher_->RosterChanged(0, 0));
}

// The home applies a release for certain only before it takes over a later roster. So whoever takes a page that
// somebody else gave back needs one.
TEST_F(BatcherTest, APageThatWasGivenBackIsTakenWithANewRoster) {
  Make(kTwo);
  batcher_->AddHome(0, 3);
  Sequence* old = Add(1, 32, 96);
  Begin(0);
  Sequence* young = Add(2, 10, 64);
  Begin(1);
  Finish(0);
  Finish(1);
  Begin(0);  // its second page: one that nobody had
  Finish(0);
  while (old->length < 65) {
    EXPECT_EQ(Begin(0), 1u);
    EXPECT_FALSE(batcher_->RosterChanged(0, 0));
    Finish(0);
  }
  End(young);
  EXPECT_EQ(Begin(0), 1u);
  EXPECT_EQ(Pages(old), 3u);
  EXPECT_TRUE(batcher_->RosterChanged(0, 0));
  Finish(0);
  EXPECT_EQ(Begin(0), 1u);
  EXPECT_FALSE(batcher_->RosterChanged(0, 0));
}

TEST_F(BatcherTest, FitsSomewhereLooksAtWholeHomesThatLive) {
  Make(kOne);
  batcher_->AddHome(0, 2);
  batcher_->AddHome(1, 4);
  Sequence* small = Add(1, 60, 64);
  Sequence* large = Add(2, 10, 128);
  Sequence* too_large = Add(3, 10, 129);
  EXPECT_TRUE(batcher_->FitsSomewhere(*small));
  EXPECT_TRUE(batcher_->FitsSomewhere(*large));
  EXPECT_FALSE(batcher_->FitsSomewhere(*too_large));
  Begin(0);
  EXPECT_TRUE(batcher_->FitsSomewhere(*large));  // if not now
  EXPECT_FALSE(batcher_->HomesMissing());
  batcher_->LoseHome(1, 0);
  EXPECT_TRUE(batcher_->HomesMissing());
  EXPECT_TRUE(batcher_->FitsSomewhere(*small));
  EXPECT_FALSE(batcher_->FitsSomewhere(*large));
  batcher_->LoseHome(0, 0);
  EXPECT_FALSE(batcher_->FitsSomewhere(*small));
  EXPECT_EQ(batcher_->homes_alive(), 0);
}

TEST_F(BatcherTest, AHomeThatIsExpectedIsMissing) {
  Make(kOne);
  batcher_->AddHome(0, 2);
  batcher_->ExpectHome(1, true);
  EXPECT_TRUE(batcher_->HomesMissing());
  Sequence* large = Add(1, 10, 128);
  Sequence* small = Add(2, 10, 64);
  Begin(0);
  EXPECT_EQ(large->state, SequenceState::kWaits) << "it waits, and is passed";
  EXPECT_EQ(small->state, SequenceState::kComputes);
  batcher_->ExpectHome(1, false);
  EXPECT_FALSE(batcher_->HomesMissing());
  batcher_->ExpectHome(1, true);
  batcher_->AddHome(1, 4);
  EXPECT_FALSE(batcher_->HomesMissing());
}

TEST_F(BatcherTest, ALostHomesSequencesWaitAgainAndTheOthersStay) {
  Make(kTwo);
  batcher_->AddHome(0, 10);
  batcher_->AddHome(1, 10);
  for (uint64_t id = 1; id <= 4; ++id) Add(id, 10, 64);
  Step(0);
  Step(1);
  Step(0);
  std::vector<uint64_t> there;
  std::vector<uint64_t> elsewhere;
  for (const auto& sequence : sequences_) (sequence->seat.home == 1 ? there : elsewhere).push_back(sequence->id);
  ASSERT_EQ(there.size(), 2u);
  batcher_->LoseHome(1, 77);
  EXPECT_EQ(batcher_->homes_alive(), 1);
  EXPECT_EQ(batcher_->sequences_at(1), 2u);
  for (const auto& sequence : sequences_) {
    EXPECT_EQ(sequence->recovers(), testing::Value(there, testing::Contains(sequence->id)));
    EXPECT_EQ(sequence->recovery.lost_ns, sequence->recovers() ? 77u : 0u);
    EXPECT_EQ(sequence->recovery.computed, sequence->recovers() ? sequence->computed : 0u);
  }
  std::vector<uint64_t> ended;
  for (int m = 0; m < 2; ++m) {
    Begin(m);
    ended.insert(ended.end(), ended_.begin(), ended_.end());
  }
  EXPECT_THAT(ended, testing::IsEmpty());
  EXPECT_EQ(batcher_->preemptions(), 0u);
  EXPECT_EQ(batcher_->sequences_at(1), 0u);
  EXPECT_EQ(batcher_->active_count() + batcher_->ready_count(), 4u);
  batcher_->AddHome(1, 5);
  EXPECT_EQ(batcher_->pages_free(1), 5u);
}

TEST_F(BatcherTest, CancelledOnesEndAtTheBoundaryAndWaitingOnesWhenAsked) {
  Make(kOne);
  batcher_->AddHome(0, 2);
  Add(1, 10, 64);
  Add(2, 40, 64);
  Add(3, 40, 64);
  Step(0);
  for (const auto& sequence : sequences_) sequence->cancelled.store(true);
  sequences_[2]->cancelled.store(false);
  std::vector<uint64_t> ended;
  batcher_->EndReadyIf([](Sequence* sequence) { return sequence->cancelled.load(); },
                       [&](Sequence* sequence) { ended.push_back(sequence->id); });
  EXPECT_THAT(ended, ElementsAre(2));
  Begin(0);
  EXPECT_THAT(ended_, ElementsAre(1));
  EXPECT_THAT(released_, ElementsAre(1));
  EXPECT_THAT(Members(0), ElementsAre(3));
}

TEST_F(BatcherTest, TheReadyQueueKeepsRoomForThoseWhoComeBack) {
  BatchLimits limits = kOne;
  limits.ready_max = 4;
  limits.sequences_max = 2;
  Make(limits);
  batcher_->AddHome(0, 4);
  Add(1, 63, 128);
  Add(2, 30, 128);
  Step(0);
  uint64_t id = 3;
  while (batcher_->CanEnqueue()) Add(id++, 1, 10);
  EXPECT_GE(batcher_->ready_count(), limits.ready_max);
  while (batcher_->preemptions() == 0) Step(0);
  EXPECT_THAT(Members(0), ElementsAre(1));
}

}  // namespace
}  // namespace fastdecode
