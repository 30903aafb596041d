#include "engine/start/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/rpart/rpart_shape.h"
#include "tests/tools/made_up_root.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

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

Options OptionsOf(const std::vector<std::pair<std::string, std::string>>& given) {
  Options options;
  for (const auto& [name, value] : given) {
    const absl::Status set = SetOption(options, name, value);
    EXPECT_TRUE(set.ok()) << set;
  }
  return options;
}

absl::StatusOr<CoreChoice> CoresFor(const std::vector<std::pair<std::string, std::string>>& given, bool gpu = false) {
  const Options options = OptionsOf(given);
  const absl::StatusOr<std::vector<Endpoint>> endpoints = ParseEndpoints("--homes", options.homes);
  EXPECT_TRUE(endpoints.ok()) << endpoints.status();
  return ChooseCorePlan(options, *endpoints, gpu);
}

TEST(ChooseCorePlanTest, CoresAreSharedWhereNobodyElseNeedsThem) {
  for (const char* homes : {"local", "local:3"}) {
    for (const char* plan : {"auto", "shared"}) {
      const absl::StatusOr<CoreChoice> choice = CoresFor({{"homes", homes}, {"core-plan", plan}});
      ASSERT_TRUE(choice.ok()) << choice.status();
      EXPECT_TRUE(choice->share);
      EXPECT_EQ(choice->micro_batches, 1);
    }
  }
  EXPECT_EQ(CoresFor({{"core-plan", "shared"}})->reason, "--core-plan shared");
  const absl::StatusOr<CoreChoice> beside = CoresFor({{"homes", "local,hostb:7471"}});
  EXPECT_TRUE(beside->share && beside->adapts);
  EXPECT_EQ(beside->micro_batches, 2) << "one with sequences of both, or each with those of one of them";
  EXPECT_EQ(beside->reason, "--core-plan auto: the S-Part is on the CPU and a home in this process");
  EXPECT_TRUE(CoresFor({{"core-plan", "shared"}, {"homes", "unix:/w,local"}})->share);
  EXPECT_TRUE(CoresFor({{"core-plan", "shared"}, {"micro-batches", "1"}, {"s-cores", "0"}})->share);
  EXPECT_EQ(CoresFor({{"core-plan", "shared"}, {"micro-batches", "2"}, {"homes", "unix:/w,local"}})->micro_batches, 2)
      << "a worker attends to one while stages run for the other";
}

TEST(ChooseCorePlanTest, CoresAreSplitForWorkersGpusAndWhoeverSaysSo) {
  const struct {
    std::vector<std::pair<std::string, std::string>> options;
    bool gpu;
    int micro_batches;
    const char* reason;
  } cases[] = {
      {{{"core-plan", "split"}}, false, 2, "--core-plan split"},
      {{{"core-plan", "split"}, {"micro-batches", "1"}}, false, 1, "--core-plan split"},
      {{{"homes", "unix:/w"}}, false, 2, "--core-plan auto: no home is in this process"},
      {{{"homes", "local,unix:/w"}, {"micro-batches", "2"}}, false, 2, "--core-plan auto: --micro-batches is given"},
      {{}, true, 2, "--core-plan auto: the S-Part runs on a GPU"},
      {{{"homes", "gpu"}}, true, 2, "--core-plan auto: the S-Part runs on a GPU"},
      {{{"s-cores", "0"}}, false, 2, "--core-plan auto: --s-cores is given"},
      {{{"r-cores", "0"}}, false, 2, "--core-plan auto: --r-cores is given"},
      {{{"s-threads", "1"}}, false, 2, "--core-plan auto: --s-threads is given"},
      {{{"r-threads", "1"}}, false, 2, "--core-plan auto: --r-threads is given"},
      {{{"fault", "cut=9"}}, false, 2, "--core-plan auto: --fault is given, which is for links"},
      {{{"micro-batches", "1"}}, false, 1, "--core-plan auto: --micro-batches is given"},
      {{{"micro-batches", "5"}}, false, 5, "--core-plan auto: --micro-batches is given"},
      {{{"max-sequences", "16384"}},
       false,
       2,
       "--core-plan auto: --max-sequences is more than one micro-batch can have"},
  };
  for (const auto& [options, gpu, micro_batches, reason] : cases) {
    const absl::StatusOr<CoreChoice> choice = CoresFor(options, gpu);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_FALSE(choice->share) << reason;
    EXPECT_EQ(choice->micro_batches, micro_batches) << reason;
    EXPECT_EQ(choice->adapts, options.empty() || options.back().first != "micro-batches") << reason;
    EXPECT_EQ(choice->reason, reason);
  }
}

TEST(ChooseCorePlanTest, WhatSharingDoesNotGoWithIsRefused) {
  const auto refusal = [](const std::vector<std::pair<std::string, std::string>>& options, bool gpu = false) {
    const absl::StatusOr<CoreChoice> choice = CoresFor(options, gpu);
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(choice.status().message());
  };
  EXPECT_THAT(refusal({{"core-plan", "shared"}}, /*gpu=*/true), HasSubstr("--core-plan: 'shared'"));
  EXPECT_THAT(refusal({{"core-plan", "shared"}, {"homes", "unix:/w"}}), HasSubstr("no home of --homes 'unix:/w'"));
  EXPECT_THAT(refusal({{"core-plan", "shared"}, {"micro-batches", "2"}}), HasSubstr("--micro-batches: 2"));
  EXPECT_THAT(refusal({{"core-plan", "shared"}, {"fault", "cut=9"}}), HasSubstr("--fault: it is for links"));
}

TEST(ChoosePollTest, ThreadsOfOneCoreTakeTurnsUnlessOtherProcessesNeedIt) {
  CorePlan own, shared, contended, both;
  shared.shared_cores = both.shared_cores = true;
  contended.contended = both.contended = true;
  const struct {
    const char* poll;
    PollMode own, shared, contended, both;
  } cases[] = {
      {"auto", PollMode::kWatch, PollMode::kTurns, PollMode::kYield, PollMode::kYield},
      {"spin", PollMode::kSpin, PollMode::kTurns, PollMode::kSpin, PollMode::kTurns},
      {"always", PollMode::kSpin, PollMode::kTurns, PollMode::kSpin, PollMode::kTurns},
      {"yield", PollMode::kYield, PollMode::kYield, PollMode::kYield, PollMode::kYield},
  };
  for (const auto& row : cases) {
    const Options options = OptionsOf({{"poll", row.poll}});
    EXPECT_EQ(ChoosePoll(options, own), row.own) << row.poll;
    EXPECT_EQ(ChoosePoll(options, shared), row.shared) << row.poll;
    EXPECT_EQ(ChoosePoll(options, contended), row.contended) << row.poll;
    EXPECT_EQ(ChoosePoll(options, both), row.both) << row.poll;
  }
}

ModelSpec SpecOfLayers(int layers) {
  ModelSpec spec;
  spec.layers = layers;
  spec.heads = 8;
  spec.kv_heads = 2;
  spec.head_dim = 64;
  return spec;
}

RPartShape ShapeOf(const ModelSpec& spec) {
  return MakeShape(spec, Options(), ElementType::kBf16, /*max_context=*/4096, /*places_for_all=*/false);
}

TEST(MakeShapeTest, AttentionIsScaledAndCappedAsTheModelSays) {
  ModelSpec spec = SpecOfLayers(2);
  EXPECT_FLOAT_EQ(ShapeOf(spec).scale, 0.125f);
  EXPECT_EQ(ShapeOf(spec).soft_cap, 0);
  spec.attention_scale = 0.0625;
  spec.attention_cap = 50;
  EXPECT_EQ(ShapeOf(spec).scale, 0.0625f);
  EXPECT_EQ(ShapeOf(spec).soft_cap, 50);
}

TEST(MakeShapeTest, WindowsAreThoseOfTheLayers) {
  ModelSpec spec = SpecOfLayers(40);
  EXPECT_FALSE(ShapeOf(spec).has_layers(/*with_window=*/true));
  spec.sliding_window = 512;
  EXPECT_FALSE(ShapeOf(spec).has_layers(/*with_window=*/false)) << "all have it, where the model names none";
  spec.layer_kinds.assign(40, LayerKind());
  EXPECT_TRUE(ValidateShape(ShapeOf(spec)).ok())
      << "a window that no layer has is none: " << ValidateShape(ShapeOf(spec));
  EXPECT_EQ(ShapeOf(spec).sliding_window, 0u);
  for (const size_t layer : {0u, 31u, 32u, 38u}) spec.layer_kinds[layer].windowed = true;
  const RPartShape shape = ShapeOf(spec);
  EXPECT_TRUE(ValidateShape(shape).ok()) << ValidateShape(shape);
  for (uint32_t layer = 0; layer < 40; ++layer) {
    EXPECT_EQ(shape.attention(layer).sliding_window, spec.kind(static_cast<int>(layer)).windowed ? 512 : 0) << layer;
  }
}

}  // namespace
}  // namespace fastdecode
