#include "engine/spart/cuda/wait_probe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <thread>

#include "tests/engine/spart/soft_device.h"

namespace fastdecode {
namespace {

constexpr uint64_t kLongNs = 60'000'000'000, kShortNs = 20'000'000;

class WaitProbeTest : public testing::Test {
 protected:
  WaitProbe Make(uint64_t bound_ns) {
    auto* const board = new (*device_.AllocatePinned(sizeof(StepBoard))) StepBoard();
    return *WaitProbe::Make(*device_.MakeStream(), board, /*kernels=*/3, bound_ns, &device_);
  }

  SoftDevice device_{{}};
};

TEST_F(WaitProbeTest, WaitsEachTimeUntilItIsReleased) {
  const WaitProbe probe = Make(kLongNs);
  for (int round = 0; round < 3; ++round) {
    device_.Launch(probe.graph());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(probe.is_over());
    probe.Release();
    ASSERT_TRUE(device_.Synchronize().ok());
    EXPECT_TRUE(probe.is_over());
    probe.Rearm();
    EXPECT_FALSE(probe.is_over());
  }
  EXPECT_FALSE(probe.gave_up());
}

TEST_F(WaitProbeTest, WaitsForNothingIfItWasReleasedBefore) {
  const WaitProbe probe = Make(kLongNs);
  probe.Release();
  device_.Launch(probe.graph());
  ASSERT_TRUE(device_.Synchronize().ok());
  EXPECT_TRUE(probe.is_over());
}

TEST_F(WaitProbeTest, GivesUp) {
  const WaitProbe probe = Make(kShortNs);
  device_.Launch(probe.graph());
  ASSERT_TRUE(device_.Synchronize().ok());
  EXPECT_TRUE(probe.gave_up());
  EXPECT_FALSE(probe.is_over());
}

}  // namespace
}  // namespace fastdecode
