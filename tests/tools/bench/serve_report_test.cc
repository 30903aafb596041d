// The figures of `bench serve`, against ones computed by hand.
#include "tools/bench/serve_report.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode::serve_bench {

namespace {

using load::LimitKind;
using load::LoadRun;
using load::RequestResult;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;
constexpr double kNearly = 1e-9;

// A request that started so long after the run did, whose chunks came so long after its start.
RequestResult Succeeded(int64_t start_ms, const std::vector<int64_t>& chunks_ms, int64_t input, int64_t output) {
  RequestResult result;
  result.start_ns = result.intended_ns = start_ms * kMs;
  result.end_ns = (start_ms + chunks_ms.back()) * kMs;
  result.ttft_ns = chunks_ms.front() * kMs;
  result.latency_ns = chunks_ms.back() * kMs;
  for (size_t i = 1; i < chunks_ms.size(); ++i) result.itl_ns.push_back((chunks_ms[i] - chunks_ms[i - 1]) * kMs);
  result.prompt_tokens = input;
  result.output_tokens = output;
  return result;
}

RequestResult Failed(const std::string& reason) {
  RequestResult result;
  result.end_ns = kMs;
  result.error = reason;
  return result;
}

ReportOptions AllMetrics() {
  ReportOptions options;
  options.model = "m";
  options.num_prompts = 4;
  options.concurrency = 2;
  options.metrics = kMetricNames;
  options.percentiles = {50, 99, 99.9};
  return options;
}

// Two that succeed, one that fails, and one that was in flight as the run was interrupted.
LoadRun SmallRun() {
  LoadRun run;
  run.end_ns = 4000 * kMs;
  run.results = {Succeeded(0, {100, 120, 150, 210}, 10, 4), Failed("no"), Succeeded(500, {300, 1100}, 20, 3), {}};
  return run;
}

const Distribution& Metric(const Report& report, const std::string& name) {
  for (const auto& [metric, distribution] : report.metrics) {
    if (metric == name) return distribution;
  }
  ADD_FAILURE() << name << " is not reported";
  static const Distribution none;
  return none;
}

TEST(Describe, InterpolatesBetweenRanks) {
  // Sorted: 1, 2, 4, 8, 16 s. Rank of p is p/100 x 4.
  const Distribution d = Describe({16, 1, 8, 2, 4}, {0, 10, 25, 90, 100});
  EXPECT_THAT(d.percentiles_ms,
              ElementsAre(DoubleNear(1000, kNearly), DoubleNear(1400, kNearly), DoubleNear(2000, kNearly),
                          DoubleNear(12800, kNearly), DoubleNear(16000, kNearly)));
  EXPECT_NEAR(d.median_ms, 4000, kNearly);
  EXPECT_NEAR(d.mean_ms, 6200, kNearly);
  // Squares of what they are off 6.2: 27.04 + 17.64 + 4.84 + 3.24 + 96.04 = 148.8; its fifth is 29.76.
  EXPECT_NEAR(d.deviation_ms, 5455.2726788, 1e-6);
}

TEST(Describe, MedianOfAnEvenNumberLiesBetweenTheMiddleTwo) {
  EXPECT_NEAR(Describe({0.004, 0.001, 0.002, 0.003}, {}).median_ms, 2.5, kNearly);
}

TEST(Describe, OneValueIsEveryPercentile) {
  const Distribution d = Describe({0.25}, {1, 99});
  EXPECT_THAT(d.percentiles_ms, ElementsAre(DoubleNear(250, kNearly), DoubleNear(250, kNearly)));
  EXPECT_EQ(d.deviation_ms, 0);
}

TEST(Describe, NothingIsZero) {
  const Distribution d = Describe({}, {99});
  EXPECT_EQ(d.mean_ms, 0);
  EXPECT_THAT(d.percentiles_ms, ElementsAre(0));
}

TEST(MakeReport, CountsWhatEnded) {
  const Report report = MakeReport(SmallRun(), AllMetrics());
  EXPECT_EQ(report.completed, 2);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.input_tokens, 30);
  EXPECT_EQ(report.output_tokens, 7);
  EXPECT_NEAR(report.duration_s, 4, kNearly);
}

TEST(MakeReport, HasEachMetric) {
  const Report report = MakeReport(SmallRun(), AllMetrics());
  EXPECT_NEAR(Metric(report, "ttft").mean_ms, 200, kNearly);
  // (210 - 100) / 3 and (1100 - 300) / 2.
  EXPECT_NEAR(Metric(report, "tpot").mean_ms, (110.0 / 3 + 400) / 2, kNearly);
  // 20, 30, 60 and 800.
  EXPECT_NEAR(Metric(report, "itl").median_ms, 45, kNearly);
  EXPECT_NEAR(Metric(report, "e2el").deviation_ms, 445, kNearly);
  EXPECT_NEAR(Metric(report, "client_queue_time").mean_ms, 250, kNearly);
}

TEST(MakeReport, OneTokenHasNoTimePerToken) {
  LoadRun run;
  run.end_ns = 1000 * kMs;
  run.results = {Succeeded(0, {100}, 1, 1)};
  EXPECT_EQ(Metric(MakeReport(run, AllMetrics()), "tpot").mean_ms, 0);
}

TEST(MakeReport, PeaksAreOfWholeSeconds) {
  // Chunks at 0.10, 0.12, 0.15, 0.21, 0.80 and 1.60 s; the second request is there in both seconds.
  const Report report = MakeReport(SmallRun(), AllMetrics());
  EXPECT_EQ(report.chunks_per_s_max, 5);
  EXPECT_EQ(report.requests_max, 2);
}

TEST(MakeReport, GoodputNeedsEveryLimit) {
  ReportOptions options = AllMetrics();
  const auto good = [&] { return MakeReport(SmallRun(), options).good_per_s * 4; };
  options.limits[LimitKind::kTtft] = 300;
  EXPECT_NEAR(good(), 2, kNearly);
  options.limits[LimitKind::kTtft] = 299;
  EXPECT_NEAR(good(), 1, kNearly);
  options.limits = load::ParseLimits({"ttft:300", "tpot:400", "e2el:1099"}, true);
  EXPECT_NEAR(good(), 1, kNearly);
  options.limits = load::ParseLimits({"ttft:300", "tpot:36", "e2el:2000"}, true);
  EXPECT_NEAR(good(), 0, kNearly);
}

TEST(MakeReport, NamesTheMostFrequentReasonsFirst) {
  LoadRun run;
  run.end_ns = kMs;
  for (int i = 0; i < 7; ++i) run.results.push_back(Failed("reason " + std::to_string(i)));
  run.results.push_back(Failed("reason 4"));
  const Report report = MakeReport(run, AllMetrics());
  EXPECT_EQ(FailureText(report),
            "  2 x reason 4\n  1 x reason 0\n  1 x reason 1\n  1 x reason 2\n  1 x reason 3\n  and 2 other reasons\n");
}

TEST(ToJson, HasFiguresUnderTheirNames) {
  const LoadRun run = SmallRun();
  ReportOptions options = AllMetrics();
  const auto json = ToJson(MakeReport(run, options), run, options, true, "20261128-120000");
  EXPECT_EQ(json["total_input_tokens"], 30);
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_NEAR(json["output_throughput"].get<double>(), 7.0 / 4, kNearly);
  EXPECT_NEAR(json["total_token_throughput"].get<double>(), 37.0 / 4, kNearly);
  EXPECT_NEAR(json["p50_ttft_ms"].get<double>(), 200, kNearly);
  EXPECT_NEAR(json["p99.9_ttft_ms"].get<double>(), 299.8, kNearly);
  EXPECT_EQ(json["errors"], (std::vector<std::string>{"", "no", ""}));
  EXPECT_EQ(json["output_lens"], (std::vector<int>{4, 0, 3}));
  options.limits[LimitKind::kTtft] = 300;
  EXPECT_NEAR(ToJson(MakeReport(run, options), run, options, false, "")["request_goodput"].get<double>(), 0.5, kNearly);
}

TEST(ToJson, HasEachRequestOnlyIfAsked) {
  const LoadRun run = SmallRun();
  const auto json = ToJson(MakeReport(run, AllMetrics()), run, AllMetrics(), false, "");
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "start_times", "generated_texts", "errors"}) {
    EXPECT_FALSE(json.contains(key)) << key;
  }
}

TEST(ToTable, HasItsRows) {
  const LoadRun run = SmallRun();
  const std::string table = ToTable(MakeReport(run, AllMetrics()), run, AllMetrics());
  EXPECT_THAT(table, HasSubstr("============ Serving Benchmark Result ============\n"));
  EXPECT_THAT(table, HasSubstr("Successful requests:                     2         \n"));
  EXPECT_THAT(table, HasSubstr("Output token throughput (tok/s):         1.75      \n"));
  EXPECT_THAT(table, HasSubstr("---------------Time to First Token----------------\n"
                               "Mean TTFT (ms):                          200.00    \n"));
  EXPECT_THAT(table, HasSubstr("P99.9 TTFT (ms):                         299.80    \n"));
}

}  // namespace

}  // namespace fastdecode::serve_bench
