// A worker that refuses to take its engine back, played by hand.
#include "engine/homes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "engine/retry_schedule.h"
#include "numa/clock.h"
#include "rdma/shm/unix_bootstrap.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

constexpr uint64_t kTimeoutNs = 20'000'000'000;

class HomesTest : public testing::Test {
 protected:
  HomesOptions Options() const {
    HomesOptions options;
    Endpoint worker;
    worker.kind = Endpoint::Kind::kUnix;
    worker.path = listener_->path();
    options.endpoints = {worker};
    options.shape = SmallShape(ElementType::kF32);
    return options;
  }

  std::unique_ptr<PendingLink> AwaitProposal() {
    absl::StatusOr<std::unique_ptr<PendingLink>> pending = listener_->AcceptProposal(kTimeoutNs);
    EXPECT_TRUE(pending.ok()) << pending.status();
    return pending.ok() ? *std::move(pending) : nullptr;
  }

  // The worker's end of the link.
  std::unique_ptr<HomeLink> AcceptEngine() {
    const HomeDescription description;
    LinkAcceptance acceptance;
    acceptance.answer.assign(reinterpret_cast<const char*>(&description), sizeof(description));
    const std::unique_ptr<PendingLink> pending = AwaitProposal();
    absl::StatusOr<std::unique_ptr<HomeLink>> link = pending->Accept(acceptance, /*home_node=*/-1);
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }

  std::unique_ptr<UnixListener> listener_ =
      *UnixListener::Listen(testing::TempDir() + "fd-homes-" + std::to_string(getpid()));
};

TEST_F(HomesTest, AWorkerThatRefusesAgainIsLeftAloneForLonger) {
  std::unique_ptr<HomeLink> link;
  std::thread worker([&] { link = AcceptEngine(); });
  absl::StatusOr<std::unique_ptr<Homes>> homes = Homes::Create(Options());
  worker.join();
  ASSERT_TRUE(homes.ok()) << homes.status();
  (*homes)->Start([](const PipelineCommand&) {});
  link.reset();
  (*homes)->OnHomeDrained(0);
  AwaitProposal()->Refuse("another model");
  const std::unique_ptr<PendingLink> second = AwaitProposal();
  const uint64_t answered_ns = NowNs();
  second->Refuse("another model");
  link = AcceptEngine();
  EXPECT_GE(NowNs() - answered_ns, 2 * RetrySchedule::kPauseNs);
  while (!(*homes)->List()[0].up && NowNs() - answered_ns < kTimeoutNs) std::this_thread::yield();
  EXPECT_TRUE((*homes)->List()[0].up);
}

}  // namespace
}  // namespace fastdecode
