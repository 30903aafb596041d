#include "numa/core_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/numa/made_up_plan.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CorePlanTest, TwoCores) {
  const CorePlan plan = PlanOrDie(Machine("numa:1 core:2 pu:1"), {});
  EXPECT_THAT(plan.s_cores, ElementsAre(0));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(1)));
  EXPECT_THAT(plan.home_nodes, ElementsAre(0));
  EXPECT_FALSE(plan.shared_cores);
}

TEST(CorePlanTest, OneCoreIsShared) {
  const CorePlan plan = PlanOrDie(Machine("numa:1 core:1 pu:1"), {});
  EXPECT_THAT(plan.s_cores, ElementsAre(0));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0)));
  EXPECT_TRUE(plan.shared_cores);
  EXPECT_FALSE(plan.contended);
  EXPECT_THAT(plan.ToString(), HasSubstr("take turns"));
}

TEST(CorePlanTest, ThreadsThatWouldUseUpTheCpuQuotaYield) {
  Topology machine = Machine("numa:1 core:8 pu:1");
  machine.cpu_quota = {.cpus = 8, .source = "cpu.max: 800000 100000"};
  EXPECT_FALSE(PlanOrDie(machine, {}).contended);
  EXPECT_FALSE(PlanOrDie(machine, {.share = true}).contended) << "8 threads do the work of both parts";
  machine.cpu_quota.cpus = 7.5;
  EXPECT_TRUE(PlanOrDie(machine, {}).contended);
  EXPECT_TRUE(PlanOrDie(machine, {.share = true}).contended);
  EXPECT_THAT(PlanOrDie(machine, {}).ToString(), HasSubstr("threads yield"));
  EXPECT_FALSE(PlanOrDie(machine, {.s_threads = 4, .r_threads = 3}).contended);
  EXPECT_FALSE(PlanOrDie(machine, {.s_threads = 7, .r_threads = 3, .share = true}).contended);
}

TEST(CorePlanTest, MoreHomesThanCoresShareThem) {
  const CorePlan plan = PlanOrDie(Machine("numa:1 core:2 pu:1"), {.homes = 3});
  EXPECT_THAT(plan.s_cores, ElementsAre(0));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(1), ElementsAre(1), ElementsAre(1)));
  EXPECT_TRUE(plan.shared_cores);
}

TEST(CorePlanTest, HomesOfOneNodeDivideItsCores) {
  const CorePlan plan = PlanOrDie(Machine("numa:1 core:8 pu:2"), {.homes = 2});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(8, 10), ElementsAre(12, 14)));
  EXPECT_FALSE(plan.shared_cores);
}

TEST(CorePlanTest, HomesGoRoundTheNodes) {
  const CorePlan plan = PlanOrDie(Machine("numa:2 core:4 pu:1"), {.homes = 3});
  EXPECT_THAT(plan.home_nodes, ElementsAre(0, 1, 0));
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(2), ElementsAre(4, 5, 6, 7), ElementsAre(3)));
  EXPECT_FALSE(plan.shared_cores);
}

TEST(CorePlanTest, HyperthreadsOnlyWhereCoresAreTooFew) {
  const CorePlan plan = PlanOrDie(Machine("numa:1 core:1 pu:2"), {});
  EXPECT_THAT(plan.s_cores, ElementsAre(0));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(1)));
  EXPECT_FALSE(plan.shared_cores);
}

TEST(CorePlanTest, NodesWithoutCoresAreSkipped) {
  const CorePlan plan = PlanOrDie(Machine("numa:2 core:4 pu:1", {5, 6, 7}), {.homes = 2});
  EXPECT_THAT(plan.home_nodes, ElementsAre(1, 1));
  EXPECT_THAT(plan.s_cores, ElementsAre(5));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(6), ElementsAre(7)));
}

// A socket whose memory is not there.
TEST(CorePlanTest, NodesWithoutMemoryAreSkipped) {
  Topology machine = Machine("numa:2 core:4 pu:1");
  machine.nodes[0].memory_bytes = machine.nodes[0].free_bytes = 0;
  const CorePlan plan = PlanOrDie(machine, {.homes = 2});
  EXPECT_THAT(plan.home_nodes, ElementsAre(1, 1));
  EXPECT_THAT(plan.s_cores, ElementsAre(4, 5));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(6), ElementsAre(7)));
}

TEST(CorePlanTest, AWorkerGivesAllToItsHomes) {
  const CorePlan plan = PlanOrDie(Machine("numa:2 core:2 pu:1"), {.homes = 2, .s_part = false});
  EXPECT_THAT(plan.s_cores, IsEmpty());
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(CorePlanTest, WithoutHomesTheSPartHasTheFirstNode) {
  const CorePlan plan = PlanOrDie(Machine("numa:2 core:2 pu:1"), {.homes = 0});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1));
  EXPECT_THAT(plan.home_cores, IsEmpty());
}

TEST(CorePlanTest, ThreadCountsAreKept) {
  const Topology machine = Machine("numa:1 core:8 pu:1");
  CorePlan plan = PlanOrDie(machine, {.s_threads = 1, .r_threads = 2});
  EXPECT_THAT(plan.s_cores, ElementsAre(0));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(1, 2)));
  plan = PlanOrDie(machine, {.r_threads = 2});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(6, 7)));
  plan = PlanOrDie(Machine("numa:1 core:2 pu:1"), {.s_threads = 3, .r_threads = 2});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 0, 0));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(1, 1)));
  EXPECT_TRUE(plan.shared_cores);
}

TEST(CorePlanTest, ManySThreadsReachTheNextNode) {
  const CorePlan plan = PlanOrDie(Machine("numa:2 core:4 pu:1"), {.homes = 2, .s_threads = 5});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1, 2, 4, 5));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(3), ElementsAre(6, 7)));
  EXPECT_FALSE(plan.shared_cores);
}

TEST(CorePlanTest, NamedCoresAreObeyed) {
  const Topology machine = Machine("numa:2 core:4 pu:1");
  CorePlan plan = PlanOrDie(machine, {.s_cores = "3", .r_cores = "0-1,5", .homes = 2});
  EXPECT_THAT(plan.s_cores, ElementsAre(3));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0, 1), ElementsAre(5)));
  EXPECT_THAT(plan.home_nodes, ElementsAre(0, 1));
  EXPECT_FALSE(plan.shared_cores);
  // The rest is chosen around them.
  plan = PlanOrDie(machine, {.s_cores = "0-3"});
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(4, 5, 6, 7)));
  plan = PlanOrDie(machine, {.r_cores = "0-3"});
  EXPECT_THAT(plan.s_cores, ElementsAre(4, 5, 6, 7));
  // Both on one core is the user's wish.
  plan = PlanOrDie(machine, {.s_cores = "0", .r_cores = "0"});
  EXPECT_TRUE(plan.shared_cores);
}

TEST(CorePlanTest, TakenCoresAreAvoidedWhileThereAreOthers) {
  const Topology machine = Machine("numa:1 core:4 pu:1");
  CorePlan plan = PlanOrDie(machine, {.taken_cores = {0, 2}});
  EXPECT_THAT(plan.s_cores, ElementsAre(1));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(3)));
  EXPECT_FALSE(plan.contended);
  plan = PlanOrDie(machine, {.taken_cores = {0, 1, 2, 3}});
  EXPECT_EQ(plan.AllCores().size(), 4u);
  EXPECT_TRUE(plan.contended);
  EXPECT_FALSE(plan.shared_cores);
  plan = PlanOrDie(machine, {.r_cores = "2", .taken_cores = {2}});
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(2)));
  EXPECT_TRUE(plan.contended);
  plan = PlanOrDie(machine, {.share = true, .taken_cores = {0, 2}});
  EXPECT_THAT(plan.s_cores, ElementsAre(1, 3));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(1, 3)));
  EXPECT_FALSE(plan.contended);
  plan = PlanOrDie(machine, {.share = true, .taken_cores = {0, 1, 2, 3}});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(plan.contended);
  EXPECT_FALSE(plan.shared_cores) << "each has one thread";
}

TEST(CorePlanTest, OneTeamHasEveryCoreWhereTheyShare) {
  CorePlan plan = PlanOrDie(Machine("numa:1 core:2 pu:1"), {.share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(plan.home_threads, ElementsAre(ElementsAre(0, 1)));
  EXPECT_TRUE(plan.one_team);
  EXPECT_FALSE(plan.shared_cores);
  EXPECT_EQ(plan.ThreadCount(), 2u);
  EXPECT_EQ(plan.ToString(), "S-Part: 2 threads on cores 0-1\nhome 0: 2 threads on cores 0-1 of these, node 0\n");
  plan = PlanOrDie(Machine("numa:1 core:1 pu:1"), {.share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0)));
  // One thread a physical core; hyperthreads only for more threads than these.
  plan = PlanOrDie(Machine("numa:1 core:2 pu:2"), {.share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 2));
  plan = PlanOrDie(Machine("numa:1 core:2 pu:2"), {.s_threads = 3, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 2, 1));
  EXPECT_THAT(plan.home_threads, ElementsAre(ElementsAre(0, 1, 2)));
  plan = PlanOrDie(Machine("numa:1 core:2 pu:2"), {.r_threads = 1, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 2));
  EXPECT_THAT(plan.home_threads, ElementsAre(ElementsAre(0)));
  plan = PlanOrDie(Machine("numa:1 core:4 pu:1"), {.s_threads = 2, .r_threads = 3, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0, 1))) << "there are no more";
  // More threads than cores take turns on them.
  plan = PlanOrDie(Machine("numa:1 core:2 pu:1"), {.homes = 2, .s_threads = 4, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(plan.home_threads, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_TRUE(plan.shared_cores);
}

TEST(CorePlanTest, OnSeveralNodesSIsOnAllOfThemAndEachHomeOnItsOwn) {
  const Topology machine = Machine("numa:2 core:3 pu:1");
  CorePlan plan = PlanOrDie(machine, {.homes = 2, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  plan = PlanOrDie(Machine("numa:2 core:3 pu:2"), {.homes = 2, .s_threads = 6, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 2, 4, 6, 8, 10)) << "physical cores of both before hyperthreads of one";
  // Homes of one node divide it.
  plan = PlanOrDie(machine, {.homes = 4, .share = true});
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0), ElementsAre(3), ElementsAre(1, 2), ElementsAre(4, 5)));
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(plan.home_threads, ElementsAre(ElementsAre(0), ElementsAre(3), ElementsAre(1, 2), ElementsAre(4, 5)));
  // A node on which no thread is has all of them.
  plan = PlanOrDie(machine, {.homes = 2, .s_threads = 2, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1));
  EXPECT_THAT(plan.home_threads, ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1)));
}

TEST(CorePlanTest, CoresOfOneTeamAreTheOthersTooWhereTheyShare) {
  const Topology machine = Machine("numa:2 core:3 pu:1");
  CorePlan plan = PlanOrDie(machine, {.s_cores = "4-5", .homes = 1, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(4, 5));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(4, 5)));
  EXPECT_THAT(plan.home_nodes, ElementsAre(1));
  plan = PlanOrDie(machine, {.r_cores = "1,2", .homes = 1, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(1, 2));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(1, 2)));
  EXPECT_THAT(ErrorOf(machine, {.s_cores = "2-3", .homes = 1, .share = true}),
              HasSubstr("--s-cores: '2-3' has cores of 2 NUMA nodes"));
  plan = PlanOrDie(machine, {.s_cores = "0-2", .r_cores = "1", .homes = 1, .share = true});
  EXPECT_THAT(plan.s_cores, ElementsAre(0, 1, 2));
  EXPECT_THAT(plan.home_threads, ElementsAre(ElementsAre(1))) << "of the team's threads those that are asked for";
  EXPECT_EQ(ErrorOf(machine, {.s_cores = "0", .r_cores = "1", .homes = 1, .share = true}),
            "--r-cores: '1': core 1 is not one of --s-cores '0', and one team does both parts");
}

TEST(CorePlanTest, ErrorsNameOptionValueAndWhatIsAllowed) {
  const Topology machine = Machine("numa:2 core:2 pu:1");
  EXPECT_EQ(ErrorOf(machine, {.s_cores = "0,9"}), "--s-cores: '0,9': core 9 is not there (allowed: cores 0-3)");
  EXPECT_EQ(ErrorOf(machine, {.r_cores = "1,0-1"}), "--r-cores: '1,0-1': core 1 is named twice (allowed: cores 0-3)");
  for (const char* text : {"a", "1-", "-1", "3-2", "0,,1", "0-99999999999", " "}) {
    EXPECT_THAT(ErrorOf(machine, {.r_cores = text}), HasSubstr("is not a core or a range like 2-5")) << text;
  }
  EXPECT_THAT(ErrorOf(machine, {.homes = -1}), HasSubstr("--homes: -1"));
  EXPECT_THAT(ErrorOf(machine, {.s_threads = -2}), HasSubstr("--s-threads: -2"));
  EXPECT_THAT(ErrorOf(machine, {.r_threads = 5000}), HasSubstr("--r-threads: 5000"));
  EXPECT_THAT(ErrorOf(machine, {.r_cores = "0-3", .homes = 1}),
              HasSubstr("--r-cores: '0-3' has cores of 2 NUMA nodes"));
  EXPECT_THAT(ErrorOf(machine, {.s_cores = "0", .s_part = false}), HasSubstr("no S-Part runs here"));
  EXPECT_THAT(ErrorOf(machine, {.r_cores = "0", .homes = 0}), HasSubstr("no home is here"));
}

TEST(CorePlanTest, ACoreThatTheProcessMayNotUseIsToldFromOneThatIsNotThere) {
  const Topology machine = Machine("numa:2 core:2 pu:1", {0, 2});
  EXPECT_EQ(
      ErrorOf(machine, {.r_cores = "1"}),
      "--r-cores: '1': core 1 is not in this process's CPU set: isolcpus, taskset, a cpuset or OpenMP's variables "
      "keep it out, `taskset -c` or --cpuset-cpus lets it in (allowed: cores 0,2)");
  EXPECT_EQ(ErrorOf(machine, {.r_cores = "4"}), "--r-cores: '4': core 4 is not there (allowed: cores 0,2)");
}

// Whatever the machine and the wishes: every thread has a core that exists, every home's cores are of its node, and
// shared_cores and contended tell the truth.
TEST(CorePlanTest, EveryPlanIsSound) {
  int plans = 0;
  for (const char* description :
       {"numa:1 core:1 pu:1", "numa:1 core:3 pu:2", "numa:2 core:1 pu:2", "numa:3 core:5 pu:1"}) {
    const Topology machine = Machine(description);
    for (int homes = 0; homes <= 4; ++homes) {
      for (int s_threads = 0; s_threads <= 4; ++s_threads) {
        for (int r_threads = 0; r_threads <= 3; ++r_threads) {
          for (const int variant : {0, 1, 2, 3}) {
            const std::vector<int> taken = variant % 2 == 1 ? std::vector<int>{0} : std::vector<int>{};
            const CorePlan plan = PlanOrDie(machine, {.homes = homes,
                                                      .s_threads = s_threads,
                                                      .r_threads = r_threads,
                                                      .share = variant >= 2,
                                                      .taken_cores = taken});
            ++plans;
            size_t threads = plan.s_cores.size();
            ASSERT_FALSE(plan.s_cores.empty());
            ASSERT_TRUE(s_threads == 0 || plan.s_cores.size() == static_cast<size_t>(s_threads));
            ASSERT_EQ(plan.home_cores.size(), static_cast<size_t>(homes));
            bool uses_taken = false;
            ASSERT_EQ(plan.one_team, variant >= 2);
            for (int home = 0; home < homes; ++home) {
              const std::vector<int>& cores = plan.home_cores[static_cast<size_t>(home)];
              const int node = plan.home_nodes[static_cast<size_t>(home)];
              ASSERT_FALSE(cores.empty());
              bool has_threads_there = true;
              if (plan.one_team) {
                const std::vector<int>& team = plan.home_threads[static_cast<size_t>(home)];
                ASSERT_EQ(team.size(), cores.size());
                ASSERT_TRUE(r_threads == 0 || cores.size() <= static_cast<size_t>(r_threads));
                for (size_t i = 0; i < team.size(); ++i)
                  ASSERT_EQ(plan.s_cores[static_cast<size_t>(team[i])], cores[i]);
                has_threads_there = std::any_of(plan.s_cores.begin(), plan.s_cores.end(),
                                                [&](int core) { return machine.NodeOfCore(core) == node; });
              } else {
                threads += cores.size();
                ASSERT_TRUE(r_threads == 0 || cores.size() == static_cast<size_t>(r_threads));
              }
              for (const int core : cores) ASSERT_TRUE(!has_threads_there || machine.NodeOfCore(core) == node);
            }
            for (const int core : plan.AllCores()) {
              ASSERT_GE(machine.NodeOfCore(core), 0);
              uses_taken |= !taken.empty() && core == taken[0];
            }
            ASSERT_EQ(plan.shared_cores, plan.AllCores().size() < threads);
            ASSERT_EQ(plan.contended, uses_taken);
          }
        }
      }
    }
  }
  EXPECT_EQ(plans, 4 * 5 * 5 * 4 * 4);
}

}  // namespace
}  // namespace fastdecode
