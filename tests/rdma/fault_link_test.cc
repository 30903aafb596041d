#include "rdma/fault_link.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/rdma/heap_link.h"

namespace fastdecode {
namespace {

uint64_t g_now_ns = 1;
uint64_t TestClock() { return g_now_ns; }

constexpr size_t kPayloadBytes = 64;

class FaultLinkTest : public testing::Test {
 protected:
  void Make(const FaultOptions& options, int slots = 4, uint64_t epoch = 5) {
    const LinkSize size = {.slots = slots,
                           .hop_payload_bytes_max = kPayloadBytes,
                           .reply_payload_bytes_max = kPayloadBytes,
                           .control_ring_bytes = 4096};
    engine_.reset();
    home_.reset();
    memory_ = std::make_unique<HeapRegions>(size);
    engine_ = std::make_unique<FaultLink>(MakeHeapEngine(*memory_, epoch), options, TestClock);
    home_ = MakeHeapHome(*memory_, epoch);
  }

  void Post(int slot, uint64_t step = 1) {
    std::memset(engine_->SendArea(slot), 0x33, kPayloadBytes);
    HopHeader hop;
    hop.step = step;
    hop.rows = 3;
    hop.roster_version = 1;
    hop.payload_bytes = kPayloadBytes;
    hop.micro_batch = static_cast<uint8_t>(slot);
    engine_->PostHop(hop);
  }

  // The home takes all hops and replies to them as they say. Returns how many.
  int Serve() {
    int hops = 0;
    const std::byte* payload;
    while (home_->PollHop(&hop_, &payload) == LinkPoll::kMessage) {
      ++hops;
      payload_.assign(payload, payload + hop_.payload_bytes);
      ReplyHeader reply;
      reply.step = hop_.step;
      reply.layer = hop_.layer;
      reply.micro_batch = hop_.micro_batch;
      home_->PostReply(reply);
    }
    return hops;
  }

  // Slots of the replies that `polls` polls bring.
  std::vector<int> Replies(int polls) {
    std::vector<int> slots;
    ReplyHeader reply;
    for (int i = 0; i < polls; ++i) {
      if (engine_->PollReply(&reply) == LinkPoll::kMessage) slots.push_back(reply.micro_batch);
    }
    return slots;
  }

  std::unique_ptr<HeapRegions> memory_;
  std::unique_ptr<FaultLink> engine_;
  std::unique_ptr<HomeLink> home_;
  HopHeader hop_;
  std::vector<std::byte> payload_;
};

TEST_F(FaultLinkTest, WithoutFaultsEverythingPasses) {
  Make({});
  for (uint64_t step = 1; step <= 100; ++step) {
    for (int slot = 0; slot < 4; ++slot) Post(slot, step);
    EXPECT_EQ(Serve(), 4);
    EXPECT_EQ(Replies(4).size(), 4u);
  }
  EXPECT_FALSE(engine_->lost()) << engine_->lost_cause();
  EXPECT_TRUE(engine_->TrySendControl("x", 1));
  std::vector<char> buffer(kControlMessageBytesMax);
  size_t bytes;
  EXPECT_EQ(home_->PollControl(buffer.data(), &bytes), LinkPoll::kMessage);
  home_->AddProgress(2);
  EXPECT_EQ(engine_->Progress(), 2u);
  EXPECT_EQ(engine_->epoch(), 5u);
}

TEST_F(FaultLinkTest, DelayByTheClock) {
  Make({.delay_share = 1, .delay_ns = 5000});
  Post(0);
  Serve();
  EXPECT_TRUE(Replies(1).empty());
  g_now_ns += 4999;
  EXPECT_TRUE(Replies(10).empty());
  g_now_ns += 1;
  EXPECT_EQ(Replies(1), std::vector<int>{0});
  EXPECT_EQ(engine_->counts().delayed, 1u);
}

TEST_F(FaultLinkTest, DelayByPolls) {
  Make({.delay_share = 1, .delay_polls = 10});
  Post(0);
  Serve();
  EXPECT_TRUE(Replies(10).empty());
  EXPECT_EQ(Replies(1), std::vector<int>{0});
}

TEST_F(FaultLinkTest, ReorderLetsAnotherHopPass) {
  Make({.seed = 3, .reorder_share = 0.5});
  int passed = 0;
  for (uint64_t step = 1; step <= 50; ++step) {
    Post(0, step);
    Serve();
    std::vector<int> order = Replies(1);
    Post(1, step);
    Serve();
    const std::vector<int> rest = Replies(FaultLink::kReorderPollsMax + 2);
    order.insert(order.end(), rest.begin(), rest.end());
    ASSERT_EQ(order.size(), 2u);
    passed += order[0] == 1;
  }
  EXPECT_GT(passed, 5);
  EXPECT_LT(passed, 45);
  EXPECT_FALSE(engine_->lost()) << engine_->lost_cause();
}

TEST_F(FaultLinkTest, ReorderWithoutAnyOtherHopComesInTheEnd) {
  Make({.reorder_share = 1});
  Post(2);
  Serve();
  EXPECT_TRUE(Replies(1).empty());
  EXPECT_EQ(Replies(FaultLink::kReorderPollsMax), std::vector<int>{2});
}

TEST_F(FaultLinkTest, ADroppedHopNeverArrives) {
  Make({.drop_hop_share = 1});
  Post(0);
  EXPECT_EQ(Serve(), 0);
  EXPECT_TRUE(Replies(100).empty());
  EXPECT_FALSE(engine_->lost()) << "to notice is the business of the hop's deadline";
  EXPECT_EQ(engine_->counts().dropped_hops, 1u);
}

TEST_F(FaultLinkTest, ADroppedReplyNeverArrives) {
  Make({.drop_reply_share = 1});
  Post(0);
  EXPECT_EQ(Serve(), 1);
  EXPECT_TRUE(Replies(100).empty());
  EXPECT_EQ(engine_->counts().dropped_replies, 1u);
}

TEST_F(FaultLinkTest, ADuplicateReplyLosesTheLink) {
  Make({.duplicate_share = 1});
  Post(0);
  Serve();
  EXPECT_EQ(Replies(2), std::vector<int>{0});
  EXPECT_EQ(engine_->lost_cause(), "protocol error by the home: reply to a slot without an open hop");
}

TEST_F(FaultLinkTest, ADuplicateThatMeetsTheNextHopLosesTheLink) {
  Make({.duplicate_share = 1});
  Post(0, 1);
  Serve();
  EXPECT_EQ(Replies(1), std::vector<int>{0});
  Post(0, 2);
  EXPECT_TRUE(Replies(1).empty());
  EXPECT_EQ(engine_->lost_cause(), "protocol error by the home: reply to another step than the slot's open hop");
}

TEST_F(FaultLinkTest, ACorruptReplyIsCaughtOrHarmless) {
  int caught = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Make({.seed = seed, .corrupt_reply_share = 1});
    Post(1, 77);
    Serve();
    ReplyHeader reply;
    const LinkPoll outcome = engine_->PollReply(&reply);
    if (outcome == LinkPoll::kLost) {
      ++caught;
      EXPECT_NE(engine_->lost_cause(), "");
      continue;
    }
    // What stays says whose reply it is, and how large.
    ASSERT_EQ(outcome, LinkPoll::kMessage);
    EXPECT_EQ(reply.step, 77u);
    EXPECT_EQ(reply.micro_batch, 1);
    EXPECT_EQ(reply.epoch, 5u);
    EXPECT_LE(reply.payload_bytes, kPayloadBytes);
    EXPECT_EQ(reply.status, HopStatus::kOk) << seed;
  }
  // 168 of 320 bits: epoch, step, layer, slot, status; and nearly all of payload_bytes.
  EXPECT_GT(caught, 100);
  EXPECT_LT(caught, 250);
}

TEST_F(FaultLinkTest, ACorruptHopArrivesChangedAndItsReplyNeverAsAnother) {
  int changed = 0, lost = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Make({.seed = seed, .corrupt_hop_share = 1});
    Post(1, 77);
    ASSERT_EQ(Serve(), 1);
    changed += hop_.step != 77 || hop_.rows != 3 || hop_.roster_version != 1 || hop_.layer != 0 ||
               hop_.payload_bytes != kPayloadBytes;
    ReplyHeader reply;
    if (engine_->PollReply(&reply) == LinkPoll::kLost) {
      ++lost;
    } else {
      EXPECT_EQ(reply.step, 77u);
      EXPECT_EQ(reply.layer, 0);
    }
  }
  EXPECT_EQ(changed, 300);
  EXPECT_GT(lost, 50);  // step or layer: the reply repeats what the home saw
}

TEST_F(FaultLinkTest, ACorruptPayloadDiffersInOneBit) {
  Make({.corrupt_payload_share = 1});
  Post(0);
  Serve();
  int bits = 0;
  for (const std::byte byte : payload_) bits += __builtin_popcount(static_cast<unsigned>(byte ^ std::byte{0x33}));
  EXPECT_EQ(bits, 1);
  EXPECT_EQ(Replies(1), std::vector<int>{0});
}

TEST_F(FaultLinkTest, CutAtAHop) {
  Make({.cut_after_hops = 2});
  Post(0);
  Post(1);
  EXPECT_FALSE(engine_->lost());
  Post(2);
  EXPECT_EQ(engine_->lost_cause(), "fault link: cut after 2 hops");
  EXPECT_EQ(Serve(), 2) << "the third never went";
  EXPECT_TRUE(Replies(10).empty());
}

TEST_F(FaultLinkTest, CutShareCutsEachLinkOfASeedElsewhere) {
  const auto run = [this](uint64_t epoch) {
    Make({.seed = 1, .cut_share = 0.01}, 4, epoch);
    uint64_t hops = 0;
    while (!engine_->lost() && hops < 10'000) {
      Post(0, ++hops);
      Serve();
      Replies(1);
    }
    EXPECT_EQ(engine_->lost_cause(), "fault link: cut after " + std::to_string(hops - 1) + " hops");
    return hops;
  };
  const uint64_t first = run(5);
  EXPECT_EQ(run(5), first);
  EXPECT_NE(run(6), first);
}

TEST_F(FaultLinkTest, ASeedRepeatsItself) {
  auto run = [this](uint64_t seed) {
    Make({.seed = seed, .delay_share = 0.3, .delay_polls = 3, .reorder_share = 0.3, .drop_hop_share = 0.01}, 4);
    std::vector<int> order;
    uint32_t open = 0;
    for (int turn = 0; turn < 300; ++turn) {
      for (int slot = 0; slot < 4; ++slot) {
        if ((open >> slot & 1) == 0) Post(slot, turn + 1), open |= 1u << slot;
      }
      Serve();
      for (const int slot : Replies(2)) order.push_back(slot), open &= ~(1u << slot);
    }
    return order;
  };
  const std::vector<int> first = run(1);
  EXPECT_EQ(run(1), first);
  EXPECT_NE(run(2), first);
}

TEST(FaultOptionsTest, ParsesAllKeys) {
  const auto options = ParseFaultOptions(
      "--fault",
      "seed=9,drop=0.001,drop-reply=0.002,delay=0.01:200us,reorder=0.5,duplicate=0.25,corrupt=0.1,corrupt-reply=0.2,"
      "corrupt-payload=0.3,cut=5000,cut-share=0.4");
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->seed, 9u);
  EXPECT_EQ(options->drop_hop_share, 0.001);
  EXPECT_EQ(options->drop_reply_share, 0.002);
  EXPECT_EQ(options->delay_share, 0.01);
  EXPECT_EQ(options->delay_ns, 200'000u);
  EXPECT_EQ(options->reorder_share, 0.5);
  EXPECT_EQ(options->duplicate_share, 0.25);
  EXPECT_EQ(options->corrupt_hop_share, 0.1);
  EXPECT_EQ(options->corrupt_reply_share, 0.2);
  EXPECT_EQ(options->corrupt_payload_share, 0.3);
  EXPECT_EQ(options->cut_after_hops, 5000u);
  EXPECT_EQ(options->cut_share, 0.4);
  EXPECT_EQ(ParseFaultOptions("--fault", "delay=1:30polls")->delay_polls, 30u);
}

TEST(FaultOptionsTest, ErrorsNameOptionAndValue) {
  const std::pair<const char*, const char*> cases[] = {
      {"drop=1.5", "--fault: 'drop=1.5': drop takes a share from 0 to 1"},
      {"drop", "--fault: 'drop': drop takes a share from 0 to 1"},
      {"drop=nan", "--fault: 'drop=nan': drop takes a share from 0 to 1"},
      {"seed=x", "--fault: 'seed=x': seed takes a number"},
      {"cut=0", "--fault: 'cut=0': cut takes a number of hops, from 1"},
      {"delay=0.1", "--fault: 'delay=0.1': delay takes SHARE:DURATION, as 0.01:200us (ns, us, ms or polls)"},
      {"delay=0.1:5", "--fault: 'delay=0.1:5': delay takes SHARE:DURATION, as 0.01:200us (ns, us, ms or polls)"},
      {"delay=0.1:5h", "--fault: 'delay=0.1:5h': delay takes SHARE:DURATION, as 0.01:200us (ns, us, ms or polls)"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(ParseFaultOptions("--fault", text).status().message(), message);
  EXPECT_EQ(ParseFaultOptions("--fault", "seed=1,,").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseFaultOptions("--fault", "explode=1").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fastdecode
