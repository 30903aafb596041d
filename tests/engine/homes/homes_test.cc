// Workers that refuse to take their engine back, or hang, played by hand.
#include "engine/homes/homes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/homes/retry_schedule.h"
#include "engine/pipeline/statistics.h"
#include "engine/spart/spart.h"
#include "numa/clock.h"
#include "tests/engine/homes/homes_fixture.h"

namespace fastdecode {
namespace {

// Knows which memory is registered, and computes nothing.
class RegisteringSPart final : public SPart, private AreaRegistry {
 public:
  void StartStage(int micro_batch, int stage, StepTable& table) override {}
  StageState PollStage(int micro_batch) override { return StageState::kDone; }
  void Park() override {}
  AreaRegistry* areas() override { return this; }
  std::shared_ptr<void> HoldSteps() override { return std::make_shared<int>(); }
  absl::Status RegisterAreas(std::byte* memory, size_t bytes) override {
    if (registered_.size() >= most_) return absl::ResourceExhaustedError("no more");
    EXPECT_TRUE(registered_.emplace(memory, bytes).second);
    return absl::OkStatus();
  }
  void UnregisterAreas(std::byte* memory) override {
    const auto found = registered_.find(memory);
    ASSERT_NE(found, registered_.end());
    std::fill_n(memory, found->second, std::byte{1});  // it is still there
    registered_.erase(found);
  }
  std::string Describe() const override { return "registers"; }
  uint64_t weight_bytes() const override { return 0; }

  size_t registered() const { return registered_.size(); }
  void FailFrom(size_t registered) { most_ = registered; }

 private:
  std::map<std::byte*, size_t> registered_;
  size_t most_ = SIZE_MAX;
};

TEST_F(HomesTest, AHomeOfTwoNamesIsRefused) {
  const std::unique_ptr<UnixListener> name = Listen("worker"), other_name = Listen("other");
  const auto accept = [&](uint64_t first, uint64_t second) {
    std::unique_ptr<HomeLink> links[2];
    std::thread accepting([&] {
      links[0] = Accept(AwaitProposal(name.get()).get(), 1, 1, first);
      links[1] = Accept(AwaitProposal(other_name.get()).get(), 1, 1, second);
    });
    const absl::Status status = Homes::Create(Options({name.get(), other_name.get()})).status();
    accepting.join();
    return status;
  };
  EXPECT_TRUE(accept(7, 8).ok());
  EXPECT_TRUE(accept(0, 0).ok()) << "they do not say who they are";
  EXPECT_EQ(accept(7, 7),
            absl::InvalidArgumentError("--homes: 'unix:" + name->path() + ", home 0' and 'unix:" + other_name->path() +
                                       ", home 0' are the same home; name each worker once"));
}

TEST_F(HomesTest, TooManyHomesAreRefused) {
  const std::unique_ptr<UnixListener> worker = Listen("worker");
  std::vector<std::unique_ptr<HomeLink>> links;
  std::thread accepting([&] {
    for (int i = 0; i <= kMaxHomes; ++i) links.push_back(AcceptEngine(worker.get(), kMaxHomes + 1));
  });
  const absl::Status status = Homes::Create(Options({worker.get()})).status();
  accepting.join();
  EXPECT_EQ(status, absl::InvalidArgumentError("--homes: more than 64 homes in all"));
}

// The S-Part comes after the links, and CUDA has to know of their memory before it goes.
TEST_F(HomesTest, AreasAreRegisteredWithTheSPartUntilTheLinksGo) {
  const std::unique_ptr<UnixListener> name = Listen("worker"), other_name = Listen("other");
  std::vector<std::unique_ptr<HomeLink>> links;
  std::thread accepting([&] {
    for (UnixListener* worker : {name.get(), other_name.get()}) links.push_back(AcceptEngine(worker));
  });
  absl::StatusOr<std::unique_ptr<Homes>> homes = Homes::Create(Options({name.get(), other_name.get()}));
  accepting.join();
  ASSERT_TRUE(homes.ok()) << homes.status();
  RegisteringSPart spart;
  EXPECT_EQ(spart.registered(), 0u);
  ASSERT_TRUE((*homes)->MakeOwn(&spart, {}).ok());
  EXPECT_EQ(spart.registered(), 2 * links.size()) << "both directions";
  homes->reset();
  EXPECT_EQ(spart.registered(), 0u);
}

// Pinning memory may fail: what was registered until then is unregistered before the homes are gone.
TEST_F(HomesTest, AreasAreUnregisteredAfterARegistrationThatFailed) {
  const std::unique_ptr<UnixListener> worker = Listen("worker");
  std::vector<std::unique_ptr<HomeLink>> links;
  std::thread accepting([&] {
    for (int i = 0; i < 2; ++i) links.push_back(AcceptEngine(worker.get(), /*homes=*/2));
  });
  absl::StatusOr<std::unique_ptr<Homes>> homes = Homes::Create(Options({worker.get()}));
  accepting.join();
  ASSERT_TRUE(homes.ok()) << homes.status();
  RegisteringSPart spart;
  spart.FailFrom(3);  // the second link's second direction
  EXPECT_EQ((*homes)->MakeOwn(&spart, {}), absl::ResourceExhaustedError("no more"));
  homes->reset();
  EXPECT_EQ(spart.registered(), 0u);
}

// The start may fail before there is an S-Part.
TEST_F(HomesTest, LinksGoWithoutAnSPart) {
  const std::unique_ptr<UnixListener> worker = Listen("worker");
  std::unique_ptr<HomeLink> link;
  std::thread accepting([&] { link = AcceptEngine(worker.get()); });
  absl::StatusOr<std::unique_ptr<Homes>> homes = Homes::Create(Options({worker.get()}));
  accepting.join();
  ASSERT_TRUE(homes.ok()) << homes.status();
  EXPECT_EQ((*homes)->pages_max(), 1u);
  homes->reset();
}

TEST_F(HomesTest, AWorkerThatRefusesAgainIsLeftAloneForLonger) {
  const std::unique_ptr<UnixListener> worker = Listen("worker");
  std::unique_ptr<HomeLink> link;
  const std::unique_ptr<Homes> homes = Connect({worker.get()}, [&] { link = AcceptEngine(worker.get()); });
  ASSERT_NE(homes, nullptr);
  homes->Start([](const PipelineCommand&) {}, [](int) { return 0; });
  link.reset();
  homes->OnHomeLost(0, 0, 0);
  AwaitProposal(worker.get())->Refuse("another model");
  const std::unique_ptr<PendingLink> second = AwaitProposal(worker.get());
  const uint64_t answered_ns = NowNs();
  second->Refuse("another model");
  link = AcceptEngine(worker.get());
  EXPECT_GE(NowNs() - answered_ns, 2 * RetrySchedule::kPauseNs);
  AwaitUp(*homes, 0);
}

TEST_F(HomesTest, AHomeThatIsLostWithoutAReplyIsTakenBackLessOften) {
  const std::unique_ptr<UnixListener> worker = Listen("worker");
  std::unique_ptr<HomeLink> link;
  const std::unique_ptr<Homes> homes = Connect({worker.get()}, [&] { link = AcceptEngine(worker.get()); });
  ASSERT_NE(homes, nullptr);
  std::atomic<uint64_t> replies{0};
  homes->Start([](const PipelineCommand&) {}, [&](int) { return replies.load(); });
  uint64_t posts = 0;
  // How long it stays away.
  const auto lose = [&] {
    const uint64_t lost_ns = NowNs();
    link.reset();
    homes->OnHomeLost(0, posts, 0);
    link = AcceptEngine(worker.get());
    AwaitUp(*homes, 0);
    return NowNs() - lost_ns;
  };
  for (const uint64_t pauses : {1, 2, 4}) {
    ++posts;
    EXPECT_GE(lose(), pauses * RetrySchedule::kPauseNs);
  }
  constexpr uint64_t kNextPauseNs = 8 * RetrySchedule::kPauseNs;
  // The quickest of some tries, each behind `before`: what else runs on the machine may make a home stay away longer.
  const auto quickest = [&](const auto& before) {
    uint64_t best_ns = UINT64_MAX;
    for (int i = 0; i < 5 && best_ns >= kNextPauseNs; ++i) {
      before();
      best_ns = std::min(best_ns, lose());
    }
    return best_ns;
  };
  const auto work = [&] {
    ++posts;
    ++replies;
  };
  EXPECT_LT(quickest([] {}), kNextPauseNs) << "nothing was asked of it";
  EXPECT_LT(quickest(work), kNextPauseNs) << "it has worked";
  EXPECT_LT(quickest([&] { work(), lose(), ++posts; }), kNextPauseNs) << "all is forgiven";
}

// It is not waited for once for each of its homes.
TEST_F(HomesTest, AWorkerThatHangsDoesNotKeepOthersFromComingBack) {
  constexpr uint32_t kHungHomes = 4;
  const std::unique_ptr<UnixListener> hung = Listen("hung"), good = Listen("good");
  std::vector<std::unique_ptr<HomeLink>> links;
  const std::unique_ptr<Homes> homes = Connect({hung.get(), good.get()}, [&] {
    for (uint32_t i = 0; i < kHungHomes; ++i) links.push_back(AcceptEngine(hung.get(), kHungHomes));
    links.push_back(AcceptEngine(good.get()));
  });
  ASSERT_NE(homes, nullptr);
  homes->Start([](const PipelineCommand&) {}, [](int) { return 0; });
  links.clear();
  for (uint32_t i = 0; i <= kHungHomes; ++i) homes->OnHomeLost(static_cast<int>(i), 0, 0);
  links.push_back(AcceptEngine(good.get()));
  ASSERT_NE(links.back(), nullptr);
  std::vector<absl::StatusOr<std::unique_ptr<PendingLink>>> asked;  // none is answered
  do {
    asked.push_back(hung->AcceptProposal(RetrySchedule::kPauseNs / 10));
  } while (!absl::IsDeadlineExceeded(asked.back().status()));
  EXPECT_LT(asked.size() - 1, kHungHomes);
  AwaitUp(*homes, kHungHomes);
}

// Whether its own turn takes long because it is refused slowly, or since it is not answered at all, which it is given
// all the time for once the worker has heard it.
TEST_F(HomesTest, AHomeDoesNotKeepAnotherOfItsWorkerFromComingBack) {
  constexpr int kTurns = 6;
  for (const bool silent : {false, true}) {
    const std::unique_ptr<UnixListener> worker = Listen("worker");
    std::vector<std::unique_ptr<HomeLink>> links;
    const std::unique_ptr<Homes> homes = Connect({worker.get()}, [&] {
      for (int i = 0; i < 2; ++i) links.push_back(AcceptEngine(worker.get(), /*homes=*/2));
    });
    ASSERT_NE(homes, nullptr);
    homes->Start([](const PipelineCommand&) {}, [](int) { return 0; });
    links.clear();
    for (const int home : {0, 1}) homes->OnHomeLost(home, 0, 0);
    std::vector<std::unique_ptr<PendingLink>> unanswered;
    for (int turn = 0; turn < kTurns && links.empty(); ++turn) {
      std::unique_ptr<PendingLink> pending = AwaitProposal(worker.get());
      ASSERT_NE(pending, nullptr);
      if (pending->proposal().home_index == 1) {
        links.push_back(Accept(pending.get(), /*homes=*/2));
      } else if (silent) {
        unanswered.push_back(std::move(pending));
      } else {
        std::this_thread::sleep_for(std::chrono::nanoseconds(RetrySchedule::kPauseNs * 5 / 4));
        pending->Refuse("busy");
      }
    }
    ASSERT_FALSE(links.empty()) << "silent: " << silent;
    AwaitUp(*homes, 1);
  }
}

// Refusals of one home and attempts at a worker that is not there leave the other home of the first one its turns.
TEST_F(HomesTest, AHomeThatIsRefusedForAReasonOfItsOwnDoesNotKeepItsSiblingAway) {
  constexpr int kTurns = 6;
  const std::unique_ptr<UnixListener> worker = Listen("worker");
  std::unique_ptr<UnixListener> gone = Listen("gone");
  std::vector<std::unique_ptr<HomeLink>> links;
  const std::unique_ptr<Homes> homes = Connect({worker.get(), gone.get()}, [&] {
    for (int i = 0; i < 2; ++i) links.push_back(AcceptEngine(worker.get(), /*homes=*/2));
    links.push_back(AcceptEngine(gone.get()));
  });
  ASSERT_NE(homes, nullptr);
  homes->Start([](const PipelineCommand&) {}, [](int) { return 0; });
  gone.reset();
  links.clear();
  for (const int home : {0, 1, 2}) homes->OnHomeLost(home, 0, 0);
  for (int turn = 0; turn < kTurns && links.empty(); ++turn) {
    std::unique_ptr<PendingLink> pending = AwaitProposal(worker.get());
    ASSERT_NE(pending, nullptr);
    if (pending->proposal().home_index == 1) {
      links.push_back(Accept(pending.get(), /*homes=*/2));
    } else {
      pending->Refuse("no pages left to reserve");
    }
  }
  ASSERT_FALSE(links.empty()) << "home 1 was not asked in " << kTurns << " attempts";
  AwaitUp(*homes, 1);
}

TEST_F(HomesTest, SaysWhyThereIsNoRoom) {
  const std::unique_ptr<UnixListener> worker = Listen("worker");
  std::vector<std::unique_ptr<HomeLink>> links;
  const std::unique_ptr<Homes> homes = Connect({worker.get()}, [&] {
    for (const uint64_t pages : {4, 2}) links.push_back(AcceptEngine(worker.get(), /*homes=*/2, pages));
  });
  ASSERT_NE(homes, nullptr);
  const auto why = [&](uint32_t pages) { return homes->DescribeNoRoom(pages * kPageTokens); };
  const auto lose = [&](size_t index) {
    links[index].reset();
    const uint64_t deadline_ns = NowNs() + kTimeoutNs;
    while (homes->List()[index].up && NowNs() < deadline_ns) std::this_thread::sleep_for(kBetweenLooks);
  };
  const std::string tokens[] = {std::to_string(2 * kPageTokens), std::to_string(5 * kPageTokens)};
  const std::string names[] = {homes->Name(0) + " was lost: ", homes->Name(1) + " was lost: "};
  EXPECT_THAT(names[0], testing::HasSubstr(worker->path()));
  EXPECT_THAT(why(5), testing::EndsWith("needs room for " + tokens[1] + " tokens, the largest has " +
                                        std::to_string(4 * kPageTokens)));
  lose(0);
  EXPECT_THAT(why(5), testing::HasSubstr("the largest has " + tokens[0] + "; " + names[0]));
  EXPECT_THAT(why(2), testing::HasSubstr("come back"));
  lose(1);
  EXPECT_THAT(why(2), testing::StartsWith("no living home is left; " + names[0]));
  EXPECT_THAT(why(2), testing::HasSubstr("; " + names[1]));
}

}  // namespace
}  // namespace fastdecode
