#include "tests/rdma/link_suite.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace fastdecode {

namespace {

constexpr uint64_t kEpoch = 7;

}  // namespace

void LinkSuite::SetUp() { ends_ = GetParam().make(SmallSize(), kEpoch); }

TEST_P(LinkSuite, HopAndReplyArriveWithHeaderAndPayload) {
  EXPECT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kEmpty);
  EXPECT_EQ(engine()->PollReply(&reply_), LinkPoll::kEmpty);

  std::memset(engine()->SendArea(1), 0x5a, 200);
  engine()->PostHop(Hop(1, 42, 9));
  ASSERT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kMessage);
  EXPECT_EQ(hop_.epoch, kEpoch);
  EXPECT_EQ(hop_.step, 42u);
  EXPECT_EQ(hop_.layer, 9);
  EXPECT_EQ(hop_.rows, 2u);
  EXPECT_EQ(hop_.roster_version, 4u);
  EXPECT_EQ(hop_.micro_batch, 1);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(payload_[i], std::byte{0x5a});
  EXPECT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kEmpty) << "a hop arrives once";

  std::memset(home()->ReplyArea(1), 0x17, 100);
  ReplyHeader sent = ReplyTo(hop_);
  sent.work_ns = 22;
  sent.end_clock_ns = 0xfedcba98;
  sent.idle = ShortDuration::FromNs(11);
  sent.prepare = ShortDuration::FromNs(12);
  sent.append = ShortDuration::FromNs(13);
  sent.merge = ShortDuration::FromNs(14);
  sent.wait = ShortDuration::FromNs(15);
  sent.post = ShortDuration::FromNs(16);
  home()->PostReply(sent);
  ASSERT_EQ(engine()->PollReply(&reply_), LinkPoll::kMessage);
  EXPECT_EQ(reply_.epoch, kEpoch);
  EXPECT_EQ(reply_.step, 42u);
  EXPECT_EQ(reply_.work_ns, 22u);
  EXPECT_EQ(reply_.end_clock_ns, 0xfedcba98u);
  EXPECT_EQ(reply_.idle.ToNs(), 11u);
  EXPECT_EQ(reply_.prepare.ToNs(), 12u);
  EXPECT_EQ(reply_.append.ToNs(), 13u);
  EXPECT_EQ(reply_.merge.ToNs(), 14u);
  EXPECT_EQ(reply_.wait.ToNs(), 15u);
  EXPECT_EQ(reply_.post.ToNs(), 16u);
  EXPECT_EQ(reply_.status, HopStatus::kOk);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(engine()->ReceiveArea(1)[i], std::byte{0x17});
  EXPECT_EQ(engine()->PollReply(&reply_), LinkPoll::kEmpty) << "a reply arrives once";
}

TEST_P(LinkSuite, AreasAreAlignedAndApart) {
  for (int slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(engine()->SendArea(slot)) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(home()->ReplyArea(slot)) % 64, 0u);
    std::memset(engine()->SendArea(slot), slot + 1, 200);
    std::memset(home()->ReplyArea(slot), slot + 11, 100);
  }
  for (int slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(engine()->SendArea(slot)[0], std::byte(slot + 1));
    EXPECT_EQ(engine()->SendArea(slot)[199], std::byte(slot + 1));
    EXPECT_EQ(home()->ReplyArea(slot)[99], std::byte(slot + 11));
  }
}

TEST_P(LinkSuite, SlotsFinishInAnyOrder) {
  for (int slot = 0; slot < 3; ++slot) engine()->PostHop(Hop(slot, 5, slot));
  std::vector<HopHeader> hops;
  while (home()->PollHop(&hop_, &payload_) == LinkPoll::kMessage) hops.push_back(hop_);
  ASSERT_EQ(hops.size(), 3u);
  home()->PostReply(ReplyTo(hops[2]));
  ASSERT_EQ(engine()->PollReply(&reply_), LinkPoll::kMessage);
  EXPECT_EQ(reply_.micro_batch, hops[2].micro_batch);
  // The freed slot goes round again while the others are out.
  engine()->PostHop(Hop(hops[2].micro_batch, 6, 0));
  ASSERT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kMessage);
  EXPECT_EQ(hop_.step, 6u);
  home()->PostReply(ReplyTo(hops[0]));
  home()->PostReply(ReplyTo(hops[1]));
  home()->PostReply(ReplyTo(hop_));
  std::set<int> slots;
  while (engine()->PollReply(&reply_) == LinkPoll::kMessage) slots.insert(reply_.micro_batch);
  EXPECT_EQ(slots, (std::set<int>{0, 1, 2}));
  EXPECT_FALSE(engine()->lost()) << engine()->lost_cause();
}

TEST_P(LinkSuite, NoSlotStarvesAnother) {
  // Slot 0 is replied to and posted again before every poll; the others still come up.
  engine()->PostHop(Hop(0));
  engine()->PostHop(Hop(2));
  std::set<int> seen;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kMessage);
    seen.insert(hop_.micro_batch);
    if (hop_.micro_batch != 0) break;
    home()->PostReply(ReplyTo(hop_));
    ASSERT_EQ(engine()->PollReply(&reply_), LinkPoll::kMessage);
    engine()->PostHop(Hop(0, 2 + i));
  }
  EXPECT_TRUE(seen.count(2));
}

TEST_P(LinkSuite, ControlMessagesKeepTheirOrderAndPrecedeTheHop) {
  std::vector<char> buffer(kControlMessageBytesMax);
  size_t bytes = 0;
  EXPECT_EQ(home()->PollControl(buffer.data(), &bytes), LinkPoll::kEmpty);
  ASSERT_TRUE(engine()->TrySendControl("roster", 7));
  ASSERT_TRUE(engine()->TrySendControl("release", 8));
  engine()->PostHop(Hop(0));
  ASSERT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kMessage);
  ASSERT_EQ(home()->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  EXPECT_EQ(std::string(buffer.data(), bytes), std::string("roster", 7));
  ASSERT_EQ(home()->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  EXPECT_EQ(std::string(buffer.data(), bytes), std::string("release", 8));
  EXPECT_EQ(home()->PollControl(buffer.data(), &bytes), LinkPoll::kEmpty);
  ASSERT_TRUE(home()->TrySendControl("stats", 5));
  ASSERT_EQ(engine()->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  EXPECT_EQ(std::string(buffer.data(), bytes), "stats");
}

TEST_P(LinkSuite, AFullControlRingRefusesUntilTheHomeReads) {
  const std::vector<char> message(1000);
  int sent = 0;
  while (engine()->TrySendControl(message.data(), message.size())) ++sent;
  EXPECT_EQ(sent, 4);  // 4 * 1008 <= 4096 < 5 * 1008
  EXPECT_FALSE(engine()->lost());
  std::vector<char> buffer(kControlMessageBytesMax);
  size_t bytes;
  ASSERT_EQ(home()->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  EXPECT_TRUE(engine()->TrySendControl(message.data(), message.size()));
  EXPECT_FALSE(engine()->TrySendControl(message.data(), message.size()));
}

TEST_P(LinkSuite, BulkSegmentsArriveInOrderUntilTheHomeHoldsAll) {
  const std::byte* segment = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(home()->PollBulk(&segment, &bytes), LinkPoll::kEmpty);
  std::vector<const std::byte*> held;
  for (size_t i = 0; i < 3; ++i) {
    std::byte* const area = engine()->BulkArea();
    ASSERT_NE(area, nullptr) << i;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(area) % 64, 0u);
    EXPECT_EQ(engine()->BulkArea(), area) << "the same until it is posted";
    FillPattern(area, 500 - i, i);
    engine()->PostBulk(500 - i);
  }
  EXPECT_EQ(engine()->BulkArea(), nullptr) << "all are out";
  EXPECT_EQ(engine()->BulkFreed(), 0u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(home()->PollBulk(&segment, &bytes), LinkPoll::kMessage);
    ASSERT_EQ(bytes, 500 - i);
    held.push_back(segment);
  }
  EXPECT_EQ(home()->PollBulk(&segment, &bytes), LinkPoll::kEmpty);
  EXPECT_EQ(engine()->BulkArea(), nullptr) << "what is held is not free";
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(HasPattern(held[i], 500 - i, i));
  home()->FreeBulk();
  ASSERT_NE(engine()->BulkArea(), nullptr);
  engine()->PostBulk(1);
  EXPECT_EQ(engine()->BulkArea(), nullptr);
  EXPECT_TRUE(HasPattern(held[1], 499, 1)) << "only what was freed is written again";
  EXPECT_FALSE(engine()->lost()) << engine()->lost_cause();
}

TEST_P(LinkSuite, BulkSegmentsGoRoundBetweenHops) {
  const std::byte* segment = nullptr;
  size_t bytes = 0;
  for (uint64_t step = 1; step <= 40; ++step) {
    FillPattern(engine()->BulkArea(), 1 + step, step);
    engine()->PostBulk(1 + step);
    engine()->PostHop(Hop(0, step));
    ASSERT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kMessage);
    ASSERT_EQ(home()->PollBulk(&segment, &bytes), LinkPoll::kMessage);
    ASSERT_EQ(bytes, 1 + step);
    ASSERT_TRUE(HasPattern(segment, bytes, step));
    EXPECT_EQ(engine()->BulkFreed(), step - 1) << "what is held is not free";
    home()->FreeBulk();
    home()->PostReply(ReplyTo(hop_));
    ASSERT_EQ(engine()->PollReply(&reply_), LinkPoll::kMessage);
    // Known without another segment, once the home has looked in vain.
    for (int i = 0; i < 1'000'000 && engine()->BulkFreed() != step; ++i) {
      EXPECT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kEmpty);
    }
    ASSERT_EQ(engine()->BulkFreed(), step);
  }
}

TEST_P(LinkSuite, ALinkWithoutABulkChannelHasNoSegments) {
  LinkSize size = SmallSize();
  size.bulk_segments = 0;
  size.bulk_segment_bytes_max = 0;
  ends_ = GetParam().make(size, kEpoch);
  const std::byte* segment = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(engine()->BulkArea(), nullptr);
  EXPECT_EQ(engine()->BulkFreed(), 0u);
  EXPECT_EQ(home()->PollBulk(&segment, &bytes), LinkPoll::kEmpty);
}

TEST_P(LinkSuite, ProgressCounts) {
  EXPECT_EQ(engine()->Progress(), 0u);
  home()->AddProgress(3);
  home()->AddProgress(4);
  for (int i = 0; i < 100 && engine()->Progress() != 7; ++i) ends_->PassNews();
  EXPECT_EQ(engine()->Progress(), 7u);
}

TEST_P(LinkSuite, MarkLostReachesTheOtherEndAndTheFirstCauseStays) {
  engine()->MarkLost("home overdue");
  engine()->MarkLost("something later");
  ends_->PassNews();
  EXPECT_TRUE(engine()->lost());
  EXPECT_EQ(engine()->lost_cause(), "home overdue");
  EXPECT_TRUE(home()->lost());
  EXPECT_EQ(home()->lost_cause(), "the engine gave the link up: home overdue");
  std::vector<char> buffer(kControlMessageBytesMax);
  size_t bytes;
  EXPECT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kLost);
  EXPECT_EQ(home()->PollControl(buffer.data(), &bytes), LinkPoll::kLost);
  EXPECT_EQ(engine()->PollReply(&reply_), LinkPoll::kLost);
  EXPECT_EQ(engine()->PollControl(buffer.data(), &bytes), LinkPoll::kLost);
  EXPECT_FALSE(engine()->TrySendControl("x", 1));
  EXPECT_FALSE(home()->TrySendControl("x", 1));
  const std::byte* segment = nullptr;
  EXPECT_EQ(home()->PollBulk(&segment, &bytes), LinkPoll::kLost);
  EXPECT_EQ(engine()->BulkArea(), nullptr);
  // Posting does nothing, on whatever slot.
  engine()->PostHop(Hop(0));
  engine()->PostHop(Hop(0));
  home()->PostReply(ReplyTo(Hop(0)));
  engine()->PostBulk(1);
  home()->FreeBulk();
}

TEST_P(LinkSuite, DestroyingAnEndLosesTheOtherAndLeavesItsMemory) {
  std::memset(engine()->SendArea(0), 1, 200);
  ends_->home.reset();
  ends_->PassNews();
  EXPECT_TRUE(engine()->lost());
  EXPECT_EQ(engine()->lost_cause(), "the home gave the link up: the home closed the link");
  std::memset(engine()->SendArea(0), 2, 200);
  EXPECT_EQ(engine()->ReceiveArea(2)[0], std::byte{0});
}

TEST_P(LinkSuite, ALostLinkDoesNotSleep) {
  ends_->engine.reset();
  ends_->PassNews();
  home()->Arm();
  EXPECT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kLost);
  home()->Disarm();
}

TEST_P(LinkSuite, AHomeThatArmedBeforeTheRingDoesNotSleep) {
  home()->Arm();
  engine()->PostHop(Hop(0));
  engine()->RingHome();
  home()->Sleep(3'600'000'000'000);  // would hang the test
  EXPECT_EQ(home()->PollHop(&hop_, &payload_), LinkPoll::kMessage);
  home()->Arm();
  home()->Sleep(1000);  // nobody rings: the timeout ends it
}

TEST_P(LinkSuite, ABulkSegmentWakesAHomeThatArmedBefore) {
  home()->Arm();
  ASSERT_NE(engine()->BulkArea(), nullptr);
  engine()->PostBulk(7);
  engine()->RingHome();
  home()->Sleep(3'600'000'000'000);  // would hang the test
  const std::byte* segment = nullptr;
  size_t bytes = 0;
  EXPECT_EQ(home()->PollBulk(&segment, &bytes), LinkPoll::kMessage);
  EXPECT_EQ(bytes, 7u);
}

TEST_P(LinkSuite, MisuseOfASlotAborts) {
  EXPECT_DEATH(engine()->SendArea(3), "slot out of range");
  EXPECT_DEATH(home()->ReplyArea(-1), "slot out of range");
  engine()->PostHop(Hop(0));
  EXPECT_DEATH(engine()->PostHop(Hop(0)), "no reply yet");
  EXPECT_DEATH(home()->PostReply(ReplyTo(Hop(0))), "without an open hop");
  HopHeader too_large = Hop(1);
  too_large.payload_bytes = 201;
  EXPECT_DEATH(engine()->PostHop(too_large), "hop size");
  EXPECT_DEATH(engine()->PostBulk(501), "bulk segment size");
  EXPECT_DEATH(home()->FreeBulk(), "no bulk segment is held");
}

}  // namespace fastdecode
