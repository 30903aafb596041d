#include "numa/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "numa/pinned_thread.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TopologyTest, FindsThisMachine) {
  const absl::StatusOr<Topology> topology = Topology::Discover();
  ASSERT_TRUE(topology.ok()) << topology.status();
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  EXPECT_EQ(topology->AllowedCores().size(), static_cast<size_t>(CPU_COUNT(&allowed)));
  for (const int core : topology->AllowedCores()) {
    EXPECT_TRUE(CPU_ISSET(core, &allowed)) << core;
    EXPECT_GE(topology->NodeOfCore(core), 0);
  }
  EXPECT_GT(topology->memory_limit_bytes, 0u);
  EXPECT_FALSE(topology->cpu_model.empty());
  for (const NumaNode& node : topology->nodes) EXPECT_LE(node.physical_cores, static_cast<int>(node.cores.size()));
}

TEST(TopologyTest, SeesOnlyWhatTheAffinityAllows) {
  const absl::StatusOr<Topology> whole = Topology::Discover();
  ASSERT_TRUE(whole.ok()) << whole.status();
  const int core = whole->AllowedCores().back();
  absl::StatusOr<Topology> seen = absl::UnknownError("not run");
  PinnedThread("confined", core, [&] { seen = Topology::Discover(); }).Join();
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_THAT(seen->AllowedCores(), ElementsAre(core));
  EXPECT_EQ(seen->barred_cores.size() + 1, whole->barred_cores.size() + whole->AllowedCores().size());
  EXPECT_EQ(seen->nodes.size(), whole->nodes.size());
}

TEST(TopologyTest, ListsPhysicalCoresBeforeHyperthreads) {
  // hwloc numbers PUs depth first here: core 0 has PUs 0 and 1.
  const absl::StatusOr<Topology> topology = Topology::Synthetic("numa:2 core:3 pu:2", {});
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_EQ(topology->nodes.size(), 2u);
  EXPECT_THAT(topology->nodes[0].cores, ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_THAT(topology->nodes[1].cores, ElementsAre(6, 8, 10, 7, 9, 11));
  EXPECT_EQ(topology->nodes[0].physical_cores, 3);
  EXPECT_THAT(topology->nodes[0].physical_of, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(PhysicalCores(topology->nodes[1]),
              ElementsAre(ElementsAre(6, 7), ElementsAre(8, 9), ElementsAre(10, 11)));
  EXPECT_THAT(PhysicalCores(topology->nodes[1], {7, 8, 9}),
              ElementsAre(ElementsAre(6), IsEmpty(), ElementsAre(10, 11)));
  EXPECT_EQ(topology->NodeOfCore(7), 1);
  EXPECT_EQ(topology->NodeOfCore(12), -1);
}

TEST(TopologyTest, ANodeWithoutAllowedCoresIsListedButNoHome) {
  const absl::StatusOr<Topology> topology = Topology::Synthetic("numa:2 core:2 pu:2", {5, 6, 7});
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_EQ(topology->nodes.size(), 2u);
  EXPECT_THAT(topology->nodes[0].cores, IsEmpty());
  EXPECT_FALSE(topology->nodes[0].UsableAsHome());
  EXPECT_THAT(topology->nodes[1].cores, ElementsAre(5, 6, 7));
  EXPECT_EQ(topology->nodes[1].physical_cores, 2);
  EXPECT_TRUE(topology->nodes[1].UsableAsHome());
  EXPECT_THAT(topology->barred_cores, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(topology->ToString(), HasSubstr("node 0: cores none (0 physical)"));
  EXPECT_THAT(topology->ToString(), HasSubstr("node 1: cores 5-7 (2 physical)"));
}

// What is left is what a process finds that may not use these cores.
TEST(TopologyTest, CoresAreLeftOut) {
  const absl::StatusOr<Topology> whole = Topology::Synthetic("numa:2 core:3 pu:2", {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const std::vector<int>& out : std::vector<std::vector<int>>{{}, {0}, {1, 4, 5}, {0, 1, 2, 3, 4, 5}, {11, 6}}) {
    std::vector<int> allowed;
    for (int core = 0; core < 12; ++core) {
      if (std::find(out.begin(), out.end(), core) == out.end()) allowed.push_back(core);
    }
    const absl::StatusOr<Topology> right = Topology::Synthetic("numa:2 core:3 pu:2", allowed);
    ASSERT_TRUE(right.ok()) << right.status();
    const Topology left = whole->Without(out);
    for (size_t n = 0; n < 2; ++n) {
      EXPECT_EQ(left.nodes[n].cores, right->nodes[n].cores);
      EXPECT_EQ(left.nodes[n].physical_cores, right->nodes[n].physical_cores);
      EXPECT_EQ(left.nodes[n].physical_of, right->nodes[n].physical_of);
    }
  }
}

TEST(TopologyTest, RefusesWhatIsNoMachine) {
  EXPECT_EQ(Topology::Synthetic("three cores please", {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Topology::Synthetic("numa:1 core:2 pu:1", {9}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(TopologyTest, Formats) {
  EXPECT_EQ(FormatCores({5, 0, 2, 3, 4, 3}), "0,2-5");
  EXPECT_EQ(FormatCores({}), "none");
  EXPECT_EQ(FormatBytes(1), "1 bytes");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(FormatBytes(uint64_t{2} << 20), "2 MiB");
}

}  // namespace
}  // namespace fastdecode
