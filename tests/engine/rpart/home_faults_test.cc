#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "engine/rpart/home.h"
#include "engine/rpart/rpart_shape.h"
#include "rdma/shm/local_link.h"
#include "tests/engine/rpart/test_engine.h"
#include "tests/thread_limit.h"

namespace fastdecode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kMiB = 1 << 20;

bool AllZero(const std::vector<std::byte>& bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

class HomeFaultsTest : public testing::Test {
 protected:
  // Exactly `pages` pages, on machines whose smallest page holds them.
  void Limit(uint32_t pages) { pages_ = pages; }

  TestEngine& engine() {
    if (engine_ == nullptr) {
      home_ = MakeTestHome(2, 16 * kMiB);
      engine_ = std::make_unique<TestEngine>(home_.get(), shape_);
      if (pages_ > 0) TakeAllBut(pages_);
    }
    return *engine_;
  }
  Home& home() { return *home_; }

  // One hop with a header that `spoil` changed.
  void ExpectBadHop(const std::function<void(HopHeader*)>& spoil, const std::string& cause) {
    HopHeader hop = engine().WriteRows(0, {{1, 0, 2, 1}}, 0);
    engine().SendRoster(0, {{1, 0, 2, 1}}, 1);
    hop.roster_version = 1;
    hop.step = 1;
    spoil(&hop);
    engine().link().PostHop(hop);
    ReplyHeader reply;
    if (engine().AwaitReply(&reply)) {
      EXPECT_EQ(reply.status, HopStatus::kBadHop);
    }
    EXPECT_THAT(engine().AwaitEnd(), HasSubstr(cause));
    engine_.reset();
    home_.reset();
  }

  void ExpectLostBy(const void* message, size_t bytes, const std::string& cause) {
    engine().Send(message, bytes);
    EXPECT_THAT(engine().AwaitEnd(), HasSubstr(cause));
    engine_.reset();
    home_.reset();
  }
  void ExpectLostBy(ControlKind kind, uint32_t tokens, uint64_t sequence, const std::string& cause) {
    const SequenceMessage message = {static_cast<uint32_t>(kind), tokens, sequence};
    ExpectLostBy(&message, sizeof(message), cause);
  }

  RPartShape shape_ = SmallShape(ElementType::kF32);

 private:
  // Fills sequences from 1000 on until just `pages` are left.
  void TakeAllBut(uint32_t pages) {
    uint64_t sequence = 1000;
    for (uint32_t left = static_cast<uint32_t>(engine_->Stats().pages_free) - pages; left > 0;) {
      const uint32_t taken = std::min(left, shape_.max_context / kPageTokens);
      engine_->Fill(sequence++, taken * kPageTokens);
      left -= taken;
    }
    EXPECT_EQ(engine_->Stats().pages_free, pages);
  }

  uint32_t pages_ = 0;
  std::unique_ptr<Home> home_;
  std::unique_ptr<TestEngine> engine_;
};

TEST_F(HomeFaultsTest, ABadRowIsZeroAndTheOthersAreUnharmed) {
  engine().CheckedStep(0, {{1, 0, 10, 1}, {2, 0, 40, 2}, {3, 0, 3, 3}});
  const std::vector<TestEntry> entries = {{1, 10, 1, 1}, {2, 41, 1, 2}, {3, 3, 1, 3}};  // 2 leaves position 40 out
  const TestStep step = engine().Step(0, entries);
  ASSERT_FALSE(step.lost) << engine().link().lost_cause();
  EXPECT_THAT(step.failing_rows, ElementsAre(1)) << "told once, not every layer";
  EXPECT_TRUE(AllZero(step.o[1]));
  EXPECT_FALSE(AllZero(step.o[0]));
  // The others went on, the bad one stood still: all three go on from where they are.
  engine().CheckedStep(0, {{1, 10, 1, 1}, {3, 3, 1, 3}, {2, 40, 1, 2}});
}

TEST_F(HomeFaultsTest, ABadChunkIsZeroAsAWhole) {
  engine().CheckedStep(0, {{1, 0, 10, 1}});
  const TestStep step = engine().Step(0, {{2, 0, 5, 2}, {1, 11, 20, 1}, {3, 0, 30, 3}});
  EXPECT_THAT(step.failing_rows, ElementsAre(5));
  EXPECT_TRUE(AllZero(step.o[1]));
  EXPECT_FALSE(AllZero(step.o[0]));
  EXPECT_FALSE(AllZero(step.o[2]));
  engine().CheckedStep(0, {{1, 10, 20, 1}});
}

TEST_F(HomeFaultsTest, SeveralBadRowsAreToldOneAHop) {
  const TestStep step = engine().Step(0, {{1, 5, 1, 1}, {2, 0, 1, 2}, {3, 9, 1, 3}});
  ASSERT_FALSE(step.lost);
  EXPECT_THAT(step.failing_rows, ElementsAre(0, 2));
}

TEST_F(HomeFaultsTest, MoreBadRowsThanCanBeToldEndTheLink) {
  const TestStep step = engine().Step(0, {{1, 5, 1, 1}, {2, 6, 1, 2}, {3, 9, 1, 3}});
  EXPECT_TRUE(step.lost);
  EXPECT_THAT(engine().AwaitEnd(), HasSubstr("more rows failed"));
}

TEST_F(HomeFaultsTest, AReleasedSequenceIsABadRow) {
  engine().CheckedStep(0, {{1, 0, 4, 1}, {2, 0, 4, 2}});
  engine().SendRoster(0, {{1, 4, 1, 1}, {2, 4, 1, 2}}, 9);
  engine().Release(1);  // against the rules: its roster still holds
  HopHeader hop = engine().WriteRows(0, {{1, 4, 1, 1}, {2, 4, 1, 2}}, 0);
  hop.step = 9;
  engine().link().PostHop(hop);
  ReplyHeader reply;
  ASSERT_TRUE(engine().AwaitReply(&reply));
  EXPECT_EQ(reply.status, HopStatus::kBadRow);
  EXPECT_EQ(reply.failing_row, 0u);
}

TEST_F(HomeFaultsTest, WithoutPagesARowFailsUntilSomeAreFreed) {
  Limit(3);
  engine().CheckedStep(0, {{1, 0, 32, 1}, {2, 0, 30, 2}});  // one page is left
  TestStep step = engine().Step(0, {{1, 32, 1, 1}, {3, 0, 1, 3}});
  ASSERT_FALSE(step.lost);
  EXPECT_THAT(step.failing_rows, ElementsAre(1)) << "the first entry got the last page";
  EXPECT_TRUE(AllZero(step.o[1]));
  engine().CheckedStep(0, {{1, 32, 1, 1}, {2, 30, 2, 2}});  // no page needed
  step = engine().Step(0, {{2, 32, 20, 2}});
  EXPECT_THAT(step.failing_rows, ElementsAre(0));
  EXPECT_EQ(engine().Stats().pages_free, 0u);
  engine().Release(1);
  engine().CheckedStep(0, {{2, 32, 20, 2}});
  EXPECT_EQ(engine().Stats().pages_free, 1u);
}

TEST_F(HomeFaultsTest, CopyOnWriteWithoutAPageIsABadRow) {
  Limit(1);
  engine().CheckedStep(0, {{1, 0, 10, 1}});
  engine().Fork(1, 10, 2);
  const TestStep step = engine().Step(0, {{2, 10, 1, 2}});
  EXPECT_THAT(step.failing_rows, ElementsAre(0));
  engine().Release(1);
  engine().CheckedStep(0, {{2, 10, 1, 2}});
}

TEST_F(HomeFaultsTest, BeyondTheContextIsABadRow) {
  engine().Fill(1, shape_.max_context);
  engine().Fill(2, 5);
  // One-token rows that grow past the end after the roster was sent.
  engine().SendRoster(0, {{1, shape_.max_context - 1, 1, 1}, {2, 4, 1, 2}}, 1);
  std::vector<HopStatus> statuses;
  for (uint64_t step = 1; step <= 2; ++step) {
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      HopHeader hop = engine().WriteRows(0, {{1, 0, 1, 1}, {2, 0, 1, 2}}, layer);
      hop.step = step;
      engine().link().PostHop(hop);
      ReplyHeader reply;
      ASSERT_TRUE(engine().AwaitReply(&reply)) << engine().link().lost_cause();
      statuses.push_back(reply.status);
    }
  }
  EXPECT_THAT(statuses, ElementsAre(HopStatus::kOk, HopStatus::kOk, HopStatus::kBadRow, HopStatus::kOk));
}

TEST_F(HomeFaultsTest, NotANumberStaysInItsSequence) {
  const TestStep clean = engine().Step(0, {{1, 0, 1, 1}, {2, 0, 20, 2}});
  const uint64_t step = engine().BeginStep(0);
  engine().SendRoster(0, {{3, 0, 1, 1}, {4, 0, 20, 2}}, step);
  for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
    HopHeader hop = engine().WriteRows(0, {{3, 0, 1, 1}, {4, 0, 20, 2}}, layer);
    std::memset(engine().link().SendArea(0), 0xff, shape_.hop_row_bytes());  // the first row is NaN throughout
    engine().link().PostHop(hop);
    ReplyHeader reply;
    ASSERT_TRUE(engine().AwaitReply(&reply));
    EXPECT_EQ(reply.status, HopStatus::kOk);
    const size_t bytes = 20 * shape_.reply_row_bytes();
    EXPECT_EQ(std::memcmp(engine().link().ReceiveArea(0) + shape_.reply_row_bytes(), clean.o[1].data() + layer * bytes,
                          bytes),
              0);
  }
  // The pages that held NaN may serve the next one.
  engine().Release(3);
  engine().Release(1);
  for (uint64_t sequence = 10; sequence < 20; ++sequence) engine().CheckedStep(0, {{sequence, 0, 1, sequence}});
}

TEST_F(HomeFaultsTest, HopsThatFitNothingEndTheLink) {
  ExpectBadHop([](HopHeader* hop) { hop->rows = 1; }, "rows are not those of its roster");
  ExpectBadHop([](HopHeader* hop) { hop->rows = UINT32_MAX; }, "rows are not those of its roster");
  ExpectBadHop([](HopHeader* hop) { hop->payload_bytes -= 4; }, "payload_bytes");
  ExpectBadHop([](HopHeader* hop) { hop->layer = 2; }, "layer is beyond the model");
  ExpectBadHop([](HopHeader* hop) { hop->layer = 1; }, "layer does not follow");
  ExpectBadHop([](HopHeader* hop) { hop->step = 0; }, "step does not follow");
  ExpectBadHop([](HopHeader* hop) { hop->roster_version = 0; }, "roster");
  ExpectBadHop([](HopHeader* hop) { hop->step = 2; }, "several rows");
}

TEST_F(HomeFaultsTest, LayersAndStepsComeInOrder) {
  engine().CheckedStep(0, {{1, 0, 1, 1}});
  engine().SendRoster(0, {{1, 1, 1, 1}}, 2);
  HopHeader hop = engine().WriteRows(0, {{1, 1, 1, 1}}, 0);
  hop.step = 1;  // over already
  engine().link().PostHop(hop);
  ReplyHeader reply;
  if (engine().AwaitReply(&reply)) {
    EXPECT_EQ(reply.status, HopStatus::kBadHop);
  }
  EXPECT_THAT(engine().AwaitEnd(), HasSubstr("step does not follow"));
}

TEST_F(HomeFaultsTest, ARosterMayNotChangeWithinAStep) {
  engine().SendRoster(0, {{1, 0, 1, 1}}, 1);
  HopHeader hop = engine().WriteRows(0, {{1, 0, 1, 1}}, 0);
  hop.step = 1;
  engine().link().PostHop(hop);
  ReplyHeader reply;
  ASSERT_TRUE(engine().AwaitReply(&reply));
  engine().SendRoster(0, {{2, 0, 1, 2}}, 1);
  hop = engine().WriteRows(0, {{2, 0, 1, 2}}, 1);
  hop.step = 1;
  engine().link().PostHop(hop);
  if (engine().AwaitReply(&reply)) {
    EXPECT_EQ(reply.status, HopStatus::kBadHop);
  }
  EXPECT_THAT(engine().AwaitEnd(), HasSubstr("roster changed within a step"));
}

TEST_F(HomeFaultsTest, ControlThatMakesNoSenseEndsTheLinkWithTheReason) {
  ExpectLostBy(ControlKind::kTruncate, 1, 7, "no sequence 7");
  ExpectLostBy(ControlKind::kFill, 0, 7, "sequence 7 with 0 tokens");
  ExpectLostBy(ControlKind::kFill, 1 << 20, 7, "allowed is 1 to 4096");
  ExpectLostBy(ControlKind::kStats, 0, 0, "unknown kind 8");
  ExpectLostBy(static_cast<ControlKind>(77), 0, 0, "unknown kind 77");
  ExpectLostBy("ab", 2, "2 bytes");
  const uint32_t release = static_cast<uint32_t>(ControlKind::kRelease);
  ExpectLostBy(&release, sizeof(release), "4 bytes, not 16");
  RosterMessage roster;
  roster.micro_batch = 2;
  roster.version = 1;
  ExpectLostBy(&roster, sizeof(roster), "micro_batch 2, there are 2");
  roster.micro_batch = 0;
  roster.version = 2;
  ExpectLostBy(&roster, sizeof(roster), "version 2 follows version 0");
  roster.version = 1;
  roster.entries = 3;
  ExpectLostBy(&roster, sizeof(roster), "16 bytes for 3 entries");
  const ForkMessage fork = {static_cast<uint32_t>(ControlKind::kFork), 0, 1, 2};
  ExpectLostBy(&fork, sizeof(fork), "no sequence 1");
}

TEST_F(HomeFaultsTest, FillingTwiceOrWithoutRoomEndsTheLink) {
  engine().Fill(1, 10);
  ExpectLostBy(ControlKind::kFill, 10, 1, "has tokens already");
  Limit(2);
  ExpectLostBy(ControlKind::kFill, 96, 1, "2 free pages");
}

// Random control messages, from nearly right to noise: the home either obeys or ends the link, and loses no page (which
// it checks itself when it ends).
TEST_F(HomeFaultsTest, RandomControlNeverBreaksTheHome) {
  std::mt19937 random(9);
  const std::unique_ptr<Home> home = MakeTestHome(1, 16 * kMiB);
  int survived = 0;
  for (int round = 0; round < 60; ++round) {
    TestEngine engine(home.get(), shape_);
    std::vector<uint32_t> versions(2);
    const int messages = 1 + static_cast<int>(random() % 40);
    for (int i = 0; i < messages && !engine.link().lost(); ++i) {
      std::byte message[128] = {};
      size_t bytes = 16;
      const uint64_t sequence = 1 + random() % 3;
      const uint32_t kind = random() % 10 == 0 ? 3 : std::array{1, 2, 4, 6, 6}[random() % 5];
      if (kind == 1) {
        RosterMessage roster;
        roster.micro_batch = random() % 2;
        roster.version = ++versions[roster.micro_batch];
        roster.entries = random() % 4;
        std::memcpy(message, &roster, sizeof(roster));
        for (uint32_t e = 0; e < roster.entries; ++e) {
          const RosterEntry entry = {sequence + e, random() % 2, static_cast<uint32_t>(random() % 40),
                                     1 + static_cast<uint32_t>(random() % 3)};
          std::memcpy(message + bytes, &entry, sizeof(entry));
          bytes += sizeof(entry);
        }
      } else if (kind == 4) {
        const ForkMessage fork = {kind, 0, sequence, 50 + random() % 200};
        std::memcpy(message, &fork, sizeof(fork));
        bytes = sizeof(fork);
      } else if (kind >= 6) {
        IdleMessage idle;
        idle.kind = kind;
        std::memcpy(message, &idle, sizeof(idle));
        bytes = sizeof(idle);
      } else {
        const SequenceMessage body = {kind, static_cast<uint32_t>(random() % 100), sequence};
        std::memcpy(message, &body, sizeof(body));
      }
      if (random() % 100 == 0) message[random() % bytes] = static_cast<std::byte>(random());
      if (random() % 200 == 0) bytes = random() % sizeof(message);
      if (bytes > 0) engine.Send(message, bytes);
    }
    StatsMessage stats;
    bool alive = true;
    for (int i = 0; i <= 40 && alive; ++i) alive = engine.TryStats(&stats);
    survived += alive;
    engine.link().MarkLost("test over");
    EXPECT_FALSE(engine.AwaitEnd().empty());
  }
  EXPECT_GT(survived, 0);
  EXPECT_LT(survived, 60);
}

// The leader, two helpers and, where there may be several peers, a waker: whichever is missing, the peer is told, and
// the next one is served.
TEST_F(HomeFaultsTest, PeerForWhomThereIsNoThreadIsRefused) {
  for (const uint32_t peers : {1u, 2u}) {
    const std::unique_ptr<Home> home = MakeTestHome(3, 16 * kMiB, peers);
    const int threads = peers == 1 ? 3 : 4;
    for (int i = 0; i < threads; ++i) {
      absl::StatusOr<LocalLink> link = MakeLocalLink(LinkSizeFor(shape_), -1, -1, 1);
      ASSERT_TRUE(link.ok());
      const ThreadLimit limit(i);
      const absl::Status refused = home->Attach(shape_, std::move(link->home));
      EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("cannot start a thread"));
      EXPECT_TRUE(link->engine->lost());
      EXPECT_THAT(link->engine->lost_cause(), HasSubstr("cannot start a thread"));
      EXPECT_FALSE(home->serving());
    }
    const ThreadLimit limit(threads);
    TestEngine engine(home.get(), shape_);
    engine.CheckedStep(0, {{1, 0, 3, 1}});
  }
}

}  // namespace
}  // namespace fastdecode
