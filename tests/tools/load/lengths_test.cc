// Lengths of named loads, against those that another implementation draws and the means that were published.
#include "tools/load/lengths.h"

#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/load/plan.h"

namespace fastdecode::load {

namespace {

using testing::ElementsAre;
using testing::Pair;

std::vector<std::pair<int64_t, int64_t>> DrawnLengths(const std::string& workload, const Arrivals& arrivals) {
  const Workload* found = FindWorkload(workload);
  std::vector<std::pair<int64_t, int64_t>> lengths;
  for (const PlannedRequest& request : DrawLoad({found->prompt, found->output, arrivals, 11}, 4)) {
    lengths.emplace_back(request.prompt_tokens, request.output_tokens);
  }
  return lengths;
}

TEST(DrawLoad, DrawsTheLengthsThatOthersDraw) {
  EXPECT_THAT(DrawnLengths("azure_conv", Arrivals::Poisson()),
              ElementsAre(Pair(1099, 251), Pair(1550, 159), Pair(1016, 390), Pair(434, 91)));
  EXPECT_THAT(DrawnLengths("sharegpt_like", Arrivals::Poisson()),
              ElementsAre(Pair(1198, 499), Pair(940, 27), Pair(1007, 122), Pair(294, 188)));
  EXPECT_THAT(DrawnLengths("longbench_like", Arrivals::Poisson()),
              ElementsAre(Pair(1809, 224), Pair(1756, 8), Pair(1771, 44), Pair(1438, 30)));
}

TEST(DrawLoad, LengthsDoNotDependOnArrivals) {
  EXPECT_EQ(DrawnLengths("azure_code", Arrivals::Constant()), DrawnLengths("azure_code", Arrivals::Gamma(0.25)));
}

TEST(Workloads, HaveTheirMeans) {
  // These are the means of the traces and of DistServe's table of data sets; a fit by quantiles is a little off.
  const std::vector<std::tuple<const char*, double, double>> means = {
      {"azure_conv", 1155, 211},       {"azure_code", 2048, 27.9},      {"arxiv_summary", 2588, 291},
      {"sharegpt_like", 755.5, 200.3}, {"humaneval_like", 171.3, 98.2}, {"longbench_like", 1738.3, 90.7},
      {"distserve", 512, 64}};
  ASSERT_EQ(means.size(), Workloads().size());
  for (const auto& [name, prompt, output] : means) {
    const Workload* workload = FindWorkload(name);
    ASSERT_NE(workload, nullptr) << name;
    constexpr int kDraws = 20'000;
    double prompts = 0, outputs = 0;
    for (const PlannedRequest& request :
         DrawLoad({workload->prompt, workload->output, Arrivals::Poisson(), 1}, kDraws)) {
      prompts += static_cast<double>(request.prompt_tokens);
      outputs += static_cast<double>(request.output_tokens);
    }
    EXPECT_NEAR(prompts / kDraws, prompt, 0.05 * prompt) << name;
    EXPECT_NEAR(outputs / kDraws, output, 0.10 * output) << name;
  }
  EXPECT_EQ(FindWorkload("azure"), nullptr);
}

TEST(ScaleLength, LeavesATokenAtLeast) {
  EXPECT_EQ(ScaleLength(512, 0.25), 128);
  EXPECT_EQ(ScaleLength(3, 0.01), 1);
}

}  // namespace

}  // namespace fastdecode::load
