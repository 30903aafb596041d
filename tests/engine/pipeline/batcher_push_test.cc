// Prompts that one home computes and pushes to another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/pipeline/batcher_rig.h"

namespace fastdecode {
namespace {

using testing::ElementsAre;

// Home 0 computes prompts and pushes them, home 1 stores them.
class PushedPromptsTest : public BatcherTest {
 protected:
  void MakeHomes(uint32_t computing_pages, uint32_t storing_pages, const BatchLimits& limits = kOne) {
    Make(limits);
    batcher_->AddHome(0, computing_pages, 0, PushRole::kComputes);
    batcher_->AddHome(1, storing_pages, 0, PushRole::kStores);
  }
  void Settle(Sequence* sequence) {
    released_.clear();
    batcher_->Settle(sequence, &changes_);
    ASSERT_EQ(changes_.size(), 1u);
    EXPECT_EQ(changes_[0].kind, BoundaryChange::Kind::kSettled);
    released_.push_back(static_cast<uint64_t>(changes_[0].seat.home));
    changes_.Clear();
    batcher_->CheckInvariants();
  }
};

TEST_F(PushedPromptsTest, APromptIsComputedThereAndLivesHere) {
  MakeHomes(6, 100);
  Sequence* const sequence = Add(1, 70, 200);  // at full length too long for home 0
  EXPECT_EQ(Step(0), 32u);
  EXPECT_EQ(sequence->seat.home, 0);
  EXPECT_EQ(sequence->push.seat.home, 1);
  EXPECT_EQ(batcher_->pages_free(0), 3u);
  EXPECT_EQ(batcher_->pages_free(1), 97u);
  EXPECT_EQ(batcher_->sequences_at(0), 1u);
  EXPECT_EQ(batcher_->sequences_at(1), 1u);
  EXPECT_EQ(Step(0), 32u);
  EXPECT_FALSE(Batcher::AwaitsPush(*sequence));
  EXPECT_EQ(Step(0), 6u);
  EXPECT_TRUE(Batcher::AwaitsPush(*sequence));
  EXPECT_EQ(Step(0), 0u) << "until it is stored";
  Settle(sequence);
  EXPECT_THAT(released_, ElementsAre(0));
  EXPECT_EQ(sequence->seat.home, 1);
  EXPECT_EQ(sequence->push.seat.home, -1);
  EXPECT_EQ(batcher_->pages_free(0), 6u);
  EXPECT_EQ(batcher_->sequences_at(0), 0u);
  EXPECT_EQ(batcher_->sequences_at(1), 1u);
  EXPECT_TRUE(batcher_->RosterChanged(0, 0));
  EXPECT_EQ(Begin(0), 1u);
  EXPECT_TRUE(batcher_->RosterChanged(0, 1));
  Finish(0);
  End(sequence);
  EXPECT_EQ(batcher_->pages_free(1), 100u);
}

// 65 tokens in chunks of 32: the last one is computed at home.
TEST_F(PushedPromptsTest, TheLastTokenAloneIsNotComputedThere) {
  MakeHomes(6, 100);
  Sequence* const sequence = Add(1, 65, 200);
  EXPECT_EQ(Step(0), 32u);
  EXPECT_EQ(Step(0), 32u);
  EXPECT_EQ(Step(0), 0u);
  EXPECT_TRUE(Batcher::AwaitsPush(*sequence));
  Settle(sequence);
  EXPECT_EQ(Step(0), 1u);
  EXPECT_EQ(sequence->seat.home, 1);
}

TEST_F(PushedPromptsTest, WhileRowsWaitToBePostedNoneAreAdded) {
  MakeHomes(6, 100);
  Add(1, 70, 200);
  Sequence* const other = Add(2, 20, 200);  // not more than a page: at home at once
  EXPECT_EQ(Step(0), 32u);
  EXPECT_EQ(other->seat.home, 1);
  EXPECT_EQ(other->push.seat.home, -1);
  EXPECT_EQ(batcher_->ComposeRows(0, &changes_, /*hold_pushes=*/true), 20u) << "others go on";
  Finish(0);
  EXPECT_EQ(batcher_->ComposeRows(0, &changes_, /*hold_pushes=*/false), 33u) << "one of them decodes";
}

TEST_F(PushedPromptsTest, WithoutRoomThereTheHomeComputesIt) {
  MakeHomes(4, 100);
  Sequence* const first = Add(1, 70, 200);
  Sequence* const second = Add(2, 70, 200);
  Sequence* filled = Add(3, 70, 200);
  filled->fill_tokens = 69;
  Step(0);
  EXPECT_EQ(first->seat.home, 0);
  EXPECT_EQ(second->seat.home, 1);
  EXPECT_EQ(second->push.seat.home, -1);
  Settle(first);
  Step(0);
  EXPECT_EQ(filled->seat.home, 1) << "it has no prompt to compute";
  EXPECT_EQ(batcher_->pages_free(0), 4u);
}

TEST_F(PushedPromptsTest, WhoLeavesGivesBothBack) {
  MakeHomes(6, 100);
  Sequence* const sequence = Add(1, 70, 200);
  Step(0);
  sequence->cancelled = true;
  Begin(0);
  EXPECT_THAT(released_, ElementsAre(1, 1)) << "both homes are told";
  EXPECT_THAT(ended_, ElementsAre(1));
  EXPECT_EQ(batcher_->pages_free(0), 6u);
  EXPECT_EQ(batcher_->pages_free(1), 100u);
  EXPECT_EQ(batcher_->sequences_at(0), 0u);
  EXPECT_EQ(batcher_->sequences_at(1), 0u);
}

TEST_F(PushedPromptsTest, ItsHomeMayPreemptIt) {
  MakeHomes(3, 5);
  Sequence* const first = Add(1, 31, 100);
  Sequence* const second = Add(2, 70, 100);  // 3 pages
  Step(0);
  EXPECT_EQ(second->push.seat.home, 1);
  for (int i = 0; i < 70 && second->push.seat.home == 1; ++i) Step(0);
  EXPECT_EQ(Pages(first), 3u) << "a third one of the five";
  EXPECT_EQ(second->seat.home, -1);
  EXPECT_EQ(batcher_->preemptions(), 1u);
  EXPECT_EQ(batcher_->pages_free(0), 3u);
  EXPECT_EQ(batcher_->pages_free(1), 2u);
}

TEST_F(PushedPromptsTest, WithEitherHomeItWaitsAgain) {
  for (const int lost : {0, 1}) {
    MakeHomes(6, 100);
    Sequence* const sequence = Add(1, 70, 100);
    Step(0);
    ASSERT_EQ(sequence->push.seat.home, 1);
    batcher_->LoseHome(lost, 0);
    EXPECT_TRUE(sequence->recovers());
    Begin(0);
    EXPECT_THAT(ended_, testing::IsEmpty());
    // The other one may have room for it.
    EXPECT_EQ(sequence->seat.home, 1 - lost);
    EXPECT_FALSE(sequence->is_pushed());
    EXPECT_EQ(batcher_->sequences_at(lost), 0u);
    EXPECT_EQ(batcher_->sequences_at(1 - lost), 1u);
    End(sequence);
    Begin(0);
  }
}

}  // namespace
}  // namespace fastdecode
