#include "numa/core_reservation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "numa/core_plan.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CoreReservationTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "core_reservation." + std::to_string(getpid());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  CoreReservation ReserveOrDie(const std::vector<int>& cores) {
    absl::StatusOr<CoreReservation> reservation = CoreReservation::Reserve(directory_, cores);
    EXPECT_TRUE(reservation.ok()) << reservation.status();
    return *std::move(reservation);
  }

  std::string directory_;
};

TEST_F(CoreReservationTest, HoldsUntilReleased) {
  EXPECT_THAT(CoreReservation::TakenCores(directory_), IsEmpty());
  CoreReservation first = ReserveOrDie({10, 2});
  EXPECT_THAT(CoreReservation::TakenCores(directory_), ElementsAre(2, 10));
  {
    const CoreReservation second = ReserveOrDie({2, 3});
    EXPECT_THAT(second.held(), ElementsAre(3));
    EXPECT_THAT(second.refused(), ElementsAre(2));
    EXPECT_THAT(CoreReservation::TakenCores(directory_), ElementsAre(2, 3, 10));
  }
  EXPECT_THAT(CoreReservation::TakenCores(directory_), ElementsAre(2, 10));
  const CoreReservation moved = std::move(first);
  EXPECT_THAT(CoreReservation::TakenCores(directory_), ElementsAre(2, 10));
}

TEST_F(CoreReservationTest, APlanOfMoreThreadsThanTheCpuQuotaWarns) {
  absl::StatusOr<Topology> machine = Topology::Synthetic("numa:1 core:4 pu:1", {});
  ASSERT_TRUE(machine.ok());
  machine->cpu_quota = {.cpus = 2, .source = "/sys/fs/cgroup/cpu.max: 200000 100000"};
  absl::StatusOr<ReservedCorePlan> plan = PlanAndReserveCores(*machine, {}, directory_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->warnings,
              ElementsAre(AllOf(HasSubstr("on 4 cores"), HasSubstr("2 CPUs"), HasSubstr(machine->cpu_quota.source))));
  plan->reservation.Release();
  plan = PlanAndReserveCores(*machine, {.s_threads = 1, .r_threads = 1}, directory_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->warnings, IsEmpty());
}

// Whoever starts first makes the files, and others must be able to lock them.
TEST_F(CoreReservationTest, FilesAreForAllUsersWhateverTheUmask) {
  const mode_t umask_before = umask(077);
  const CoreReservation reservation = ReserveOrDie({4});
  const absl::StatusOr<DirectoryLock> lock = DirectoryLock::Acquire(directory_);
  umask(umask_before);
  ASSERT_TRUE(lock.ok()) << lock.status();
  for (const char* name : {"/core-4", "/lock"}) {
    struct stat info;
    ASSERT_EQ(stat((directory_ + name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777u, 0644u) << name;
  }
}

TEST_F(CoreReservationTest, AFileThatMayNotBeReadIsATakenCore) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file";
  { const CoreReservation made = ReserveOrDie({4}); }
  ASSERT_EQ(chmod((directory_ + "/core-4").c_str(), 0), 0);
  EXPECT_THAT(CoreReservation::TakenCores(directory_), ElementsAre(4));
  const CoreReservation second = ReserveOrDie({4, 5});
  EXPECT_THAT(second.held(), ElementsAre(5));
  EXPECT_THAT(second.refused(), ElementsAre(4));
}

TEST_F(CoreReservationTest, AKilledProcessHoldsNothing) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const CoreReservation reservation = ReserveOrDie({4});
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(CoreReservation::TakenCores(directory_), ElementsAre(4));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_THAT(CoreReservation::TakenCores(directory_), IsEmpty());
  close(ready[0]);
  close(ready[1]);
}

// A child that was forked off, and keeps all descriptors open, keeps what was let go neither reserved nor locked.
TEST_F(CoreReservationTest, AForkedChildHoldsNothingUp) {
  CoreReservation reservation = ReserveOrDie({4});
  absl::StatusOr<DirectoryLock> lock = DirectoryLock::Acquire(directory_);
  ASSERT_TRUE(lock.ok()) << lock.status();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  EXPECT_THAT(CoreReservation::TakenCores(directory_), ElementsAre(4));
  reservation.Release();
  EXPECT_THAT(CoreReservation::TakenCores(directory_), IsEmpty());
  lock = absl::CancelledError();  // destroys it
  EXPECT_TRUE(DirectoryLock::Acquire(directory_).ok());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(CoreReservationTest, ASecondPlanTakesOtherCores) {
  const absl::StatusOr<Topology> machine = Topology::Synthetic("numa:1 core:4 pu:1", {});
  ASSERT_TRUE(machine.ok());
  const CorePlanOptions one_each = {.s_threads = 1, .r_threads = 1};
  const absl::StatusOr<ReservedCorePlan> first = PlanAndReserveCores(*machine, one_each, directory_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->plan.AllCores(), ElementsAre(0, 1));
  const absl::StatusOr<ReservedCorePlan> second = PlanAndReserveCores(*machine, one_each, directory_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->plan.AllCores(), ElementsAre(2, 3));
  EXPECT_FALSE(second->plan.contended);
  const absl::StatusOr<ReservedCorePlan> third = PlanAndReserveCores(*machine, one_each, directory_);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_TRUE(third->plan.contended);
  EXPECT_THAT(third->reservation.held(), IsEmpty());
}

TEST_F(CoreReservationTest, CoresThatAreLeftToTheCallerAreReservedToo) {
  const absl::StatusOr<Topology> machine = Topology::Synthetic("numa:1 core:6 pu:1", {});
  ASSERT_TRUE(machine.ok());
  const CorePlanOptions wanted = {.s_threads = 1, .r_threads = 1, .front_cores = "auto"};
  const absl::StatusOr<ReservedCorePlan> first = PlanAndReserveCores(*machine, wanted, directory_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(first->plan.front_cores, ElementsAre(5));
  EXPECT_THAT(CoreReservation::TakenCores(directory_), ElementsAre(0, 1, 5));
  const absl::StatusOr<ReservedCorePlan> second = PlanAndReserveCores(*machine, wanted, directory_);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(second->plan.front_cores, ElementsAre(4));
  EXPECT_THAT(second->plan.AllCores(), ElementsAre(2, 3));
  EXPECT_FALSE(second->plan.contended);
  EXPECT_THAT(second->warnings, IsEmpty());
}

TEST_F(CoreReservationTest, ACallerWhoIsLeftACoreOfAnotherProcessIsWarnedAlone) {
  const absl::StatusOr<Topology> machine = Topology::Synthetic("numa:1 core:4 pu:1", {});
  ASSERT_TRUE(machine.ok());
  const CoreReservation other = ReserveOrDie({3});
  const absl::StatusOr<ReservedCorePlan> plan = PlanAndReserveCores(*machine, {.front_cores = "2-3"}, directory_);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->plan.AllCores(), ElementsAre(0, 1));
  EXPECT_FALSE(plan->plan.contended) << "no thread of the engine polls there";
  EXPECT_THAT(plan->warnings,
              ElementsAre(HasSubstr("--front-cores: other FastDecode processes have reserved cores 3,")));
}

TEST_F(CoreReservationTest, WhatCannotBeLockedOrReservedIsAWarningAndNoError) {
  const absl::StatusOr<Topology> machine = Topology::Synthetic("numa:1 core:4 pu:1", {});
  ASSERT_TRUE(machine.ok());
  const CorePlanOptions one_each = {.s_threads = 1, .r_threads = 1};
  const absl::StatusOr<ReservedCorePlan> held = PlanAndReserveCores(*machine, one_each, directory_);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_THAT(held->warnings, IsEmpty());

  std::filesystem::remove(directory_ + "/lock");
  std::filesystem::create_symlink("nowhere", directory_ + "/lock");
  const absl::StatusOr<ReservedCorePlan> unlocked = PlanAndReserveCores(*machine, one_each, directory_);
  ASSERT_TRUE(unlocked.ok()) << unlocked.status();
  EXPECT_THAT(unlocked->warnings, ElementsAre(HasSubstr(directory_ + "/lock")));
  EXPECT_THAT(unlocked->reservation.held(), ElementsAre(2, 3));
  EXPECT_FALSE(unlocked->plan.contended);

  const std::string nowhere = directory_ + "/nowhere";
  const absl::StatusOr<ReservedCorePlan> unreserved = PlanAndReserveCores(*machine, one_each, nowhere);
  ASSERT_TRUE(unreserved.ok()) << unreserved.status();
  EXPECT_THAT(unreserved->warnings, ElementsAre(HasSubstr(nowhere)));
  EXPECT_THAT(unreserved->plan.AllCores(), ElementsAre(0, 1));
  EXPECT_THAT(unreserved->reservation.held(), IsEmpty());
}

TEST_F(CoreReservationTest, AMissingDirectoryIsAnError) {
  EXPECT_FALSE(CoreReservation::Reserve(directory_ + "/nowhere", {0}).ok());
  EXPECT_FALSE(DirectoryLock::Acquire(directory_ + "/nowhere").ok());
  EXPECT_THAT(CoreReservation::TakenCores(directory_ + "/nowhere"), IsEmpty());
}

TEST(HostDirectoryTest, CanBeWritten) {
  const absl::StatusOr<std::string> directory = CoreReservation::HostDirectory();
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_TRUE(DirectoryLock::Acquire(*directory).ok());
}

}  // namespace
}  // namespace fastdecode
