// Both ends of a link, one event at a time and without threads.

#include "rdma/shm/shm_link.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "rdma/shm/local_link.h"
#include "tests/rdma/heap_link.h"
#include "tests/rdma/link_suite.h"

namespace fastdecode {
namespace {

constexpr uint64_t kEpoch = 7;

std::unique_ptr<LinkEnds> MakeLocalEnds(const LinkSize& size, uint64_t epoch) {
  absl::StatusOr<LocalLink> link = MakeLocalLink(size, -1, -1, epoch);
  EXPECT_TRUE(link.ok()) << link.status();
  auto ends = std::make_unique<LinkEnds>();
  ends->engine = std::move(link->engine);
  ends->home = std::move(link->home);
  return ends;
}

INSTANTIATE_TEST_SUITE_P(Shm, LinkSuite, testing::Values(LinkProvider{"local", MakeLocalEnds}), LinkProviderName);
INSTANTIATE_TEST_SUITE_P(Shm, LinkStressSuite, testing::Values(LinkProvider{"local", MakeLocalEnds}), LinkProviderName);

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
