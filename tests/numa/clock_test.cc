#include "numa/clock.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

TEST(ClockTest, NowNsNeverGoesBack) {
  uint64_t last = NowNs();
  for (int i = 0; i < 10000; ++i) {
    const uint64_t now = NowNs();
    ASSERT_GE(now, last);
    last = now;
  }
}

// Both clocks see the same pause. The bound is on the calibration, not on how long the pause takes: what interrupts the
// readings themselves only makes the bracket around them wider.
TEST(ClockTest, TicksMeasureTheTimeBetweenTheirReadings) {
  const TickClock& clock = TickClock::Get();
  const uint64_t outer_begin = NowNs();
  const uint64_t begin = NowTicks();
  const uint64_t inner_begin = NowNs();
  const timespec pause = {0, 20'000'000};
  nanosleep(&pause, nullptr);
  const uint64_t inner_end = NowNs();
  const uint64_t end = NowTicks();
  const uint64_t outer_end = NowNs();
  const double measured_ns = static_cast<double>(clock.ToNs(end - begin));
  EXPECT_GE(measured_ns, static_cast<double>(inner_end - inner_begin) * 0.99);
  EXPECT_LE(measured_ns, static_cast<double>(outer_end - outer_begin) * 1.01);
}

TEST(ClockTest, ConvertsThereAndBackWithoutOverflow) {
  const TickClock& clock = TickClock::Get();
  for (const uint64_t ns :
       {uint64_t{0}, uint64_t{1000}, uint64_t{1'000'000'000}, uint64_t{3600} * 24 * 365 * 1'000'000'000}) {
    const double back = static_cast<double>(clock.ToNs(clock.ToTicks(ns)));
    EXPECT_NEAR(back, static_cast<double>(ns), 2.0 + 1e-8 * static_cast<double>(ns));
  }
}

}  // namespace
}  // namespace fastdecode
