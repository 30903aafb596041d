#include "numa/spin.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <thread>

namespace fastdecode {
namespace {

// Of a thread of its own, which nothing was found out about yet: polls with pauses as a core that others run on has.
bool FindsItsCoreShared(PollMode mode, bool resets) {
  bool shared = false;
  std::thread([&] {
    PollBackoff backoff(mode);
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 16; ++i) backoff.Idle();  // as many as lie between two looks
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (resets) backoff.Reset();
    }
    shared = PollBackoff::SharesCore();
  }).join();
  return shared;
}

// How often a thread that polls in vain for so long has slept: given the core away of its own accord for some time. It
// ends when it has slept `enough` times.
int64_t Sleeps(PollMode mode, std::chrono::milliseconds wait, bool resets, int64_t enough = INT64_MAX) {
  int64_t sleeps = 0;
  std::thread([&] {
    const auto count = [] {
      rusage usage;
      getrusage(RUSAGE_THREAD, &usage);
      return int64_t{usage.ru_nvcsw};
    };
    PollBackoff backoff(mode);
    const int64_t before = count();
    const auto end = std::chrono::steady_clock::now() + wait;
    for (uint32_t i = 1; sleeps < enough && std::chrono::steady_clock::now() < end; ++i) {
      backoff.Idle();
      if (resets && i % (PollBackoff::kEmptyPollsBeforeYield + 1) == 0) backoff.Reset();  // after a yield
      sleeps = count() - before;
    }
  }).join();
  return sleeps;
}

TEST(SpinTest, WhoYieldsForLongNaps) {
  constexpr int64_t kEnough = 11;
  EXPECT_GE(Sleeps(PollMode::kYield, std::chrono::seconds(60), false, kEnough), kEnough);
}

TEST(SpinTest, WhoFindsSomethingDoesNotNap) {
  EXPECT_EQ(Sleeps(PollMode::kYield, std::chrono::milliseconds(20), true), 0);
}

TEST(SpinTest, WhoHasTheCoreNeverNaps) { EXPECT_EQ(Sleeps(PollMode::kSpin, std::chrono::milliseconds(20), false), 0); }

TEST(SpinTest, WhoTakesTurnsNeverNaps) {
  EXPECT_EQ(Sleeps(PollMode::kTurns, std::chrono::milliseconds(20), false), 0);
}

TEST(SpinTest, WhoWatchesFindsItsCoreTaken) { EXPECT_TRUE(FindsItsCoreShared(PollMode::kWatch, false)); }

// What lies between polls that found something is work.
TEST(SpinTest, WorkIsNoLoss) { EXPECT_FALSE(FindsItsCoreShared(PollMode::kWatch, true)); }

TEST(SpinTest, OthersDoNotLook) {
  EXPECT_FALSE(FindsItsCoreShared(PollMode::kSpin, false));
  EXPECT_FALSE(FindsItsCoreShared(PollMode::kYield, false));
  EXPECT_FALSE(FindsItsCoreShared(PollMode::kTurns, false));
}

}  // namespace
}  // namespace fastdecode
