// A home that serves several peers: who is let in, what each may have, how it sleeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "engine/rpart/home.h"
#include "engine/rpart/rpart_shape.h"
#include "rdma/shm/local_link.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;
const IdleMessage kIdleNow;

PeerRequest Peer(uint64_t engine_id, uint64_t pages_wanted = 0, uint32_t role = 0) {
  return {{engine_id, role}, "pid " + std::to_string(engine_id), pages_wanted};
}

class PeersTest : public testing::Test {
 protected:
  std::unique_ptr<TestEngine> Attach(Home* home, const PeerRequest& peer) {
    return std::make_unique<TestEngine>(home, shape_, peer);
  }
  // What Offer says to someone who is not let in.
  std::string Refusal(const Home& home, const PeerRequest& peer) { return Refusal(home, peer, shape_); }
  std::string Refusal(const Home& home, const PeerRequest& peer, const RPartShape& shape) {
    const absl::StatusOr<HomeDescription> offer = home.Offer(shape, peer);
    EXPECT_FALSE(offer.ok());
    return std::string(offer.status().message());
  }

  RPartShape shape_ = SmallShape(ElementType::kF32);
};

TEST_F(PeersTest, EachHasItsOwnSequencesOfTheSameNumbers) {
  const std::unique_ptr<Home> home = MakeTestHome(3, 16 * kMiB, 3);
  const auto first = Attach(home.get(), Peer(1)), second = Attach(home.get(), Peer(2));
  first->CheckedStep(0, {{1, 0, 40, 11}, {2, 0, 3, 12}});
  second->CheckedStep(0, {{1, 0, 30, 21}});  // the same number, other tokens
  first->CheckedStep(0, {{1, 40, 1, 11}, {2, 3, 1, 12}});
  second->CheckedStep(0, {{1, 30, 20, 21}});
  second->Release(1);
  EXPECT_EQ(second->Stats().sequences, 0u);
  first->CheckedStep(1, {{1, 41, 9, 11}});
  // One that comes while the others are served.
  const auto third = Attach(home.get(), Peer(3));
  third->CheckedStep(0, {{1, 0, 64, 31}});
  first->CheckedStep(1, {{1, 50, 1, 11}});
  EXPECT_EQ(first->Stats().sequences, 2u);
  EXPECT_EQ(first->Stats().hops, 4 * shape_.layers);
}

TEST_F(PeersTest, PeersOfOtherSizesShareTheModelsPages) {
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB, 2);
  const auto first = Attach(home.get(), Peer(1));
  RPartShape other = shape_;
  other.max_rows = 9;
  other.max_context = 100;
  other.micro_batches = 5;
  TestEngine second(home.get(), other, Peer(2));
  second.CheckedStep(4, {{1, 0, 9, 2}});
  first->CheckedStep(0, {{1, 0, 64, 1}});
  second.CheckedStep(4, {{1, 9, 1, 2}});
}

TEST_F(PeersTest, PagesAreReservedAsAskedOrAsEqualShares) {
  const std::unique_ptr<Home> home = MakeTestHome(1, 16 * kMiB, 4);
  const uint64_t total = home->Describe(shape_).pages;
  EXPECT_EQ(home->Offer(shape_, Peer(1))->pages, total / 4);
  EXPECT_EQ(home->Offer(shape_, Peer(1, 10))->pages, 10u);
  EXPECT_EQ(home->Offer(shape_, Peer(1, total + 1))->pages, total);
  const auto first = Attach(home.get(), Peer(1, 10)), second = Attach(home.get(), Peer(2));
  EXPECT_EQ(first->Stats().pages_total, 10u);
  EXPECT_EQ(second->Stats().pages_total, total / 4);
  auto third = Attach(home.get(), Peer(3, UINT64_MAX));
  const uint64_t rest = total - 10 - total / 4;
  EXPECT_EQ(third->Stats().pages_total, rest);
  EXPECT_EQ(Refusal(*home, Peer(4, 5)), "has no pages left to reserve: 5 asked for, 0 of " + std::to_string(total) +
                                            " free; served: engine 1 at pid 1; engine 2 at pid 2; engine 3 at pid 3");
  // What one leaves the next may have.
  third->Close();
  third->AwaitEnd();
  EXPECT_EQ(home->Offer(shape_, Peer(4, UINT64_MAX))->pages, rest);
  EXPECT_EQ(first->Stats().pages_free, 10u);
}

TEST_F(PeersTest, NobodyTakesWhatIsReservedForAnother) {
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB, 2);
  const uint32_t total = static_cast<uint32_t>(home->Describe(shape_).pages);
  const auto small = Attach(home.get(), Peer(1, 3));
  const auto large = Attach(home.get(), Peer(2, UINT64_MAX));
  small->CheckedStep(0, {{1, 0, 64, 1}});
  small->CheckedStep(0, {{1, 64, 32, 1}});
  const TestStep step = small->Step(0, {{1, 96, 1, 1}, {2, 0, 1, 2}});
  EXPECT_EQ(step.failing_rows, (std::vector<uint32_t>{0, 1})) << "a page beyond the reservation";
  EXPECT_EQ(small->Stats().pages_free, 0u);
  // The other has all of its own, to the last page.
  for (uint32_t left = total - 3, sequence = 1; left > 0; ++sequence) {
    const uint32_t pages = std::min(left, shape_.max_context / kPageTokens);
    large->Fill(sequence, pages * kPageTokens);
    left -= pages;
  }
  EXPECT_EQ(large->Stats().pages_free, 0u);
  EXPECT_TRUE(large->Step(0, {{900, 0, 1, 9}}).failing_rows.size() == 1);
  small->Release(1);
  small->CheckedStep(0, {{2, 0, 1, 2}});
}

TEST_F(PeersTest, OneTooManyIsToldWhoIsServed) {
  const std::unique_ptr<Home> one = MakeTestHome(1, 16 * kMiB);
  const auto only = Attach(one.get(), Peer(4711));
  EXPECT_EQ(Refusal(*one, Peer(2)), "already serves 1 engine (--peers 1): engine 4711 at pid 4711");
  absl::StatusOr<LocalLink> link = MakeLocalLink(LinkSizeFor(shape_), -1, -1, 99);
  ASSERT_TRUE(link.ok());
  const absl::Status refused = one->Attach(shape_, std::move(link->home), Peer(2));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("home already serves 1 engine"));
  EXPECT_TRUE(link->engine->lost());

  const std::unique_ptr<Home> two = MakeTestHome(1, 16 * kMiB, 2);
  auto first = Attach(two.get(), Peer(7));
  const auto second = Attach(two.get(), Peer(7, 0, 1));
  EXPECT_EQ(Refusal(*two, Peer(9)),
            "already serves 2 engines (--peers 2): engine 7 at pid 7; engine 7 (role 1) at pid 7");
  first->Close();
  first->AwaitEnd();
  EXPECT_TRUE(two->Offer(shape_, Peer(9)).ok());
}

TEST_F(PeersTest, AnotherModelOrTypeIsRefusedWhileOneIsServed) {
  const std::unique_ptr<Home> home = MakeTestHome(1, 16 * kMiB, 2);
  auto first = Attach(home.get(), Peer(1));
  RPartShape other = shape_;
  other.layers = 16;
  other.kv_heads = 4;
  EXPECT_EQ(Refusal(*home, Peer(2), other),
            "serves another model: what it serves (here) and this engine's (there), layers is 2 here and 16 there; "
            "kv_heads is 2 here and 4 there; served: engine 1 at pid 1");
  other = SmallShape(ElementType::kBf16);
  EXPECT_THAT(Refusal(*home, Peer(2), other), HasSubstr("element_type is f32 here and bf16 there"));
  // When the last has gone the memory is cut anew.
  first->Close();
  first->AwaitEnd();
  TestEngine second(home.get(), other, Peer(2));
  EXPECT_EQ(second.Stats().pages_total, home->Describe(other).pages / 2);
  second.CheckedStep(0, {{1, 0, 33, 1}});
}

TEST_F(PeersTest, WorkForOneIsASignOfLifeForAll) {
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB, 2);
  const auto first = Attach(home.get(), Peer(1)), second = Attach(home.get(), Peer(2));
  second->Stats();  // served by now
  const uint64_t before = second->link().Progress();
  first->CheckedStep(0, {{1, 0, 1, 1}});
  EXPECT_GT(second->link().Progress(), before) << "its hops would seem stuck behind the other's";
}

TEST_F(PeersTest, SleepsWhenAllAreIdleAndAnyRingWakesIt) {
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB, 3);
  const auto first = Attach(home.get(), Peer(1)), second = Attach(home.get(), Peer(2));
  std::unique_ptr<TestEngine> third;
  uint32_t lengths[2] = {0, 0};
  for (int i = 0; i < 60; ++i) {
    first->Send(&kIdleNow, sizeof(kIdleNow));
    second->Send(&kIdleNow, sizeof(kIdleNow));
    // Some of the time long enough for all to be asleep; any moment must do.
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(4));
    switch (i % 5) {
      case 0:
      case 1:
        (i % 2 == 0 ? first : second)->CheckedStep(0, {{1, lengths[i % 2]++, 1, 1}});
        break;
      case 2:
        EXPECT_EQ(second->Stats().hops, shape_.layers * lengths[1]);
        break;
      case 3:  // a new one wakes it, too
        third = Attach(home.get(), Peer(3));
        third->CheckedStep(0, {{1, 0, 5, 3}});
        third->Send(&kIdleNow, sizeof(kIdleNow));
        break;
      case 4:  // and the loss of one
        third->Close();
        third->AwaitEnd();
    }
  }
}

TEST_F(PeersTest, TheIdleOneIsServedWhileTheOtherWorks) {
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB, 2);
  const auto busy = Attach(home.get(), Peer(1)), idle = Attach(home.get(), Peer(2));
  for (uint32_t i = 0; i < 30; ++i) {
    if (i % 3 == 0) idle->Send(&kIdleNow, sizeof(kIdleNow));
    busy->CheckedStep(0, {{1, i, 1, 1}});
    if (i % 3 == 2) idle->CheckedStep(0, {{1, i / 3, 1, 2}});
  }
}

TEST_F(PeersTest, DetachingOneLeavesTheOthersAlone) {
  const std::unique_ptr<Home> home = MakeTestHome(2, 16 * kMiB, 2);
  const auto first = Attach(home.get(), Peer(1)), second = Attach(home.get(), Peer(2));
  first->CheckedStep(0, {{1, 0, 40, 1}});
  second->CheckedStep(0, {{1, 0, 40, 2}});
  EXPECT_EQ(home->Detach(first->session()), "the home was stopped");
  EXPECT_TRUE(first->link().lost());
  EXPECT_TRUE(home->serving());
  second->CheckedStep(0, {{1, 40, 1, 2}});
  EXPECT_EQ(home->Detach(), "the home was stopped");
  EXPECT_TRUE(second->link().lost());
  EXPECT_FALSE(home->serving());
}

TEST_F(PeersTest, ProposalsCarryTheDemand) {
  RPartShape shape;
  PeerDemand demand;
  demand.pages_wanted = 123;
  std::string blob = EncodeProposal(shape_, demand);
  demand = {};
  ASSERT_TRUE(DecodeProposal(blob, &shape, &demand).ok());
  EXPECT_TRUE(shape == shape_);
  EXPECT_EQ(demand.pages_wanted, 123u);
  // The shape alone asks for nothing in particular.
  ASSERT_TRUE(DecodeProposal(blob.substr(0, sizeof(shape)), &shape, &demand).ok());
  EXPECT_EQ(demand.pages_wanted, 0u);
  for (size_t bytes = 0; bytes < blob.size(); ++bytes) {
    if (bytes == sizeof(shape)) continue;
    EXPECT_EQ(DecodeProposal(blob.substr(0, bytes), &shape, &demand).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(DecodeProposal(blob + "x", &shape, &demand).ok());
  blob[sizeof(shape)] = 2;
  EXPECT_THAT(std::string(DecodeProposal(blob, &shape, &demand).message()), HasSubstr("version 2"));
}

TEST_F(PeersTest, TheNumberOfPeersIsBounded) {
  HomeOptions options;
  options.kv_bytes = kMiB;
  for (const uint32_t peers : {0u, kPeersMax + 1}) {
    options.peers = peers;
    EXPECT_THAT(std::string(Home::Create(options).status().message()), HasSubstr("allowed is 1 to 16"));
  }
}

}  // namespace
}  // namespace fastdecode
