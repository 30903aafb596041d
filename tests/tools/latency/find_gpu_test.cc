// Where a GPU runs the stages, beside the pipeline thread and those of several micro-batches at once.
#include <vector>

#include "tests/tools/latency/planted_fault.h"
#include "tools/latency/analysis/bubbles.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FindWithGpuTest : public testing::TestWithParam<int> {
 protected:
  // Stages of a tenth of a millisecond.
  static SimulatedRun MakeRun() {
    SimulatedRun run;
    run.seed = 3000 + static_cast<uint64_t>(GetParam());
    run.gpu = true;
    run.homes = 2 + GetParam() % 2;
    run.micro_batches = 2 + GetParam() % 3 / 2;
    run.qkv_ns = 18e3;
    run.o_ns = 12e3;
    run.gate_up_ns = 52e3;
    run.down_ns = 26e3;
    run.rest_ns = 3e3;
    run.logits_ns = 200e3;
    return run;
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, FindWithGpuTest, testing::Range(1, 5));

TEST_P(FindWithGpuTest, NothingWhereNothingWasPlanted) { EXPECT_THAT(FindIn(MakeRun()), IsEmpty()); }

TEST_P(FindWithGpuTest, SlowGemmsOfOneLayer) {
  SimulatedRun run = MakeRun();
  run.faults.slow_layer = 3 * GetParam() % run.layers;
  run.faults.gemm_ratio = 1.3;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"slower", "GEMM", -1, run.faults.slow_layer, 1.3})));
}

TEST_P(FindWithGpuTest, ASlowHome) {
  SimulatedRun run = MakeRun();
  run.faults.slow_home = GetParam() % run.homes;
  run.faults.attend_extra_ns = 50e3;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"slower", "attend", run.faults.slow_home, -1, 50e3})));
}

TEST_P(FindWithGpuTest, APausedScheduler) {
  SimulatedRun run = MakeRun();
  run.faults.pause_ns = 120e6;
  run.faults.pause_at_s = 4;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"pause", "scheduler", -1, -1, 120e6})));
}

// Every part belongs to the stage of its own micro-batch, and those of a token sum to its time.
TEST_P(FindWithGpuTest, PartsLieInTheirStagesAndSumToTheToken) {
  const Recording recording = Simulate(MakeRun());
  const Timeline timeline = BuildTimeline(recording);
  ASSERT_GT(timeline.steps.size(), 100u);
  bool overlap = false;
  uint64_t until_ns = 0;
  for (const StageTimes& stage : timeline.stages) {
    overlap |= stage.start_ns < until_ns;
    until_ns = std::max(until_ns, stage.end_ns);
    EXPECT_GE(stage.parts, 4u);
    for (uint32_t i = 0; i < stage.parts; ++i) {
      const PartTimes& part = timeline.parts[stage.first_part + i];
      ASSERT_EQ(part.micro_batch, stage.micro_batch);
      ASSERT_GE(part.start_ns, stage.start_ns);
      ASSERT_LE(part.end_ns, stage.end_ns);
    }
  }
  EXPECT_TRUE(overlap);
  for (const StepTimes& step : timeline.steps) EXPECT_LE(std::abs(step.residual_ns), 2) << step.step;
  const double busy = MeasureStagesBusy(recording, timeline);
  double idle = 0;
  for (const Bubble& bubble : FindBubbles(recording, timeline)) idle += bubble.where == "S-Part" ? bubble.share : 0;
  EXPECT_GT(busy, 0.2);
  EXPECT_NEAR(busy + idle, 1, 0.02);
}

}  // namespace
}  // namespace fastdecode
