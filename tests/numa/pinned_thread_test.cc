#include "numa/pinned_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "numa/topology.h"

namespace fastdecode {
namespace {

TEST(PinnedThreadTest, RunsOnItsCoreUnderItsName) {
  const absl::StatusOr<Topology> topology = Topology::Discover();
  ASSERT_TRUE(topology.ok()) << topology.status();
  for (const int core : topology->AllowedCores()) {
    int ran_on = -1;
    int cores_allowed = 0;
    char name[32] = "";
    PinnedThread thread("a-name-of-more-than-15", core, [&] {
      ran_on = sched_getcpu();
      cpu_set_t set;
      if (sched_getaffinity(0, sizeof(set), &set) == 0) cores_allowed = CPU_COUNT(&set);
      pthread_getname_np(pthread_self(), name, sizeof(name));
    });
    EXPECT_TRUE(thread.pinned());
    thread.Join();
    EXPECT_FALSE(thread.joinable());
    EXPECT_EQ(ran_on, core);
    EXPECT_EQ(cores_allowed, 1);
    EXPECT_STREQ(name, "a-name-of-more-");
  }
}

TEST(PinnedThreadTest, ACoreThatIsNotThereLeavesItUnpinned) {
  bool ran = false;
  PinnedThread thread("lost", 100'000, [&] { ran = true; });
  EXPECT_FALSE(thread.pinned());
  thread.Join();
  EXPECT_TRUE(ran);
}

// A leader, itself on one core, makes the threads of its team.
TEST(PinnedThreadTest, OneThatIsNotPinnedIsNotWherePinnedOnesMakeIt) {
  const absl::StatusOr<Topology> topology = Topology::Discover();
  ASSERT_TRUE(topology.ok()) << topology.status();
  cpu_set_t process, of_lost = {}, of_any = {};
  ASSERT_EQ(sched_getaffinity(0, sizeof(process), &process), 0);
  PinnedThread("leader", topology->AllowedCores().front(), [&] {
    PinnedThread("lost", 100'000, [&] { sched_getaffinity(0, sizeof(of_lost), &of_lost); }).Join();
    PinnedThread("any", -1, [&] { sched_getaffinity(0, sizeof(of_any), &of_any); }).Join();
  }).Join();
  EXPECT_TRUE(CPU_EQUAL(&of_lost, &process));
  EXPECT_TRUE(CPU_EQUAL(&of_any, &process));
}

TEST(PinnedThreadTest, SignalsOfTheProcessAreOthers) {
  sigset_t blocked;
  PinnedThread("signals", -1, [&] { pthread_sigmask(SIG_BLOCK, nullptr, &blocked); }).Join();
  for (const int sent : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGALRM}) EXPECT_TRUE(sigismember(&blocked, sent)) << sent;
  for (const int own : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGPIPE, SIGABRT})
    EXPECT_FALSE(sigismember(&blocked, own)) << own;
}

// Linux 6.12 is the first that lets a thread choose its time slice.
TEST(PinnedThreadTest, ItsTimeSliceIsShort) {
  utsname kernel;
  int major = 0, minor = 0;
  ASSERT_EQ(uname(&kernel), 0);
  ASSERT_EQ(sscanf(kernel.release, "%d.%d", &major, &minor), 2);
  if (major * 100 + minor < 612) GTEST_SKIP() << "Linux " << kernel.release << " has one time slice for all threads";
  struct Attributes {  // the first version of struct sched_attr
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  } of_thread = {}, of_caller = {};
  PinnedThread("slice", -1, [&] { syscall(SYS_sched_getattr, 0, &of_thread, sizeof(of_thread), 0); }).Join();
  ASSERT_EQ(syscall(SYS_sched_getattr, 0, &of_caller, sizeof(of_caller), 0), 0);
  EXPECT_EQ(of_thread.runtime_ns, 100'000u);
  EXPECT_EQ(of_thread.policy, of_caller.policy);
  EXPECT_EQ(of_thread.nice, of_caller.nice);
}

TEST(PinnedThreadTest, MovingKeepsTheThread) {
  int runs = 0;
  PinnedThread first("first", -1, [&] { ++runs; });
  PinnedThread second = std::move(first);
  EXPECT_FALSE(first.joinable());
  second.Join();
  EXPECT_EQ(runs, 1);
  second = PinnedThread("second", -1, [&] { ++runs; });
  second = PinnedThread("third", -1, [&] {});  // joins the second
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace fastdecode
