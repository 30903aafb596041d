// What is noted down of a machine, on made-up ones.
#include "tools/latency/machine/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/tools/made_up_root.h"

namespace fastdecode {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two nodes, a NIC, a GPU.
class Host : public MadeUpRoot {
 public:
  Host() {
    Write("/proc/sys/kernel/hostname", "decode-17");
    Write("/proc/sys/kernel/osrelease", "6.1.0-28-amd64");
    Write("/proc/sys/kernel/version", "#1 SMP");
    Write("/proc/cmdline", "BOOT_IMAGE=/vmlinuz secret=1234 isolcpus=domain,2-3 nohz_full=2-3 idle=poll quiet");
    Write("/proc/self/cmdline", std::string("fastdecode\0latency\0step\0--model\0it's here\0", 42));
    Write("/proc/self/status", "Name:\tfastdecode\nCpus_allowed_list:\t0-5");
    Write("/proc/loadavg", "0.52 1.31 2.20 3/231 12345");
    Write("/sys/class/dmi/id/sys_vendor", "Maker");
    Write("/sys/class/dmi/id/product_name", "Box 2U");
    WriteProcessor("fpu constant_tsc nonstop_tsc hypervisor");
    const std::string cpus = "/sys/devices/system/cpu/";
    Write(cpus + "online", "0-7");
    Write(cpus + "isolated", "2-3");
    Write(cpus + "nohz_full", "2-3");
    Write(cpus + "smt/active", "1");
    Write(cpus + "cpufreq/boost", "1");
    Write(cpus + "cpu0/cpufreq/scaling_driver", "acpi-cpufreq");
    for (int cpu = 0; cpu < 8; ++cpu) {
      Write(cpus + "cpu" + std::to_string(cpu) + "/cpufreq/scaling_governor", cpu < 4 ? "performance" : "powersave");
    }
    Write(cpus + "cpuidle/current_driver", "acpi_idle");
    Write(cpus + "cpuidle/current_governor_ro", "menu");
    Write(cpus + "cpu0/cpuidle/state0/name", "POLL");
    Write(cpus + "cpu0/cpuidle/state0/latency", "0");
    Write(cpus + "cpu0/cpuidle/state1/name", "C2");
    Write(cpus + "cpu0/cpuidle/state1/latency", "18");
    Write(cpus + "cpu0/cpuidle/state1/disable", "1");
    Write("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc");
    for (const std::string node : {"0", "1"}) {
      const std::string folder = "/sys/devices/system/node/node" + node;
      Write(folder + "/cpulist", node == "0" ? "0-3" : "4-7");
      Write(folder + "/meminfo", "Node " + node + " MemTotal: 8388608 kB\nNode " + node + " MemFree: 4194304 kB");
      Write(folder + "/hugepages/hugepages-2048kB/nr_hugepages", node == "0" ? "512" : "0");
      Write(folder + "/hugepages/hugepages-1048576kB/nr_hugepages", "0");
    }
    Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
    Write("/proc/sys/kernel/numa_balancing", "0");
    WriteNic();
    WriteGpu();
  }

  void WriteProcessor(const std::string& flags) {
    Write("/proc/cpuinfo",
          "processor\t: 0\nmodel name\t: Made-up CPU 9000\nmicrocode\t: 0xa101148\nflags\t\t: " + flags);
  }
  nlohmann::json Read() const {
    ProvenanceInput input;
    input.version = "1.2.3";
    input.hypervisor = "KVM";
    input.time_s = 1'000'000'000;
    return ReadProvenance(SysRoot(root()), input);
  }

 private:
  void WriteNic() {
    const std::string device = "/sys/class/infiniband/mlx5_0";
    Write(device + "/device/vendor", "0x15b3");
    Write(device + "/device/numa_node", "1");
    Link(device + "/device/driver", "../../../../bus/pci/drivers/mlx5_core");
    Write(device + "/device/net/eth0/mtu", "9000");
    Write(device + "/fw_ver", "20.35.1012");
    Write(device + "/hca_type", "MT4123");
    Write(device + "/ports/1/state", "4: ACTIVE");
    Write(device + "/ports/1/link_layer", "Ethernet");
    Write(device + "/ports/1/rate", "100 Gb/sec (4X EDR)");
    Write("/sys/class/net/eth0/mtu", "9000");
  }
  void WriteGpu() {
    const std::string gpu = "/sys/bus/pci/devices/0000:5e:00.0";
    Write(gpu + "/vendor", "0x10de");
    Write(gpu + "/class", "0x030200");
    Write("/proc/driver/nvidia/gpus/0000:5e:00.0/information", "Model: \t\t NVIDIA Made-up\nIRQ:   \t\t 17");
    Write("/proc/driver/nvidia/version",
          "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build  (builder@host)");
  }
};

std::map<std::string, std::string> Rows(const nlohmann::json& provenance) {
  const auto rows = DescribeProvenance(provenance);
  return {rows.begin(), rows.end()};
}

TEST(ProvenanceTest, NotesWhatThereIs) {
  const Host host;
  const nlohmann::json found = host.Read();
  EXPECT_EQ(found["time"], "2001-09-09T01:46:40Z");
  EXPECT_EQ(found["version"], "1.2.3");
  EXPECT_EQ(found["command_line"], "fastdecode latency step --model 'it'\\''s here'");
  EXPECT_EQ(found["host"], "decode-17");
  EXPECT_EQ(found["product"], "Maker Box 2U");
  EXPECT_EQ(found["kernel"]["release"], "6.1.0-28-amd64");
  EXPECT_EQ(found["kernel"]["parameters"], nlohmann::json({"isolcpus=domain,2-3", "nohz_full=2-3", "idle=poll"}));
  EXPECT_EQ(found["cpu"], nlohmann::json({{"model", "Made-up CPU 9000"},
                                          {"microcode", "0xa101148"},
                                          {"online", "0-7"},
                                          {"allowed", "0-5"},
                                          {"smt", true},
                                          {"governor", "performance on CPUs 0-3; powersave on CPUs 4-7"},
                                          {"frequency_driver", "acpi-cpufreq"},
                                          {"boost", true},
                                          {"isolated", "2-3"},
                                          {"nohz_full", "2-3"},
                                          {"hypervisor", "KVM"}}));
  EXPECT_EQ(found["idle"]["driver"], "acpi_idle");
  EXPECT_EQ(found["idle"]["governor"], "menu");
  EXPECT_EQ(found["idle"]["states"], nlohmann::json({{{"name", "POLL"}, {"latency_us", 0}, {"disabled", false}},
                                                     {{"name", "C2"}, {"latency_us", 18}, {"disabled", true}}}));
  EXPECT_EQ(found["clock"], nlohmann::json({{"source", "tsc"}, {"invariant_tsc", true}}));
  EXPECT_EQ(found["memory"]["bytes"], uint64_t{16} << 30);
  EXPECT_EQ(found["memory"]["transparent_huge_pages"], "madvise");
  EXPECT_EQ(found["memory"]["numa_balancing"], false);
  EXPECT_EQ(
      found["memory"]["nodes"][0],
      nlohmann::json({{"node", 0}, {"cpus", "0-3"}, {"bytes", uint64_t{8} << 30}, {"huge_2m", 512}, {"huge_1g", 0}}));
  ASSERT_EQ(found["network"].size(), 1u);
  EXPECT_EQ(found["network"][0], nlohmann::json({{"name", "mlx5_0"},
                                                 {"type", "MT4123"},
                                                 {"driver", "mlx5_core"},
                                                 {"firmware", "20.35.1012"},
                                                 {"interface", "eth0"},
                                                 {"node", 1},
                                                 {"ports",
                                                  {{{"port", 1},
                                                    {"state", "ACTIVE"},
                                                    {"link_layer", "Ethernet"},
                                                    {"rate", "100 Gb/sec (4X EDR)"},
                                                    {"mtu", 9000}}}}}));
  EXPECT_EQ(found["gpu"]["driver"], "550.54.14");
  EXPECT_EQ(found["gpu"]["devices"], nlohmann::json({{{"address", "0000:5e:00.0"}, {"model", "NVIDIA Made-up"}}}));
  EXPECT_EQ(found["load"], nlohmann::json({{"minutes", {0.52, 1.31, 2.2}}, {"running", 3}, {"threads", 231}}));
}

TEST(ProvenanceTest, SaysItToPeople) {
  const Host host;
  const std::map<std::string, std::string> rows = Rows(host.Read());
  EXPECT_EQ(rows.at("command"), "fastdecode latency step --model 'it'\\''s here'");
  EXPECT_EQ(rows.at("time"), "2001-09-09T01:46:40Z");
  EXPECT_EQ(rows.at("version"), "fastdecode 1.2.3");
  EXPECT_EQ(rows.at("machine"), "decode-17, Maker Box 2U, hypervisor KVM");
  EXPECT_EQ(rows.at("kernel"), "Linux 6.1.0-28-amd64, isolcpus=domain,2-3 nohz_full=2-3 idle=poll");
  EXPECT_EQ(rows.at("processor"), "Made-up CPU 9000, microcode 0xa101148, CPUs 0-5, of 0-7 online, hyperthreads on");
  EXPECT_EQ(rows.at("frequency"),
            "governor performance on CPUs 0-3; powersave on CPUs 4-7, driver acpi-cpufreq, boost on");
  EXPECT_EQ(rows.at("idle states"), "driver acpi_idle, governor menu, states POLL 0 us, C2 18 us disabled");
  EXPECT_EQ(rows.at("isolation"), "isolated 2-3, without tick 2-3");
  EXPECT_EQ(rows.at("clock"), "tsc, TSC invariant");
  EXPECT_THAT(rows.at("memory"), AllOf(HasSubstr("16 GiB, transparent huge pages madvise, NUMA balancing off"),
                                       HasSubstr("node 0: CPUs 0-3, 8 GiB, 512 pages of 2 MiB;"),
                                       HasSubstr("node 1: CPUs 4-7, 8 GiB"), Not(HasSubstr(" 0 pages"))));
  EXPECT_EQ(
      rows.at("network"),
      "mlx5_0 MT4123, driver mlx5_core, firmware 20.35.1012, eth0, node 1, port 1 ACTIVE, Ethernet, 100 Gb/sec (4X "
      "EDR), MTU 9000");
  EXPECT_EQ(rows.at("GPU"), "NVIDIA Made-up; driver 550.54.14");
  EXPECT_EQ(rows.at("load"), "0.52 1.31 2.20 (1, 5, 15 min), 3 of 231 threads running");
}

TEST(ProvenanceTest, APlainMachine) {
  Host host;
  host.WriteProcessor("fpu tsc");
  host.Remove("/sys/class/infiniband");
  host.Remove("/sys/bus");
  host.Remove("/proc/driver");
  host.Write("/sys/devices/system/cpu/isolated", "");
  host.Write("/sys/devices/system/cpu/nohz_full", "(null)");
  const std::map<std::string, std::string> rows = Rows(host.Read());
  EXPECT_THAT(rows.at("machine"), HasSubstr("hypervisor none"));
  EXPECT_EQ(rows.at("clock"), "tsc, TSC not invariant");
  EXPECT_EQ(rows.at("network"), "no RDMA device");
  EXPECT_EQ(rows.at("GPU"), "none");
  EXPECT_EQ(rows.at("isolation"), "isolated none, without tick none");
}

TEST(ProvenanceTest, WhatCannotBeReadIsSaid) {
  const MadeUpRoot nothing;
  const nlohmann::json found = ReadProvenance(SysRoot(nothing.root()), ProvenanceInput());
  EXPECT_TRUE(found["cpu"]["model"].is_null());
  EXPECT_TRUE(found["cpu"]["hypervisor"].is_null());
  EXPECT_TRUE(found["load"].is_null());
  const std::map<std::string, std::string> rows = Rows(found);
  EXPECT_EQ(rows.at("processor"), "model not readable, microcode not readable");
  EXPECT_EQ(rows.at("frequency"), "governor not readable");
  EXPECT_EQ(rows.at("load"), "not readable");
  EXPECT_EQ(rows.at("clock"), "not readable, TSC not readable");
}

// It may have been read from somebody's file.
TEST(ProvenanceTest, AnyJsonIsDescribed) {
  for (const nlohmann::json& odd :
       {nlohmann::json(), nlohmann::json(3), nlohmann::json::array({1}), nlohmann::json{{"cpu", 1}, {"memory", {1, 2}}},
        nlohmann::json{{"memory", {{"nodes", {1, "x"}}, {"bytes", -1}}},
                       {"network", {{{"ports", "none"}}}},
                       {"gpu", {{"devices", {nullptr}}}},
                       {"load", {{"minutes", {"a", nullptr}}}},
                       {"time", {1}}}}) {
    EXPECT_EQ(Rows(odd).at("version"), "fastdecode not readable");
  }
}

TEST(ProvenanceTest, ThisMachineHasAName) {
  const nlohmann::json here = ReadProvenance(SysRoot(), ProvenanceInput::Now("1"));
  EXPECT_THAT(here["command_line"].get<std::string>(), HasSubstr("latency_provenance_test"));
  EXPECT_TRUE(here["cpu"]["model"].is_string());
  EXPECT_GT(here["time"].get<std::string>(), "2024");
}

}  // namespace

}  // namespace fastdecode
