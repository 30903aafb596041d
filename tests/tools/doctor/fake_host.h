#ifndef FASTDECODE_TESTS_TOOLS_DOCTOR_FAKE_HOST_H_
#define FASTDECODE_TESTS_TOOLS_DOCTOR_FAKE_HOST_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/tools/made_up_root.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/sys_root.h"

namespace fastdecode {

// What gtest prints of one.
inline void PrintTo(const Check& check, std::ostream* out) {
  *out << check.name << ": " << StatusName(check.status) << ", " << check.found << " -> " << check.advice;
}

inline constexpr char kPort[] = "/sys/class/infiniband/mlx5_0/ports/1";
inline constexpr char kNic[] = "/sys/bus/pci/devices/0000:3b:00.0";
inline constexpr char kGpu[] = "/sys/bus/pci/devices/0000:5e:00.0";
inline constexpr char kLimits[] =
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
inline Check Find(const std::vector<Check>& checks, const std::string& name) {
  const auto is_it = [&name](const Check& check) { return check.name == name; };
  EXPECT_EQ(std::count_if(checks.begin(), checks.end(), is_it), 1) << name << "\n" << FormatChecks(checks, false);
  const auto found = std::find_if(checks.begin(), checks.end(), is_it);
  return found == checks.end() ? Check() : *found;
}

inline std::vector<std::string> NamesOf(const std::vector<Check>& checks, CheckStatus status) {
  std::vector<std::string> names;
  for (const Check& check : checks) {
    if (check.status == status) names.push_back(check.name);
  }
  return names;
}

inline auto Is(CheckStatus status, const std::string& found, const std::string& advice) {
  return testing::AllOf(testing::Field(&Check::status, status),
                        testing::Field(&Check::found, testing::HasSubstr(found)),
                        testing::Field(&Check::advice, testing::HasSubstr(advice)));
}
inline auto IsOk(const std::string& found) {
  return testing::AllOf(testing::Field(&Check::status, CheckStatus::kOk),
                        testing::Field(&Check::found, testing::HasSubstr(found)),
                        testing::Field(&Check::advice, testing::IsEmpty()));
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TOOLS_DOCTOR_FAKE_HOST_H_
