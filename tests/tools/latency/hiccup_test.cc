// How steadily cores run: the probe on this machine, what is made of its figures by figures made by hand.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "numa/pinned_thread.h"
#include "tests/tools/made_up_root.h"
#include "tools/latency/machine/hiccup_probe.h"
#include "tools/latency/machine/hiccup_report.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kUs = 1'000;
constexpr uint64_t kMs = 1'000'000;

bool Never() { return false; }

int SomeCore() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  for (int core = CPU_SETSIZE - 1; core >= 0; --core) {
    if (CPU_ISSET(core, &allowed)) return core;
  }
  return 0;
}

TEST(HiccupProbeTest, WhatItSaysHangsTogether) {
  HiccupOptions options;
  options.cores = {SomeCore()};
  options.duration_ns = 300 * kMs;
  options.threshold_ns = 3 * kUs;
  const std::vector<HiccupCore> cores = MeasureHiccups(options, &Never);
  ASSERT_EQ(cores.size(), 1u);
  const HiccupCore& core = cores[0];
  EXPECT_EQ(core.core, options.cores[0]);
  EXPECT_TRUE(core.pinned);
  EXPECT_GE(core.elapsed_ns, options.duration_ns - 1000);
  EXPECT_GT(core.turn_ns, 0);
  EXPECT_LE(core.lost_ns, core.elapsed_ns);
  uint64_t sum = 0, end = 0;
  for (const Hiccup& hiccup : core.hiccups) {
    EXPECT_GT(hiccup.length_ns, options.threshold_ns - 1);
    EXPECT_GE(hiccup.start_ns, end);
    end = hiccup.start_ns + hiccup.length_ns;
    sum += hiccup.length_ns;
  }
  EXPECT_EQ(core.not_kept, 0u);
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(core.lost_ns),
              static_cast<double>(core.hiccups.size()) + 1);
}

// Another thread of the same core: they take turns, and the kernel says so.
TEST(HiccupProbeTest, AThreadOnTheSameCoreIsFoundAndNamed) {
  std::atomic<bool> stop{false};
  PinnedThread thief("thief", SomeCore(), [&] {
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  HiccupOptions options;
  options.cores = {SomeCore()};
  options.duration_ns = 500 * kMs;
  const std::vector<HiccupCore> cores = MeasureHiccups(options, &Never);
  stop = true;
  uint64_t by_threads_ns = 0;
  for (const Hiccup& hiccup : cores[0].hiccups) {
    if (hiccup.cause == HiccupCause::kThreads) by_threads_ns += hiccup.length_ns;
  }
  // Half of the time is its due; whatever else this machine does.
  EXPECT_GT(by_threads_ns, options.duration_ns / 10);
  EXPECT_GT(cores[0].preemptions, 0u);
}

TEST(HiccupProbeTest, EndsWhenAsked) {
  HiccupOptions options;
  options.cores = {SomeCore()};
  options.duration_ns = 3600'000 * kMs;
  EXPECT_LT(MeasureHiccups(options, [] { return true; })[0].elapsed_ns, 60'000 * kMs);
}

TEST(HiccupProbeTest, ACoreThatIsNotThereIsSaid) {
  HiccupOptions options;
  options.cores = {CPU_SETSIZE - 1};
  options.duration_ns = kMs;
  const std::vector<HiccupCore> cores = MeasureHiccups(options, &Never);
  EXPECT_FALSE(cores[0].pinned);
  EXPECT_THAT(FormatHiccups(cores, options, 3, 80), HasSubstr("not pinned, so of no certain core: 1023"));
}

// ---- SMIs

TEST(SmiCountTest, IsReadWhereThereIsOne) {
  MadeUpRoot root;
  root.Write("/proc/cpuinfo", "vendor_id\t: GenuineIntel");
  EXPECT_THAT(std::string(ReadSmiCount(SysRoot(root.root()), 3).status().message()),
              AllOf(HasSubstr("/dev/cpu/3/msr: No such file"), HasSubstr("modprobe msr")));
  std::string registers(0x34, '\0');
  registers += std::string("\x2a\x01\x00\x00\xff\xff\xff\xff", 8);  // of which the lower half counts
  root.Write("/dev/cpu/3/msr", registers);
  EXPECT_EQ(*ReadSmiCount(SysRoot(root.root()), 3), 0x12au);
  root.Write("/dev/cpu/3/msr", "short");
  EXPECT_THAT(std::string(ReadSmiCount(SysRoot(root.root()), 3).status().message()), HasSubstr("/dev/cpu/3/msr"));
}

TEST(SmiCountTest, PermissionAndOtherProcessors) {
  MadeUpRoot root;
  EXPECT_EQ(ReadSmiCount(SysRoot(root.root()), 0).status().message(), "no such counter on this processor");
  root.Write("/proc/cpuinfo", "vendor_id\t: AuthenticAMD");
  EXPECT_EQ(ReadSmiCount(SysRoot(root.root()), 0).status().message(), "no such counter on AMD");
  root.Write("/proc/cpuinfo", "vendor_id\t: GenuineIntel");
  root.Write("/dev/cpu/0/msr", "");
  ASSERT_EQ(chmod((root.root() + "/dev/cpu/0/msr").c_str(), 0), 0);
  if (access((root.root() + "/dev/cpu/0/msr").c_str(), R_OK) == 0) GTEST_SKIP() << "root reads everything";
  EXPECT_EQ(ReadSmiCount(SysRoot(root.root()), 0).status().message(), "no permission to read /dev/cpu/0/msr");
}

// ---- Figures

HiccupCore MadeUpCore(int number) {
  HiccupCore core;
  core.core = number;
  core.pinned = true;
  core.elapsed_ns = 1000 * kMs;
  core.turn_ns = 12;
  core.hiccups = {{10 * kMs, 5 * kUs, HiccupCause::kInterrupt},
                  {20 * kMs, 5 * kUs, HiccupCause::kInterrupt},
                  {30 * kMs, 4 * kMs, HiccupCause::kThreads},
                  {40 * kMs, 90 * kUs, HiccupCause::kBelow}};
  core.lost_ns = 4100 * kUs;
  core.counters.interrupts = {{"timer interrupts", 250}, {"TLB shootdowns", 2}};
  core.counters.softirqs = {{"TIMER", 17}};
  core.counters.stolen_ns = 10 * kMs;
  core.timed = true;
  core.waited_ns = 4 * kMs;
  core.preemptions = 1;
  core.smi_note = "no permission to read /dev/cpu/0/msr";
  return core;
}

// What something that happens at a random moment waits: by asking at a million of them.
TEST(HiccupCoreTest, Waits) {
  HiccupCore core = MadeUpCore(0);
  for (int i = 0; i < 2000; ++i) core.hiccups.push_back({100 * kMs + i * 100 * kUs, 20 * kUs, HiccupCause::kInterrupt});
  std::mt19937_64 random(1);
  std::vector<double> waits;
  for (int i = 0; i < 1'000'000; ++i) {
    const double at = std::uniform_real_distribution<double>(0, static_cast<double>(core.elapsed_ns))(random);
    double wait = 0;
    const auto after = std::upper_bound(core.hiccups.begin(), core.hiccups.end(), at,
                                        [](double t, const Hiccup& h) { return t < static_cast<double>(h.start_ns); });
    if (after != core.hiccups.begin()) {
      const Hiccup& hiccup = *std::prev(after);
      wait = std::max(0.0, static_cast<double>(hiccup.start_ns + hiccup.length_ns) - at);
    }
    waits.push_back(wait);
  }
  std::sort(waits.begin(), waits.end());
  for (const double share : {0.9, 0.96, 0.99, 0.997, 0.999}) {
    const double asked = waits[static_cast<size_t>(share * static_cast<double>(waits.size()))];
    // Each of the moments stands for a us, which those hiccups share that are longer.
    const auto longer = std::count_if(core.hiccups.begin(), core.hiccups.end(),
                                      [&](const Hiccup& h) { return static_cast<double>(h.length_ns) > asked; });
    EXPECT_NEAR(core.WaitNs(share), asked, 500 + 4'000 * std::sqrt(1e6 * (1 - share)) / static_cast<double>(longer))
        << share;
  }
  EXPECT_EQ(core.WaitNs(0.5), 0);
  EXPECT_EQ(HiccupCore().WaitNs(0.99), 0);
}

TEST(HiccupReportTest, Text) {
  const std::vector<HiccupCore> cores = {MadeUpCore(3), MadeUpCore(11)};
  const std::string text = FormatHiccups(cores, HiccupOptions(), 2, 110);
  EXPECT_THAT(text, AllOf(HasSubstr("hiccups of more than 2.00 us in 1.00 s"), HasSubstr("  4.00 ms  0.4 %"),
                          HasSubstr("other threads"), HasSubstr("hypervisor or firmware")));
  EXPECT_THAT(text,
              HasSubstr("  core 11: 250 timer interrupts, 2 TLB shootdowns; softirqs: 17 TIMER; 1 preemption, 4.00 "
                        "ms waited"));
  EXPECT_THAT(text, HasSubstr("10.0 ms stolen by the hypervisor"));
  EXPECT_THAT(text, HasSubstr("SMI count: no permission to read /dev/cpu/0/msr"));
  EXPECT_THAT(text, HasSubstr("4.00 ms     3  +0.030000 s  other threads"));
  EXPECT_THAT(text, Not(HasSubstr("+0.040000 s")));  // only two were asked for
  for (const size_t width : {1, 60, 75, 110}) {
    std::istringstream lines(FormatHiccups(cores, HiccupOptions(), 5, width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(Columns(line), std::max<size_t>(width, 60)) << line;
  }
}

TEST(HiccupReportTest, ManyAreCountedThoughNotKept) {
  HiccupCore core = MadeUpCore(0);
  core.not_kept = 5;
  EXPECT_THAT(FormatHiccups({core}, HiccupOptions(), 0, 80), HasSubstr("5 hiccups came after the first 1,048,576"));
  EXPECT_EQ(HiccupsToJson({core}, HiccupOptions(), 0)["cores"][0]["hiccups"], 9);
}

TEST(HiccupReportTest, Json) {
  const nlohmann::json json = HiccupsToJson({MadeUpCore(3)}, HiccupOptions(), 1);
  EXPECT_EQ(json["threshold_ns"], 2000);
  const nlohmann::json& core = json["cores"][0];
  EXPECT_EQ(core["core"], 3);
  EXPECT_EQ(core["hiccups"], 4);
  EXPECT_EQ(core["max_ns"], 4 * kMs);
  EXPECT_TRUE(core["p99_ns"].is_null());  // of four
  EXPECT_NEAR(core["lost_share"].get<double>(), 0.0041, 1e-9);
  EXPECT_EQ(core["causes"]["interrupt"], nlohmann::json({{"hiccups", 2}, {"ns", 10 * kUs}, {"longest_ns", 5 * kUs}}));
  EXPECT_EQ(core["causes"]["other threads"]["ns"], 4 * kMs);
  EXPECT_EQ(core["interrupts"]["timer interrupts"], 250);
  EXPECT_TRUE(core["smis"].is_null());
  EXPECT_EQ(
      json["longest"],
      nlohmann::json({{{"core", 3}, {"start_ns", 30 * kMs}, {"length_ns", 4 * kMs}, {"cause", "other threads"}}}));
}

}  // namespace

}  // namespace fastdecode
