// Where nothing was planted nothing is found: over seeds, shapes, loads and noise.
#include <vector>

#include "tests/tools/latency/planted_fault.h"

namespace fastdecode {
namespace {

using ::testing::IsEmpty;

class FindNothingTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Runs, FindNothingTest, testing::Range(0, 36));
class FindNothingInMemoryTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Runs, FindNothingInMemoryTest, testing::Range(36, 48));

// Of another shape, load and noise for each i.
SimulatedRun RunOfShape(int i) {
  SimulatedRun run;
  run.seed = 1000 + static_cast<uint64_t>(i);
  run.seconds = 6;
  run.homes = 1 + i % 4;
  run.micro_batches = 1 + i / 4 % 3;
  run.layers = i % 5 == 4 ? 32 : 8 + 8 * (i % 2);
  run.requests.sequences = 6 + 5 * (i % 7);
  if (i % 3 == 1) run.requests.prefill_chunk = 16 << (i % 4);
  if (i % 5 == 2) run.requests.arrivals_per_s = 4 + 6 * (i % 3);
  const double noise = i % 3 == 0 ? 0.5 : i % 3 == 1 ? 1 : 2;
  run.noise.spread *= noise;
  run.noise.drift *= noise;
  run.noise.wire_spread *= noise;
  run.noise.tail_share *= noise;
  return run;
}

TEST_P(FindNothingTest, InARunWithoutFaults) { EXPECT_THAT(FindIn(RunOfShape(GetParam())), IsEmpty()); }

// Some or all homes on the engine's host.
TEST_P(FindNothingInMemoryTest, InARunWithoutFaults) {
  SimulatedRun run = RunOfShape(GetParam());
  run.local_homes = 1 + GetParam() / 4 % run.homes;
  EXPECT_THAT(FindIn(run), IsEmpty());
}

TEST(FindNothingTest, InARecordingOfNothing) {
  EXPECT_THAT(FindFaults(Recording(), Timeline()), IsEmpty());
  SimulatedRun run;
  run.seconds = 0.05;  // a step or two
  EXPECT_THAT(FindIn(run), IsEmpty());
}

}  // namespace
}  // namespace fastdecode
