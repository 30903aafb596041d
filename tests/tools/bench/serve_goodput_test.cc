// What bench serve says of limits: the keys of its JSON, which others read, and its text.
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/bench/serve_outcome.h"

namespace fastdecode::serve_bench {

namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

std::set<std::string> Keys(const nlohmann::ordered_json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

// Two requests, of which one keeps a TTFT of 200 ms; a search of two seeds; interference at one size.
ServeOutcome SmallOutcome() {
  constexpr int64_t kMs = 1'000'000;
  ServeOutcome outcome;
  outcome.options.limits = load::ParseLimits({"ttft:200", "reader"}, true);
  for (const int64_t ttft_ms : {100, 300}) {
    load::RequestResult& result = outcome.run.results.emplace_back();
    result.ttft_ns = ttft_ms * kMs;
    result.latency_ns = 400 * kMs;
    result.end_ns = 400 * kMs;
    result.output_tokens = 2;
  }
  for (const double rate : {1.0, 2.0}) {
    load::RatePoint point;
    point.rate = rate;
    point.requests = 2;
    point.attainment = load::Judge(outcome.run, outcome.options.limits);
    point.attainment.joint = 1.1 - 0.2 * rate;
    outcome.points.push_back(point);
  }
  outcome.searches = {{3, true, {}}, {5, true, {}}};
  InterferencePoint interference;
  interference.chunk = 64;
  interference.alone = interference.with_prompts = Describe({0.01, 0.03}, {50, 99});
  outcome.interference = {interference};
  return outcome;
}

TEST(GoodputJson, HasItsKeys) {
  const nlohmann::ordered_json json = GoodputJson(SmallOutcome());
  EXPECT_EQ(Keys(json), (std::set<std::string>{"limits_ms", "run", "slo_scale", "rates", "max_rate", "interference"}));
  const std::set<std::string> judged = {"requests", "attained", "attainment", "second_half",
                                        "good_rps", "drain_s",  "drained"};
  EXPECT_EQ(Keys(json["run"]), judged);
  EXPECT_EQ(Keys(json["run"]["attainment"]), (std::set<std::string>{"all", "ttft", "ema_itl"}));
  EXPECT_EQ(json["limits_ms"], (nlohmann::ordered_json{{"ttft", 200.0}, {"ema_itl", 50.0}}));
  std::set<std::string> rate = judged;
  rate.insert({"request_rate", "planned", "cut", "interrupted", "reached"});
  EXPECT_EQ(Keys(json["rates"][0]), rate);
  std::set<std::string> scaled = judged;
  scaled.insert("scale");
  EXPECT_EQ(Keys(json["slo_scale"][0]), scaled);
  EXPECT_EQ(json["max_rate"]["request_rate"], 4.0);
  EXPECT_EQ(json["max_rate"]["searches"].size(), 2u);
  EXPECT_EQ(Keys(json["interference"][0]),
            (std::set<std::string>{"prefill_chunk", "alone", "with_prompts", "prompts", "median_prompt_ttft_ms"}));
}

TEST(GoodputJson, IsNullWhereNothingWasAskedFor) { EXPECT_TRUE(GoodputJson({}).is_null()); }

TEST(MaxRate, IsTheMedianOfWholeSearches) {
  ServeOutcome outcome;
  EXPECT_EQ(outcome.MaxRate(), std::nullopt);
  outcome.searches = {{7, true, {}}, {1, false, {}}, {2, true, {}}, {3, true, {}}};
  EXPECT_EQ(outcome.MaxRate(), 3);
}

TEST(GoodputText, SaysWhatWasFound) {
  const std::string text = GoodputText(SmallOutcome());
  EXPECT_THAT(text, HasSubstr("limits x      all     ttft  ema_itl"));
  EXPECT_THAT(text, HasSubstr("      1.00   0.5000   0.5000   1.0000"));
  EXPECT_THAT(text, HasSubstr("The curve crosses 90 % at 1.000 requests/s."));
  EXPECT_THAT(text, HasSubstr("Highest rate at which 90 % of the requests keep all limits: 4.000 requests/s (searches: "
                              "3.000 5.000)"));
}

TEST(GoodputText, AnInterruptedRunHasNotMissed) {
  ServeOutcome outcome = SmallOutcome();
  outcome.points[0].cut = true;
  outcome.points[1].cut = outcome.points[1].interrupted = true;
  const std::string text = GoodputText(outcome);
  EXPECT_THAT(text, ContainsRegex(" 1\\.000 .*  missed, cut short\n"));
  EXPECT_THAT(text, ContainsRegex(" 2\\.000 .*[0-9]  cut short\n"));
}

TEST(GoodputText, WithoutLimitsRequestsHaveOnlyToSucceed) {
  ServeOutcome outcome = SmallOutcome();
  outcome.options.limits = {};
  EXPECT_THAT(GoodputText(outcome), HasSubstr("Share of requests that succeeded, by rate\n"));
}

TEST(AttainmentCurve, LeavesOutRunsThatWereCut) {
  ServeOutcome outcome = SmallOutcome();
  outcome.points.back().cut = true;
  EXPECT_EQ(AttainmentCurve(outcome.points).size(), 1u);
}

}  // namespace

}  // namespace fastdecode::serve_bench
