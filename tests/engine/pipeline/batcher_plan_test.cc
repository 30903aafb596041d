// Who goes where beside a home that attends within the S-Part's stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/pipeline/batcher.h"

namespace fastdecode {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Ge;
using testing::Le;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr int kNear = 0, kFar = 1;

// As on an H200: pages of 1 MiB, weights of 4.6 GB.
BatchLimits LimitsOf(int micro_batches, uint32_t sequences_max = 64) {
  return {.micro_batches = micro_batches,
          .rows_max = sequences_max + 4096,
          .sequences_max = sequences_max,
          .chunk_tokens_max = 4096,
          .ready_max = 4096,
          .weight_bytes = 4'600'000'000,
          .page_bytes = 1 << 20};
}

class BatcherPlanTest : public testing::Test {
 protected:
  // The near home holds four sequences as Add makes them, with the page that each may need next.
  void Make(const BatchLimits& limits, uint32_t far_rate = 80'000, uint32_t near_rate = 4'200'000) {
    batcher_ = std::make_unique<Batcher>(limits);
    batcher_->AddHome(kNear, 4 * 64 + 4, near_rate, PushRole::kComputes, /*near=*/true);
    if (far_rate > 0) batcher_->AddHome(kFar, 100'000, far_rate, PushRole::kStores);
  }

  // 64 pages; filled in, so that no prompt is to be pushed.
  Sequence* Add(uint32_t length_max = 2080) {
    sequences_.push_back(std::make_unique<Sequence>());
    Sequence* const sequence = sequences_.back().get();
    sequence->id = sequences_.size();
    sequence->prompt_tokens = sequence->length = 2040;
    sequence->length_max = length_max;
    sequence->fill_tokens = 2039;
    batcher_->Enqueue(sequence);
    return sequence;
  }
  void AddMany(int count) {
    for (int i = 0; i < count; ++i) Add();
  }

  uint32_t Begin(int m) {
    ended_.clear();
    batcher_->DropLeavers(m, &changes_);
    batcher_->Rearrange(m, &changes_);
    batcher_->TakeIn(m, &changes_, now_ns_);
    const uint32_t rows = batcher_->ComposeRows(m, &changes_);
    Apply();
    return rows;
  }
  // All micro-batches' boundaries, until nobody joins any more.
  void BeginAll() {
    for (size_t before = SIZE_MAX; before != batcher_->active_count();) {
      before = batcher_->active_count();
      for (int m = 0; m < 2; ++m) Begin(m);
    }
  }
  void End(Sequence* sequence) {
    batcher_->Remove(sequence, &changes_);
    changes_.Clear();
  }
  void SettleAll(int m) {
    for (Sequence* sequence : batcher_->Members(m)) {
      if (Batcher::AwaitsPush(*sequence)) batcher_->Settle(sequence, &changes_);
    }
    batcher_->Rearrange(m, &changes_);
    Apply();
  }
  void Apply() {
    for (const BoundaryChange& change : changes_) {
      if (change.kind == BoundaryChange::Kind::kMoved) ++moves_;
      const bool ends = change.kind == BoundaryChange::Kind::kLeft && change.reason == LeaveReason::kEnds;
      if (ends) ended_.push_back(change.sequence->id);
    }
    changes_.Clear();
    batcher_->CheckInvariants();
  }

  // {near, far} members of a micro-batch.
  std::vector<int> Count(int m) const {
    std::vector<int> counts = {0, 0};
    for (const Sequence* sequence : batcher_->Members(m)) ++counts[static_cast<size_t>(sequence->seat.home)];
    return counts;
  }

  std::unique_ptr<Batcher> batcher_;
  BoundaryChanges changes_{8192};
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<uint64_t> ended_;
  int moves_ = 0;
  uint64_t now_ns_ = 100 * kSecondNs;
};

TEST_F(BatcherPlanTest, NearAloneFillsOneMicroBatchAfterTheOther) {
  Make(LimitsOf(2, /*sequences_max=*/3), /*far_rate=*/0);
  Add();
  Begin(1);
  EXPECT_THAT(Count(1), ElementsAre(0, 0)) << "weights are read for one micro-batch and no other";
  AddMany(4);
  Begin(0);
  EXPECT_THAT(Count(0), ElementsAre(3, 0));
  Begin(1);
  EXPECT_THAT(Count(1), ElementsAre(1, 0));
  EXPECT_EQ(batcher_->ready_count(), 1u) << "there is no room for it";
  End(sequences_[3].get());
  End(sequences_[0].get());
  Begin(1);
  EXPECT_THAT(Count(1), ElementsAre(0, 0));
  Begin(0);
  EXPECT_THAT(Count(0), ElementsAre(3, 0)) << "the first has a place again";
}

TEST_F(BatcherPlanTest, FewWaitForNearOnesToEnd) {
  Make(LimitsOf(2));
  AddMany(8);
  BeginAll();
  EXPECT_THAT(Count(0), ElementsAre(4, 0));
  EXPECT_THAT(Count(1), ElementsAre(0, 0));
  EXPECT_EQ(batcher_->ready_count(), 4u);
  now_ns_ += kSecondNs;
  End(sequences_[1].get());
  BeginAll();
  EXPECT_THAT(Count(0), ElementsAre(4, 0));
  EXPECT_EQ(sequences_[4]->seat.home, kNear);
}

TEST_F(BatcherPlanTest, ManyGetAMicroBatchOfTheirOwn) {
  BatchLimits limits = LimitsOf(2, 256);
  Make(limits);
  AddMany(200);
  BeginAll();
  EXPECT_THAT(Count(0), ElementsAre(4, 0));
  EXPECT_GT(Count(1)[kFar], 30);
  EXPECT_EQ(Count(1)[kNear], 0);
  ASSERT_GT(batcher_->ready_count(), 30u) << "near ones are done with these as soon";
  // Room near is taken first, and by the next in the queue.
  const size_t joined = batcher_->active_count();
  End(sequences_[2].get());
  BeginAll();
  EXPECT_EQ(sequences_[joined]->seat.home, kNear);
  EXPECT_EQ(sequences_[joined]->micro_batch, 0);
}

TEST_F(BatcherPlanTest, FarOnesAreSpreadOverTheOtherMicroBatches) {
  Make(LimitsOf(3, 256));
  AddMany(200);
  for (int round = 0; round < 200; ++round) {
    for (int m = 0; m < 3; ++m) Begin(m);
  }
  EXPECT_THAT(Count(0), ElementsAre(4, 0));
  EXPECT_GT(Count(1)[kFar], 10);
  EXPECT_NEAR(Count(1)[kFar], Count(2)[kFar], 1);
}

TEST_F(BatcherPlanTest, ManyAtFastHomesAreMixedOverAll) {
  Make(LimitsOf(2, 256), /*far_rate=*/4'200'000);
  AddMany(400);
  BeginAll();
  EXPECT_GT(Count(0)[kFar], 50);
  EXPECT_NEAR(Count(0)[kNear] + Count(0)[kFar], Count(1)[kNear] + Count(1)[kFar], 1);
}

TEST_F(BatcherPlanTest, WhenMoreComeThoseWhoStepTogetherAreMixed) {
  Make(LimitsOf(2, 256), /*far_rate=*/4'200'000);
  AddMany(10);
  BeginAll();
  ASSERT_EQ(batcher_->Members(0).size(), batcher_->active_count()) << "together";
  AddMany(400);
  for (int i = 0; i < 3; ++i) BeginAll();
  EXPECT_THAT(Count(0), ElementsAre(2, AllOf(Ge(50), Ge(Count(1)[kFar] - 1), Le(Count(1)[kFar] + 1))));
  EXPECT_EQ(Count(1)[kNear], 2);
  const int moves = moves_;
  for (int i = 0; i < 10; ++i) BeginAll();
  EXPECT_EQ(moves_, moves);
}

TEST_F(BatcherPlanTest, WhenMostEndThoseWhoWereApartAreMixed) {
  BatchLimits limits = LimitsOf(2, 256);
  limits.active_max = 200;
  Make(limits, /*far_rate=*/670'000);
  AddMany(1000);
  BeginAll();
  ASSERT_THAT(Count(0), ElementsAre(4, 0)) << "apart";
  ASSERT_THAT(Count(1), ElementsAre(0, 196));
  batcher_->EndReadyIf([](Sequence*) { return true; }, [](Sequence*) {});
  for (size_t i = 26; i < 200; ++i) End(sequences_[i].get());
  for (int i = 0; i < 2; ++i) BeginAll();
  EXPECT_THAT(Count(0), ElementsAre(2, 11));
  EXPECT_THAT(Count(1), ElementsAre(2, 11));
}

TEST_F(BatcherPlanTest, FewAtFastHomesStepTogether) {
  Make(LimitsOf(2), /*far_rate=*/4'200'000);
  AddMany(10);
  BeginAll();
  EXPECT_EQ(Count(0)[kNear], 4);
  EXPECT_GE(Count(0)[kFar], 5);
  EXPECT_THAT(Count(1), ElementsAre(0, 0));
}

TEST_F(BatcherPlanTest, WhoIsTooLongForNearHomesDoesNotWaitForThem) {
  Make(LimitsOf(2));
  Sequence* const long_one = Add(/*length_max=*/32 * 400);
  Sequence* const other = Add();
  BeginAll();
  EXPECT_EQ(long_one->seat.home, kFar);
  EXPECT_EQ(long_one->micro_batch, 0) << "nobody is near: together";
  EXPECT_EQ(other->seat.home, kNear);
  AddMany(3);
  Sequence* const longer = Add(/*length_max=*/32 * 400);
  BeginAll();
  EXPECT_EQ(longer->seat.home, kFar);
}

// It had both micro-batches for itself.
TEST_F(BatcherPlanTest, WhenNearOnesComeSlowOnesMakeRoom) {
  Make(LimitsOf(2));
  Sequence* const slow = Add(/*length_max=*/32 * 400);
  slow->length = slow->prompt_tokens = 32 * 390;
  slow->fill_tokens = slow->length - 1;
  BeginAll();
  EXPECT_EQ(slow->micro_batch, 0);
  batcher_->RosterSent(0, kFar);
  AddMany(3);
  for (int i = 0; i < 3; ++i) BeginAll();
  EXPECT_THAT(Count(0), ElementsAre(3, 0));
  EXPECT_THAT(Count(1), ElementsAre(0, 1));
  EXPECT_TRUE(batcher_->RosterChanged(0, kFar));
  EXPECT_TRUE(batcher_->RosterChanged(1, kFar));
  const int moves = moves_;
  EXPECT_GE(moves, 1);
  for (int i = 0; i < 10; ++i) BeginAll();
  EXPECT_EQ(moves_, moves);
}

TEST_F(BatcherPlanTest, TheFirstOfTheQueueDoesNotWaitForEver) {
  Make(LimitsOf(2));
  AddMany(6);
  BeginAll();
  now_ns_ += 5 * kSecondNs;
  BeginAll();
  EXPECT_EQ(batcher_->ready_count(), 2u);
  now_ns_ += kSecondNs / 1000;
  BeginAll();
  EXPECT_EQ(sequences_[4]->seat.home, kFar);
  EXPECT_EQ(batcher_->ready_count(), 1u) << "the next has been the first since now";
  // It is so only while nobody joins.
  now_ns_ += 5 * kSecondNs + 1;
  End(sequences_[0].get());
  BeginAll();
  EXPECT_EQ(sequences_[5]->seat.home, kNear);
}

// As in each turn of the pipeline, of a micro-batch that has nothing to do.
TEST_F(BatcherPlanTest, WhoWaitsIsNotLookedAtAgainWithoutAReason) {
  Make(LimitsOf(2));
  AddMany(6);
  BeginAll();
  ASSERT_EQ(batcher_->ready_count(), 2u);
  const uint64_t looks = batcher_->looks();
  for (int i = 0; i < 1000; ++i) {
    now_ns_ += 50;
    Begin(1);
  }
  EXPECT_EQ(batcher_->looks(), looks);
  now_ns_ += kSecondNs / 1000;
  Begin(1);
  EXPECT_EQ(batcher_->looks(), looks + 1) << "it may have waited for too long";
  Add();
  Begin(1);
  EXPECT_EQ(batcher_->looks(), looks + 2) << "more wait";
  batcher_->AddHome(2, 100'000, 4'200'000);
  BeginAll();
  EXPECT_EQ(batcher_->ready_count(), 0u);
}

// Older ones that come back come first, but its time goes on.
TEST_F(BatcherPlanTest, WhoIsPreemptedDoesNotMakeTheFirstOfTheQueueWaitAnew) {
  Make(LimitsOf(2));
  AddMany(5);
  BeginAll();
  for (int i = 0; i < 4; ++i) {
    now_ns_ += kSecondNs;
    sequences_[3]->Enter(SequenceState::kGivesWay);
    BeginAll();
    ASSERT_EQ(sequences_[3]->seat.home, kNear) << "it is taken in again";
  }
  EXPECT_EQ(batcher_->preemptions(), 4u);
  EXPECT_EQ(sequences_[4]->seat.home, -1);
  now_ns_ += kSecondNs + 1;
  BeginAll();
  EXPECT_EQ(sequences_[4]->seat.home, kFar);
}

// Once it has joined, what it waited before is forgotten.
TEST_F(BatcherPlanTest, WhoIsPreemptedWaitsAnew) {
  Make(LimitsOf(2));
  AddMany(5);
  BeginAll();
  now_ns_ += 4 * kSecondNs;
  BeginAll();
  End(sequences_[0].get());
  BeginAll();
  ASSERT_EQ(sequences_[4]->seat.home, kNear);
  for (int i = 1; i < 4; ++i) {  // a page more for each of the others: it has no room there any more
    sequences_[i]->computed = 2050;
    sequences_[i]->length = 2051;
  }
  BeginAll();
  sequences_[4]->Enter(SequenceState::kGivesWay);
  BeginAll();
  now_ns_ += 4 * kSecondNs;
  BeginAll();
  EXPECT_EQ(sequences_[4]->seat.home, -1);
  now_ns_ += kSecondNs + 1;
  BeginAll();
  EXPECT_EQ(sequences_[4]->seat.home, kFar);
}

TEST_F(BatcherPlanTest, MicroBatchesOfFarOnesThatAreFullLeaveTheRestWaiting) {
  Make(LimitsOf(2, /*sequences_max=*/20), /*far_rate=*/80'000);
  AddMany(500);
  BeginAll();
  EXPECT_THAT(Count(0), ElementsAre(4, 0)) << "they would wait for each other here";
  EXPECT_THAT(Count(1), ElementsAre(0, 20));
}

TEST_F(BatcherPlanTest, AFullMicroBatchLeavesTheRestToAnother) {
  Make(LimitsOf(2, /*sequences_max=*/20), /*far_rate=*/4'200'000);
  AddMany(30);
  BeginAll();
  EXPECT_EQ(batcher_->Members(0).size(), 20u);
  EXPECT_GE(batcher_->Members(1).size(), 8u);
}

TEST_F(BatcherPlanTest, ActiveMaxHoldsOverAll) {
  BatchLimits limits = LimitsOf(2, 32);
  limits.active_max = 32;
  Make(limits, /*far_rate=*/4'200'000);
  AddMany(100);
  BeginAll();
  EXPECT_EQ(batcher_->active_count(), 32u);
  EXPECT_EQ(batcher_->ready_count(), 68u);
}

TEST_F(BatcherPlanTest, WithoutRatesMicroBatchesGrowEvenly) {
  for (int without = 0; without < 3; ++without) {
    BatchLimits limits = LimitsOf(2);
    if (without == 0) limits.weight_bytes = 0;
    Make(limits, 0);
    batcher_->AddHome(kFar, 4 * 64 + 4, without == 1 ? 0 : 80'000);
    if (without == 2) batcher_->AddHome(2, 1, 0);
    AddMany(8);
    BeginAll();
    EXPECT_EQ(batcher_->ready_count(), 0u) << without;
    EXPECT_EQ(batcher_->Members(0).size(), 4u) << without;
    EXPECT_EQ(batcher_->Members(1).size(), 4u) << without;
    sequences_.clear();
  }
}

TEST_F(BatcherPlanTest, WithoutTheNearHomeTheOthersAreUsedEvenly) {
  Make(LimitsOf(2));
  AddMany(8);
  BeginAll();
  batcher_->LoseHome(kNear, 0);
  for (int i = 0; i < 4; ++i) BeginAll();
  EXPECT_THAT(ended_, testing::IsEmpty());
  EXPECT_EQ(batcher_->ready_count(), 0u);
  EXPECT_THAT(Count(0), ElementsAre(0, 4));
  EXPECT_THAT(Count(1), ElementsAre(0, 4));
  // It comes back.
  batcher_->AddHome(kNear, 4 * 64 + 4, 4'200'000, PushRole::kComputes, /*near=*/true);
  AddMany(1);
  BeginAll();
  EXPECT_EQ(sequences_[8]->seat.home, kNear);
  EXPECT_EQ(sequences_[8]->micro_batch, 0);
}

TEST_F(BatcherPlanTest, WithoutFarHomesAllWaitForTheNearOne) {
  Make(LimitsOf(2, 256));
  AddMany(200);
  BeginAll();
  batcher_->LoseHome(kFar, 0);
  const size_t waited = batcher_->ready_count();
  Begin(1);
  EXPECT_GT(batcher_->ready_count(), waited + 30);
  EXPECT_TRUE(batcher_->Members(1).empty());
  now_ns_ += 10 * kSecondNs;
  BeginAll();
  EXPECT_THAT(Count(0), ElementsAre(4, 0));
  EXPECT_THAT(Count(1), ElementsAre(0, 0));
}

// --- pushed prompts: three near ones that stay, and room for a prompt
class PushedApartTest : public BatcherPlanTest {
 protected:
  void MakePushed(uint32_t sequences_max = 64) {
    Make(LimitsOf(2, sequences_max));
    AddMany(3);
    BeginAll();
    pushed_ = Add(/*length_max=*/32 * 400);  // too long to live near
    pushed_->prompt_tokens = pushed_->length = 1500;
    pushed_->fill_tokens = 0;
  }
  void Finish(int m) {
    for (int home = 0; home < 2; ++home) batcher_->RosterSent(m, home);
    for (Sequence* sequence : batcher_->Members(m)) {
      sequence->computed += sequence->rows;
      if (sequence->rows > 0 && sequence->computed == sequence->length) ++sequence->length;
    }
  }

  Sequence* pushed_ = nullptr;
};

TEST_F(PushedApartTest, OneIsComputedWhereNearOnesAreAndThenMoves) {
  MakePushed();
  Begin(1);
  EXPECT_EQ(pushed_->seat.home, -1) << "a chunk among far ones would take as long as they";
  EXPECT_EQ(Begin(0), 3 + 1500u);
  EXPECT_EQ(pushed_->seat.home, kNear);
  EXPECT_EQ(pushed_->push.seat.home, kFar);
  Finish(0);
  Sequence* const decoding = Add(/*length_max=*/32 * 400);  // whose step is under way when the other comes
  EXPECT_EQ(Begin(1), 1u);
  EXPECT_EQ(Begin(0), 3u) << "it waits to be stored";
  Finish(0);
  batcher_->RosterSent(1, kFar);
  SettleAll(0);
  EXPECT_EQ(pushed_->micro_batch, 1);
  EXPECT_EQ(pushed_->seat.home, kFar);
  EXPECT_EQ(pushed_->rows, 0u) << "it is no part of the step that is under way";
  EXPECT_EQ(decoding->rows, 1u);
  EXPECT_THAT(Count(0), ElementsAre(3, 0));
  EXPECT_THAT(Count(1), ElementsAre(0, 2));
  EXPECT_TRUE(batcher_->RosterChanged(0, kNear));
  EXPECT_EQ(Begin(0), 3u);
  Finish(1);
  EXPECT_EQ(Begin(1), 2u);
  EXPECT_TRUE(batcher_->RosterChanged(1, kFar));
  End(pushed_);
  EXPECT_THAT(Count(1), ElementsAre(0, 1));
}

TEST_F(PushedApartTest, WithoutAPlaceItStays) {
  MakePushed(/*sequences_max=*/4);
  Begin(0);
  Finish(0);
  for (int i = 0; i < 4; ++i) Add(/*length_max=*/32 * 400);
  BeginAll();
  ASSERT_THAT(Count(1), ElementsAre(0, 4));
  SettleAll(0);
  EXPECT_EQ(pushed_->micro_batch, 0);
  EXPECT_EQ(pushed_->seat.home, kFar);
  EXPECT_EQ(Begin(0), 4u);
}

// Its rows lie in memory of the micro-batch.
TEST_F(PushedApartTest, WhileItIsPushedItStaysWhereItIs) {
  MakePushed(/*sequences_max=*/3);
  Begin(0);
  Begin(1);
  ASSERT_EQ(pushed_->micro_batch, 1) << "the first is full";
  ASSERT_EQ(pushed_->push.seat.home, kFar);
  Finish(1);
  End(sequences_[0].get());
  Begin(1);
  EXPECT_EQ(pushed_->micro_batch, 1);
  EXPECT_EQ(moves_, 0);
}

TEST_F(PushedApartTest, StepsTogetherDoNotMoveIt) {
  Make(LimitsOf(2), /*far_rate=*/4'200'000);
  AddMany(3);
  Sequence* const sequence = Add(/*length_max=*/32 * 400);
  sequence->prompt_tokens = sequence->length = 1500;
  sequence->fill_tokens = 0;
  BeginAll();
  Finish(0);
  SettleAll(0);
  EXPECT_EQ(sequence->seat.home, kFar);
  EXPECT_EQ(sequence->micro_batch, 0);
}

}  // namespace
}  // namespace fastdecode
