#include "numa/pinning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "numa/cpu_affinity.h"
#include "numa/pinned_thread.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kNoCore = 100'000;

std::vector<int> CoresOf(const cpu_set_t& set) {
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(static_cast<size_t>(core), &set)) cores.push_back(core);
  }
  return cores;
}

TEST(CpuAffinityTest, IsWhatTheKernelSays) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  const std::vector<int> allowed = CoresOf(set);
  EXPECT_EQ(CpuAffinity::OfThisThread().cores, allowed);
  EXPECT_EQ(CpuAffinity::OfThisThread().refusal, 0);
  ASSERT_EQ(sched_getaffinity(getpid(), sizeof(set), &set), 0);
  EXPECT_EQ(CpuAffinity::OfMainThread().cores, CoresOf(set));
  CpuAffinity of_pinned;
  PinnedThread("pinned", allowed.back(), [&] { of_pinned = CpuAffinity::OfThisThread(); }).Join();
  EXPECT_THAT(of_pinned.cores, ElementsAre(allowed.back()));
}

TEST(CpuSetTest, HasTheCoresThatItIsMadeOf) {
  CpuSet set({3, 2000});
  EXPECT_EQ(CPU_COUNT_S(set.bytes(), set.get()), 2);
  EXPECT_TRUE(CPU_ISSET_S(3, set.bytes(), set.get()));
  EXPECT_TRUE(CPU_ISSET_S(2000, set.bytes(), set.get()));
}

TEST(PinningTest, SaysHowManyThreadsOfWhichPartAreRefusedAndWhy) {
  const int core = CpuAffinity::OfThisThread().cores.front();
  CorePlan plan;
  plan.s_cores = {core, kNoCore, core};
  plan.home_cores = {{core}, {core, kNoCore}};
  EXPECT_THAT(DescribeRefusedPinning(plan, 3),
              AllOf(HasSubstr("2 of 6 threads cannot be pinned to their cores (S-Part 1 of 3, home1 1 of 2): "
                              "sched_setaffinity: Invalid argument; "),
                    HasSubstr("taskset"), Not(HasSubstr("home0"))));
  EXPECT_THAT(DescribeRefusedPinning(plan, 1), HasSubstr("1 of 4 threads"));  // of which the others are no threads
  EXPECT_THAT(DescribeRefusedPinning(plan, 0), HasSubstr("1 of 3 threads"));  // a worker's
  plan.home_cores[1] = {core};
  EXPECT_THAT(DescribeRefusedPinning(plan, 1), IsEmpty());
}

TEST(PinningTest, TriesOneCore) {
  EXPECT_THAT(TryToPin(CpuAffinity::OfThisThread().cores.front()), IsEmpty());
  EXPECT_EQ(TryToPin(kNoCore), "sched_setaffinity: Invalid argument");
}

TEST(PinningTest, AFilterRefusesEveryCore) {
  for (const int error : {EPERM, ENOSYS, EACCES}) EXPECT_TRUE(PinningIsForbidden(error)) << error;
  for (const int error : {0, EINVAL, EAGAIN, ESRCH}) EXPECT_FALSE(PinningIsForbidden(error)) << error;
}

}  // namespace
}  // namespace fastdecode
