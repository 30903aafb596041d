// Sequences that go from one peer of a home to another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/rpart/home.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
constexpr PeerId kPrefill = {1, 1};
constexpr PeerId kDecode = {1, 0};

class HandOverTest : public testing::Test {
 protected:
  void Start(uint64_t prefill_pages = 100, uint64_t decode_pages = 50) {
    home_ = MakeTestHome(2, 16 * kMiB, 3);
    prefill_ = std::make_unique<TestEngine>(home_.get(), shape_, PeerRequest{kPrefill, "pid 1", prefill_pages});
    decode_ = std::make_unique<TestEngine>(home_.get(), decode_shape_, PeerRequest{kDecode, "pid 1", decode_pages});
    decode_->Stats();  // served by now
  }

  void ExpectPages(TestEngine& engine, uint64_t used) {
    const StatsMessage stats = engine.Stats();
    EXPECT_EQ(stats.pages_total - stats.pages_free, used);
  }
  // The receiver's side of a hand-over that was done.
  void Take(TestEngine& from, TestEngine& to, uint64_t sequence, uint64_t new_sequence, uint32_t tokens) {
    HandedOverMessage told;
    ASSERT_TRUE(to.AwaitHandedOver(&told));
    EXPECT_EQ(told.sequence, new_sequence);
    EXPECT_EQ(told.tokens, tokens);
    to.Adopt(new_sequence, from.Forget(sequence));
  }

  RPartShape shape_ = SmallShape(ElementType::kBf16);
  RPartShape decode_shape_ = shape_;
  std::unique_ptr<Home> home_;
  std::unique_ptr<TestEngine> prefill_, decode_;
};

TEST_F(HandOverTest, TheReceiverGoesOnWhereTheSenderEnded) {
  Start();
  prefill_->CheckedStep(0, {{5, 0, 64, 5}});
  prefill_->CheckedStep(0, {{5, 64, 11, 5}, {6, 0, 20, 6}});
  EXPECT_EQ(prefill_->HandOver(5, kDecode, 77), HandOverOutcome::kDone);
  Take(*prefill_, *decode_, 5, 77, 75);
  ExpectPages(*prefill_, 1);
  ExpectPages(*decode_, 3);
  decode_->CheckedStep(0, {{77, 75, 1, 5}});
  decode_->CheckedStep(1, {{77, 76, 30, 7}});
  prefill_->CheckedStep(0, {{6, 20, 1, 6}});
  // The number is free again, and what it named is gone for the sender.
  prefill_->CheckedStep(0, {{5, 0, 2, 8}});
  // And back.
  EXPECT_EQ(decode_->HandOver(77, kPrefill, 78), HandOverOutcome::kDone);
  Take(*decode_, *prefill_, 77, 78, 106);
  prefill_->CheckedStep(1, {{78, 106, 1, 9}});
  ExpectPages(*decode_, 0);
  // An empty sequence is one.
  prefill_->SendRoster(0, {{90, 0, 1, 1}}, 100);
  EXPECT_EQ(prefill_->HandOver(90, kDecode, 91), HandOverOutcome::kDone);
  Take(*prefill_, *decode_, 90, 91, 0);
  decode_->CheckedStep(0, {{91, 0, 3, 1}});
}

TEST_F(HandOverTest, AForkMayGoAndItsOriginStay) {
  Start();
  prefill_->CheckedStep(0, {{1, 0, 40, 1}});
  prefill_->Fork(1, 40, 2);
  prefill_->Fork(1, 33, 3);
  EXPECT_EQ(prefill_->HandOver(2, kDecode, 2), HandOverOutcome::kDone);
  Take(*prefill_, *decode_, 2, 2, 40);
  ExpectPages(*prefill_, 2);
  ExpectPages(*decode_, 2);  // both may use them, both pay
  decode_->CheckedStep(0, {{2, 40, 1, 22}});
  prefill_->CheckedStep(0, {{1, 40, 1, 11}});
  EXPECT_EQ(prefill_->HandOver(3, kDecode, 3), HandOverOutcome::kDone);
  Take(*prefill_, *decode_, 3, 3, 33);
  decode_->CheckedStep(0, {{3, 33, 1, 33}, {2, 41, 1, 22}});
  ExpectPages(*decode_, 3);
  // The origin's end takes nothing from those who share with it.
  prefill_->Close();
  prefill_->AwaitEnd();
  decode_->CheckedStep(0, {{3, 34, 1, 33}, {2, 42, 1, 22}});
  decode_->Release(2);
  decode_->Release(3);
  ExpectPages(*decode_, 0);
}

TEST_F(HandOverTest, RefusalsChangeNothing) {
  decode_shape_.max_context = 100;
  Start(100, 2);
  prefill_->CheckedStep(0, {{1, 0, 64, 1}});
  prefill_->CheckedStep(0, {{1, 64, 1, 1}});
  EXPECT_EQ(prefill_->HandOver(9, kDecode, 9), HandOverOutcome::kNoSequence);
  EXPECT_EQ(prefill_->HandOver(1, {1, 7}, 9), HandOverOutcome::kNoPeer);
  EXPECT_EQ(prefill_->HandOver(1, {2, 0}, 9), HandOverOutcome::kNoPeer);
  EXPECT_EQ(prefill_->HandOver(1, kPrefill, 9), HandOverOutcome::kNoPeer) << "to itself";
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 9), HandOverOutcome::kNoPages) << "3 pages, 2 reserved";
  decode_->CheckedStep(0, {{9, 0, 1, 9}});
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 9), HandOverOutcome::kIdTaken);
  prefill_->Fill(2, 101);
  EXPECT_EQ(prefill_->HandOver(2, kDecode, 10), HandOverOutcome::kTooLong);
  ExpectPages(*prefill_, 3 + 4);
  ExpectPages(*decode_, 1);
  HandedOverMessage told;
  EXPECT_FALSE(decode_->TryHandedOver(&told)) << "told of what did not happen";
  // With room it goes, once.
  prefill_->Truncate(1, 32);
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 10), HandOverOutcome::kDone);
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 10), HandOverOutcome::kNoSequence) << "repeated";
  Take(*prefill_, *decode_, 1, 10, 32);
  decode_->CheckedStep(0, {{10, 31, 1, 99}});  // stored: a replay
}

TEST_F(HandOverTest, NotBetweenTheLayersOfAStep) {
  Start();
  prefill_->CheckedStep(0, {{1, 0, 4, 1}});
  const uint64_t step = prefill_->BeginStep(0);
  prefill_->SendRoster(0, {{1, 4, 1, 1}}, step);
  prefill_->link().PostHop(prefill_->WriteRows(0, {{1, 4, 1, 1}}, 0));
  ReplyHeader reply;
  ASSERT_TRUE(prefill_->AwaitReply(&reply));
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 1), HandOverOutcome::kMidStep);
  prefill_->link().PostHop(prefill_->WriteRows(0, {{1, 4, 1, 1}}, 1));
  ASSERT_TRUE(prefill_->AwaitReply(&reply));
  EXPECT_EQ(reply.status, HopStatus::kOk);
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 1), HandOverOutcome::kDone);
  // Its roster still holds: against the rules, and a bad row as after a release.
  const uint64_t next = prefill_->BeginStep(0);
  HopHeader hop = prefill_->WriteRows(0, {{1, 5, 1, 1}}, 0);
  hop.step = next;
  prefill_->link().PostHop(hop);
  ASSERT_TRUE(prefill_->AwaitReply(&reply));
  EXPECT_EQ(reply.status, HopStatus::kBadRow);
}

TEST_F(HandOverTest, AnIdleReceiverIsHandedToAndASenderThatDoesNotReadLosesItsLink) {
  Start();
  const IdleMessage idle;
  decode_->Send(&idle, sizeof(idle));
  prefill_->CheckedStep(0, {{1, 0, 4, 1}});
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 1), HandOverOutcome::kDone);
  Take(*prefill_, *decode_, 1, 1, 4);
  decode_->CheckedStep(0, {{1, 4, 1, 1}});
  // Answers fill the ring; the sender never looks.
  const size_t messages = prefill_->link().size().control_ring_bytes / sizeof(HandOverAnswer);
  for (size_t i = 0; i < messages && !prefill_->link().lost(); ++i) prefill_->SendHandOver(7, kDecode, 7);
  EXPECT_THAT(prefill_->AwaitEnd(), HasSubstr("does not read its answers"));
  decode_->CheckedStep(0, {{1, 5, 1, 1}});
}

TEST_F(HandOverTest, AReceiverThatDoesNotReadIsBusy) {
  Start();
  home_->Detach(decode_->session());
  decode_ =
      std::make_unique<TestEngine>(home_.get(), decode_shape_, PeerRequest{kDecode, "pid 1", 50}, kControlRingBytesMin);
  const size_t messages = decode_->link().size().control_ring_bytes / sizeof(HandedOverMessage);
  HandOverOutcome outcome = HandOverOutcome::kDone;
  for (size_t i = 0; i < messages && outcome == HandOverOutcome::kDone; ++i) {
    prefill_->SendRoster(0, {{1, 0, 1, 1}}, 1);  // makes an empty one
    outcome = prefill_->HandOver(1, kDecode, 1000 + i);
    while (i == 0 && outcome == HandOverOutcome::kNoPeer)
      outcome = prefill_->HandOver(1, kDecode, 1000);  // not yet here
  }
  EXPECT_EQ(outcome, HandOverOutcome::kBusy);
  EXPECT_EQ(prefill_->Stats().sequences, 1u);
}

// --- Deaths ---

TEST_F(HandOverTest, WhatWasHandedOverOutlivesTheSender) {
  Start();
  prefill_->CheckedStep(0, {{1, 0, 40, 1}, {2, 0, 3, 2}});
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 1), HandOverOutcome::kDone);
  Take(*prefill_, *decode_, 1, 1, 40);
  prefill_->Close();
  prefill_->AwaitEnd();
  decode_->CheckedStep(0, {{1, 40, 1, 1}});
  ExpectPages(*decode_, 2);
}

TEST_F(HandOverTest, WhatWasHandedOverGoesWithTheReceiver) {
  Start();
  prefill_->CheckedStep(0, {{1, 0, 40, 1}, {2, 0, 3, 2}});
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 1), HandOverOutcome::kDone);
  decode_->Close();  // without having read of it
  decode_->AwaitEnd();
  EXPECT_EQ(prefill_->HandOver(2, kDecode, 2), HandOverOutcome::kNoPeer);
  prefill_->CheckedStep(0, {{2, 3, 1, 2}});
  ExpectPages(*prefill_, 1);
  EXPECT_EQ(prefill_->HandOver(1, kDecode, 1), HandOverOutcome::kNoSequence);
  // A successor under its name has nothing of it.
  TestEngine next(home_.get(), decode_shape_, PeerRequest{kDecode, "pid 2", 50});
  EXPECT_EQ(next.Stats().sequences, 0u);
  EXPECT_EQ(next.Stats().pages_free, 50u);
  EXPECT_EQ(prefill_->HandOver(2, kDecode, 2), HandOverOutcome::kDone);
}

// Whoever dies with the message on its way, and whether it was read before or not: the sequence is somebody's or gone,
// never both, and no page is missing (which the home checks itself when a peer ends).
TEST_F(HandOverTest, DeathOfEitherWhileTheMessageIsOnItsWay) {
  Start();
  for (int round = 0; round < 20; ++round) {
    const uint64_t number = 100 + round;
    prefill_->CheckedStep(0, {{number, 0, 40, number}});
    prefill_->SendHandOver(number, kDecode, number);
    if (round % 2 == 0) {
      prefill_->Close();
      prefill_->AwaitEnd();
      const bool moved = decode_->Stats().sequences == 1;
      HandedOverMessage told;
      EXPECT_EQ(decode_->TryHandedOver(&told), moved);
      if (moved) {
        decode_->Adopt(number, prefill_->Forget(number));
        decode_->CheckedStep(0, {{number, 40, 1, number}});
        decode_->Release(number);
      }
      ExpectPages(*decode_, 0);
      prefill_ = std::make_unique<TestEngine>(home_.get(), shape_, PeerRequest{kPrefill, "pid 1", 100});
    } else {
      decode_->Close();
      HandOverAnswer answer;
      ASSERT_TRUE(prefill_->AwaitAnswer(&answer));
      decode_->AwaitEnd();
      if (answer.outcome == HandOverOutcome::kDone) {
        ExpectPages(*prefill_, 0);
        prefill_->Forget(number);
      } else {
        EXPECT_EQ(answer.outcome, HandOverOutcome::kNoPeer);
        prefill_->CheckedStep(0, {{number, 40, 1, number}});
        prefill_->Release(number);
      }
      decode_ = std::make_unique<TestEngine>(home_.get(), decode_shape_, PeerRequest{kDecode, "pid 1", 50});
      decode_->Stats();
    }
  }
}

}  // namespace
}  // namespace fastdecode
