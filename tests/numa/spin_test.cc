#include "numa/spin.h"

#include <gtest/gtest.h>

#include <chrono>
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

TEST(SpinTest, WhoWatchesFindsItsCoreTaken) { EXPECT_TRUE(FindsItsCoreShared(PollMode::kWatch, false)); }

// What lies between polls that found something is work.
TEST(SpinTest, WorkIsNoLoss) { EXPECT_FALSE(FindsItsCoreShared(PollMode::kWatch, true)); }

TEST(SpinTest, OthersDoNotLook) {
  EXPECT_FALSE(FindsItsCoreShared(PollMode::kSpin, false));
  EXPECT_FALSE(FindsItsCoreShared(PollMode::kYield, false));
}

}  // namespace
}  // namespace fastdecode
