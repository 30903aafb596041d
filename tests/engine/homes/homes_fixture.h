#ifndef FASTDECODE_TESTS_ENGINE_HOMES_HOMES_FIXTURE_H_
#define FASTDECODE_TESTS_ENGINE_HOMES_HOMES_FIXTURE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/homes/homes.h"
#include "numa/clock.h"
#include "rdma/shm/unix_bootstrap.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {

inline constexpr uint64_t kTimeoutNs = 20'000'000'000;
inline constexpr std::chrono::milliseconds kBetweenLooks(1);

// The homes of an engine, and workers that are played by hand.
class HomesTest : public testing::Test {
 protected:
  static std::unique_ptr<UnixListener> Listen(const std::string& name) {
    return *UnixListener::Listen(testing::TempDir() + "fd-" + name + "-" + std::to_string(getpid()));
  }

  static HomesOptions Options(const std::vector<const UnixListener*>& workers) {
    HomesOptions options;
    for (const UnixListener* worker : workers) {
      options.endpoints.push_back({.kind = Endpoint::Kind::kUnix, .path = worker->path()});
    }
    options.shape = SmallShape(ElementType::kF32);
    return options;
  }

  static std::unique_ptr<PendingLink> AwaitProposal(UnixListener* worker) {
    absl::StatusOr<std::unique_ptr<PendingLink>> pending = worker->AcceptProposal(kTimeoutNs);
    EXPECT_TRUE(pending.ok()) << pending.status();
    return pending.ok() ? *std::move(pending) : nullptr;
  }

  // The worker's end of the link.
  static std::unique_ptr<HomeLink> Accept(PendingLink* pending, uint32_t homes, uint64_t pages = 1, uint64_t id = 0) {
    HomeDescription description;
    description.pages = pages;
    description.id = id;
    LinkAcceptance acceptance;
    acceptance.homes = homes;
    acceptance.answer.assign(reinterpret_cast<const char*>(&description), sizeof(description));
    absl::StatusOr<std::unique_ptr<HomeLink>> link = pending->Accept(acceptance, /*home_node=*/-1);
    EXPECT_TRUE(link.ok()) << link.status();
    return link.ok() ? *std::move(link) : nullptr;
  }
  static std::unique_ptr<HomeLink> AcceptEngine(UnixListener* worker, uint32_t homes = 1, uint64_t pages = 1) {
    const std::unique_ptr<PendingLink> pending = AwaitProposal(worker);
    return pending == nullptr ? nullptr : Accept(pending.get(), homes, pages);
  }

  // `accept`: the workers' part. Null: it failed.
  static std::unique_ptr<Homes> Connect(std::initializer_list<const UnixListener*> workers,
                                        const std::function<void()>& accept) {
    return Connect(Options(workers), accept);
  }
  static std::unique_ptr<Homes> Connect(const HomesOptions& options, const std::function<void()>& accept) {
    std::thread accepting(accept);
    absl::StatusOr<std::unique_ptr<Homes>> homes = Homes::Create(options);
    accepting.join();
    EXPECT_TRUE(homes.ok()) << homes.status();
    if (!homes.ok()) return nullptr;
    EXPECT_TRUE((*homes)->MakeOwn(nullptr, {}).ok());
    return *std::move(homes);
  }

  static bool Await(const std::function<bool()>& condition) {
    const uint64_t deadline_ns = NowNs() + kTimeoutNs;
    while (!condition() && NowNs() < deadline_ns) std::this_thread::sleep_for(kBetweenLooks);
    return condition();
  }
  static void AwaitUp(const Homes& homes, size_t index) {
    EXPECT_TRUE(Await([&] { return homes.count() > index && homes.List()[index].up; }));
  }
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_HOMES_HOMES_FIXTURE_H_
