#include "engine/rpart/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "engine/rpart/rpart_shape.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTimeoutNs = 20'000'000'000;

class WorkerTest : public testing::Test {
 protected:
  void Start(int homes, std::optional<RPartShape> model_shape = std::nullopt) {
    WorkerOptions options;
    options.listen_path = path_;
    options.model_shape = model_shape;
    for (int i = 0; i < homes; ++i) {
      HomeOptions home;
      home.name = "home" + std::to_string(i);
      home.kv_bytes = 4 << 20;
      home.poll = PollMode::kYield;
      options.homes.push_back(home);
    }
    absl::StatusOr<std::unique_ptr<Worker>> worker = Worker::Create(options);
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    thread_ = std::thread([this] { worker_->Run(); });
  }

  ~WorkerTest() override {
    if (worker_ != nullptr) worker_->Stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::StatusOr<ConnectResult> Connect(uint32_t home, uint64_t engine_id, const RPartShape& shape) {
    LinkProposal proposal;
    proposal.size = LinkSizeFor(shape);
    return Connect(home, engine_id, shape, proposal);
  }
  absl::StatusOr<ConnectResult> Connect(uint32_t home, uint64_t engine_id, const RPartShape& shape,
                                        LinkProposal proposal) {
    proposal.epoch = ++epoch_;
    proposal.peer.engine_id = engine_id;
    proposal.home_index = home;
    if (proposal.shape.empty()) proposal.shape.assign(reinterpret_cast<const char*>(&shape), sizeof(shape));
    return ConnectUnix(path_, proposal, -1, kTimeoutNs);
  }

  // One hop through a link; false if it was lost on the way.
  bool Hop(EngineLink* link, const RPartShape& shape, uint64_t step) {
    const RosterEntry entry = {1, step, static_cast<uint32_t>(step - 1), 1};
    std::byte message[sizeof(RosterMessage) + sizeof(RosterEntry)];
    RosterMessage roster;
    roster.version = static_cast<uint32_t>(step);
    roster.entries = 1;
    std::memcpy(message, &roster, sizeof(roster));
    std::memcpy(message + sizeof(roster), &entry, sizeof(entry));
    while (!link->TrySendControl(message, sizeof(message))) {
      if (link->lost()) return false;
    }
    HopHeader hop;
    hop.rows = 1;
    hop.payload_bytes = static_cast<uint32_t>(shape.hop_row_bytes());
    hop.step = step;
    hop.roster_version = roster.version;
    link->PostHop(hop);
    ReplyHeader reply;
    LinkPoll poll;
    while ((poll = link->PollReply(&reply)) == LinkPoll::kEmpty) std::this_thread::yield();
    return poll == LinkPoll::kMessage && reply.status == HopStatus::kOk;
  }

  RPartShape shape_ = SmallShape(ElementType::kF32);
  std::string path_ = testing::TempDir() + "fd-worker-" + std::to_string(getpid());
  std::unique_ptr<Worker> worker_;
  std::thread thread_;
  uint64_t epoch_ = 0;
};

TEST_F(WorkerTest, ServesEachHomeToOneEngineAtATime) {
  Start(2);
  absl::StatusOr<ConnectResult> first = Connect(0, 7, shape_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->homes, 2u);
  HomeDescription description;
  ASSERT_EQ(first->answer.size(), sizeof(description));
  std::memcpy(&description, first->answer.data(), sizeof(description));
  EXPECT_GT(description.pages, 0u);
  EXPECT_EQ(description.threads, 1u);
  EXPECT_TRUE(Hop(first->link.get(), shape_, 1));

  EXPECT_THAT(std::string(Connect(0, 8, shape_).status().message()), HasSubstr("home 0 already serves engine 7"));
  absl::StatusOr<ConnectResult> second = Connect(1, 8, shape_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(Hop(second->link.get(), shape_, 1));
  EXPECT_TRUE(Hop(first->link.get(), shape_, 2));
  EXPECT_THAT(std::string(Connect(2, 8, shape_).status().message()),
              HasSubstr("home index 2: this worker has 2 homes"));
}

TEST_F(WorkerTest, AHomeIsFreeAgainWhenItsEngineGoes) {
  Start(1);
  for (uint64_t engine = 1; engine <= 4; ++engine) {
    RPartShape shape = shape_;
    shape.layers = static_cast<uint32_t>(engine);
    absl::StatusOr<ConnectResult> connected = Connect(0, engine, shape);  // at once, while the last one's end is news
    ASSERT_TRUE(connected.ok()) << connected.status();
    EXPECT_TRUE(Hop(connected->link.get(), shape, 1));
  }
}

TEST_F(WorkerTest, ABadHopEndsTheLinkAndFreesTheHome) {
  Start(1);
  absl::StatusOr<ConnectResult> connected = Connect(0, 1, shape_);
  ASSERT_TRUE(connected.ok()) << connected.status();
  HopHeader hop;
  hop.rows = 1;
  hop.payload_bytes = 3;
  hop.step = 1;
  connected->link->PostHop(hop);
  ReplyHeader reply;
  while (!connected->link->lost() && connected->link->PollReply(&reply) == LinkPoll::kEmpty) std::this_thread::yield();
  connected->link.reset();
  EXPECT_TRUE(Connect(0, 2, shape_).ok());
}

TEST_F(WorkerTest, StopEndsItsLinks) {
  Start(1);
  absl::StatusOr<ConnectResult> connected = Connect(0, 1, shape_);
  ASSERT_TRUE(connected.ok()) << connected.status();
  worker_->Stop();
  thread_.join();
  worker_.reset();
  connected->link->CheckPeer();
  EXPECT_TRUE(connected->link->lost());
  EXPECT_THAT(connected->link->lost_cause(), HasSubstr("the home was stopped"));
  EXPECT_FALSE(Connect(0, 1, shape_).ok());
}

TEST_F(WorkerTest, RefusesShapesThatDoNotFitWithTheReason) {
  Start(1, shape_);
  RPartShape other = shape_;
  other.kv_heads = 4;
  other.layers = 16;
  const std::string refusal(Connect(0, 1, other).status().message());
  EXPECT_THAT(refusal, HasSubstr("layers is 2 here and 16 there; kv_heads is 2 here and 4 there"));

  other = shape_;
  other.head_dim = 20;
  EXPECT_THAT(std::string(Connect(0, 1, other).status().message()), HasSubstr("head_dim is 20"));

  LinkProposal proposal;
  proposal.size = LinkSizeFor(shape_);
  proposal.shape = "not a shape";
  EXPECT_THAT(std::string(Connect(0, 1, shape_, proposal).status().message()), HasSubstr("shape of 11 bytes, not 44"));

  proposal.shape.clear();
  proposal.size.reply_payload_bytes_max /= 2;
  EXPECT_THAT(std::string(Connect(0, 1, shape_, proposal).status().message()), HasSubstr("the R-Part's shape needs"));

  other = shape_;
  other.max_rows = 8;  // the run's, not the model's
  EXPECT_TRUE(Connect(0, 1, other).ok());
}

TEST_F(WorkerTest, ASmallPoolIsRefusedWithTheSizes) {
  Start(1);
  RPartShape other = shape_;
  other.layers = 1024;
  EXPECT_THAT(std::string(Connect(0, 1, other).status().message()), HasSubstr("not even one page"));
}

TEST_F(WorkerTest, NeedsHomesAndAPathOfItsOwn) {
  WorkerOptions none;
  none.listen_path = path_;
  EXPECT_THAT(std::string(Worker::Create(none).status().message()), HasSubstr("at least one home"));
  Start(1);
  WorkerOptions second;
  second.listen_path = path_;
  second.homes.resize(1);
  second.homes[0].kv_bytes = 1 << 20;
  EXPECT_EQ(Worker::Create(second).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace fastdecode
