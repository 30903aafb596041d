// Histograms and labels of Prometheus' text format; tests/tools/serve/metrics_test.py reads whole pages.
#include "tools/serve/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace fastdecode::serve {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kBounds[] = {0.0005, 1, 2.5};

Metrics::Gauges SomeGauges() {
  Metrics::Gauges gauges;
  gauges.stats.created_ns = 5'000'000'000;
  gauges.stats.now_ns = 8'000'000'000;
  return gauges;
}

TEST(Histogram, CountsValuesUpToItsBounds) {
  Histogram histogram(kBounds);
  histogram.Add(0.0001);
  histogram.Add(0.0005);  // a bound belongs to what is below it
  histogram.Add(0.5, 3);
  histogram.Add(2);
  histogram.Add(100);
  EXPECT_EQ(histogram.count(), 7u);
  EXPECT_DOUBLE_EQ(histogram.sum(), 0.0006 + 1.5 + 2 + 100);
  std::string text;
  histogram.AppendTo("h", "a=\"b\"", &text);
  EXPECT_THAT(text, HasSubstr("h_bucket{a=\"b\",le=\"0.0005\"} 2\n"
                              "h_bucket{a=\"b\",le=\"1.0\"} 5\n"
                              "h_bucket{a=\"b\",le=\"2.5\"} 6\n"
                              "h_bucket{a=\"b\",le=\"+Inf\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("h_count{a=\"b\"} 7\n"));
}

TEST(Histogram, TakesWhatOthersHaveCounted) {
  const uint64_t at_most[] = {2, 5, 5};
  std::string text;
  Histogram(kBounds, at_most, 6, 40.5).AppendTo("h", "", &text);
  EXPECT_THAT(text, HasSubstr("h_bucket{le=\"0.0005\"} 2\nh_bucket{le=\"1.0\"} 5\nh_bucket{le=\"2.5\"} 5\n"
                              "h_bucket{le=\"+Inf\"} 6\nh_sum 40.5\nh_count 6\n"));
}

TEST(Histogram, LeavesOutWhatWouldSpoilItsSum) {
  Histogram histogram(kBounds);
  histogram.Add(std::nan(""));
  histogram.Add(std::numeric_limits<double>::infinity());
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.sum(), 0);
}

TEST(Histogram, HasNoCommaWithoutLabels) {
  std::string text;
  Histogram(kBounds).AppendTo("h", "", &text);
  EXPECT_THAT(text, HasSubstr("h_bucket{le=\"+Inf\"} 0\nh_sum 0\nh_count 0\n"));
}

TEST(PrometheusLabel, EscapesAndStaysUtf8) {
  EXPECT_EQ(PrometheusLabel("a", "x\"y\\z\nw"), "a=\"x\\\"y\\\\z\\nw\"");
  EXPECT_EQ(PrometheusLabel("a", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"), "a=\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\"");
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(PrometheusLabel("a", "x\xffy"), "a=\"x" + bad + "y\"");
  EXPECT_EQ(PrometheusLabel("a", "\xc3"), "a=\"" + bad + "\"");                                // cut off
  EXPECT_EQ(PrometheusLabel("a", "\xc0\xaf"), "a=\"" + bad + bad + "\"");                      // a second form of '/'
  EXPECT_EQ(PrometheusLabel("a", "\xed\xa0\x80"), "a=\"" + bad + bad + bad + "\"");            // half of a pair
  EXPECT_EQ(PrometheusLabel("a", "\xf4\x90\x80\x80"), "a=\"" + bad + bad + bad + bad + "\"");  // beyond the last one
}

TEST(Metrics, AgesNeverExceedTheEngines) {
  const Metrics metrics("m", "1");
  Metrics::Gauges gauges = SomeGauges();
  gauges.homes.resize(1);
  gauges.homes[0].name = "local/0";
  std::string text = metrics.Text(gauges);
  EXPECT_THAT(text, HasSubstr("fastdecode_last_step_age_seconds 3\n"));
  EXPECT_THAT(text, HasSubstr("fastdecode_home_last_reply_age_seconds{home=\"local/0\"} 3\n"));
  gauges.stats.last_step_ns = 7'500'000'000;
  gauges.homes[0].last_reply_ns = 9'000'000'000;  // after the engine's figures had been read
  text = metrics.Text(gauges);
  EXPECT_THAT(text, HasSubstr("fastdecode_last_step_age_seconds 0.5\n"));
  EXPECT_THAT(text, HasSubstr("fastdecode_home_last_reply_age_seconds{home=\"local/0\"} 0\n"));
}

TEST(Metrics, UsageIsAShare) {
  const Metrics metrics("m", "1");
  Metrics::Gauges gauges = SomeGauges();
  EXPECT_THAT(metrics.Text(gauges), HasSubstr("vllm:kv_cache_usage_perc{model_name=\"m\"} 0\n"));
  gauges.stats.kv_pages = 8;
  gauges.stats.kv_pages_used = 2;
  gauges.stats.kv_pages_cached = 3;  // they go where pages are needed
  EXPECT_THAT(metrics.Text(gauges), HasSubstr("vllm:kv_cache_usage_perc{model_name=\"m\"} 0.25\n"));
  gauges.stats.kv_pages_used = 9;  // a home went between the two readings
  EXPECT_THAT(metrics.Text(gauges), HasSubstr("vllm:kv_cache_usage_perc{model_name=\"m\"} 1\n"));
}

// vLLM #5250 counts answers; vLLM #49135 has values where a request did not get so far.
TEST(Metrics, ARequestCountsOnceAndNothingThatIsNotKnown) {
  Metrics metrics("m", "1");
  RequestOutcome outcome;
  outcome.finish = RequestOutcome::Finish::kAbort;
  outcome.choices = 5;
  outcome.total_s = 2;
  metrics.OnOutcome(outcome);
  const std::string text = metrics.Text(SomeGauges());
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total{model_name=\"m\",finished_reason=\"abort\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("vllm:e2e_request_latency_seconds_count{model_name=\"m\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_params_n_sum{model_name=\"m\"} 5\n"));
  for (const char* name : {"queue_time", "prefill_time", "decode_time", "inference_time", "time_per_output_token"}) {
    EXPECT_THAT(text, HasSubstr("vllm:request_" + std::string(name) + "_seconds_count{model_name=\"m\"} 0\n"));
  }
  EXPECT_THAT(text, HasSubstr("vllm:request_params_max_tokens_count{model_name=\"m\"} 0\n"));
}

TEST(Metrics, StepTimesOfAnOlderLibraryAreReadAsFarAsTheyGo) {
  Metrics metrics("m", "1");
  fd_request_times times = {};
  times.struct_size = offsetof(fd_request_times, prefill);
  times.queue_ns = 2'000'000'000;
  times.decode.home_ns = 7'000'000'000;  // behind what is filled in
  metrics.OnStepTimes(times);
  const std::string text = metrics.Text(SomeGauges());
  EXPECT_THAT(text, HasSubstr("fastdecode_queue_seconds_total 2\n"));
  EXPECT_THAT(text, HasSubstr("fastdecode_place_seconds_total{phase=\"decode\",place=\"home\"} 0\n"));
}

TEST(Metrics, RoutesAreBounded) {
  Metrics metrics("m", "1");
  for (int i = 0; i < 1000; ++i) metrics.OnResponse("/" + std::to_string(i), 404, 0.5);
  const std::string text = metrics.Text(SomeGauges());
  EXPECT_THAT(text, HasSubstr("fastdecode_http_responses_total{route=\"/62\",code=\"404\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("route=\"/63\"")));
  EXPECT_THAT(text, HasSubstr("fastdecode_http_responses_total{route=\"other\",code=\"404\"} 937\n"));
}

}  // namespace
}  // namespace fastdecode::serve
