// Two results against each other.
#include "tools/latency/analysis/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/latency/made_up_result.h"
#include "tools/latency/distribution.h"
#include "tools/latency/export/export_json.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// As a file would hold it.
SavedDistribution Saved(const std::vector<uint64_t>& samples_ns) {
  const Distribution all(samples_ns);
  SavedDistribution saved;
  saved.count = all.count();
  saved.mean_ns = all.mean_ns();
  saved.stdev_ns = all.stdev_ns();
  saved.p50_ns = all.Percentile(0.5);
  saved.p90_ns = all.Percentile(0.9);
  saved.p99_ns = all.Percentile(0.99);
  saved.uncertainty = all.uncertainties();
  saved.samples_ns = ThinSamples(all.sorted_ns(), kSavedSamplesMax);
  return saved;
}

// Lognormal, the shape of most latencies: median 100 us.
std::vector<uint64_t> Draw(size_t count, double factor, double sigma, std::mt19937_64* random) {
  std::lognormal_distribution<double> distribution(std::log(100'000 * factor), sigma);
  std::vector<uint64_t> samples(count);
  for (uint64_t& ns : samples) ns = static_cast<uint64_t>(distribution(*random));
  return samples;
}

// The same, in groups of which all are the same, as the gaps of one step are; groups that follow each other have much
// in common too (`inertia`, 0 to 1), as those of a load that changes slowly.
std::vector<uint64_t> DrawInGroups(size_t count, double factor, double sigma, size_t group, double inertia,
                                   std::mt19937_64* random) {
  std::normal_distribution<double> normal;
  std::vector<uint64_t> samples(count);
  double state = normal(*random);
  for (size_t i = 0; i < count; ++i) {
    if (i % group == 0) state = inertia * state + std::sqrt(1 - inertia * inertia) * normal(*random);
    samples[i] = static_cast<uint64_t>(100'000 * factor * std::exp(sigma * state));
  }
  return samples;
}

struct Coverage {
  int covered = 0, too_low = 0, too_high = 0, unknown = 0;
  double widths = 0;

  int known() const { return covered + too_low + too_high; }
};

// Of pairs of which B is larger by `truth`. draw(factor, random) gives samples.
template <typename DrawSamples>
Coverage MeasureCoverage(uint64_t seed, std::optional<double> share, double truth, int trials,
                         const DrawSamples& draw) {
  std::mt19937_64 random(seed);
  Coverage coverage;
  CompareOptions options;
  options.resamples = 1000;
  for (int trial = 0; trial < trials; ++trial) {
    options.seed = static_cast<uint64_t>(trial) + 1;
    const SavedDistribution a = Saved(draw(1, &random)), b = Saved(draw(1 + truth, &random));
    const std::optional<Change> change = CompareStatistic(a, b, share, options);
    if (change) coverage.widths += change->high - change->low;
    if (!change) {
      ++coverage.unknown;
    } else if (change->low > truth) {
      ++coverage.too_high;
    } else if (change->high < truth) {
      ++coverage.too_low;
    } else {
      ++coverage.covered;
    }
  }
  return coverage;
}

// The width of such an interval of two lognormal means, or percentiles, if their spread were known.
double IdealWidth(size_t count, double sigma, std::optional<double> share) {
  const double root = std::sqrt(static_cast<double>(count));
  double error = std::sqrt(std::exp(sigma * sigma) - 1) / root;
  if (share) {
    const double z = *share == 0.5 ? 0 : *share == 0.9 ? 1.2816 : 2.3263;
    const double density = std::exp(-z * z / 2) / std::sqrt(2 * 3.141592653589793);
    error = sigma * std::sqrt(*share * (1 - *share)) / density / root;
  }
  return 2 * 1.96 * std::sqrt(2) * error;
}

// What "95 %" promises, by distributions whose truth is known; and that it is not kept by intervals that hold
// everything.
TEST(CompareTest, IntervalsCoverTheTruthAsOftenAsTheySay) {
  struct Case {
    size_t count;
    double sigma;
    std::optional<double> share;
  };
  const int trials = 200;
  for (const Case& c : {Case{150, 0.5, std::nullopt}, Case{300, 0.3, 0.5}, Case{300, 0.3, 0.9}, Case{1000, 0.5, 0.99},
                        Case{20'000, 0.5, 0.99}, Case{20'000, 0.5, 0.5}, Case{20'000, 0.5, std::nullopt}}) {
    for (const double truth : {0.0, 0.1}) {
      const Coverage coverage = MeasureCoverage(
          c.count, c.share, truth, c.count > 10'000 ? 100 : trials,
          [&c](double factor, std::mt19937_64* random) { return Draw(c.count, factor, c.sigma, random); });
      const std::string what = absl::StrCat(c.count, " samples, share ", c.share.value_or(0), ", truth ", truth);
      EXPECT_EQ(coverage.unknown, 0) << what;
      EXPECT_GE(coverage.covered, coverage.known() * 90 / 100) << what;
      const double ideal = IdealWidth(c.count, c.sigma, c.share) * (1 + truth);
      EXPECT_LE(coverage.widths / coverage.known(), 1.8 * ideal) << what;
    }
  }
}

// As many samples again that only repeat the others tell nothing more, and a slow change is worth few samples.
TEST(CompareTest, IntervalsAllowForWhatSamplesHaveInCommon) {
  struct Case {
    size_t group;
    double inertia;
  };
  for (const Case& c : {Case{16, 0.0}, Case{16, 0.9}, Case{1, 0.99}, Case{200, 0.0}}) {
    for (const std::optional<double> share : {std::optional<double>(), {0.5}, {0.9}, {0.99}}) {
      const Coverage coverage = MeasureCoverage(c.group, share, 0, 200, [&c](double factor, std::mt19937_64* random) {
        return DrawInGroups(8000, factor, 0.1, c.group, c.inertia, random);
      });
      const std::string what = absl::StrCat("groups of ", c.group, ", ", c.inertia, ", share ", share.value_or(0));
      EXPECT_EQ(coverage.unknown, 0) << what;
      EXPECT_GE(coverage.covered, coverage.known() * 88 / 100) << what;
    }
  }
}

// A file holds 2000 of a million samples, and their number: the interval is that of the million.
TEST(CompareTest, ManySamplesMakeANarrowIntervalThoughAFileHoldsFew) {
  for (const std::optional<double> share : {std::optional<double>(0.5), std::optional<double>()}) {
    const auto width_of = [share](size_t count) {
      const auto draw = [count](double factor, std::mt19937_64* random) { return Draw(count, factor, 0.5, random); };
      return MeasureCoverage(count, share, 0, 20, draw).widths;
    };
    // 100 times the samples: a tenth as wide.
    EXPECT_NEAR(width_of(2000) / width_of(200'000), 10, 4);
  }
}

TEST(CompareTest, TooFewSamplesAreNoComparison) {
  std::mt19937_64 random(1);
  const SavedDistribution few = Saved(Draw(40, 1, 0.5, &random)), many = Saved(Draw(1000, 1, 0.5, &random));
  EXPECT_FALSE(CompareStatistic(few, many, 0.99, CompareOptions()).has_value());
  EXPECT_FALSE(CompareStatistic(many, few, 0.9, CompareOptions()).has_value());
  EXPECT_TRUE(CompareStatistic(few, many, 0.5, CompareOptions()).has_value());
  // So few make no blocks.
  EXPECT_FALSE(CompareStatistic(many, Saved(Draw(20, 1, 0.5, &random)), 0.5, CompareOptions()).has_value());
  EXPECT_FALSE(CompareStatistic(Saved({}), many, std::nullopt, CompareOptions()).has_value());
  EXPECT_FALSE(CompareStatistic(Saved({1, 2}), many, std::nullopt, CompareOptions()).has_value());
  EXPECT_FALSE(CompareStatistic(Saved(std::vector<uint64_t>(100, 0)), many, 0.5, CompareOptions()).has_value());
}

SavedResult Result(const std::vector<uint64_t>& tokens, const std::vector<uint64_t>& attend) {
  SavedResult result;
  result.phases.push_back({"token", "engine", Saved(tokens), 1, ""});
  result.phases.push_back({"attend", "home 0", Saved(attend), 0.5, ""});
  return result;
}

TEST(CompareTest, EqualSamplesShowNoDifference) {
  std::mt19937_64 random(3);
  const SavedResult a = Result(Draw(3000, 1, 0.5, &random), Draw(3000, 1, 0.5, &random));
  const absl::StatusOr<Comparison> same = Compare(a, a, CompareOptions());
  ASSERT_TRUE(same.ok()) << same.status();
  ASSERT_EQ(same->rows.size(), 8u);
  for (const ComparedStatistic& row : same->rows) {
    EXPECT_EQ(row.verdict, ChangeVerdict::kNoDifference) << row.metric << row.statistic;
    EXPECT_EQ(row.change.change, 0);
  }
  EXPECT_FALSE(same->failed());
}

TEST(CompareTest, OfEqualDistributionsFewRowsDiffer) {
  std::mt19937_64 random(4);
  int rows = 0, differ = 0, failed = 0;
  for (int trial = 0; trial < 40; ++trial) {
    const SavedResult a = Result(Draw(1000, 1, 0.5, &random), Draw(1000, 1, 0.5, &random));
    const SavedResult b = Result(Draw(1000, 1, 0.5, &random), Draw(1000, 1, 0.5, &random));
    CompareOptions options;
    options.phases_count = true;
    options.resamples = 500;
    const absl::StatusOr<Comparison> comparison = Compare(a, b, options);
    for (const ComparedStatistic& row : comparison->rows) {
      ++rows;
      differ += row.verdict != ChangeVerdict::kNoDifference ? 1 : 0;
    }
    failed += comparison->failed() ? 1 : 0;
  }
  EXPECT_EQ(rows, 320);
  EXPECT_LE(failed, 2);  // for certain by more than 5 % is p99 alone now and then, which a thousand samples hardly tell
  EXPECT_LE(differ, rows / 10);  // one in twenty is what the intervals promise
}

TEST(CompareTest, TenPercentMoreAreFound) {
  std::mt19937_64 random(5);
  const std::vector<uint64_t> attend = Draw(20'000, 1, 0.3, &random);
  const SavedResult a = Result(Draw(20'000, 1, 0.3, &random), attend);
  const SavedResult b = Result(Draw(20'000, 1.1, 0.3, &random), attend);
  const Comparison slower = *Compare(a, b, CompareOptions());
  EXPECT_TRUE(slower.failed());
  for (const ComparedStatistic& row : slower.rows) {
    if (row.metric != "token") continue;
    EXPECT_EQ(row.verdict, ChangeVerdict::kSlower) << row.statistic;
    EXPECT_NEAR(row.change.change, 0.1, 0.06) << row.statistic;
  }
  // The other way round it is faster, which is no failure.
  const Comparison faster = *Compare(b, a, CompareOptions());
  EXPECT_FALSE(faster.failed());
  EXPECT_EQ(faster.rows[0].verdict, ChangeVerdict::kFaster);
  // And 10 % are none of more than 20 %.
  CompareOptions lenient;
  lenient.threshold = 0.2;
  EXPECT_FALSE(Compare(a, b, lenient)->failed());
}

TEST(CompareTest, ASlowerPhaseFailsOnlyIfAsked) {
  std::mt19937_64 random(6);
  const std::vector<uint64_t> tokens = Draw(5000, 1, 0.3, &random);
  const SavedResult a = Result(tokens, Draw(5000, 1, 0.3, &random));
  const SavedResult b = Result(tokens, Draw(5000, 1.3, 0.3, &random));
  CompareOptions options;
  EXPECT_FALSE(Compare(a, b, options)->failed());
  EXPECT_EQ(Compare(a, b, options)->rows[4].verdict, ChangeVerdict::kSlower);
  options.phases_count = true;
  EXPECT_TRUE(Compare(a, b, options)->failed());
}

// Of a percentile that lies among those that had not ended is known what it is not less than.
TEST(CompareTest, WhatHadNotEndedIsSlowerIfItsBoundIs) {
  std::mt19937_64 random(12);
  const SavedResult a = Result(Draw(1000, 1, 0.3, &random), {});
  const auto result = [](uint64_t at_least_ns, size_t count_ended = 200) {
    SavedResult overloaded;
    const std::vector<uint64_t> ended(count_ended, 50'000);
    const Distribution all(ended, std::vector<uint64_t>(1800, at_least_ns));
    SavedDistribution saved = Saved(ended);
    saved.unfinished = all.unfinished();
    saved.mean_ns = std::nullopt;
    saved.p50_ns = all.Percentile(0.5);
    saved.p90_ns = all.Percentile(0.9);
    saved.p99_ns = all.Percentile(0.99);
    saved.at_least_ns = {all.AtLeast(0.5), all.AtLeast(0.9), all.AtLeast(0.99), all.AtLeast(0.999)};
    overloaded.phases.push_back({"token", "engine", saved, 1, ""});
    return overloaded;
  };
  const SavedResult b = result(5'000'000);
  ASSERT_TRUE(b.phases[0].ns.at_least_ns.p50.has_value());
  const Comparison slower = *Compare(a, b, CompareOptions());
  EXPECT_TRUE(slower.failed());
  EXPECT_EQ(slower.rows[0].verdict, ChangeVerdict::kSlower);
  EXPECT_TRUE(slower.rows[0].b_at_least);
  EXPECT_EQ(slower.rows[3].verdict, ChangeVerdict::kUnfinished) << "the mean";
  const std::string text = FormatComparison(slower, CompareOptions(), 200);
  EXPECT_THAT(text, AllOf(HasSubstr("B IS SLOWER than A: token, engine p50 by >= +"), HasSubstr(" or more)"),
                          Not(HasSubstr("inf")), Not(HasSubstr("too few samples"))));
  EXPECT_TRUE(ToJson(slower, CompareOptions())["rows"][0]["change_high"].is_null());
  const Comparison faster = *Compare(b, a, CompareOptions());
  EXPECT_FALSE(faster.failed());
  EXPECT_EQ(faster.rows[0].verdict, ChangeVerdict::kFaster);
  const Comparison nothing_ended = *Compare(a, result(5'000'000, 0), CompareOptions());
  EXPECT_TRUE(nothing_ended.failed());
  // It may be more than that, or not.
  const Comparison open = *Compare(a, result(90'000), CompareOptions());
  EXPECT_EQ(open.rows[0].verdict, ChangeVerdict::kUnfinished);
  EXPECT_FALSE(open.judged());
  EXPECT_EQ(Compare(b, b, CompareOptions())->rows[0].verdict, ChangeVerdict::kUnfinished);
}

TEST(CompareTest, WhatMayAsWellBeNothingIsNoComparison) {
  std::mt19937_64 random(9);
  SavedDistribution a = Saved(Draw(1000, 1, 0.5, &random));
  const SavedDistribution b = a;
  a.uncertainty.mean.error_ns = *a.mean_ns;
  EXPECT_FALSE(CompareStatistic(a, b, std::nullopt, CompareOptions()).has_value());
  EXPECT_TRUE(CompareStatistic(b, a, std::nullopt, CompareOptions()).has_value());
  a.uncertainty.mean.error_ns = std::nan("");
  EXPECT_FALSE(CompareStatistic(b, a, std::nullopt, CompareOptions()).has_value());
}

TEST(CompareTest, SeedsDecideTheInterval) {
  std::mt19937_64 random(7);
  const SavedDistribution a = Saved(Draw(500, 1, 0.5, &random)), b = Saved(Draw(500, 1, 0.5, &random));
  CompareOptions one, two;
  two.seed = 2;
  const Change first = *CompareStatistic(a, b, std::nullopt, one);
  EXPECT_EQ(first.low, CompareStatistic(a, b, std::nullopt, one)->low);
  EXPECT_NE(first.low, CompareStatistic(a, b, std::nullopt, two)->low);
}

SavedResult MadeUp() { return *FromJson(ToJson(MadeUpResult()), "a.json"); }

TEST(CompareTest, RequestsByTheStartThatBothKnow) {
  const SavedResult a = MadeUp();
  SavedResult b = MadeUp();
  EXPECT_EQ(Compare(a, b, CompareOptions())->rows[0].where, "intended");
  EXPECT_EQ(Compare(a, b, CompareOptions())->rows[0].metric, "ttft");
  b.requests.erase(b.requests.begin());
  EXPECT_EQ(Compare(a, b, CompareOptions())->rows[0].where, "submitted");
  b.requests.clear();
  EXPECT_EQ(Compare(a, b, CompareOptions())->rows[0].metric, "token");
}

TEST(CompareTest, WhatOnlyOneHasAndWhatElseDiffers) {
  const SavedResult a = MadeUp();
  SavedResult b = MadeUp();
  b.phases.pop_back();
  b.phases[1].where = "elsewhere";
  b.provenance["cpu"]["microcode"] = "0x2";
  b.provenance["time"] = "2030-01-01T00:00:00Z";
  b.warnings = {"core 1 was gone"};
  const Comparison comparison = *Compare(a, b, CompareOptions());
  EXPECT_THAT(comparison.only_a, ElementsAre("step, engine", "preempted, engine"));
  EXPECT_THAT(comparison.only_b, ElementsAre("step, elsewhere"));
  ASSERT_EQ(comparison.differences.size(), 1u);
  EXPECT_EQ(comparison.differences[0].what, "processor");
  EXPECT_THAT(comparison.differences[0].b, HasSubstr("0x2"));
  EXPECT_THAT(comparison.warnings, ::testing::Contains("B: core 1 was gone"));
}

TEST(CompareTest, NothingInCommonIsAnError) {
  EXPECT_EQ(Compare(SavedResult(), MadeUp(), CompareOptions()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CompareTest, WithTooFewSamplesNothingIsJudged) {
  std::mt19937_64 random(10);
  const SavedResult a = Result(Draw(500, 1, 0.3, &random), Draw(500, 1, 0.3, &random));
  SavedResult b = Result(Draw(11, 1, 0.3, &random), Draw(500, 1, 0.3, &random));
  const Comparison comparison = *Compare(a, b, CompareOptions());
  EXPECT_FALSE(comparison.judged());
  EXPECT_THAT(FormatComparison(comparison, CompareOptions(), 200),
              HasSubstr("NOTHING COULD BE JUDGED: of no figure of requests, tokens or steps is enough known of both"));
  EXPECT_TRUE(ToJson(comparison, CompareOptions())["slower"].is_null());
  CompareOptions phases;
  phases.phases_count = true;
  EXPECT_TRUE(Compare(a, b, phases)->judged());
  // Where not even a phase has enough, the rows say so.
  b.phases.pop_back();
  EXPECT_FALSE(Compare(a, b, phases)->judged());
  EXPECT_FALSE(Compare(a, b, phases)->rows.empty());
}

TEST(CompareTest, WhereThereAreOnlyKernelsTheseCount) {
  std::mt19937_64 random(11);
  SavedResult a = Result({}, Draw(500, 1, 0.1, &random));
  SavedResult b = Result({}, Draw(500, 2, 0.1, &random));
  EXPECT_FALSE(Compare(a, b, CompareOptions())->judged());
  a.command = b.command = "kernel";
  EXPECT_TRUE(Compare(a, b, CompareOptions())->failed());
}

TEST(CompareTest, TextAndJson) {
  std::mt19937_64 random(8);
  SavedResult a = MadeUp(), b = MadeUp();
  b.phases[0].ns = Saved(Draw(5000, 50, 0.3, &random));
  b.provenance["cpu"]["model"] = kAwkward;
  b.phases.pop_back();
  const Comparison comparison = *Compare(a, b, CompareOptions());
  const std::string text = FormatComparison(comparison, CompareOptions(), 100);
  EXPECT_THAT(text, AllOf(HasSubstr("B IS SLOWER than A: token, engine p50 by +3"), HasSubstr("B AGAINST A\n"),
                          HasSubstr("only in A: preempted"), HasSubstr("slower !"), HasSubstr("WARNINGS")));
  EXPECT_THAT(FormatComparison(*Compare(a, a, CompareOptions()), CompareOptions(), 100),
              HasSubstr("B is not slower than A by more than 5.0 %"));
  CompareOptions sure;
  sure.confidence = 0.999;
  EXPECT_THAT(
      FormatComparison(comparison, sure, 1000),
      HasSubstr("an interval of 99.9 %, by how much stretches of each run differ. Of 1000 rows without a difference "
                "one shows one by chance"));
  for (const size_t width : {60, 80, 130}) {
    std::istringstream lines(FormatComparison(comparison, CompareOptions(), width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(Columns(line), width) << line;
  }
  const nlohmann::json json = ToJson(comparison, CompareOptions());
  EXPECT_EQ(json["slower"], true);
  EXPECT_EQ(json["rows"].size(), comparison.rows.size());
  EXPECT_EQ(json["rows"][16]["metric"], "token");
  EXPECT_EQ(json["rows"][16]["verdict"], "slower");
  EXPECT_GT(json["rows"][16]["change_low"], 2);
  // p99.9 is none of the four; p99 of 300 requests has too few.
  EXPECT_EQ(json["rows"][2]["verdict"], "too few samples");
  EXPECT_TRUE(json["rows"][2]["change"].is_null());
}

}  // namespace

}  // namespace fastdecode
