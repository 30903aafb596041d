// Which cores an engine leaves to its caller's threads, on machines that are made up.
#include "numa/front_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/numa/made_up_plan.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(FrontCoresTest, AutoLeavesThePhysicalCoreAtTheEnd) {
  for (const bool share : {false, true}) {
    SCOPED_TRACE(share);
    const CorePlan plan = PlanOrDie(Machine("numa:1 core:4 pu:1"), {.share = share, .front_cores = "auto"});
    EXPECT_THAT(plan.front_cores, ElementsAre(3));
    EXPECT_THAT(plan.AllCores(), ElementsAre(0, 1, 2));
    EXPECT_THAT(plan.ToString(), HasSubstr("left to the caller: cores 3\n"));
    // A physical core is left with both of its hyperthreads.
    const CorePlan threads = PlanOrDie(Machine("numa:1 core:4 pu:2"), {.share = share, .front_cores = "auto"});
    EXPECT_THAT(threads.front_cores, ElementsAre(6, 7));
    EXPECT_THAT(threads.AllCores(), ElementsAre(0, 2, 4));
  }
}

TEST(FrontCoresTest, AutoLeavesNoneWhereCoresAreFew) {
  for (const char* description : {"numa:1 core:1 pu:1", "numa:1 core:2 pu:1", "numa:1 core:3 pu:2"}) {
    const Topology machine = Machine(description);
    EXPECT_THAT(PlanOrDie(machine, {.front_cores = "auto"}).front_cores, IsEmpty()) << description;
    EXPECT_EQ(PlanOrDie(machine, {.front_cores = "auto"}).AllCores(), PlanOrDie(machine, {}).AllCores());
  }
  // Cores that this process may not use do not count.
  EXPECT_THAT(PlanOrDie(Machine("numa:1 core:8 pu:1", {5, 6, 7}), {.front_cores = "auto"}).front_cores, IsEmpty());
  // The only core of a node is its home's.
  EXPECT_THAT(PlanOrDie(Machine("numa:4 core:1 pu:1"), {.homes = 4, .front_cores = "auto"}).front_cores, IsEmpty());
}

TEST(FrontCoresTest, NoneAndNothingLeaveNone) {
  for (const char* text : {"", "none"}) {
    const CorePlan plan = PlanOrDie(Machine("numa:1 core:4 pu:1"), {.front_cores = text});
    EXPECT_THAT(plan.front_cores, IsEmpty());
    EXPECT_EQ(plan.AllCores().size(), 4u);
    EXPECT_EQ(plan.ToString().find("left to"), std::string::npos);
  }
}

TEST(FrontCoresTest, AutoIsOnTheNodeOfTheSPart) {
  const Topology machine = Machine("numa:2 core:4 pu:1");
  CorePlan plan = PlanOrDie(machine, {.homes = 2, .front_cores = "auto"});
  EXPECT_THAT(plan.front_cores, ElementsAre(3));
  EXPECT_THAT(plan.s_cores, ElementsAre(0));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(1, 2), ElementsAre(4, 5, 6, 7)));
  plan = PlanOrDie(machine, {.homes = 2, .share = true, .front_cores = "auto"});
  EXPECT_THAT(plan.front_cores, ElementsAre(3));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(0, 1, 2), ElementsAre(4, 5, 6, 7)));
  plan = PlanOrDie(machine, {.s_cores = "4-5", .front_cores = "auto"});
  EXPECT_THAT(plan.front_cores, ElementsAre(7));
  // The homes' cores are a whole node, and so the S-Part is on the other one.
  plan = PlanOrDie(machine, {.r_cores = "0-3", .front_cores = "auto"});
  EXPECT_THAT(plan.front_cores, ElementsAre(7));
  EXPECT_THAT(plan.s_cores, ElementsAre(4, 5, 6));
}

TEST(FrontCoresTest, AutoTakesNoCoreThatIsNamed) {
  const Topology machine = Machine("numa:1 core:8 pu:2");
  EXPECT_THAT(PlanOrDie(machine, {.s_cores = "0,2", .r_cores = "12,14", .front_cores = "auto"}).front_cores,
              ElementsAre(10, 11));
  // A thread that polls on one hyperthread slows the other one.
  EXPECT_THAT(PlanOrDie(machine, {.r_cores = "15", .front_cores = "auto"}).front_cores, ElementsAre(12, 13));
  EXPECT_THAT(PlanOrDie(machine, {.s_cores = "0,2,4,6", .r_cores = "8,10,12,14", .front_cores = "auto"}).front_cores,
              IsEmpty());
  // What is left but one is the homes', or the S-Part's.
  const Topology small = Machine("numa:1 core:4 pu:1");
  EXPECT_THAT(PlanOrDie(small, {.s_cores = "0-2", .front_cores = "auto"}).front_cores, IsEmpty());
  EXPECT_THAT(PlanOrDie(small, {.r_cores = "0-2", .front_cores = "auto"}).front_cores, IsEmpty());
  EXPECT_THAT(PlanOrDie(small, {.r_cores = "0-1", .front_cores = "auto"}).front_cores, ElementsAre(3));
}

// Nobody else wants a core then, however few there are.
TEST(FrontCoresTest, WhereAllCoresAreSettledAutoTakesOneOfTheOthers) {
  const Topology machine = Machine("numa:1 core:3 pu:1");
  EXPECT_THAT(PlanOrDie(machine, {.s_cores = "0", .r_cores = "2", .front_cores = "auto"}).front_cores, ElementsAre(1));
  EXPECT_THAT(PlanOrDie(machine, {.s_cores = "0-1", .share = true, .front_cores = "auto"}).front_cores, ElementsAre(2));
  EXPECT_THAT(PlanOrDie(machine, {.r_cores = "2", .share = true, .front_cores = "auto"}).front_cores, ElementsAre(1));
  EXPECT_THAT(PlanOrDie(machine, {.s_cores = "0", .homes = 0, .front_cores = "auto"}).front_cores, ElementsAre(2));
  EXPECT_THAT(PlanOrDie(machine, {.s_cores = "0-1", .r_cores = "2", .front_cores = "auto"}).front_cores, IsEmpty());
}

TEST(FrontCoresTest, AutoAvoidsCoresOfOtherProcessesWhileThereAreOthers) {
  const Topology machine = Machine("numa:2 core:4 pu:1");
  EXPECT_THAT(PlanOrDie(machine, {.taken_cores = {3}, .front_cores = "auto"}).front_cores, ElementsAre(2));
  EXPECT_THAT(PlanOrDie(machine, {.taken_cores = {0, 1, 2, 3}, .front_cores = "auto"}).front_cores, ElementsAre(7));
  EXPECT_THAT(PlanOrDie(machine, {.taken_cores = {0, 1, 2, 3, 4, 5, 6, 7}, .front_cores = "auto"}).front_cores,
              ElementsAre(3));
}

TEST(FrontCoresTest, NamedCoresAreLeftOutOfBothPlans) {
  const Topology machine = Machine("numa:1 core:4 pu:2");
  CorePlan plan = PlanOrDie(machine, {.front_cores = "2-3,0"});
  EXPECT_THAT(plan.front_cores, ElementsAre(2, 3, 0));
  // Core 1 is what this process still has of its physical core.
  EXPECT_THAT(plan.s_cores, ElementsAre(1));
  EXPECT_THAT(plan.home_cores, ElementsAre(ElementsAre(4, 6)));
  plan = PlanOrDie(machine, {.share = true, .front_cores = "2-3,0"});
  EXPECT_THAT(plan.s_cores, ElementsAre(1, 4, 6));
  plan = PlanOrDie(machine, {.s_cores = "4", .r_cores = "6", .front_cores = "5"});
  EXPECT_THAT(plan.front_cores, ElementsAre(5));
  EXPECT_THAT(plan.AllCores(), ElementsAre(4, 6));
}

// Homes are counted before their cores are planned.
TEST(FrontCoresTest, ANodeThatIsLeftWholeIsNoHome) {
  const Topology machine = Machine("numa:2 core:2 pu:1");
  EXPECT_FALSE(WithoutNamedFrontCores(machine, "2-3").nodes[1].UsableAsHome());
  EXPECT_TRUE(WithoutNamedFrontCores(machine, "2").nodes[1].UsableAsHome());
  for (const char* text : {"auto", "none", "", "17", "x"}) {
    EXPECT_EQ(WithoutNamedFrontCores(machine, text).AllowedCores().size(), 4u) << text;
  }
  EXPECT_THAT(PlanOrDie(machine, {.front_cores = "2-3"}).home_nodes, ElementsAre(0));
}

TEST(FrontCoresTest, ErrorsNameOptionValueAndWhatIsAllowed) {
  const Topology machine = Machine("numa:1 core:4 pu:1");
  EXPECT_EQ(ErrorOf(machine, {.front_cores = "9"}), "--front-cores: '9': core 9 is not there (allowed: cores 0-3)");
  EXPECT_EQ(ErrorOf(machine, {.front_cores = "1,1"}),
            "--front-cores: '1,1': core 1 is named twice (allowed: cores 0-3)");
  EXPECT_EQ(ErrorOf(machine, {.s_cores = "0-2", .front_cores = "2-3"}),
            "--front-cores: '2-3': core 2 is also in --s-cores '0-2': name it in one of them (allowed: cores 0-3)");
  EXPECT_EQ(ErrorOf(machine, {.r_cores = "3", .front_cores = "3"}),
            "--front-cores: '3': core 3 is also in --r-cores '3': name it in one of them (allowed: cores 0-3)");
  EXPECT_EQ(ErrorOf(machine, {.front_cores = "0-3"}),
            "--front-cores: '0-3': no core is left to the engine: name fewer (allowed: cores 0-3)");
  EXPECT_THAT(ErrorOf(Machine("numa:1 core:4 pu:1", {0, 1}), {.front_cores = "2"}),
              HasSubstr("--front-cores: '2': core 2 is not in this process's CPU set"));
  EXPECT_THAT(ErrorOf(machine, {.s_cores = "7", .front_cores = "auto"}), HasSubstr("--s-cores: '7'"));
}

// Whatever the machine: no thread is on a core that is left, and the rest of the plan is that of a smaller machine.
TEST(FrontCoresTest, EveryPlanIsSound) {
  for (const char* description : {"numa:1 core:5 pu:1", "numa:2 core:3 pu:2", "numa:3 core:4 pu:1"}) {
    const Topology machine = Machine(description);
    for (int homes = 0; homes <= 4; ++homes) {
      for (int threads = 0; threads <= 3; ++threads) {
        for (const bool share : {false, true}) {
          CorePlanOptions options = {.homes = homes, .s_threads = threads, .r_threads = threads, .share = share};
          options.front_cores = "auto";
          const CorePlan plan = PlanOrDie(machine, options);
          ASSERT_FALSE(plan.front_cores.empty());
          std::string barred;
          for (const int core : plan.front_cores) {
            ASSERT_EQ(machine.NodeOfCore(core), machine.NodeOfCore(plan.s_cores[0]));
            barred += (barred.empty() ? "" : ",") + std::to_string(core);
          }
          std::vector<int> allowed = machine.AllowedCores();
          std::erase_if(allowed, [&](int core) {
            return std::find(plan.front_cores.begin(), plan.front_cores.end(), core) != plan.front_cores.end();
          });
          options.front_cores = "";
          const CorePlan smaller = PlanOrDie(Machine(description, allowed), options);
          EXPECT_EQ(plan.s_cores, smaller.s_cores);
          EXPECT_EQ(plan.home_cores, smaller.home_cores);
          options.front_cores = barred;
          EXPECT_EQ(PlanOrDie(machine, options).s_cores, smaller.s_cores);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fastdecode
