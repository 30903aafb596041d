// The checks of `fastdecode doctor` on made-up hosts: folders with the files of /proc, /sys and /dev.
#include "tools/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/tools/made_up_root.h"
#include "tools/doctor/sys_root.h"

namespace fastdecode {

// What gtest prints of one.
void PrintTo(const Check& check, std::ostream* out) {
  *out << check.name << ": " << StatusName(check.status) << ", " << check.found << " -> " << check.advice;
}

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

constexpr char kPort[] = "/sys/class/infiniband/mlx5_0/ports/1";
constexpr char kNic[] = "/sys/bus/pci/devices/0000:3b:00.0";
constexpr char kGpu[] = "/sys/bus/pci/devices/0000:5e:00.0";
constexpr char kLimits[] =
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max cpu time              unlimited            unlimited            seconds   \n"
    "Max locked memory         %s            unlimited            bytes     \n";

// A host of two NUMA nodes, four cores each, with one active RoCE port on node 0 and an NVIDIA GPU beside it; well set
// up, until a test changes it.
class FakeHost : public MadeUpRoot {
 public:
  FakeHost() {
    WriteProcessor();
    WriteMemory();
    WriteNic();
    WriteGpu();
  }

  void LimitLockedMemory(const std::string& soft) {
    std::string text = kLimits;
    Write("/proc/self/limits", text.replace(text.find("%s"), 2, soft));
  }
  // A user without capabilities, but for CAP_IPC_LOCK if asked for.
  void WriteStatus(bool may_lock, const std::string& cpus = "0-7") {
    Write("/proc/self/status", "Name:\tfastdecode\nCapEff:\t" +
                                   std::string(may_lock ? "0000000000004000" : "0000000000000000") +
                                   "\nCpus_allowed_list:\t" + cpus + "\nMems_allowed_list:\t0-1");
  }
  void SetGid(int index, const std::string& gid, const std::string& type) {
    const std::string entry = "/" + std::to_string(index);
    Write(kPort + ("/gids" + entry), gid);
    Write(kPort + ("/gid_attrs/types" + entry), type);
    Write(kPort + ("/gid_attrs/ndevs" + entry), "eth0");
  }

  DoctorHost host() const {
    DoctorHost host;
    host.root = SysRoot(root());
    host.isa = Isa::kAvx512;
    host.topology = Topology::Synthetic("numa:2 core:4 pu:1", {}).value();
    return host;
  }
  std::vector<Check> Examine() const { return ExamineHost(host()); }

 private:
  void WriteProcessor() {
    Write("/proc/sys/kernel/osrelease", "6.1.0-28-amd64");
    Write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Made-up CPU 9000\n");
    Write("/proc/cmdline", "root=/dev/sda1 iommu=pt quiet");
    Write("/sys/devices/system/cpu/online", "0-7");
    Write("/sys/devices/system/cpu/isolated", "2-3,6-7");
    Write("/sys/devices/system/cpu/nohz_full", "2-3,6-7");
    for (int cpu = 0; cpu < 8; ++cpu) SetGovernor(cpu, "performance");
    WriteStatus(false);
  }
  void WriteMemory() {
    Write("/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB");
    Write("/sys/devices/system/node/has_memory", "0-1");
    for (const std::string node : {"0", "1"}) {
      const std::string folder = "/sys/devices/system/node/node" + node;
      Write(folder + "/cpulist", node == "0" ? "0-3" : "4-7");
      Write(folder + "/distance", node == "0" ? "10 21" : "21 10");
      Write(folder + "/meminfo", "Node " + node + " MemTotal: 8388608 kB\nNode " + node + " MemFree: 4194304 kB");
      Write(folder + "/hugepages/hugepages-2048kB/nr_hugepages", "512");
      Write(folder + "/hugepages/hugepages-2048kB/free_hugepages", "500");
      Write(folder + "/hugepages/hugepages-1048576kB/nr_hugepages", "0");
      Write(folder + "/hugepages/hugepages-1048576kB/free_hugepages", "0");
    }
    Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force");
    Write("/proc/self/uid_map", "         0          0 4294967295");
    LimitLockedMemory("unlimited");
  }
  void WriteNic() {
    Write(kNic + std::string("/vendor"), "0x15b3");
    Write(kNic + std::string("/class"), "0x020000");
    Write(kNic + std::string("/numa_node"), "0");
    Write(kNic + std::string("/net/eth0/mtu"), "9000");
    Link(kNic + std::string("/driver"), "../../../../bus/pci/drivers/mlx5_core");
    Link("/sys/class/infiniband/mlx5_0/device", root() + kNic);
    Write("/sys/class/infiniband/mlx5_0/fw_ver", "20.35.1012");
    Write("/sys/class/infiniband/mlx5_0/hca_type", "MT4123");
    Write("/sys/class/infiniband_verbs/abi_version", "6");
    Write("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
    Write("/dev/infiniband/uverbs0", "");
    Write(kPort + std::string("/state"), "4: ACTIVE");
    Write(kPort + std::string("/link_layer"), "Ethernet");
    Write(kPort + std::string("/rate"), "100 Gb/sec (4X EDR)");
    SetGid(0, "fe80:0000:0000:0000:ee0d:9aff:fe00:0001", "IB/RoCE v1");
    SetGid(1, "fe80:0000:0000:0000:ee0d:9aff:fe00:0001", "RoCE v2");
    SetGid(2, "0000:0000:0000:0000:0000:ffff:0a4d:0001", "IB/RoCE v1");
    SetGid(3, "0000:0000:0000:0000:0000:ffff:0a4d:0001", "RoCE v2");
    Write(kPort + std::string("/gids/4"), "0000:0000:0000:0000:0000:0000:0000:0000");
    for (const char* counter :
         {"out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "np_cnp_sent"}) {
      Write(kPort + std::string("/hw_counters/") + counter, "0");
    }
    Write("/sys/class/net/eth0/mtu", "9000");
    for (const std::string side : {"roce_np", "roce_rp"}) {
      for (int p = 0; p < 8; ++p)
        Write("/sys/class/net/eth0/ecn/" + side + "/enable/" + std::to_string(p), p == 3 ? "1" : "0");
    }
    Write("/sys/kernel/iommu_groups/0/type", "identity");
  }
  void WriteGpu() {
    Write(kGpu + std::string("/vendor"), "0x10de");
    Write(kGpu + std::string("/class"), "0x030200");
    Write(kGpu + std::string("/numa_node"), "0");
    Write("/proc/driver/nvidia/gpus/0000:5e:00.0/information", "Model: \t\t NVIDIA Made-up\nIRQ:   \t\t 17");
    Write("/proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (builder@host)\n"
          "GCC version:  gcc version 12.2.0");
  }

 public:
  void SetGovernor(int cpu, const std::string& governor) {
    Write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_governor", governor);
  }
};

// The one check of that name.
Check Find(const std::vector<Check>& checks, const std::string& name) {
  const auto is_it = [&name](const Check& check) { return check.name == name; };
  EXPECT_EQ(std::count_if(checks.begin(), checks.end(), is_it), 1) << name << "\n" << FormatChecks(checks, false);
  const auto found = std::find_if(checks.begin(), checks.end(), is_it);
  return found == checks.end() ? Check() : *found;
}

std::vector<std::string> NamesOf(const std::vector<Check>& checks, CheckStatus status) {
  std::vector<std::string> names;
  for (const Check& check : checks) {
    if (check.status == status) names.push_back(check.name);
  }
  return names;
}

auto Is(CheckStatus status, const std::string& found, const std::string& advice) {
  return AllOf(Field(&Check::status, status), Field(&Check::found, HasSubstr(found)),
               Field(&Check::advice, HasSubstr(advice)));
}
auto IsOk(const std::string& found) {
  return AllOf(Field(&Check::status, CheckStatus::kOk), Field(&Check::found, HasSubstr(found)),
               Field(&Check::advice, IsEmpty()));
}

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

TEST(DoctorTest, InterfaceMtu) {
  FakeHost fake;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1500", "RDMA 1024, as eth0 has 1500"}, {"2200", "RDMA 2048"}, {"4191", "RDMA 2048"}, {"68", "RDMA 256"}};
  for (const auto& [mtu, found] : cases) {
    fake.Write("/sys/class/net/eth0/mtu", mtu);
    EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 MTU"),
                Is(CheckStatus::kWarning, found, "ip link set dev eth0 mtu 4200"));
  }
  fake.Write("/sys/class/net/eth0/mtu", "4192");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 MTU"), IsOk("RDMA 4096"));
  fake.Remove("/sys/class/net/eth0");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 MTU"), Is(CheckStatus::kUnknown, "not readable", "ibv_devinfo -d mlx5_0"));
}

TEST(DoctorTest, APortThatIsDownIsAnErrorUnlessAnotherIsUp) {
  FakeHost fake;
  fake.Write(kPort + std::string("/state"), "1: DOWN");
  std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "mlx5_0/1"), Is(CheckStatus::kError, "DOWN, Ethernet", "ip link set dev eth0 up"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), ElementsAre("mlx5_0/1"));
  // Nothing is said of where a port's traffic would go that has none.
  EXPECT_THAT(checks, Each(Field(&Check::name, Not(HasSubstr("to NIC")))));
  const std::string second = "/sys/class/infiniband/mlx5_0/ports/2";
  fake.Write(second + "/state", "4: ACTIVE");
  fake.Write(second + "/link_layer", "InfiniBand");
  fake.Write(second + "/gids/0", "fe80:0000:0000:0000:ee0d:9aff:fe00:0002");
  checks = fake.Examine();
  EXPECT_EQ(Find(checks, "mlx5_0/1").status, CheckStatus::kWarning);
  EXPECT_THAT(Find(checks, "mlx5_0/2 GID"), IsOk("GID 0 fe80::ee0d:9aff:fe00:2"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), IsEmpty());
}

TEST(DoctorTest, NoDevice) {
  FakeHost fake;
  fake.Remove("/sys/class/infiniband/mlx5_0");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "RDMA devices"), Is(CheckStatus::kError, "none", "type rxe"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kError), ElementsAre("RDMA devices"));
}

TEST(DoctorTest, ADeviceWithoutItsFileInDev) {
  FakeHost fake;
  fake.Remove("/dev/infiniband/uverbs0");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0 access"),
              Is(CheckStatus::kError, "uverbs0: No such file", "--device=/dev/infiniband"));
}

TEST(DoctorTest, ANicOnTheFarNode) {
  FakeHost fake;
  fake.Write(kNic + std::string("/numa_node"), "1");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "node 0 to NIC"), Is(CheckStatus::kWarning, "mlx5_0 on node 1, distance 21", "second NIC"));
  EXPECT_THAT(Find(checks, "node 1 to NIC"), IsOk("distance 10"));
  EXPECT_THAT(Find(checks, "GPU 0000:5e:00.0"),
              Is(CheckStatus::kWarning, "mlx5_0 on node 1, distance 21", "next to the GPU"));
}

TEST(DoctorTest, NodesOfOneSocketAreNotFar) {
  FakeHost fake;
  fake.Write("/sys/devices/system/node/node1/distance", "12 10");
  EXPECT_THAT(Find(fake.Examine(), "node 1 to NIC"), IsOk("mlx5_0 on node 0, distance 12"));
}

TEST(DoctorTest, ANicWhosePlaceTheKernelDoesNotKnow) {
  FakeHost fake;
  fake.Write(kNic + std::string("/numa_node"), "-1");
  EXPECT_THAT(Find(fake.Examine(), "node 0 to NIC"), Is(CheckStatus::kUnknown, "does not say", "lstopo"));
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
              Is(CheckStatus::kWarning, "not in this process's CPU set: 2-3,6-7", "taskset -c 2-3,6-7"));
  EXPECT_THAT(Find(fake.Examine(), "CPU set"), IsOk("CPUs 0-1,4-5 of 0-7 online"));
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

TEST(DoctorTest, ANodeWithoutCoresOfThisProcess) {
  FakeHost fake;
  DoctorHost host = fake.host();
  host.topology = Topology::Synthetic("numa:2 core:4 pu:1", {0, 1, 2, 3}).value();
  const std::vector<Check> checks = ExamineHost(host);
  EXPECT_THAT(Find(checks, "NUMA node 1"), Is(CheckStatus::kWarning, "cannot be a home", "--cpuset-cpus"));
  EXPECT_THAT(NamesOf(checks, CheckStatus::kWarning), ElementsAre("NUMA node 1"));
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

TEST(DoctorTest, TheGidThatALinkTakes) {
  FakeHost fake;
  EXPECT_THAT(
      Find(fake.Examine(), "mlx5_0/1 GID"),
      IsOk("a link takes GID 3 10.77.0.1 (RoCE v2, eth0); there are also GID 0 fe80::ee0d:9aff:fe00:1 (IB/RoCE v1"));
  fake.Remove(kPort + std::string("/gids/3"));
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"), Is(CheckStatus::kWarning, "a link takes GID 1 fe80::", "IPv4"));
  fake.Remove(kPort + std::string("/gids/1"));
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"), Is(CheckStatus::kWarning, "a link takes GID 0 ", "RoCE v2"));
  fake.Remove(kPort + std::string("/gids"));
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"), Is(CheckStatus::kError, "none", "ip addr"));
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 MTU"), IsOk("RDMA 4096, as eth0 has 9000"));
}

TEST(DoctorTest, GidTenComesAfterGidNine) {
  FakeHost fake;
  fake.Remove(kPort + std::string("/gids"));
  fake.SetGid(10, "0000:0000:0000:0000:0000:ffff:0a4d:000a", "RoCE v2");
  fake.SetGid(9, "0000:0000:0000:0000:0000:ffff:0a4d:0009", "RoCE v2");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 GID"), IsOk("a link takes GID 9 10.77.0.9"));
}

TEST(DoctorTest, CountersThatTellTrouble) {
  FakeHost fake;
  fake.Write(kPort + std::string("/hw_counters/local_ack_timeout_err"), "12");
  fake.Write(kPort + std::string("/hw_counters/np_cnp_sent"), "3");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "mlx5_0/1 local_ack_timeout_err"), Is(CheckStatus::kWarning, "12 since", "drops"));
  EXPECT_THAT(Find(checks, "mlx5_0/1 np_cnp_sent"), Is(CheckStatus::kWarning, "congestion", "ports and switches"));
  EXPECT_THAT(checks, Each(Field(&Check::name, Not(EndsWith("counters")))));
}

TEST(DoctorTest, Ecn) {
  FakeHost fake;
  fake.Write("/sys/class/net/eth0/ecn/roce_rp/enable/3", "0");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 ECN"), Is(CheckStatus::kWarning, "as sender: off", "roce_rp"));
  fake.Remove("/sys/class/net/eth0/ecn");
  EXPECT_THAT(Find(fake.Examine(), "mlx5_0/1 ECN"), Is(CheckStatus::kUnknown, "not readable", "vendor"));
}

TEST(DoctorTest, SoftRoce) {
  FakeHost fake;
  fake.Remove("/sys/class/infiniband/mlx5_0/device");
  fake.Write("/sys/class/infiniband/mlx5_0/parent", "eth0");
  const std::vector<Check> checks = fake.Examine();
  EXPECT_THAT(Find(checks, "mlx5_0"), Is(CheckStatus::kWarning, "over eth0, without an RDMA NIC", "tests"));
  EXPECT_THAT(checks, Each(Field(&Check::name, Not(EndsWith("PFC")))));
  EXPECT_THAT(checks, Each(Field(&Check::name, Not(HasSubstr("to NIC")))));
}

TEST(DoctorTest, IommuThatTranslates) {
  FakeHost fake;
  fake.Write("/proc/cmdline", "root=/dev/sda1 iommu=pt-not quiet");
  EXPECT_THAT(Find(fake.Examine(), "IOMMU"), IsOk("identity"));
  fake.Write("/sys/kernel/iommu_groups/1/type", "DMA-FQ");
  EXPECT_THAT(Find(fake.Examine(), "IOMMU"),
              Is(CheckStatus::kWarning, "2 groups of type DMA-FQ, identity", "iommu=pt"));
  fake.Remove("/sys/kernel/iommu_groups");
  EXPECT_THAT(Find(fake.Examine(), "IOMMU"), IsOk("off"));
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
