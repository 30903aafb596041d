#include "tools/latency/findings/pipeline_work.h"

#include <vector>

#include "gtest/gtest.h"

namespace fastdecode {
namespace {

fd_record_event Event(fd_record_kind kind, uint64_t start_ns, uint64_t end_ns) {
  fd_record_event event = {};
  event.kind = static_cast<uint8_t>(kind);
  event.start_ns = start_ns;
  event.end_ns = end_ns;
  return event;
}

TEST(PipelineWorkTest, CountsWhatThePipelineDidAndNothingElse) {
  // A hop is no work of the pipeline, and of what overlaps every moment counts once.
  const PipelineWork work(
      {Event(FD_RECORD_COMPOSE, 100, 110), Event(FD_RECORD_STAGE, 110, 200), Event(FD_RECORD_POST, 190, 220),
       Event(FD_RECORD_HOP, 200, 500), Event(FD_RECORD_STAGE, 510, 600)},
      /*stages=*/true);
  EXPECT_EQ(work.WorkBetween(0, 100), 0u);
  EXPECT_EQ(work.WorkBetween(0, 1000), 210u);
  EXPECT_EQ(work.WorkBetween(105, 150), 45u);
  EXPECT_EQ(work.WorkBetween(215, 520), 15u);
  EXPECT_EQ(work.WorkBetween(300, 400), 0u);
}

TEST(PipelineWorkTest, KnowsWhenItIsFree) {
  const PipelineWork work(
      {Event(FD_RECORD_STAGE, 100, 200), Event(FD_RECORD_POST, 200, 210), Event(FD_RECORD_FINISH, 300, 320)},
      /*stages=*/true);
  EXPECT_EQ(work.FreeFrom(50), 50u);
  EXPECT_EQ(work.FreeFrom(100), 100u);  // it has not begun
  EXPECT_EQ(work.FreeFrom(150), 210u);  // between a stage and its post it does not look for replies
  EXPECT_EQ(work.FreeFrom(250), 250u);
  EXPECT_EQ(work.FreeFrom(310), 320u);
  EXPECT_EQ(work.FreeFrom(900), 900u);
}

TEST(PipelineWorkTest, StagesThatAGpuRunsAreNoneOfIt) {
  const PipelineWork work(
      {Event(FD_RECORD_COMPOSE, 100, 110), Event(FD_RECORD_STAGE, 110, 200), Event(FD_RECORD_POST, 200, 210)},
      /*stages=*/false);
  EXPECT_EQ(work.WorkBetween(100, 210), 20u);
  EXPECT_EQ(work.FreeFrom(150), 150u);
}

}  // namespace
}  // namespace fastdecode
