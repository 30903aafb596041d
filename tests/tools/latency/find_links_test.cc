// Links that are slow always are found by comparing like with like: links over the network with each other, those in
// memory with each other, and many slow ones do not hide behind each other.
#include <string>
#include <vector>

#include "tests/tools/latency/planted_fault.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr double kFarNs = 2e6;

auto Slower(int home, double ns) { return Names(Planted{"slower", "wire", home, -1, ns}); }
auto Says(const std::string& text) { return Field(&Finding::line, HasSubstr(text)); }

class FindLinksTest : public testing::TestWithParam<int> {
 protected:
  SimulatedRun Run(int homes) const {
    SimulatedRun run;
    run.seed = static_cast<uint64_t>(GetParam());
    run.homes = homes;
    run.requests.sequences = 12 * homes;
    return run;
  }
  // All links healthy, between sites.
  SimulatedRun WideRun(int homes) const {
    SimulatedRun run = Run(homes);
    run.link.one_way_ns = 600e3;
    return run;
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, FindLinksTest, testing::Range(1, 6));

TEST_P(FindLinksTest, OneOfOneToThree) {
  SimulatedRun run = Run(1 + GetParam() % 3);
  const int far = GetParam() % run.homes;
  run.faults.far_ns.assign(static_cast<size_t>(far), 0);
  run.faults.far_ns.push_back(kFarNs);
  EXPECT_THAT(FindIn(run), ElementsAre(Slower(far, kFarNs)));
}

TEST_P(FindLinksTest, TwoOfFour) {
  SimulatedRun run = Run(4);
  const bool even = GetParam() % 2 == 0;
  run.faults.far_ns = even ? std::vector<double>{kFarNs, 0, kFarNs, 0} : std::vector<double>{0, 0, kFarNs, kFarNs};
  const std::string others = even ? "than those of homes 1 and 3 (" : "than those of homes 0 and 1 (";
  EXPECT_THAT(FindIn(run), UnorderedElementsAre(AllOf(Slower(even ? 0 : 3, kFarNs), Says(others)),
                                                AllOf(Slower(2, kFarNs), Says(others))));
}

TEST_P(FindLinksTest, TwoOfFourByDifferentAmounts) {
  SimulatedRun run = Run(4);
  run.faults.far_ns = {kFarNs, 0, 3 * kFarNs};
  EXPECT_THAT(FindIn(run), UnorderedElementsAre(Slower(0, kFarNs), Slower(2, 3 * kFarNs)));
}

// Most links are slow: that makes them no healthy ones.
TEST_P(FindLinksTest, ThreeOfFour) {
  SimulatedRun run = Run(4);
  run.faults.far_ns = {kFarNs, kFarNs, 0, kFarNs};
  EXPECT_THAT(FindIn(run), UnorderedElementsAre(Slower(0, kFarNs), Slower(1, kFarNs), Slower(3, kFarNs)));
}

// One is quicker than most, which are no slow ones for that.
TEST_P(FindLinksTest, OneInTheSameRackBlamesNobody) {
  SimulatedRun run = Run(4);
  run.faults.far_ns = {100e3, 100e3, 0, 100e3};
  EXPECT_THAT(FindIn(run), IsEmpty());
}

TEST_P(FindLinksTest, AllAlikeBetweenSitesAreOneFinding) {
  const SimulatedRun run = WideRun(2 + GetParam() % 3);
  EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Slower(-1, 1.21e6), Says("all links: "))));
}

TEST_P(FindLinksTest, TwoSlowOnesBetweenSites) {
  SimulatedRun run = WideRun(4);
  run.faults.far_ns = {0, kFarNs, kFarNs, 0};
  EXPECT_THAT(FindIn(run), UnorderedElementsAre(AllOf(Slower(-1, 1.21e6), Says("all links: "), Says(" or more")),
                                                Slower(1, kFarNs), Slower(2, kFarNs)));
}

TEST_P(FindLinksTest, TheOnlyOneBetweenSites) {
  EXPECT_THAT(FindIn(WideRun(1)), ElementsAre(AllOf(Slower(0, 1.21e6), Says("beside the home's work"))));
}

// Each is little slower than the one before.
TEST_P(FindLinksTest, NothingInStepsBelowTheFloor) {
  SimulatedRun run = Run(3);
  run.faults.far_ns = {0, 22e3, 44e3};
  EXPECT_THAT(FindIn(run), IsEmpty());
}

TEST_P(FindLinksTest, ANetworkIsNotToBlameForBeingNoMemory) {
  SimulatedRun run = Run(4);
  run.local_homes = 1 + GetParam() % 3;
  run.link.one_way_ns = 100e3;
  EXPECT_THAT(FindIn(run), IsEmpty());
}

TEST_P(FindLinksTest, OneBesideHomesInMemory) {
  SimulatedRun run = Run(4);
  run.local_homes = 2;
  run.link.one_way_ns = 100e3;
  run.faults.far_ns = {0, 0, 0, kFarNs};
  EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Slower(3, kFarNs), Says("than that of home 2, over the network too ("))));
}

TEST_P(FindLinksTest, AllOverTheNetworkBesideHomesInMemory) {
  SimulatedRun run = WideRun(4);
  run.local_homes = 2;
  EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Slower(-1, 1.21e6), Says("all links over the network: "))));
  run.local_homes = 3;
  EXPECT_THAT(FindIn(run), ElementsAre(AllOf(Slower(3, 1.21e6), Not(Says("all links")))));
}

TEST_P(FindLinksTest, CostsWhatATokenTakesLonger) {
  const SimulatedRun healthy = Run(4);
  for (const std::vector<double>& far_ns :
       {std::vector<double>{0, kFarNs}, {kFarNs, 0, kFarNs}, {0, kFarNs, 0, 3 * kFarNs}, {4e6, 4e6, 4e6, 4e6}}) {
    SimulatedRun run = healthy;
    run.faults.far_ns = far_ns;
    ExpectCostsOf(run, healthy);
  }
}

}  // namespace
}  // namespace fastdecode
