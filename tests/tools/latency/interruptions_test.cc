// What the machine took from a process, from made-up files of /proc.
#include "tools/latency/machine/interruptions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "numa/clock.h"
#include "tests/tools/made_up_root.h"
#include "tools/latency/machine/cpu_counters.h"

namespace fastdecode {

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1'000'000'000;

// A machine of cores 0, 1 and 3 on which process 77 runs.
class Machine : public MadeUpRoot {
 public:
  Machine() {
    SetInterrupts({1000, 2000, 3000}, {0, 4'294'967'290, 7});
    SetStat({10, 20, 30}, {0, 0, 0});
    Write("/proc/softirqs", "        CPU0  CPU1  CPU3\n  TIMER:   1   2   3\nNET_RX:   4   5   6");
  }

  struct Thread {
    std::string name, cores = "1";
    uint64_t ran_ns = 0, waited_ns = 0, preemptions = 0;
  };
  void SetThread(int tid, const Thread& thread) {
    const std::string folder = "/proc/77/task/" + std::to_string(tid);
    Write(folder + "/status", "Name:\t" + thread.name + "\nCpus_allowed_list:\t" + thread.cores +
                                  "\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t" +
                                  std::to_string(thread.preemptions));
    Write(folder + "/schedstat", std::to_string(thread.ran_ns) + " " + std::to_string(thread.waited_ns) + " 3");
  }
  void SetInterrupts(const std::vector<uint64_t>& timer, const std::vector<uint64_t>& nic) {
    const auto columns = [](const std::vector<uint64_t>& counts) {
      std::string text;
      for (const uint64_t count : counts) text += "  " + std::to_string(count);
      return text;
    };
    Write("/proc/interrupts",
          "           CPU0       CPU1       CPU3\n  8:  0  0  0  IO-APIC   8-edge      rtc0\n 42:" + columns(nic) +
              "  PCI-MSIX-0000:00:04.0   2-edge      eth0-rx, eth0-tx\n 43:" + columns(nic) +
              "  PCI-MSIX-0000:00:04.0   3-edge      eth1\nLOC:" + columns(timer) +
              "   Local timer interrupts\nTLB:  1  1  1   TLB shootdowns\nPIN:  0  0  0   "
              "Posted-interrupt notification event\nERR:          9\nMIS:          0");
  }
  // In ticks of 10 ms.
  void SetStat(const std::vector<uint64_t>& steal, const std::vector<uint64_t>& softirq) {
    std::string text = "cpu  1 2 3 4 5 6 7 8 9 10";
    const std::vector<int> cores = {0, 1, 3};
    for (size_t i = 0; i < cores.size(); ++i) {
      text += "\ncpu" + std::to_string(cores[i]) + " 1 2 3 4 5 0 " + std::to_string(softirq[i]) + " " +
              std::to_string(steal[i]) + " 0 0";
    }
    Write("/proc/stat", text + "\nintr 12345 0 0\nctxt 5");
  }
  MachineSnapshot At(uint64_t time_ns) const {
    MachineSnapshot snapshot = TakeSnapshot(SysRoot(root()), 77);
    snapshot.time_ns = time_ns;
    return snapshot;
  }
};

TEST(CpuCountersTest, ReadsEveryColumnByItsCore) {
  const Machine machine;
  const MachineCounters counters = ReadMachineCounters(SysRoot(machine.root()));
  ASSERT_THAT(counters, SizeIs(3));
  EXPECT_THAT(counters.at(3).interrupts,
              UnorderedElementsAre(Pair("interrupts of rtc0", 0), Pair("interrupts of eth0-rx, eth0-tx", 7),
                                   Pair("interrupts of eth1", 7), Pair("timer interrupts", 3000),
                                   Pair("TLB shootdowns", 1), Pair("Posted-interrupt notification event", 0)));
  EXPECT_THAT(counters.at(1).softirqs, UnorderedElementsAre(Pair("TIMER", 2), Pair("NET_RX", 5)));
  EXPECT_EQ(counters.at(1).stolen_ns, 200 * kMs);
  EXPECT_EQ(counters.at(3).stolen_ns, 300 * kMs);
  EXPECT_EQ(counters.at(3).handled_ns, 0u);
}

TEST(CpuCountersTest, Differences) {
  Machine machine;
  const MachineCounters before = ReadMachineCounters(SysRoot(machine.root()));
  machine.SetInterrupts({1000, 2045, 3000}, {0, 4, 7});  // the NIC's went round
  machine.SetStat({9, 22, 30}, {0, 3, 0});
  const MachineCounters added = Since(before, ReadMachineCounters(SysRoot(machine.root())));
  EXPECT_THAT(added.at(0).interrupts, IsEmpty());
  EXPECT_EQ(added.at(0).stolen_ns, 0u);
  EXPECT_THAT(added.at(1).interrupts,
              UnorderedElementsAre(Pair("timer interrupts", 45), Pair("interrupts of eth0-rx, eth0-tx", 10),
                                   Pair("interrupts of eth1", 10)));
  EXPECT_EQ(added.at(1).stolen_ns, 20 * kMs);
  EXPECT_EQ(added.at(1).handled_ns, 30 * kMs);
  EXPECT_EQ(Total(added.at(1).interrupts), 65u);
  EXPECT_EQ(DescribeCauses(added.at(1).interrupts, 1), "45 timer interrupts, and 20 more");
  EXPECT_EQ(DescribeCauses(added.at(0).interrupts, 3), "");
  EXPECT_EQ(DescribeCauses({{"interrupts of eth0", 1}, {"TLB shootdowns", 1}}, 3),
            "1 TLB shootdown, 1 interrupt of eth0");
}

TEST(CpuCountersTest, NonsenseIsSkipped) {
  MadeUpRoot root;
  EXPECT_THAT(ReadMachineCounters(SysRoot(root.root())), IsEmpty());
  root.Write("/proc/interrupts", "CPU0 CPUx -\n 1: 2\nLOC: 5 6 7 Local\n: 1 1 1\nx");
  root.Write("/proc/stat", "cpu0 1 2 3\ncpu1 a b c d e f g h i j\ncpu-2 1 2 3 4 5 6 7 8");
  EXPECT_EQ(ReadMachineCounters(SysRoot(root.root())).at(0).interrupts.at("timer interrupts"), 5u);
}

TEST(InterruptionsTest, AQuietRunHasNoWarning) {
  Machine machine;
  machine.SetThread(78, {"fd-pipeline", "1", 5 * kSecond, 100 * kMs, 40});
  machine.SetThread(79, {"fd-desk", "0-3", kSecond, 50 * kMs, 7});
  const MachineSnapshot before = machine.At(kSecond);
  // 10 s later, of which it had the core to 99.9 %; a tick's worth of steal may be of before.
  machine.SetThread(78, {"fd-pipeline", "1", 15 * kSecond, 110 * kMs, 45});
  machine.SetThread(79, {"fd-desk", "0-3", 2 * kSecond, 90 * kMs, 9});
  machine.SetInterrupts({1000, 4500, 3000}, {0, 4'294'967'290, 7});
  machine.SetStat({500, 21, 30}, {0, 0, 0});  // others' cores are others' business
  const Interruptions found = FindInterruptions(before, machine.At(11 * kSecond));
  EXPECT_FALSE(found.interrupted);
  EXPECT_THAT(found.warnings, IsEmpty());
}

TEST(InterruptionsTest, SaysWhatTookACore) {
  Machine machine;
  machine.SetThread(78, {"fd-pipeline", "1", 5 * kSecond, 100 * kMs, 40});
  const MachineSnapshot before = machine.At(kSecond);
  machine.SetThread(78, {"fd-pipeline", "1", 15 * kSecond, 112 * kMs, 43});
  machine.SetInterrupts({1000, 2045, 3000}, {0, 4'294'967'292, 7});
  machine.SetStat({10, 23, 30}, {0, 0, 0});
  const Interruptions found = FindInterruptions(before, machine.At(11 * kSecond));
  EXPECT_TRUE(found.interrupted);
  // 12 ms waited, 30 ms stolen less a step that may have been full before.
  EXPECT_THAT(found.warnings,
              ElementsAre("the machine took core 1 away from fd-pipeline for 32.0 ms (0.3 % of 10.0 s): 45 timer "
                          "interrupts, 2 interrupts of eth0-rx, eth0-tx, 2 interrupts of eth1, 3 preemptions, 30.0 ms "
                          "stolen by the hypervisor"));
}

TEST(InterruptionsTest, EachOfTheCausesIsEnough) {
  for (const int cause : {0, 1, 2}) {
    Machine machine;
    machine.SetThread(78, {"fd-home-0", "3", 0, 0, 0});
    const MachineSnapshot before = machine.At(kSecond);
    machine.SetThread(78, {"fd-home-0", "3", 10 * kSecond, cause == 0 ? 25 * kMs : 0, 0});
    machine.SetStat({10, 20, cause == 1 ? 35u : 30u}, {0, 0, cause == 2 ? 5u : 0u});
    const Interruptions found = FindInterruptions(before, machine.At(11 * kSecond));
    EXPECT_TRUE(found.interrupted) << cause;
    ASSERT_THAT(found.warnings, SizeIs(1)) << cause;
    EXPECT_THAT(found.warnings[0], HasSubstr("core 3 away from fd-home-0"));
  }
}

TEST(InterruptionsTest, AThreadThatNeverRanIsCounted) {
  Machine machine;
  machine.SetThread(78, {"fd-home-0", "1", kMs, kMs, 0});
  const MachineSnapshot before = machine.At(kSecond);
  machine.SetThread(78, {"fd-home-0", "1", kMs, 5 * kSecond, 0});
  EXPECT_TRUE(FindInterruptions(before, machine.At(11 * kSecond)).interrupted);
}

TEST(InterruptionsTest, AThreadThatSleptLostNothing) {
  Machine machine;
  machine.SetThread(78, {"fd-parked", "1", 0, 0, 0});
  const MachineSnapshot before = machine.At(kSecond);
  machine.SetThread(78, {"fd-parked", "1", 60 * kMs, 30 * kMs, 0});
  machine.SetStat({10, 90, 30}, {0, 0, 0});
  EXPECT_FALSE(FindInterruptions(before, machine.At(11 * kSecond)).interrupted);
}

TEST(InterruptionsTest, ThreadsThatShareACoreWaitForEachOther) {
  Machine machine;
  machine.SetThread(78, {"fd-pipeline", "1", 0, 0, 0});
  machine.SetThread(79, {"fd-home-0", "1", 0, 0, 0});
  const MachineSnapshot before = machine.At(kSecond);
  machine.SetThread(78, {"fd-pipeline", "1", 5 * kSecond, 5 * kSecond, 900});
  machine.SetThread(79, {"fd-home-0", "1", 5 * kSecond, 5 * kSecond, 900});
  const Interruptions found = FindInterruptions(before, machine.At(11 * kSecond));
  EXPECT_FALSE(found.interrupted);
  EXPECT_THAT(found.warnings,
              ElementsAre("fd-pipeline, fd-home-0 share core 1 and waited for it for 10.0 s (100.0 % of "
                          "10.0 s) together"));
}

TEST(InterruptionsTest, AnUnpinnedThreadThatWaited) {
  Machine machine;
  machine.SetThread(79, {"fd-desk", "0-3", 0, 0, 0});
  const MachineSnapshot before = machine.At(kSecond);
  machine.SetThread(79, {"fd-desk", "0-3", kSecond, 150 * kMs, 0});
  machine.SetThread(80, {"new", "0-3", kSecond, 99 * kMs, 0});
  const Interruptions found = FindInterruptions(before, machine.At(11 * kSecond));
  EXPECT_FALSE(found.interrupted);
  EXPECT_THAT(found.warnings,
              ElementsAre("fd-desk, which is not pinned, waited for a core for 150 ms (1.5 % of 10.0 s)"));
}

TEST(InterruptionsTest, WhatIsNotKnownIsSaid) {
  Machine machine;
  const MachineSnapshot before = machine.At(kSecond);
  Interruptions found = FindInterruptions(before, machine.At(11 * kSecond));
  EXPECT_FALSE(found.interrupted);
  EXPECT_THAT(found.warnings, ElementsAre(AllOf(HasSubstr("not known"), HasSubstr("/proc/77/task/*/schedstat"))));
  machine.SetThread(78, {"fd-pipeline", "1", 0, 0, 0});
  machine.Remove("/proc/77/task/78/schedstat");
  found = FindInterruptions(before, machine.At(11 * kSecond));
  EXPECT_THAT(found.warnings, ElementsAre(HasSubstr("not known")));
}

TEST(InterruptionsTest, ThisProcess) {
  const MachineSnapshot before = TakeSnapshot(SysRoot(), 0);
  ASSERT_THAT(before.threads, SizeIs(::testing::Ge(1)));
  EXPECT_TRUE(before.threads[0].timed);
  const uint64_t start = NowNs();
  while (NowNs() - start < 50 * kMs) {
  }
  const MachineSnapshot after = TakeSnapshot(SysRoot(), 0);
  EXPECT_GT(after.threads[0].ran_ns, before.threads[0].ran_ns);
  EXPECT_THAT(after.cores, SizeIs(::testing::Ge(1)));
}

}  // namespace

}  // namespace fastdecode
