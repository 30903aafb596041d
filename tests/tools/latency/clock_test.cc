// How good the clock is.
#include "numa/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>

#include <cmath>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/tools/made_up_root.h"
#include "tools/latency/machine/clock_probe.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int> AllowedCores() {
  std::vector<int> cores;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

constexpr uint64_t kPlantedTicks = 1'000'000'000;

TEST(ClockOffsetTest, FindsAPlantedOneWithinItsBound) {
  const std::vector<int> cores = AllowedCores();
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores";
  const ClockOffset planted = MeasureClockOffset(cores[0], cores[1], [] { return NowTicks() + kPlantedTicks; });
  const ClockOffset plain = MeasureClockOffset(cores[0], cores[1], [] { return NowTicks(); });
  ASSERT_GT(planted.rounds, 0u);
  EXPECT_GT(planted.bound_ns, 0);
  const double planted_ns = static_cast<double>(TickClock::Get().ToNs(kPlantedTicks));
  EXPECT_NEAR(planted.offset_ns - plain.offset_ns, planted_ns, planted.bound_ns + plain.bound_ns + 1);
  EXPECT_TRUE(planted.ShownToDiffer());
}

TEST(ClockOffsetTest, OneOfCoresThatAreNotThereIsNotKnown) {
  const ClockOffset offset = MeasureClockOffset(CPU_SETSIZE - 1, AllowedCores()[0], [] { return NowTicks(); });
  EXPECT_EQ(offset.rounds, 0u);
  EXPECT_FALSE(offset.ShownToDiffer());
}

TEST(ClockFactsTest, OfThisMachine) {
  ClockOptions options;
  options.duration_ns = 300'000'000;
  options.cores = AllowedCores();
  if (options.cores.size() > 3) options.cores.resize(3);
  MadeUpRoot root;
  root.Write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
  root.Write("/sys/devices/system/clocksource/clocksource0/available_clocksource", "hpet acpi_pm ");
  const ClockFacts facts = ExamineClock(options, SysRoot(root.root()));
  EXPECT_EQ(facts.source, "hpet");
  EXPECT_EQ(facts.available, "hpet acpi_pm");
  EXPECT_GE(facts.elapsed_ns, 300'000'000u);
  // The kernel's own clock is the judge: far coarser than ppm, as both are read while others run.
  timespec raw_before, raw_after;
  clock_gettime(CLOCK_MONOTONIC_RAW, &raw_before);
  const uint64_t before = NowTicks();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const uint64_t after = NowTicks();
  clock_gettime(CLOCK_MONOTONIC_RAW, &raw_after);
  const double ns = static_cast<double>(raw_after.tv_sec - raw_before.tv_sec) * 1e9 +
                    static_cast<double>(raw_after.tv_nsec - raw_before.tv_nsec);
  EXPECT_NEAR(facts.ticks_per_second / (static_cast<double>(after - before) * 1e9 / ns), 1, 0.05);
  EXPECT_GT(facts.ticks.call_ns, 0);
  EXPECT_GT(facts.ns.step_ns, 0);
  EXPECT_LT(facts.ns.step_ns, 1e6);
  EXPECT_EQ(facts.ticks.backwards, 0u);
  EXPECT_EQ(facts.offsets.size(), options.cores.size() * (options.cores.size() - 1) / 2);
}

ClockFacts Good() {
  ClockFacts facts;
  facts.tsc = true;
  facts.source = "tsc";
  facts.available = "tsc kvm-clock";
  facts.elapsed_ns = 2'000'000'000;
  facts.ticks_per_second = 2'596'123'456;
  facts.calibration_ppm = -1.5;
  facts.drift_ppm = 0.25;
  facts.ticks = {8.25, 0.77, 0};
  facts.ns = {22, 1, 0};
  facts.offsets = {{0, 1, 30, 45, 100'000}};
  return facts;
}

TEST(ClockTextTest, AGoodClock) {
  EXPECT_THAT(ClockWarnings(Good()), IsEmpty());
  const std::string text = FormatClock(Good(), 120);
  EXPECT_THAT(text, AllOf(HasSubstr("the TSC, which is invariant"), HasSubstr("clock source tsc (of: tsc kvm-clock)"),
                          HasSubstr("NowTicks 8.25 ns a call, steps of 0.77 ns; NowNs 22.00 ns"),
                          HasSubstr("2,596,123,456 Hz"), HasSubstr("start-up found -1.50 ppm"),
                          HasSubstr("0 - 1  +30 ns  45.00 ns"), HasSubstr("the clock is good")));
  for (const size_t width : {1, 60, 80}) {
    std::istringstream lines(FormatClock(Good(), width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(Columns(line), std::max<size_t>(width, 60)) << line;
  }
  EXPECT_EQ(ToJson(Good())["offsets"][0]["differ"], false);
  EXPECT_EQ(ToJson(Good())["ticks_per_second"], 2'596'123'456);
}

TEST(ClockTextTest, EachFaultIsSaid) {
  ClockFacts facts = Good();
  facts.tsc = false;
  EXPECT_THAT(ClockWarnings(facts), ElementsAre(HasSubstr("invariant")));
  facts = Good();
  facts.source = "hpet";
  EXPECT_THAT(ClockWarnings(facts), ElementsAre(HasSubstr("clock source is hpet")));
  facts = Good();
  facts.ticks.backwards = 3;
  EXPECT_THAT(ClockWarnings(facts), ElementsAre(HasSubstr("went back 3 times")));
  facts = Good();
  facts.calibration_ppm = -60;
  EXPECT_THAT(ClockWarnings(facts), ElementsAre(HasSubstr("-60.00 ppm")));
  facts = Good();
  facts.drift_ppm = 25;
  EXPECT_THAT(ClockWarnings(facts), ElementsAre(HasSubstr("not steady")));
  facts = Good();
  facts.offsets.push_back({0, 2, -500, 40, 1000});
  facts.offsets.push_back({1, 2, 0, 0, 0});
  EXPECT_THAT(ClockWarnings(facts), ElementsAre("core 2's clock is behind core 0's by 500 ns, give or take 40.00 ns",
                                                HasSubstr("cores 1 and 2 could not be compared")));
}

}  // namespace

}  // namespace fastdecode
