#include "engine/homes/retry_schedule.h"

#include <gtest/gtest.h>

#include <vector>

namespace fastdecode {
namespace {

constexpr uint64_t kTickNs = RetrySchedule::kPauseNs;

// The ticks of `ticks` in which somebody who looks at each asks, and always gets the same answer.
std::vector<int> Attempts(RetrySchedule* schedule, const absl::Status& failure, int ticks, bool dear = false) {
  std::vector<int> attempts;
  for (int tick = 0; tick < ticks; ++tick) {
    const uint64_t now_ns = (static_cast<uint64_t>(tick) + 1) * kTickNs;
    if (!schedule->IsDue(now_ns)) continue;
    attempts.push_back(tick);
    schedule->Fail(failure, dear, now_ns);
  }
  return attempts;
}

TEST(RetryScheduleTest, AWorkerThatIsNotThereIsAskedAtEveryTick) {
  for (const absl::Status& nobody : {absl::NotFoundError("connection refused"), absl::UnavailableError("no route"),
                                     absl::DeadlineExceededError("did not answer in time")}) {
    RetrySchedule schedule;
    EXPECT_EQ(Attempts(&schedule, nobody, 1000).size(), 1000u) << nobody;
  }
}

TEST(RetryScheduleTest, OneWhoseLinkCannotBeMadeIsAskedLessAndLessOften) {
  for (const absl::Status& failure : {absl::FailedPreconditionError("another model"),
                                      absl::ResourceExhaustedError("no memory"), absl::InternalError("cudaErrorXyz")}) {
    RetrySchedule schedule;
    const std::vector<int> attempts = Attempts(&schedule, failure, 300);
    const std::vector<int> first(attempts.begin(), attempts.begin() + 8);
    EXPECT_EQ(first, (std::vector<int>{0, 1, 3, 7, 15, 31, 56, 81})) << failure;
    EXPECT_EQ(attempts.back() - attempts[attempts.size() - 2], RetrySchedule::kPauseNsMax / kTickNs);
  }
}

// A worker that hangs up on a proposal, say, for which memory of the GPU was made.
TEST(RetryScheduleTest, WhoeverIsDearToAskIsAskedLessAndLessOften) {
  RetrySchedule schedule;
  EXPECT_LT(Attempts(&schedule, absl::UnavailableError("hung up"), 1000, /*dear=*/true).size(), 50u);
}

// A worker that takes its memory, and is waited for, will answer before long.
TEST(RetryScheduleTest, OneThatIsSilentIsAskedAboutOnceASecond) {
  RetrySchedule schedule;
  const absl::Status silence = absl::DeadlineExceededError("no answer");
  EXPECT_EQ(Attempts(&schedule, silence, 20, /*dear=*/true), (std::vector<int>{0, 1, 3, 7, 12, 17}));
}

TEST(RetryScheduleTest, AnAnswerOfAnotherKindIsNewAndBeginsFromTheStart) {
  const absl::Status model = absl::FailedPreconditionError("another model"),
                     memory = absl::ResourceExhaustedError("no memory"),
                     nobody = absl::NotFoundError("connection refused");
  RetrySchedule schedule;
  Attempts(&schedule, model, 100);
  for (const absl::Status& failure : {memory, nobody, model}) {
    EXPECT_TRUE(schedule.Fail(failure, false, 0));
    EXPECT_FALSE(schedule.IsDue(kTickNs - 1));
    EXPECT_TRUE(schedule.IsDue(kTickNs));
    EXPECT_FALSE(schedule.Fail(failure, false, 0));
  }
}

TEST(RetryScheduleTest, OtherWordsAreNewButNoReasonToAskMoreOften) {
  RetrySchedule schedule;
  uint64_t pause_ns = RetrySchedule::kPauseNs;
  for (const char* words : {"another model", "busy", "another model"}) {
    EXPECT_TRUE(schedule.Fail(absl::FailedPreconditionError(words), false, 0)) << words;
    EXPECT_FALSE(schedule.IsDue(pause_ns - 1)) << words;
    EXPECT_TRUE(schedule.IsDue(pause_ns)) << words;
    pause_ns *= 2;
  }
}

TEST(RetryScheduleTest, OtherNumbersAreNotNew) {
  RetrySchedule schedule;
  EXPECT_TRUE(schedule.Fail(absl::ResourceExhaustedError("no memory: 10.5 GiB of 16 GiB free (pid 99)"), false, 0));
  EXPECT_FALSE(schedule.Fail(absl::ResourceExhaustedError("no memory: 9 GiB of 16 GiB free (pid 100)"), false, 0));
  EXPECT_FALSE(schedule.IsDue(2 * RetrySchedule::kPauseNs - 1));
  EXPECT_TRUE(schedule.Fail(absl::ResourceExhaustedError("no room: 9 GiB of 16 GiB free (pid 100)"), false, 0));
}

}  // namespace
}  // namespace fastdecode
