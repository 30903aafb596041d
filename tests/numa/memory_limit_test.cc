#include "numa/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "numa/cpu_quota.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

// A directory that plays the root of the file system.
class MemoryLimitTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "memory_limit." + std::to_string(getpid());
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:       1048576 kB\nMemFree:         1024 kB\nMemAvailable:    524288 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(MemoryLimitTest, WithoutCgroupsTheMachineIsTheLimit) {
  const MemoryLimit limit = MemoryLimit::Read(root_);
  EXPECT_EQ(limit.limit_bytes, 1024 * kMiB);
  EXPECT_EQ(limit.available_bytes, 512 * kMiB);
  EXPECT_EQ(limit.source, "this machine");
}

TEST_F(MemoryLimitTest, Version2LimitOfAParentCounts) {
  Write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
  Write("/proc/self/cgroup", "0::/user.slice/job\n");
  Write("/sys/fs/cgroup/user.slice/job/memory.max", "max\n");
  Write("/sys/fs/cgroup/user.slice/memory.max", "268435456\n");
  Write("/sys/fs/cgroup/user.slice/memory.current", "104857600\n");
  Write("/sys/fs/cgroup/user.slice/memory.stat", "anon 1\nfile 2\ninactive_file 10485760\nactive_file 20971520\n");
  const MemoryLimit limit = MemoryLimit::Read(root_);
  EXPECT_EQ(limit.limit_bytes, 256 * kMiB);
  EXPECT_EQ(limit.available_bytes, (256 - 100 + 30) * kMiB);
  EXPECT_EQ(limit.source, "cgroup /sys/fs/cgroup/user.slice/memory.max");
}

TEST_F(MemoryLimitTest, Version2HighCountsAsMaxDoes) {
  Write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
  Write("/proc/self/cgroup", "0::/job\n");
  Write("/sys/fs/cgroup/job/memory.max", "268435456\n");
  Write("/sys/fs/cgroup/job/memory.high", "134217728\n");
  Write("/sys/fs/cgroup/job/memory.current", "33554432\n");
  MemoryLimit limit = MemoryLimit::Read(root_);
  EXPECT_EQ(limit.limit_bytes, 128 * kMiB);
  EXPECT_EQ(limit.available_bytes, (128 - 32) * kMiB);
  EXPECT_EQ(limit.source, "cgroup /sys/fs/cgroup/job/memory.high");
  Write("/sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_EQ(MemoryLimit::Read(root_).source, "cgroup /sys/fs/cgroup/job/memory.high");
  Write("/sys/fs/cgroup/job/memory.high", "max\n");
  EXPECT_EQ(MemoryLimit::Read(root_).source, "this machine");
  Write("/sys/fs/cgroup/job/memory.max", "67108864\n");
  Write("/sys/fs/cgroup/job/memory.high", "134217728\n");
  limit = MemoryLimit::Read(root_);
  EXPECT_EQ(limit.limit_bytes, 64 * kMiB);
  EXPECT_EQ(limit.source, "cgroup /sys/fs/cgroup/job/memory.max");
}

// A container that sees its own subtree mounted, but the host's path in /proc/self/cgroup.
TEST_F(MemoryLimitTest, Version1MountOfASubtree) {
  Write("/proc/self/mountinfo",
        "40 24 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n"
        "41 24 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  Write("/proc/self/cgroup", "5:cpu:/docker/abc\n4:memory:/docker/abc/inner\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "134217728\n");
  Write("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "33554432\n");
  Write("/sys/fs/cgroup/memory/inner/memory.stat",
        "inactive_file 999999\ntotal_inactive_file 8388608\ntotal_active_file 0\n");
  const MemoryLimit limit = MemoryLimit::Read(root_);
  EXPECT_EQ(limit.limit_bytes, 128 * kMiB);
  EXPECT_EQ(limit.available_bytes, (128 - 32 + 8) * kMiB);
  EXPECT_THAT(limit.source, HasSubstr("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes"));
}

TEST_F(MemoryLimitTest, UsageAboveTheLimitLeavesNothing) {
  Write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1048576\n");
  Write("/sys/fs/cgroup/memory.current", "2097152\n");
  EXPECT_EQ(MemoryLimit::Read(root_).available_bytes, 0u);
}

class CpuQuotaTest : public MemoryLimitTest {};

// The same tree of cgroups, asked for CPU time.
TEST_F(CpuQuotaTest, TheTightestOnTheWayUpOfVersion2Counts) {
  EXPECT_EQ(CpuQuota::Read(root_).cpus, 0);
  Write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
  Write("/proc/self/cgroup", "0::/pod/job\n");
  Write("/sys/fs/cgroup/pod/job/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota::Read(root_).cpus, 0);
  Write("/sys/fs/cgroup/pod/cpu.max", "75000 50000\n");
  Write("/sys/fs/cgroup/cpu.max", "800000 100000\n");
  EXPECT_EQ(CpuQuota::Read(root_).cpus, 1.5);
  EXPECT_EQ(CpuQuota::Read(root_).source, "/sys/fs/cgroup/pod/cpu.max: 75000 50000");
  for (const char* bad : {"", "nonsense", "100000", "100000 0"}) {
    Write("/sys/fs/cgroup/pod/cpu.max", bad);
    EXPECT_EQ(CpuQuota::Read(root_).cpus, 8) << bad;
  }
  Write("/sys/fs/cgroup/pod/job/cpu.max", "900000 100000\n");
  EXPECT_EQ(CpuQuota::Read(root_).cpus, 8);
}

TEST_F(CpuQuotaTest, Version1) {
  Write("/proc/self/mountinfo", "40 24 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n");
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc/inner\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota::Read(root_).cpus, 0);
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  EXPECT_EQ(CpuQuota::Read(root_).cpus, 4);
  EXPECT_EQ(CpuQuota::Read(root_).source, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us: 400000 of 100000");
}

TEST_F(MemoryLimitTest, NodeMemoryCountsFileCacheAsFree) {
  Write("/sys/devices/system/node/has_memory", "0-1\n");
  Write("/sys/devices/system/node/node1/meminfo",
        "Node 1 MemTotal:       8192 kB\nNode 1 MemFree:        1024 kB\n"
        "Node 1 Active(file):    512 kB\nNode 1 Inactive(file):  256 kB\n");
  const NodeMemory node = NodeMemory::Read(1, root_);
  EXPECT_EQ(node.total_bytes, 8 * kMiB);
  EXPECT_EQ(node.free_bytes, 1792u * 1024);
  EXPECT_EQ(NodeMemory::Read(2, root_).total_bytes, 0u);
}

TEST_F(MemoryLimitTest, TheOnlyNodeIsTheMachine) {
  Write("/sys/devices/system/node/has_memory", "0\n");
  Write("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 8192 kB\nNode 0 MemFree: 1024 kB\n");
  const NodeMemory node = NodeMemory::Read(0, root_);
  EXPECT_EQ(node.total_bytes, 1024 * kMiB);
  EXPECT_EQ(node.free_bytes, 512 * kMiB);
}

TEST(MemoryLimitHereTest, IsWithinThisMachine) {
  const MemoryLimit limit = MemoryLimit::Read();
  EXPECT_GT(limit.limit_bytes, 0u);
  EXPECT_LE(limit.available_bytes, limit.limit_bytes);
}

}  // namespace
}  // namespace fastdecode
