// Both ends of a link, one event at a time and without threads.

#include "rdma/shm/shm_link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "rdma/shm/local_link.h"
#include "tests/rdma/heap_link.h"

namespace fastdecode {
namespace {

constexpr uint64_t kEpoch = 7;

LinkSize SmallSize() {
  return {.slots = 3, .hop_payload_bytes_max = 200, .reply_payload_bytes_max = 100, .control_ring_bytes = 4096};
}

HopHeader Hop(int slot, uint64_t step = 1, int layer = 0) {
  HopHeader hop;
  hop.step = step;
  hop.roster_version = 4;
  hop.rows = 2;
  hop.payload_bytes = 200;
  hop.layer = static_cast<uint16_t>(layer);
  hop.micro_batch = static_cast<uint8_t>(slot);
  return hop;
}

ReplyHeader ReplyTo(const HopHeader& hop) {
  ReplyHeader reply;
  reply.step = hop.step;
  reply.layer = hop.layer;
  reply.micro_batch = hop.micro_batch;
  reply.payload_bytes = 100;
  return reply;
}

class LocalLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<LocalLink> link = MakeLocalLink(SmallSize(), -1, -1, kEpoch);
    ASSERT_TRUE(link.ok()) << link.status();
    engine_ = std::move(link->engine);
    home_ = std::move(link->home);
  }

  std::unique_ptr<EngineLink> engine_;
  std::unique_ptr<HomeLink> home_;
  HopHeader hop_;
  ReplyHeader reply_;
  const std::byte* payload_ = nullptr;
};

TEST_F(LocalLinkTest, HopAndReplyArriveWithHeaderAndPayload) {
  EXPECT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kEmpty);
  EXPECT_EQ(engine_->PollReply(&reply_), LinkPoll::kEmpty);

  std::memset(engine_->SendArea(1), 0x5a, 200);
  engine_->PostHop(Hop(1, 42, 9));
  ASSERT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kMessage);
  EXPECT_EQ(hop_.epoch, kEpoch);
  EXPECT_EQ(hop_.step, 42u);
  EXPECT_EQ(hop_.layer, 9);
  EXPECT_EQ(hop_.rows, 2u);
  EXPECT_EQ(hop_.roster_version, 4u);
  EXPECT_EQ(hop_.micro_batch, 1);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(payload_[i], std::byte{0x5a});
  EXPECT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kEmpty) << "a hop arrives once";

  std::memset(home_->ReplyArea(1), 0x17, 100);
  ReplyHeader sent = ReplyTo(hop_);
  sent.idle_ns = 11;
  sent.work_ns = 22;
  home_->PostReply(sent);
  ASSERT_EQ(engine_->PollReply(&reply_), LinkPoll::kMessage);
  EXPECT_EQ(reply_.epoch, kEpoch);
  EXPECT_EQ(reply_.step, 42u);
  EXPECT_EQ(reply_.idle_ns, 11u);
  EXPECT_EQ(reply_.work_ns, 22u);
  EXPECT_EQ(reply_.status, HopStatus::kOk);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(engine_->ReceiveArea(1)[i], std::byte{0x17});
  EXPECT_EQ(engine_->PollReply(&reply_), LinkPoll::kEmpty) << "a reply arrives once";
}

TEST_F(LocalLinkTest, AreasAreAlignedAndApart) {
  for (int slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(engine_->SendArea(slot)) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(home_->ReplyArea(slot)) % 64, 0u);
    std::memset(engine_->SendArea(slot), slot + 1, 200);
    std::memset(home_->ReplyArea(slot), slot + 11, 100);
  }
  for (int slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(engine_->SendArea(slot)[0], std::byte(slot + 1));
    EXPECT_EQ(engine_->SendArea(slot)[199], std::byte(slot + 1));
    EXPECT_EQ(engine_->ReceiveArea(slot)[99], std::byte(slot + 11));
  }
}

TEST_F(LocalLinkTest, SlotsFinishInAnyOrder) {
  for (int slot = 0; slot < 3; ++slot) engine_->PostHop(Hop(slot, 5, slot));
  std::vector<HopHeader> hops;
  while (home_->PollHop(&hop_, &payload_) == LinkPoll::kMessage) hops.push_back(hop_);
  ASSERT_EQ(hops.size(), 3u);
  home_->PostReply(ReplyTo(hops[2]));
  ASSERT_EQ(engine_->PollReply(&reply_), LinkPoll::kMessage);
  EXPECT_EQ(reply_.micro_batch, hops[2].micro_batch);
  // The freed slot goes round again while the others are out.
  engine_->PostHop(Hop(hops[2].micro_batch, 6, 0));
  ASSERT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kMessage);
  EXPECT_EQ(hop_.step, 6u);
  home_->PostReply(ReplyTo(hops[0]));
  home_->PostReply(ReplyTo(hops[1]));
  home_->PostReply(ReplyTo(hop_));
  std::set<int> slots;
  while (engine_->PollReply(&reply_) == LinkPoll::kMessage) slots.insert(reply_.micro_batch);
  EXPECT_EQ(slots, (std::set<int>{0, 1, 2}));
  EXPECT_FALSE(engine_->lost()) << engine_->lost_cause();
}

TEST_F(LocalLinkTest, NoSlotStarvesAnother) {
  // Slot 0 is replied to and posted again before every poll; the others still come up.
  engine_->PostHop(Hop(0));
  engine_->PostHop(Hop(2));
  std::set<int> seen;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kMessage);
    seen.insert(hop_.micro_batch);
    if (hop_.micro_batch != 0) break;
    home_->PostReply(ReplyTo(hop_));
    ASSERT_EQ(engine_->PollReply(&reply_), LinkPoll::kMessage);
    engine_->PostHop(Hop(0, 2 + i));
  }
  EXPECT_TRUE(seen.count(2));
}

TEST_F(LocalLinkTest, ControlMessagesKeepTheirOrderAndPrecedeTheHop) {
  std::vector<char> buffer(kControlMessageBytesMax);
  size_t bytes = 0;
  EXPECT_EQ(home_->PollControl(buffer.data(), &bytes), LinkPoll::kEmpty);
  ASSERT_TRUE(engine_->TrySendControl("roster", 7));
  ASSERT_TRUE(engine_->TrySendControl("release", 8));
  engine_->PostHop(Hop(0));
  ASSERT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kMessage);
  ASSERT_EQ(home_->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  EXPECT_EQ(std::string(buffer.data(), bytes), std::string("roster", 7));
  ASSERT_EQ(home_->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  EXPECT_EQ(std::string(buffer.data(), bytes), std::string("release", 8));
  EXPECT_EQ(home_->PollControl(buffer.data(), &bytes), LinkPoll::kEmpty);
  ASSERT_TRUE(home_->TrySendControl("stats", 5));
  ASSERT_EQ(engine_->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  EXPECT_EQ(std::string(buffer.data(), bytes), "stats");
}

TEST_F(LocalLinkTest, AFullControlRingRefusesUntilTheHomeReads) {
  const std::vector<char> message(1000);
  int sent = 0;
  while (engine_->TrySendControl(message.data(), message.size())) ++sent;
  EXPECT_EQ(sent, 4);  // 4 * 1008 <= 4096 < 5 * 1008
  EXPECT_FALSE(engine_->lost());
  std::vector<char> buffer(kControlMessageBytesMax);
  size_t bytes;
  ASSERT_EQ(home_->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  EXPECT_TRUE(engine_->TrySendControl(message.data(), message.size()));
  EXPECT_FALSE(engine_->TrySendControl(message.data(), message.size()));
}

TEST_F(LocalLinkTest, ProgressCounts) {
  EXPECT_EQ(engine_->Progress(), 0u);
  home_->AddProgress(3);
  home_->AddProgress(4);
  EXPECT_EQ(engine_->Progress(), 7u);
}

TEST_F(LocalLinkTest, MarkLostReachesTheOtherEndAndTheFirstCauseStays) {
  engine_->MarkLost("home overdue");
  engine_->MarkLost("something later");
  EXPECT_TRUE(engine_->lost());
  EXPECT_EQ(engine_->lost_cause(), "home overdue");
  EXPECT_TRUE(home_->lost());
  EXPECT_EQ(home_->lost_cause(), "the engine gave the link up: home overdue");
  std::vector<char> buffer(kControlMessageBytesMax);
  size_t bytes;
  EXPECT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kLost);
  EXPECT_EQ(home_->PollControl(buffer.data(), &bytes), LinkPoll::kLost);
  EXPECT_EQ(engine_->PollReply(&reply_), LinkPoll::kLost);
  EXPECT_EQ(engine_->PollControl(buffer.data(), &bytes), LinkPoll::kLost);
  EXPECT_FALSE(engine_->TrySendControl("x", 1));
  EXPECT_FALSE(home_->TrySendControl("x", 1));
  // Posting does nothing, on whatever slot.
  engine_->PostHop(Hop(0));
  engine_->PostHop(Hop(0));
  home_->PostReply(ReplyTo(Hop(0)));
}

TEST_F(LocalLinkTest, DestroyingAnEndLosesTheOtherAndLeavesItsMemory) {
  std::memset(engine_->SendArea(0), 1, 200);
  home_.reset();
  EXPECT_TRUE(engine_->lost());
  EXPECT_EQ(engine_->lost_cause(), "the home gave the link up: the home closed the link");
  std::memset(engine_->SendArea(0), 2, 200);
  EXPECT_EQ(engine_->ReceiveArea(2)[0], std::byte{0});
}

TEST_F(LocalLinkTest, ALostLinkDoesNotSleep) {
  engine_.reset();
  home_->Arm();
  EXPECT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kLost);
  home_->Disarm();
}

TEST_F(LocalLinkTest, AHomeThatArmedBeforeTheRingDoesNotSleep) {
  home_->Arm();
  engine_->PostHop(Hop(0));
  engine_->RingHome();
  home_->Sleep(3'600'000'000'000);  // would hang the test
  EXPECT_EQ(home_->PollHop(&hop_, &payload_), LinkPoll::kMessage);
  home_->Arm();
  home_->Sleep(1000);  // nobody rings: the timeout ends it
}

TEST_F(LocalLinkTest, MisuseOfASlotAborts) {
  EXPECT_DEATH(engine_->SendArea(3), "slot out of range");
  EXPECT_DEATH(home_->ReplyArea(-1), "slot out of range");
  engine_->PostHop(Hop(0));
  EXPECT_DEATH(engine_->PostHop(Hop(0)), "no reply yet");
  EXPECT_DEATH(home_->PostReply(ReplyTo(Hop(0))), "without an open hop");
  HopHeader too_large = Hop(1);
  too_large.payload_bytes = 201;
  EXPECT_DEATH(engine_->PostHop(too_large), "hop size");
}

TEST(LinkSizeTest, ErrorsNameTheField) {
  LinkSize size = SmallSize();
  EXPECT_TRUE(CheckLinkSize(size).ok());
  size.slots = 17;
  EXPECT_EQ(CheckLinkSize(size).message(), "link slots: 17 is not 1 to 16");
  EXPECT_EQ(MakeLocalLink(size, -1, -1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  size = SmallSize();
  size.control_ring_bytes = 5000;
  EXPECT_EQ(CheckLinkSize(size).message(), "link control ring: 5000 bytes is not a power of two from 4096 to 67108864");
  size = SmallSize();
  size.reply_payload_bytes_max = size_t{1} << 31;
  EXPECT_EQ(CheckLinkSize(size).code(), absl::StatusCode::kInvalidArgument);
}

// ---- What an end thinks of headers that the other would not send. ----

class PeerErrorTest : public testing::Test {
 protected:
  PeerErrorTest() : memory_(SmallSize()), regions_(memory_.regions()) {}

  // The engine's end, with hop (slot 1, step 5, layer 3) out, reads this reply.
  std::string EngineReads(ReplyHeader reply, uint64_t sequence = 1) {
    auto engine = MakeHeapEngine(memory_, kEpoch);
    engine->PostHop(Hop(1, 5, 3));
    regions_.engine.line(1)->Publish(reply, sequence);
    ReplyHeader out;
    const LinkPoll outcome = engine->PollReply(&out);
    EXPECT_EQ(outcome == LinkPoll::kLost, engine->lost());
    return engine->lost_cause();
  }
  ReplyHeader GoodReply() {
    ReplyHeader reply = ReplyTo(Hop(1, 5, 3));
    reply.epoch = kEpoch;
    return reply;
  }

  std::string HomeReads(HopHeader hop, uint64_t sequence = 1) {
    auto home = MakeHeapHome(memory_, kEpoch);
    regions_.home.line(1)->Publish(hop, sequence);
    HopHeader out;
    const std::byte* payload = nullptr;
    const LinkPoll outcome = home->PollHop(&out, &payload);
    EXPECT_EQ(outcome == LinkPoll::kLost, home->lost());
    if (outcome == LinkPoll::kLost) {
      EXPECT_EQ(payload, nullptr);
    }
    return home->lost_cause();
  }
  HopHeader GoodHop() {
    HopHeader hop = Hop(1, 5, 3);
    hop.epoch = kEpoch;
    return hop;
  }

  HeapRegions memory_;
  ShmRegions regions_;
};

TEST_F(PeerErrorTest, ReplyThatDoesNotFitItsHopLosesTheLink) {
  EXPECT_EQ(EngineReads(GoodReply()), "");
  auto with = [&](auto change) {
    ReplyHeader reply = GoodReply();
    change(&reply);
    return EngineReads(reply);
  };
  const std::string place = " (slot 1, step 5, layer 3)";
  const std::string by = "protocol error by the home: ";
  EXPECT_EQ(with([](ReplyHeader* r) { r->epoch = 6; }), by + "reply header of another epoch" + place);
  EXPECT_EQ(with([](ReplyHeader* r) { r->micro_batch = 0; }), by + "reply header of another slot" + place);
  EXPECT_EQ(with([](ReplyHeader* r) { r->step = 4; }), by + "reply to another step than the slot's open hop" + place);
  EXPECT_EQ(with([](ReplyHeader* r) { r->layer = 4; }), by + "reply to another layer than the slot's open hop" + place);
  EXPECT_EQ(with([](ReplyHeader* r) { r->payload_bytes = 101; }), by + "reply payload larger than agreed" + place);
  EXPECT_EQ(with([](ReplyHeader* r) { r->status = HopStatus{77}; }), by + "reply with an unknown status" + place);
  EXPECT_EQ(with([](ReplyHeader* r) { r->status = HopStatus::kBadHop; }), "");
  EXPECT_EQ(with([](ReplyHeader* r) { r->status = HopStatus::kBadRow, r->failing_row = 1; }), "");
  EXPECT_EQ(with([](ReplyHeader* r) { r->status = HopStatus::kBadRow, r->failing_row = 2; }),
            by + "reply names a failing row that the hop has not" + place);
  EXPECT_EQ(EngineReads(GoodReply(), 2), by + "reply out of sequence" + place);
}

TEST_F(PeerErrorTest, HopThatBreaksTheRulesLosesTheLink) {
  EXPECT_EQ(HomeReads(GoodHop()), "");
  auto with = [&](auto change) {
    HopHeader hop = GoodHop();
    change(&hop);
    return HomeReads(hop);
  };
  const std::string by = "protocol error by the engine: ";
  EXPECT_EQ(with([](HopHeader* h) { h->epoch = 8; }), by + "hop header of another epoch (slot 1)");
  EXPECT_EQ(with([](HopHeader* h) { h->micro_batch = 2; }), by + "hop header of another slot (slot 1)");
  EXPECT_EQ(with([](HopHeader* h) { h->rows = 0; }), by + "hop header without rows (slot 1)");
  EXPECT_EQ(with([](HopHeader* h) { h->payload_bytes = 201; }), by + "hop payload larger than agreed (slot 1)");
  EXPECT_EQ(HomeReads(GoodHop(), 0xffffffffffffffff), by + "hop out of sequence (slot 1)");
}

TEST_F(PeerErrorTest, ASequenceWordThatMovesWhileTheSlotIsClosedIsHeldAgainstTheNextReply) {
  auto engine = MakeHeapEngine(memory_, kEpoch);
  regions_.engine.line(0)->Publish(GoodReply(), 9);  // nothing was asked for
  ReplyHeader reply;
  EXPECT_EQ(engine->PollReply(&reply), LinkPoll::kEmpty);
  engine->PostHop(Hop(0));
  EXPECT_EQ(engine->PollReply(&reply), LinkPoll::kLost);
}

}  // namespace
}  // namespace fastdecode
