// The checks of `fastdecode doctor` on made-up hosts: folders with the files of /proc, /sys and /dev.
#include "tools/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/tools/doctor/fake_host.h"
#include "tools/doctor/sys_root.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

TEST(DoctorTest, AHealthyHostHasNoErrorAndOnlyTheFarNodeIsWarnedOf) {
  const FakeHost fake;
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), IsEmpty());
  EXPECT_THAT(NamesOf(checks, CheckStatus::kWarning), ElementsAre("node 1 to NIC")) << FormatChecks(checks, false);
  // What one host cannot tell, however healthy.
  EXPECT_THAT(NamesOf(checks, CheckStatus::kUnknown), ElementsAre("mlx5_0/1 PFC", "firewall"));
  EXPECT_THAT(Find(checks, "firewall"), Is(CheckStatus::kUnknown, "4791", "both ways"));
}

TEST(DoctorTest, AHealthyHostIsDescribed) {
  const FakeHost fake;
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "kernel"), IsOk("6.1.0-28-amd64"));
  EXPECT_THAT(Find(checks, "processor"), IsOk("Made-up CPU 9000; kernels use avx512"));
  EXPECT_THAT(Find(checks, "CPU set"), IsOk("CPUs 0-7, all that are online"));
  EXPECT_THAT(Find(checks, "core plan"),
              IsOk("S-Part and homes share CPUs 0-7; --core-plan split: S-Part CPUs 0-1"));
  EXPECT_THAT(Find(checks, "memory limit"), IsOk("16 GiB (this machine), 8 GiB available"));
  EXPECT_THAT(Find(checks, "NUMA node 1"), IsOk("CPUs 4-7 (4 physical cores), 8 GiB, 4 GiB free"));
  EXPECT_THAT(Find(checks, "huge pages of node 0"), IsOk("500 of 512 pages of 2 MiB free"));
  EXPECT_THAT(Find(checks, "locked memory"), IsOk("unlimited"));
  EXPECT_THAT(Find(checks, "mlx5_0"), IsOk("NVIDIA (Mellanox) MT4123, driver mlx5_core, firmware 20.35.1012"));
  EXPECT_THAT(Find(checks, "mlx5_0 access"), IsOk("/dev/infiniband/uverbs0"));
  EXPECT_THAT(Find(checks, "mlx5_0/1"), IsOk("ACTIVE, Ethernet, 100 Gb/sec (4X EDR)"));
  EXPECT_THAT(Find(checks, "mlx5_0/1 MTU"), IsOk("RDMA 4096, as eth0 has 9000"));
  EXPECT_THAT(Find(checks, "mlx5_0/1 ECN"), IsOk("as receiver: priority 3; as sender: priority 3"));
  EXPECT_THAT(Find(checks, "mlx5_0/1 counters"), IsOk("none of the 5"));
  EXPECT_THAT(Find(checks, "node 0 to NIC"), IsOk("mlx5_0 on node 0, distance 10"));
  EXPECT_THAT(Find(checks, "IOMMU"), IsOk("identity"));
  EXPECT_THAT(Find(checks, "NVIDIA driver"), IsOk("550.54.14, open kernel module"));
  EXPECT_THAT(Find(checks, "GPU 0000:5e:00.0"), IsOk("NVIDIA Made-up, on node 0; nearest RDMA device: mlx5_0"));
  EXPECT_THAT(Find(checks, "RDMA to GPU memory"), IsOk("dma-buf"));
}

TEST(DoctorTest, AHostWithNothingToReadIsNoCrash) {
  const FakeHost fake;
  DoctorHost host = fake.host();
  host.root = SysRoot(fake.root() + "/nowhere");
  host.topology.reset();
  const std::vector<Check> checks = ExamineHost(host);
  EXPECT_THAT(Find(checks, "kernel"), Is(CheckStatus::kUnknown, "not readable", "uname"));
  EXPECT_THAT(Find(checks, "NUMA nodes"), Is(CheckStatus::kUnknown, "not readable", "numactl"));
  EXPECT_THAT(Find(checks, "locked memory"), Is(CheckStatus::kUnknown, "not readable", "ulimit -l"));
  EXPECT_THAT(Find(checks, "governor"), Is(CheckStatus::kUnknown, "not readable", "hypervisor"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), ElementsAre("kernel verbs", "RDMA devices"));
}

// Each file taken away or filled with nonsense on its own.
TEST(DoctorTest, NoFileIsNeeded) {
  std::vector<std::string> files;
  {
    const FakeHost fake;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(fake.root())) {
      if (entry.is_regular_file()) files.push_back(entry.path().string().substr(fake.root().size()));
    }
  }
  ASSERT_GT(files.size(), 60u);
  FakeHost fake;
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const std::string path = fake.root() + file;
    std::ifstream stream(path);
    std::string text((std::istreambuf_iterator<char>(stream)), {});
    std::filesystem::remove(path);
    EXPECT_THAT(fake.Examine(), Not(IsEmpty()));
    std::ofstream(path) << std::string("[]:-,\xff\0 99999999999999999999", 28);
    EXPECT_THAT(FormatChecksAsJson(fake.Examine()), Not(IsEmpty()));
    std::ofstream(path, std::ios::trunc) << text;
  }
}

TEST(DoctorTest, LittleLockedMemory) {
  FakeHost fake;
  fake.LimitLockedMemory("8388608");
  EXPECT_THAT(Find(fake.Examine(), "locked memory"), Is(CheckStatus::kError, "8 MiB", "ulimit -l unlimited"));
  EXPECT_THAT(Find(fake.Examine(), "locked memory").advice,
              AllOf(HasSubstr("LimitMEMLOCK=infinity"), HasSubstr("--ulimit memlock=-1")));
  fake.LimitLockedMemory("4294967296");
  EXPECT_THAT(Find(fake.Examine(), "locked memory"), Is(CheckStatus::kWarning, "4 GiB", "ulimit -l unlimited"));
}

TEST(DoctorTest, TheLimitOfLockedMemoryDoesNotHoldForRootButInAUserNamespace) {
  FakeHost fake;
  fake.LimitLockedMemory("65536");
  fake.WriteStatus(true);
  EXPECT_THAT(Find(fake.Examine(), "locked memory"), IsOk("CAP_IPC_LOCK"));
  fake.Write("/proc/self/uid_map", "0 1000 1");
  EXPECT_EQ(Find(fake.Examine(), "locked memory").status, CheckStatus::kError);
}

TEST(DoctorTest, Governor) {
  FakeHost fake;
  fake.SetGovernor(5, "powersave");
  fake.SetGovernor(6, "powersave");
  EXPECT_THAT(Find(fake.Examine(), "governor"),
              Is(CheckStatus::kWarning, "performance on CPUs 0-4,7; powersave on CPUs 5-6", "cpupower"));
}

TEST(DoctorTest, IsolatedCores) {
  FakeHost fake;
  fake.WriteStatus(false, "0-1,4-5");
  EXPECT_THAT(Find(fake.Examine(), "isolated cores"),
              Is(CheckStatus::kWarning, "not in this process's CPU set: 2-3,6-7",
                 "`taskset -c 0-7 fastdecode ...` with --s-cores and --r-cores out of 2-3,6-7"));
  EXPECT_THAT(Find(fake.Examine(), "CPU set"), IsOk("CPUs 0-1,4-5 of 0-7 online"));
  fake.WriteStatus(false, "2-3,6-7");
  EXPECT_THAT(Find(fake.Examine(), "isolated cores"),
              Is(CheckStatus::kWarning, "this process's CPU set has no others", "`taskset -c 0-7 fastdecode ...`"));
  fake.WriteStatus(false);
  fake.Write("/sys/devices/system/cpu/nohz_full", "(null)");
  EXPECT_THAT(Find(fake.Examine(), "isolated cores"), Is(CheckStatus::kWarning, "2-3,6-7", "nohz_full=2-3,6-7"));
  fake.Write("/sys/devices/system/cpu/isolated", "");
  EXPECT_THAT(Find(fake.Examine(), "isolated cores"), Is(CheckStatus::kWarning, "none", "isolcpus"));
}

TEST(DoctorTest, ACpuSetOfOne) {
  FakeHost fake;
  fake.WriteStatus(false, "3");
  EXPECT_THAT(Find(fake.Examine(), "CPU set"), Is(CheckStatus::kWarning, "CPUs 3 of 0-7 online", "taskset"));
}

TEST(DoctorTest, ACpuSetThatOpenMpHasMade) {
  FakeHost fake;
  DoctorHost host = fake.host();
  host.openmp_binds = true;
  EXPECT_THAT(Find(ExamineHost(host), "CPU set"), IsOk("CPUs 0-7, all that are online"));
  fake.WriteStatus(false, "3");
  EXPECT_THAT(
      Find(ExamineHost(host), "CPU set"),
      Is(CheckStatus::kWarning, "CPUs 3 of 0-7 online; OpenMP's runtime was told to bind", "unset OMP_PROC_BIND"));
}

TEST(DoctorTest, CallsThatAFilterRefuses) {
  const FakeHost fake;
  DoctorHost host = fake.host();
  EXPECT_EQ(Find(ExamineHost(host), "pinning").status, CheckStatus::kOk);
  host.pinning_refused = "sched_setaffinity: Operation not permitted";
  host.affinity_refused = "sched_getaffinity: Function not implemented";
  EXPECT_THAT(Find(ExamineHost(host), "pinning"),
              Is(CheckStatus::kWarning, "sched_setaffinity: Operation not permitted", "--security-opt seccomp="));
  EXPECT_THAT(Find(ExamineHost(host), "CPU set"),
              IsOk("CPUs 0-7, all that are online (as /proc says; sched_getaffinity: Function not implemented)"));
}

TEST(DoctorTest, ACpuQuotaBelowTheCores) {
  FakeHost fake;
  EXPECT_THAT(Find(fake.Examine(), "CPU quota"), IsOk("none"));
  fake.Write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate");
  fake.Write("/proc/self/cgroup", "0::/");
  fake.Write("/sys/fs/cgroup/cpu.max", "800000 100000");
  EXPECT_THAT(Find(fake.Examine(), "CPU quota"), IsOk("8 CPUs"));
  fake.Write("/sys/fs/cgroup/cpu.max", "750000 100000");
  EXPECT_THAT(Find(fake.Examine(), "CPU quota"),
              Is(CheckStatus::kWarning, "7.5 CPUs (/sys/fs/cgroup/cpu.max: 750000 100000), but 8 physical cores",
                 "--cpuset-cpus"));
}

TEST(DoctorTest, ANodeWithoutCoresOfThisProcess) {
  FakeHost fake;
  DoctorHost host = fake.host();
  host.topology = Topology::Synthetic("numa:2 core:4 pu:1", {0, 1, 2, 3}).value();
  const std::vector<Check> checks = ExamineHost(host);
  EXPECT_THAT(Find(checks, "NUMA node 1"), Is(CheckStatus::kWarning, "cannot be a home", "--cpuset-cpus"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kWarning), ElementsAre("NUMA node 1"));
}

TEST(DoctorTest, AKernelThatRefusesToPlaceMemory) {
  const FakeHost fake;
  DoctorHost host = fake.host();
  EXPECT_THAT(Find(ExamineHost(host), "memory placement"), IsOk("on the node"));
  host.places_memory = false;
  EXPECT_THAT(Find(ExamineHost(host), "memory placement"), Is(CheckStatus::kWarning, "mbind", "--cap-add SYS_NICE"));
  host.topology = Topology::Synthetic("numa:1 core:4 pu:1", {}).value();
  EXPECT_THAT(Find(ExamineHost(host), "memory placement"), IsOk("one node alone"));
}

TEST(DoctorTest, NoHugePages) {
  FakeHost fake;
  for (const std::string node : {"0", "1"}) {
    fake.Write("/sys/devices/system/node/node" + node + "/hugepages/hugepages-2048kB/nr_hugepages", "0");
  }
  EXPECT_THAT(Find(fake.Examine(), "huge pages of node 1"), IsOk("none reserved; transparent"));
  fake.Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "transparent huge pages"), Is(CheckStatus::kWarning, "never", "echo madvise"));
  EXPECT_THAT(Find(checks, "huge pages of node 1"),
              Is(CheckStatus::kWarning, "none reserved", "node1/hugepages/hugepages-2048kB/nr_hugepages"));
}

TEST(DoctorTest, WaysToGpuMemory) {
  FakeHost fake;
  fake.Write("/proc/sys/kernel/osrelease", "5.11.22");
  EXPECT_THAT(Find(fake.Examine(), "RDMA to GPU memory"), Is(CheckStatus::kWarning, "host memory", "nvidia_peermem"));
  fake.Write("/proc/sys/kernel/osrelease", "5.12.0");
  EXPECT_THAT(Find(fake.Examine(), "RDMA to GPU memory"), IsOk("dma-buf"));
  fake.Write("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.86.05  Fri Jul 14 20:46:33 UTC 2023");
  EXPECT_THAT(Find(fake.Examine(), "NVIDIA driver"), IsOk("535.86.05, closed"));
  EXPECT_EQ(Find(fake.Examine(), "RDMA to GPU memory").status, CheckStatus::kWarning);
  fake.Write("/sys/module/nv_peer_mem/version", "1.3");
  EXPECT_THAT(Find(fake.Examine(), "RDMA to GPU memory"), IsOk("nv_peer_mem"));
  fake.Write("/sys/module/nvidia_peermem/version", "535.86.05");
  EXPECT_THAT(Find(fake.Examine(), "RDMA to GPU memory"), IsOk("nvidia_peermem"));
}

TEST(DoctorTest, GpuAndDriverMissing) {
  FakeHost fake;
  fake.Remove("/proc/driver/nvidia");
  EXPECT_THAT(Find(fake.Examine(), "NVIDIA driver"), Is(CheckStatus::kWarning, "not loaded", "modprobe nvidia"));
  fake.Remove(kGpu);
  EXPECT_THAT(Find(fake.Examine(), "NVIDIA driver"), IsOk("no GPU here"));
}

TEST(DoctorTest, ACpuThatIsTooOld) {
  const FakeHost fake;
  DoctorHost host = fake.host();
  host.isa = Isa::kNone;
  EXPECT_THAT(Find(ExamineHost(host), "processor"), Is(CheckStatus::kError, "Made-up CPU 9000", "AVX2"));
}

TEST(DoctorTest, AmxThatLinuxDoesNotGrant) {
  const FakeHost fake;
  DoctorHost host = fake.host();
  host.isa = Isa::kAvx512Bf16;
  host.amx = true;
  EXPECT_THAT(Find(ExamineHost(host), "processor"), IsOk("avx512bf16; it has AMX, which this process may not use"));
  host.isa = Isa::kAmx;
  EXPECT_THAT(Find(ExamineHost(host), "processor").found, testing::EndsWith("; kernels use amx"));
}

TEST(DoctorTest, JsonHasEveryCheck) {
  FakeHost fake;
  fake.Write("/proc/cpuinfo", "model name\t: a \"quoted\" \xff CPU");
  const std::vector<Check> checks = fake.Examine();
  const nlohmann::json json = nlohmann::json::parse(FormatChecksAsJson(checks));
  ASSERT_EQ(json.at("checks").size(), checks.size());
  for (size_t i = 0; i < checks.size(); ++i) {
    const nlohmann::json& check = json.at("checks").at(i);
    EXPECT_EQ(check.at("name"), checks[i].name);
    EXPECT_EQ(check.at("group"), checks[i].group);
    EXPECT_EQ(check.at("status"), StatusName(checks[i].status));
    EXPECT_EQ(check.at("advice"), checks[i].advice);
    EXPECT_EQ(check.at("advice").get<std::string>().empty(), check.at("status") == "ok");
  }
  EXPECT_THAT(json.at("checks").at(1).at("found").get<std::string>(), HasSubstr("a \"quoted\""));
}

TEST(DoctorTest, TextIsAlignedWrappedAndColouredOnlyIfAsked) {
  const std::vector<Check> checks = {
      {"CPU", "short", CheckStatus::kOk, "fine", ""},
      {"fabric", "a longer name", CheckStatus::kError, std::string(30, 'x') + " " + std::string(70, 'y'), "do it"}};
  EXPECT_EQ(FormatChecks(checks, false),
            "CPU\n"
            "  ok       short          fine\n"
            "\n"
            "fabric\n"
            "  error    a longer name  " +
                std::string(30, 'x') +
                "\n"
                "                          " +
                std::string(70, 'y') +
                "\n"
                "                          -> do it\n"
                "\n"
                "1 error, 0 warnings, 0 unknown, 1 ok\n");
  EXPECT_THAT(FormatChecks(checks, true), HasSubstr("\033[31merror"));
}

TEST(SysRootTest, CpuLists) {
  EXPECT_THAT(ParseCpuList("0,2-4"), Optional(ElementsAre(0, 2, 3, 4)));
  EXPECT_THAT(ParseCpuList(""), Optional(IsEmpty()));
  for (const char* bad : {"a", "3-1", "1-2-3", "-1", "0-99999999", ",", "1,"})
    EXPECT_EQ(ParseCpuList(bad), std::nullopt) << bad;
}

TEST(SysRootTest, WhatCannotBeReadIsNone) {
  FakeHost fake;
  const SysRoot root(fake.root());
  EXPECT_EQ(root.Text("/sys"), std::nullopt);  // a folder
  EXPECT_EQ(root.Text("/none"), std::nullopt);
  EXPECT_EQ(root.Number("/proc/cmdline"), std::nullopt);
  EXPECT_EQ(root.Field("/proc/cpuinfo", "model"), std::nullopt);
  EXPECT_EQ(root.LinkName("/proc/cmdline"), std::nullopt);
  EXPECT_THAT(root.List("/none"), IsEmpty());
  EXPECT_EQ(root.AccessError("/none"), "No such file or directory");
  EXPECT_EQ(root.AccessError("/proc/cmdline"), "");
}

}  // namespace
}  // namespace fastdecode
