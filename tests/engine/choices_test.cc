#include "engine/choices.h"

#include <gtest/gtest.h>

#include "tests/tools/made_up_root.h"

namespace fastdecode {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Nodes 0 and 1 with 4 and 2 GiB free, and node 2, which has no CPUs, with all the rest of 64.
class KvBytesMaxTest : public testing::Test {
 protected:
  KvBytesMaxTest() {
    host_.Write("/proc/meminfo", "MemTotal: 134217728 kB\nMemAvailable: 67108864 kB");
    host_.Write("/sys/devices/system/node/has_memory", "0-2");
    host_.Write("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 8388608 kB\nNode 0 MemFree: 4194304 kB");
    host_.Write("/sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal: 8388608 kB\nNode 1 MemFree: 1048576 kB\nNode 1 Inactive(file): 1048576 kB");
  }

  uint64_t Max(const std::vector<int>& home_nodes, size_t home) {
    CorePlan plan;
    plan.home_nodes = home_nodes;
    return KvBytesMax(plan, home, host_.root());
  }

  MadeUpRoot host_;
};

TEST_F(KvBytesMaxTest, IsAQuarterOfWhatIsFreeOnTheNodeOfTheHome) {
  EXPECT_EQ(Max({0, 1}, 0), 1024 * kMiB);
  EXPECT_EQ(Max({0, 1}, 1), 512 * kMiB);
}

TEST_F(KvBytesMaxTest, HomesOfOneNodeShareIt) {
  EXPECT_EQ(Max({0, 1, 0}, 0), 512 * kMiB);
  EXPECT_EQ(Max({0, 1, 0}, 1), 512 * kMiB);
  EXPECT_EQ(Max({0, 1, 0}, 2), 512 * kMiB);
}

TEST_F(KvBytesMaxTest, AllHomesShareWhatTheProcessMayUse) {
  host_.Write("/proc/meminfo", "MemTotal: 134217728 kB\nMemAvailable: 2097152 kB");
  EXPECT_EQ(Max({0, 1}, 0), 256 * kMiB);
  EXPECT_EQ(Max({0}, 0), 512 * kMiB);
  EXPECT_EQ(Max({7}, 0), 512 * kMiB);  // of which the kernel says nothing
}

}  // namespace
}  // namespace fastdecode
