#include "engine/rpart/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"
#include "rdma/shm/unix_bootstrap.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr uint64_t kTimeoutNs = 20'000'000'000;

Endpoint UnixAt(const std::string& path) {
  Endpoint endpoint;
  endpoint.kind = Endpoint::Kind::kUnix;
  endpoint.path = path;
  return endpoint;
}

class WorkerTest : public testing::Test {
 protected:
  void Start(int homes, std::optional<RPartShape> model_shape = std::nullopt, uint32_t peers = 1) {
    WorkerOptions options;
    options.listen = UnixAt(path_);
    options.model_shape = model_shape;
    options.grace_ns = grace_ns_;
    for (int i = 0; i < homes; ++i) {
      HomeOptions home;
      home.name = "home" + std::to_string(i);
      home.kv_bytes = 4 << 20;
      home.cores = cores_;
      home.poll = PollMode::kYield;
      home.peers = peers;
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

  // The next word of the home that is no count of pages.
  ControlKind AwaitWord(EngineLink* link) {
    std::vector<std::byte> buffer(kControlMessageBytesMax);
    for (;;) {
      size_t bytes = 0;
      const LinkPoll poll = link->PollControl(buffer.data(), &bytes);
      EXPECT_NE(poll, LinkPoll::kLost) << link->lost_cause();
      if (poll == LinkPoll::kLost) return ControlKind::kIdle;
      uint32_t kind = 0;
      if (poll == LinkPoll::kMessage) std::memcpy(&kind, buffer.data(), sizeof(kind));
      const auto control = static_cast<ControlKind>(kind);
      if (poll == LinkPoll::kMessage && control != ControlKind::kStats) return control;
      std::this_thread::yield();
    }
  }
  void SayLeft(EngineLink* link) {
    const LeftMessage left;
    EXPECT_TRUE(link->TrySendControl(&left, sizeof(left)));
    link->RingHome();
  }
  // Why.
  std::string AwaitLoss(EngineLink* link) {
    while (!link->lost()) {
      link->CheckPeer();
      std::this_thread::yield();
    }
    return link->lost_cause();
  }

  uint64_t grace_ns_ = 60'000'000'000;
  std::vector<int> cores_ = {-1};
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

  EXPECT_THAT(std::string(Connect(0, 8, shape_).status().message()),
              HasSubstr("home 0 already serves 1 engine (--peers 1): engine 7 at pid "));
  absl::StatusOr<ConnectResult> second = Connect(1, 8, shape_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(Hop(second->link.get(), shape_, 1));
  EXPECT_TRUE(Hop(first->link.get(), shape_, 2));
  EXPECT_THAT(std::string(Connect(2, 8, shape_).status().message()),
              HasSubstr("home index 2: this worker has 2 homes"));
}

uint64_t PagesOf(const ConnectResult& result) {
  HomeDescription description;
  EXPECT_EQ(result.answer.size(), sizeof(description));
  std::memcpy(&description, result.answer.data(), sizeof(description));
  return description.pages;
}

TEST_F(WorkerTest, ServesSeveralEnginesAtOneHome) {
  Start(1, std::nullopt, 3);
  const RPartShape& shape = shape_;
  LinkProposal proposal;
  proposal.size = LinkSizeFor(shape);
  PeerDemand demand;
  demand.pages_wanted = 7;
  proposal.shape = EncodeProposal(shape, demand);
  absl::StatusOr<ConnectResult> first = Connect(0, 7, shape, proposal);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(PagesOf(*first), 7u);
  absl::StatusOr<ConnectResult> second = Connect(0, 8, shape);
  ASSERT_TRUE(second.ok()) << second.status();
  const uint64_t total = worker_->home(0).Describe(shape).pages;
  EXPECT_EQ(PagesOf(*second), total / 3);
  EXPECT_TRUE(Hop(first->link.get(), shape, 1));
  EXPECT_TRUE(Hop(second->link.get(), shape, 1));

  // Another role is another peer.
  proposal.peer.role = 1;
  demand.pages_wanted = UINT64_MAX;
  proposal.shape = EncodeProposal(shape, demand);
  absl::StatusOr<ConnectResult> third = Connect(0, 7, shape, proposal);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(PagesOf(*third), total - total / 3 - 7);
  EXPECT_TRUE(Hop(third->link.get(), shape, 1));

  const std::string refusal(Connect(0, 9, shape).status().message());
  EXPECT_THAT(refusal, HasSubstr("home 0 already serves 3 engines (--peers 3): engine 7 at pid "));
  EXPECT_THAT(refusal, HasSubstr("; engine 8 at pid "));
  EXPECT_THAT(refusal, HasSubstr("; engine 7 (role 1) at pid "));
  // One goes, by a fault of its own; its pages are the next one's, and the others do not notice.
  HopHeader hop;
  hop.rows = 1;
  hop.payload_bytes = 3;
  hop.step = 2;
  second->link->PostHop(hop);
  ReplyHeader reply;
  while (!second->link->lost() && second->link->PollReply(&reply) == LinkPoll::kEmpty) std::this_thread::yield();
  second->link.reset();
  RPartShape other = shape;
  other.kv_heads = 4;
  EXPECT_THAT(std::string(Connect(0, 9, other).status().message()),
              HasSubstr("home 0 serves another model: what it serves (here) and this engine's (there), kv_heads is 2"));
  absl::StatusOr<ConnectResult> fourth = Connect(0, 9, shape);
  ASSERT_TRUE(fourth.ok()) << fourth.status();
  EXPECT_EQ(PagesOf(*fourth), total / 3);
  EXPECT_TRUE(Hop(first->link.get(), shape, 2));
  EXPECT_TRUE(Hop(third->link.get(), shape, 2));
  EXPECT_TRUE(Hop(fourth->link.get(), shape, 1));
}

TEST_F(WorkerTest, AnEngineThatComesAgainTakesTheOldOnesPlace) {
  Start(1, std::nullopt, 2);
  absl::StatusOr<ConnectResult> other = Connect(0, 8, shape_);
  absl::StatusOr<ConnectResult> old = Connect(0, 7, shape_);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_TRUE(Hop(old->link.get(), shape_, 1));
  absl::StatusOr<ConnectResult> again = Connect(0, 7, shape_);  // its old link seems alive
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PagesOf(*again), PagesOf(*old));
  old->link->CheckPeer();
  EXPECT_THAT(old->link->lost_cause(), HasSubstr("the engine has come again"));
  EXPECT_TRUE(Hop(again->link.get(), shape_, 1));
  EXPECT_TRUE(Hop(other->link.get(), shape_, 1));
  // A proposal that is refused for itself does not cost the old one its place.
  RPartShape bad = shape_;
  bad.head_dim = 20;
  EXPECT_FALSE(Connect(0, 7, bad).ok());
  EXPECT_TRUE(Hop(again->link.get(), shape_, 2));
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

// ---- draining

TEST_F(WorkerTest, ADrainingWorkerEndsWhenItsEngineHasLeft) {
  Start(2);
  std::vector<ConnectResult> engines;
  for (uint32_t i = 0; i < 2; ++i) {
    absl::StatusOr<ConnectResult> engine = Connect(i, 7, shape_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engines.push_back(*std::move(engine));
  }
  EXPECT_TRUE(Hop(engines[0].link.get(), shape_, 1));
  worker_->Drain();
  for (ConnectResult& engine : engines) EXPECT_EQ(AwaitWord(engine.link.get()), ControlKind::kDraining);
  EXPECT_THAT(std::string(Connect(0, 8, shape_).status().message()), HasSubstr("draining"));
  EXPECT_TRUE(Hop(engines[0].link.get(), shape_, 2)) << "what it has goes on";
  SequenceMessage release;
  release.kind = static_cast<uint32_t>(ControlKind::kRelease);
  release.sequence = 1;
  EXPECT_TRUE(engines[0].link->TrySendControl(&release, sizeof(release)));
  for (ConnectResult& engine : engines) {
    EXPECT_FALSE(engine.link->lost());
    SayLeft(engine.link.get());
  }
  thread_.join();
  for (ConnectResult& engine : engines) {
    engine.link->CheckPeer();
    EXPECT_THAT(engine.link->lost_cause(), HasSubstr("the home drains, and the engine has left it"));
  }
}

TEST_F(WorkerTest, ADrainingWorkerWaitsNoLongerThanItsGrace) {
  grace_ns_ = 300'000'000;
  Start(1);
  absl::StatusOr<ConnectResult> engine = Connect(0, 7, shape_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const uint64_t told_ns = NowNs();
  worker_->Drain();
  thread_.join();
  EXPECT_GE(NowNs() - told_ns, grace_ns_);
  engine->link->CheckPeer();
  EXPECT_FALSE(engine->link->lost()) << "its homes live as long as the worker";
  worker_.reset();
  engine->link->CheckPeer();
  EXPECT_TRUE(engine->link->lost());
}

TEST_F(WorkerTest, NobodyIsWaitedForWhereNobodyIs) {
  Start(2);
  worker_->Drain();
  thread_.join();
}

TEST_F(WorkerTest, AnEngineThatLeavesUnaskedOrTooSoonLosesItsLink) {
  Start(1);
  absl::StatusOr<ConnectResult> engine = Connect(0, 7, shape_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  SayLeft(engine->link.get());
  EXPECT_THAT(AwaitLoss(engine->link.get()), HasSubstr("left: the home does not drain"));

  engine = Connect(0, 7, shape_);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_TRUE(Hop(engine->link.get(), shape_, 1));
  worker_->Drain();
  EXPECT_EQ(AwaitWord(engine->link.get()), ControlKind::kDraining);
  SayLeft(engine->link.get());
  EXPECT_THAT(AwaitLoss(engine->link.get()), HasSubstr("left: of the engine's sequences 1 are here"));
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
  EXPECT_THAT(std::string(Connect(0, 1, shape_, proposal).status().message()), HasSubstr("shape of 11 bytes, not 176"));

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

// This process cannot have so much more memory than it has now.
class MemoryLimited {
 public:
  explicit MemoryLimited(uint64_t more_bytes) {
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit = {pages * static_cast<uint64_t>(getpagesize()) + more_bytes, before_.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimited() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_;
};

TEST_F(WorkerTest, AnEngineWhoseHopsCannotBeComputedIsRefused) {
  cores_ = {-1, -1};
  Start(1);
  RPartShape large = shape_;
  large.layers = large.max_rows = 1;
  large.kv_heads = large.group = 8;
  large.head_dim = 128;
  large.max_context = 1 << 24;  // whose partials, where threads cut it, take 256 MiB
  {
    const MemoryLimited limited(64 << 20);
    const absl::Status refused = Connect(0, 1, large).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("refused the link: home 0: "));
  }
  EXPECT_TRUE(Connect(0, 1, shape_).ok());
}

TEST_F(WorkerTest, NeedsHomesAndAPathOfItsOwn) {
  WorkerOptions none;
  none.listen = UnixAt(path_);
  EXPECT_THAT(std::string(Worker::Create(none).status().message()), HasSubstr("at least one home"));
  Start(1);
  WorkerOptions second;
  second.listen = UnixAt(path_);
  second.homes.resize(1);
  second.homes[0].kv_bytes = 1 << 20;
  EXPECT_EQ(Worker::Create(second).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace fastdecode
