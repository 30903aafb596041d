// Homes and layers that are slower than their like are found and named, by what is wrong with them.
#include <string>
#include <vector>

#include "tests/tools/latency/planted_fault.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class FindHomesTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, FindHomesTest, testing::Range(1, 6));

TEST_P(FindHomesTest, FiftyMicrosecondsInAttend) {
  SimulatedRun run = RunOfHomes(GetParam());
  const int home = GetParam() % run.homes;
  run.faults.slow_home = home;
  run.faults.attend_extra_ns = 50e3;
  const std::string name = "home " + std::to_string(home) + " (10.0.0." + std::to_string(home + 1) + ":7000, home 0): ";
  EXPECT_THAT(
      FindIn(run),
      ElementsAre(AllOf(
          Names(Planted{"slower", "attend", home, -1, 50e3}), Field(&Finding::line, HasSubstr(name + "attend takes ")),
          Field(&Finding::line, HasSubstr(" us longer a hop than at the other homes, whatever it reads")))));
}

TEST_P(FindHomesTest, FiftyMicrosecondsInPrepare) {
  SimulatedRun run = RunOfHomes(GetParam());
  const int home = GetParam() % run.homes;
  run.faults.slow_home = home;
  run.faults.prepare_extra_ns = 50e3;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"slower", "prepare", home, -1, 50e3})));
}

TEST_P(FindHomesTest, HalfTheBandwidth) {
  SimulatedRun run = RunOfHomes(GetParam());
  const int home = GetParam() % run.homes;
  run.faults.narrow_home = home;
  run.faults.bandwidth_ratio = 0.5;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"bandwidth", "attend", home, -1, 0.5})));
}

TEST_P(FindHomesTest, UnbalancedPlacement) {
  SimulatedRun run = RunOfHomes(GetParam());
  const int home = GetParam() % run.homes;
  run.faults.heavy_home = home;
  run.faults.heavy_ratio = 1.6;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"unbalanced", "placement", home, -1, 1.6})));
}

TEST_P(FindHomesTest, SlowGemmsOfOneLayer) {
  SimulatedRun run = RunOfHomes(GetParam());
  const int layer = 5 * GetParam() % run.layers;
  run.faults.slow_layer = layer;
  run.faults.gemm_ratio = 1.3;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"slower", "GEMM", -1, layer, 1.3})));
}

// The first and the last layer have their GEMMs in two stages as all others do.
TEST(FindLayersTest, TheFirstAndTheLastLayer) {
  SimulatedRun run;
  run.faults.gemm_ratio = 1.3;
  for (const int layer : {0, run.layers - 1}) {
    run.faults.slow_layer = layer;
    EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"slower", "GEMM", -1, layer, 1.3})));
  }
}

TEST_P(FindHomesTest, TwoFaultsAtOnceTheCostlierFirst) {
  SimulatedRun run;
  run.seed = static_cast<uint64_t>(GetParam());
  run.faults.narrow_home = 1;
  run.faults.bandwidth_ratio = 0.5;
  run.faults.slow_layer = 7;
  run.faults.gemm_ratio = 1.3;
  const std::vector<Finding> findings = FindIn(run);
  ASSERT_THAT(findings, ElementsAre(Names(Planted{"bandwidth", "attend", 1, -1, 0.5}),
                                    Names(Planted{"slower", "GEMM", -1, 7, 1.3})));
  // Without the one home every hop would take some 400 us less, in each of 16 layers; 30 % of one layer's GEMMs are
  // 0.16 ms.
  EXPECT_GT(findings[0].cost_ns, 2e6);
  EXPECT_NEAR(findings[1].cost_ns, 0.3 * 540e3 * 1.12, 30e3);
}

// With as many bytes at all times there is no telling.
TEST(FindHomesTest, SaysWhereByHopOrByByteIsNotToBeTold) {
  SimulatedRun run;
  run.micro_batches = 1;
  run.requests.prompt_min = run.requests.prompt_max = 200'000'000;
  run.requests.output_min = run.requests.output_max = 20'000;
  run.kv_bytes_per_token = 0.003;
  run.faults.slow_home = 1;
  run.faults.attend_extra_ns = 100e3;
  EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Names(Planted{"slower", "attend", 1, -1, 100e3}),
                                             Field(&Finding::line, HasSubstr("its KV varied too little")))));
}

}  // namespace
}  // namespace fastdecode
