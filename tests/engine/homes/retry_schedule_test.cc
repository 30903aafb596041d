#include "engine/homes/retry_schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace fastdecode {
namespace {

constexpr uint64_t kTickNs = RetrySchedule::kPauseNs;

TEST(RetryScheduleTest, PausesDoubleUpToFiveSeconds) {
  RetrySchedule schedule;
  std::vector<int> attempts;  // the ticks in which somebody who looks at each asks in vain
  for (int tick = 0; tick < 110; ++tick) {
    const uint64_t now_ns = static_cast<uint64_t>(tick) * kTickNs;
    if (!schedule.IsDue(now_ns)) continue;
    attempts.push_back(tick);
    schedule.Fail(now_ns);
  }
  EXPECT_EQ(attempts, (std::vector<int>{0, 1, 3, 7, 15, 31, 56, 81, 106}));
}

TEST(RetryScheduleTest, OnlyAReplyEndsTheRow) {
  RetrySchedule schedule;
  for (int i = 0; i < 3; ++i) schedule.Fail(0);
  EXPECT_FALSE(schedule.IsDue(4 * kTickNs - 1));
  schedule.Connected();
  EXPECT_TRUE(schedule.IsDue(0)) << "for another home of the worker";
  schedule.Fail(0);
  EXPECT_FALSE(schedule.IsDue(8 * kTickNs - 1));
  EXPECT_TRUE(schedule.IsDue(8 * kTickNs));
  schedule.Reset();
  EXPECT_TRUE(schedule.IsDue(0));
  schedule.Fail(0);
  EXPECT_TRUE(schedule.IsDue(kTickNs));
}

}  // namespace
}  // namespace fastdecode
