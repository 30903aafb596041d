#include "engine/start/start_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelSpec SmallSpec() {
  ModelSpec spec;
  spec.layers = 3;
  spec.hidden = 64;
  spec.heads = 8;
  spec.kv_heads = 2;
  spec.head_dim = 24;
  spec.vocab = 100;
  spec.max_context = 500;
  return spec;
}

absl::StatusOr<StartPlan> PlanFor(const std::vector<std::pair<std::string, std::string>>& given, bool gpu = false,
                                  Isa best = Isa::kAvx512Bf16, const CoreChoice& cores = {}) {
  Options options;
  options.micro_batches = 2;
  for (const auto& [name, value] : given) {
    const absl::Status set = SetOption(options, name, value);
    EXPECT_TRUE(set.ok()) << set;
  }
  const absl::StatusOr<std::vector<Endpoint>> endpoints = ParseEndpoints("--homes", options.homes);
  EXPECT_TRUE(endpoints.ok()) << endpoints.status();
  return PlanStart(options, SmallSpec(), *endpoints, cores, gpu, best);
}

TEST(StartPlanTest, MicroBatchesThatAreNotFilledEvenlyHavePlacesForAll) {
  CoreChoice cores;
  cores.micro_batches = 2;
  cores.adapts = true;
  const auto plan = [&](int sequences) {
    return *PlanFor({{"max-sequences", std::to_string(sequences)}, {"prefill-chunk", "7"}}, false, Isa::kAvx512Bf16,
                    cores);
  };
  EXPECT_TRUE(plan(100).adapts && plan(100).places_for_all);
  EXPECT_EQ(plan(100).shape.max_rows, 107u);
  EXPECT_EQ(plan(100).home_kinds, "far");
  EXPECT_TRUE(plan(kAdaptSequencesMax).adapts);
  EXPECT_FALSE(plan(kAdaptSequencesMax + 2).adapts || plan(kAdaptSequencesMax + 2).places_for_all) << "too many";
  EXPECT_EQ(plan(kAdaptSequencesMax + 2).shape.max_rows, kAdaptSequencesMax / 2 + 1 + 7u);
  cores.adapts = false;
  EXPECT_FALSE(plan(100).places_for_all);
  EXPECT_EQ(plan(100).shape.max_rows, 57u);
  cores.share = true;
  EXPECT_TRUE(plan(100).places_for_all) << "a plan says who sits where";
  EXPECT_FALSE(plan(100).adapts);
  EXPECT_EQ(plan(100).home_kinds, "near");
  EXPECT_EQ(PlanFor({{"homes", "local,unix:/w"}}, false, Isa::kAvx2, cores)->home_kinds, "near and far");
  EXPECT_EQ(PlanFor({{"homes", "gpu,local"}}, true)->home_kinds, "near and far");
}

TEST(StartPlanTest, FollowsModelAndMachine) {
  const absl::StatusOr<StartPlan> plan = PlanFor({{"max-sequences", "9"}, {"prefill-chunk", "7"}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->isa, Isa::kAvx512Bf16);
  EXPECT_EQ(plan->type, ElementType::kBf16);
  EXPECT_EQ(plan->shape.layers, 3u);
  EXPECT_EQ(plan->shape.group, 4u);
  EXPECT_EQ(plan->shape.head_dim, 32u) << "padded";
  EXPECT_EQ(plan->shape.max_context, 500u);
  EXPECT_EQ(plan->shape.max_rows, 5u + 7u) << "half of the sequences, rounded up, and a chunk";
  EXPECT_FALSE(plan->gpu_home);
  EXPECT_EQ(plan->fabric_gpu, -1);
  EXPECT_FALSE(plan->fault.has_value());
  EXPECT_EQ(PlanFor({}, false, Isa::kAvx2)->type, ElementType::kF32);
  EXPECT_EQ(PlanFor({{"homes", "gpu"}}, true, Isa::kAvx2)->type, ElementType::kBf16);
  EXPECT_TRUE(PlanFor({{"homes", "gpu"}}, true)->gpu_home);
  EXPECT_TRUE(PlanFor({{"homes", "gpu,local"}}, true)->several_endpoints);
  EXPECT_TRUE(PlanFor({{"fault", "drop=0.1"}})->fault.has_value());
}

// Nothing of this needs a model.
TEST(StartPlanTest, OptionsAreCheckedWithoutAModel) {
  Options options;
  const auto check = [&options](const std::string& homes) {
    return std::string(CheckOptions(options, *ParseEndpoints("--homes", homes)).message());
  };
  EXPECT_EQ(check("local,gpu,unix:w"), "");
  options.homes_min = 3;
  EXPECT_EQ(check("local,gpu,unix:w"), "");
  EXPECT_THAT(check("local,unix:w"), HasSubstr("--homes-min: 3 is more than the 2 that --homes lists"));
  options.homes_min = 0;
  EXPECT_THAT(check("local,hostb:7471"), HasSubstr("--secret-file: needed for hostb:7471"));
  options.fabric.secret_file = "/no/such/secret";
  EXPECT_EQ(check("local"), "") << "nobody needs it";
  EXPECT_THAT(check("hostb:7471"), HasSubstr("--secret-file: '/no/such/secret'"));
  options.hop_timeout_ms = 100;
  EXPECT_THAT(check("hostb:7471"), HasSubstr("--hop-timeout-ms: 100"));
}

TEST(StartPlanTest, TellsOfAShorterContextAndOfSampling) {
  ModelSpec spec = SmallSpec();
  Options options;
  EXPECT_THAT(DescribeModelChoices(options, spec, spec.max_context), IsEmpty());
  spec.max_context = 131072;
  EXPECT_THAT(DescribeModelChoices(options, spec, 8192),
              ElementsAre(HasSubstr("context: 8192 tokens of the model's 131072; --max-context N gives more")));
  options.max_context = 8192;  // as the user wants it
  spec.sampling.temperature = 0.6f;
  spec.sampling.top_k = 20;
  EXPECT_THAT(
      DescribeModelChoices(options, spec, 8192),
      ElementsAre("sampling of generation_config.json, unless a request says otherwise: temperature 0.6, top_k 20"));
}

// Nothing of this needs the weights, a GPU or a worker.
TEST(StartPlanTest, RefusesWhatCannotRun) {
  const struct {
    std::vector<std::pair<std::string, std::string>> options;
    const char* text;
  } cases[] = {
      {{{"max-context", "501"}}, "--max-context: 501 is more than the model's 500 tokens"},
      {{{"isa", "amx"}}, "--isa: this CPU has no 'amx'"},
      {{{"compute", "fp16"}}, "--compute: 'fp16' is for GPUs"},
      {{{"max-sequences", "16384"}, {"micro-batches", "1"}}, "--max-sequences: 16384 over 1 micro-batches"},
      {{{"homes", "hostb:7471"}, {"hop-timeout-ms", "100"}}, "--hop-timeout-ms: 100"},
      {{{"homes", "gpu"}}, "'gpu' is for an S-Part that runs on one"},
      {{{"gpu-kv-gib", "1"}}, "--gpu-kv-gib: 1 GiB"},
      {{{"gpudirect", "true"}}, "--gpudirect: "},
  };
  for (const auto& [options, text] : cases) {
    const absl::Status refused = PlanFor(options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(text));
  }
  EXPECT_EQ(PlanFor({}, false, Isa::kNone).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace fastdecode
