// Goodput, against requests whose figures were computed by hand.
#include "tools/load/goodput.h"

#include <fastdecode/fastdecode.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode::load {

namespace {

using testing::HasSubstr;
using testing::Pair;

constexpr int64_t kMs = 1'000'000;
constexpr double kNearly = 1e-9;

// A request that was to start at `intended_ms` and whose tokens came so long after that.
RequestResult Answered(int64_t intended_ms, const std::vector<int64_t>& tokens_ms) {
  RequestResult result;
  result.intended_ns = result.start_ns = intended_ms * kMs;
  result.ttft_ns = tokens_ms.front() * kMs;
  result.latency_ns = tokens_ms.back() * kMs;
  result.end_ns = result.last_token_ns();
  for (size_t i = 1; i < tokens_ms.size(); ++i) result.itl_ns.push_back((tokens_ms[i] - tokens_ms[i - 1]) * kMs);
  result.output_tokens = static_cast<int64_t>(tokens_ms.size());
  return result;
}

RequestResult Refused(int64_t intended_ms) {
  RequestResult result = Answered(intended_ms, {1});
  result.error = "HTTP 503";
  return result;
}

// Four that end and one that was in flight: TTFT 100, 100, 300; TPOT 50, 0 (one token), 20.
LoadRun SmallRun() {
  LoadRun run;
  run.results = {
      Answered(0, {100, 150, 200}), Answered(500, {100}), Refused(1000), Answered(1500, {300, 310, 340}), {}};
  run.results.back().intended_ns = 1600 * kMs;
  return run;
}

double Alone(const Attainment& attainment, LimitKind kind) { return attainment.alone[static_cast<size_t>(kind)]; }

TEST(Judge, AllLimitsTogetherAndEachAlone) {
  const Attainment attainment = Judge(SmallRun(), ParseLimits({"ttft:200", "tpot:30"}, true));
  EXPECT_EQ(attainment.requests, 4u);
  EXPECT_EQ(attainment.attained, 1u);  // the one of a single token, which has no time per token
  EXPECT_NEAR(attainment.joint, 0.25, kNearly);
  EXPECT_NEAR(Alone(attainment, LimitKind::kTtft), 0.5, kNearly);
  EXPECT_NEAR(Alone(attainment, LimitKind::kTpot), 0.5, kNearly);
}

TEST(Judge, ALimitIsMetByWhatEqualsIt) {
  EXPECT_EQ(Judge(SmallRun(), ParseLimits({"ttft:100", "tpot:50", "e2el:200"}, true)).attained, 2u);
}

TEST(Judge, SecondHalfIsOfThoseThatWereToStartLast) {
  // With TTFT 200 the first two are good, the refused one and the last are not.
  const Attainment attainment = Judge(SmallRun(), ParseLimits({"ttft:200"}, true));
  EXPECT_NEAR(attainment.joint, 0.5, kNearly);
  EXPECT_EQ(attainment.second_half, 0);
  EXPECT_TRUE(Judge(SmallRun(), ParseLimits({"ttft:300"}, true)).Reaches(0.5));
  EXPECT_FALSE(attainment.Reaches(0.5));
}

TEST(Judge, GoodRequestsASecondCountUntilTheLastToken) {
  // The last token comes at 1840 ms; the last intended start of those that ended is at 1500 ms.
  const Attainment attainment = Judge(SmallRun(), ParseLimits({"e2el:1000"}, true));
  EXPECT_NEAR(attainment.good_per_s, 3 / 1.84, kNearly);
  EXPECT_NEAR(attainment.drain_s, 0.34, kNearly);
}

TEST(Judge, DrainIsComparedWithTtftLimitsAndAMeanRequest) {
  // The mean of 200, 100 and 340 ms is 213.3 ms; three limits of 42 ms make 339.3 ms, of 43 ms 342.3 ms.
  EXPECT_EQ(Judge(SmallRun(), ParseLimits({"ttft:42"}, true)).drained, false);
  EXPECT_EQ(Judge(SmallRun(), ParseLimits({"ttft:43"}, true)).drained, true);
  EXPECT_EQ(Judge(SmallRun(), ParseLimits({"e2el:43"}, true)).drained, std::nullopt);
}

TEST(Judge, NothingHasEndedIsNothingAttained) {
  LoadRun run;
  run.results.resize(2);
  const Attainment attainment = Judge(run, {});
  EXPECT_EQ(attainment.requests, 0u);
  EXPECT_FALSE(attainment.Reaches(0));
}

TEST(JudgeScaled, MultipliesEveryLimit) {
  // TTFT 100, 100 and 300 ms, and a refusal: limits of 200, 150, 125, 100, 75, 50.
  std::vector<std::pair<double, double>> curve;
  for (const auto& [scale, attainment] : JudgeScaled(SmallRun(), ParseLimits({"ttft:100"}, true))) {
    curve.emplace_back(scale, attainment.joint);
  }
  EXPECT_THAT(curve, testing::ElementsAre(Pair(2, 0.5), Pair(1.5, 0.5), Pair(1.25, 0.5), Pair(1, 0.5), Pair(0.75, 0),
                                          Pair(0.5, 0)));
}

TEST(HighestEmaNs, MovesByATenthOfWhatAGapIsOff) {
  EXPECT_EQ(HighestEmaNs({}), 0);
  EXPECT_NEAR(HighestEmaNs({100}), 100, kNearly);
  // 100, 100 + 90, 190 - 9.
  EXPECT_NEAR(HighestEmaNs({100, 1000, 100}), 190, kNearly);
}

TEST(ParseLimits, ReaderReadsTwentyTokensASecond) {
  EXPECT_EQ(ParseLimits({"reader"}, true)[LimitKind::kEmaItl], 50);
  // One gap of 400 ms lifts the average of gaps of 20 ms to 58 ms, one of 300 ms to 48 ms.
  LoadRun run;
  run.results = {Answered(0, {10, 30, 50, 450, 470}), Answered(0, {10, 30, 50, 350, 370})};
  EXPECT_EQ(Judge(run, ParseLimits({"reader"}, true)).attained, 1u);
}

TEST(ParseLimits, RefusesWhatIsNoLimit) {
  const auto refusal = [](const std::string& value, bool stream) -> std::string {
    try {
      ParseLimits({value}, stream);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal("itl:3", true), HasSubstr("--goodput: 'itl:3'"));
  EXPECT_THAT(refusal("ttft:soon", true), HasSubstr("has no milliseconds after ttft:"));
  EXPECT_THAT(refusal("reader", false), HasSubstr("--no-stream"));
  EXPECT_EQ(refusal("e2el:3", false), "");
}

TEST(FindCrossing, LiesBetweenNeighbours) {
  EXPECT_NEAR(FindCrossing({{1, 1.0}, {2, 0.95}, {4, 0.85}, {8, 0.1}}, 0.9).value(), 3, kNearly);
  EXPECT_EQ(FindCrossing({{1, 1.0}, {2, 0.95}}, 0.9), std::nullopt);
  EXPECT_EQ(FindCrossing({{1, 0.5}, {2, 0.4}}, 0.9), std::nullopt);
}

}  // namespace

}  // namespace fastdecode::load
