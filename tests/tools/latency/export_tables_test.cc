// The exports that are tables: CSV, HdrHistogram's text and perftest's columns.
#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/latency/made_up_result.h"
#include "tools/latency/export/export_csv.h"
#include "tools/latency/export/export_hgrm.h"
#include "tools/latency/export/export_perftest.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> Words(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// As RFC 4180 says, one character at a time.
std::vector<std::vector<std::string>> ParseCsv(const std::string& text) {
  std::vector<std::vector<std::string>> rows(1, std::vector<std::string>(1));
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string& cell = rows.back().back();
    if (text[i] == '"') {
      if (quoted && i + 1 < text.size() && text[i + 1] == '"') {
        cell += text[i++];
      } else {
        quoted = !quoted;
      }
    } else if (text[i] == ',' && !quoted) {
      rows.back().emplace_back();
    } else if (text[i] == '\n' && !quoted) {
      rows.emplace_back(1);
    } else {
      cell += text[i];
    }
  }
  EXPECT_FALSE(quoted);
  EXPECT_THAT(rows.back(), ElementsAre(""));
  rows.pop_back();
  return rows;
}

// The nearest rank, out of the samples.
uint64_t Ranked(std::vector<uint64_t> samples, double share) {
  std::sort(samples.begin(), samples.end());
  const double rank = std::ceil(share * static_cast<double>(samples.size()) - 1e-6);
  return samples[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

TEST(PhasesCsvTest, HasARowAPhase) {
  const LatencyResult result = MadeUpResult();
  std::ostringstream out;
  WritePhasesCsv(result, out);
  const auto rows = ParseCsv(out.str());
  ASSERT_THAT(rows, SizeIs(result.phases.size() + 1));
  EXPECT_THAT(rows[0], ElementsAre("phase", "where", "count", "min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns",
                                   "max_ns", "mean_ns", "stdev_ns", "share", "note"));
  for (const auto& row : rows) EXPECT_THAT(row, SizeIs(rows[0].size()));
  const std::vector<uint64_t> samples = MadeUpSamples(700, 15'000, 15'000);
  EXPECT_EQ(rows[4][0], "attend");
  EXPECT_EQ(rows[4][1], "home 0");
  EXPECT_EQ(rows[4][2], "700");
  EXPECT_EQ(rows[4][3], std::to_string(*std::min_element(samples.begin(), samples.end())));
  EXPECT_EQ(rows[4][4], std::to_string(Ranked(samples, 0.5)));
  EXPECT_EQ(rows[4][5], std::to_string(Ranked(samples, 0.9)));
  EXPECT_EQ(rows[4][6], std::to_string(Ranked(samples, 0.99)));
  EXPECT_EQ(rows[4][8], std::to_string(*std::max_element(samples.begin(), samples.end())));
  EXPECT_EQ(rows[4][12], "upper bound: " + std::string(kAwkward));
}

TEST(PhasesCsvTest, LeavesWhatIsWithheldEmpty) {
  std::ostringstream out;
  WritePhasesCsv(MadeUpResult(), out);
  const auto rows = ParseCsv(out.str());
  EXPECT_EQ(rows[4][7], "");  // 700 samples have less than five beyond 99.9 %
  EXPECT_EQ(rows[5][5], "");  // 12 have not five beyond 90 %
  EXPECT_NE(rows[5][4], "");  // but beyond the median
  EXPECT_THAT(std::vector<std::string>(rows[6].begin() + 3, rows[6].begin() + 11), testing::Each(IsEmpty()));
}

TEST(TokensCsvTest, HasARowAToken) {
  Timeline timeline;
  StepTimes step;
  step.start_ns = 1'000;
  step.end_ns = 9'000;
  step.step = 7;
  step.micro_batch = 1;
  step.rows = 2;
  for (size_t place = 0; place < kPlaces; ++place) step.place_ns[place] = 100 + place;
  step.residual_ns = -5;
  timeline.steps = {StepTimes(), step};
  timeline.tokens = {{41, 3, 1, 9'000}, {42, 0, 1, 9'000}};
  std::ostringstream out;
  WriteTokensCsv(timeline, out);
  EXPECT_THAT(Lines(out.str()),
              ElementsAre("request,index,micro_batch,step,rows,start_ns,end_ns,ns,boundary_ns,scheduler_ns,compose_ns,"
                          "s_part_ns,post_ns,wire_ns,home_queue_ns,home_prepare_ns,home_append_ns,home_attend_ns,"
                          "home_merge_ns,home_team_ns,pickup_ns,finish_ns,residual_ns",
                          "41,3,1,7,2,1000,9000,8000,100,101,102,103,104,105,106,107,108,109,110,111,112,113,-5",
                          "42,0,1,7,2,1000,9000,8000,100,101,102,103,104,105,106,107,108,109,110,111,112,113,-5"));
}

struct HgrmRow {
  double value_ms, share;
  size_t total;
  std::string inverse;
};

std::vector<HgrmRow> ParseHgrm(const std::string& text) {
  std::vector<HgrmRow> rows;
  for (const std::string& line : Lines(text)) {
    const std::vector<std::string> words = Words(line);
    if (words.empty() || words[0] == "Value" || words[0][0] == '#') continue;
    EXPECT_THAT(words, SizeIs(4)) << line;
    if (words.size() == 4) rows.push_back({std::stod(words[0]), std::stod(words[1]), std::stoul(words[2]), words[3]});
  }
  return rows;
}

TEST(HgrmTest, AgreesWithAFullSort) {
  for (const size_t count : {1u, 2u, 9u, 1'000u, 200'000u}) {
    SCOPED_TRACE(count);
    const std::vector<uint64_t> samples = MadeUpSamples(count, 3'000, count);
    std::vector<uint64_t> sorted = samples;
    std::sort(sorted.begin(), sorted.end());
    std::ostringstream out;
    WriteHgrm(Distribution(samples), out);
    const std::vector<HgrmRow> rows = ParseHgrm(out.str());
    ASSERT_FALSE(rows.empty());
    for (const HgrmRow& row : rows) {
      SCOPED_TRACE(row.share);
      const double expected_ms = static_cast<double>(Ranked(samples, row.share)) * 1e-6;
      EXPECT_NEAR(row.value_ms, expected_ms, 0.001 * expected_ms);
      const uint64_t value_ns = static_cast<uint64_t>(std::llround(row.value_ms * 1e6));
      EXPECT_EQ(row.total, std::upper_bound(sorted.begin(), sorted.end(), value_ns) - sorted.begin());
      if (row.share < 1) {
        EXPECT_NEAR(std::stod(row.inverse) * (1 - row.share), 1, 0.01);
      }
    }
    EXPECT_EQ(rows.back().share, 1);
    EXPECT_EQ(rows.back().total, count);
    EXPECT_EQ(rows.back().inverse, "inf");
  }
}

TEST(HgrmTest, ReportsThePercentilesThatPeopleAskFor) {
  std::ostringstream out;
  WriteHgrm(Distribution(MadeUpSamples(100'000, 3'000, 3)), out);
  const std::vector<HgrmRow> rows = ParseHgrm(out.str());
  std::vector<double> shares;
  for (const HgrmRow& row : rows) shares.push_back(row.share);
  for (const double share : {0.0, 0.5, 0.75, 0.9})
    EXPECT_THAT(shares, testing::Contains(testing::DoubleNear(share, 1e-9)));
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  // Ever closer to 1: among five of each halving lies one within a fifth of what is left at 99, 99.9 and 99.99 %.
  for (const double rest : {1e-2, 1e-3, 1e-4}) {
    EXPECT_THAT(shares, testing::Contains(testing::DoubleNear(1 - rest, 0.11 * rest)));
  }
}

TEST(HgrmTest, HasTheLinesAroundTheTable) {
  std::ostringstream out;
  WriteHgrm(Distribution({1'000'000, 3'000'000}), out);
  const std::vector<std::string> lines = Lines(out.str());
  EXPECT_THAT(Words(lines[0]), ElementsAre("Value", "Percentile", "TotalCount", "1/(1-Percentile)"));
  EXPECT_EQ(lines[1], "");
  EXPECT_EQ(lines[lines.size() - 3], "#[Mean    =     2.000000, StdDeviation   =     1.414214]");
  EXPECT_EQ(lines[lines.size() - 2], "#[Max     =     3.000000, Total count    =            2]");
  EXPECT_THAT(lines.back(), StartsWith("#[Buckets = "));
}

TEST(HgrmTest, OfNothingIsAnEmptyTable) {
  std::ostringstream out;
  WriteHgrm(Distribution(), out);
  EXPECT_THAT(ParseHgrm(out.str()), IsEmpty());
  EXPECT_THAT(out.str(), HasSubstr("Total count    =            0]"));
}

TEST(FindDistributionTest, KnowsPhasesAndRequests) {
  const LatencyResult result = MadeUpResult();
  EXPECT_EQ(FindDistribution(result, "token"), &result.phases[0].ns);
  EXPECT_EQ(FindDistribution(result, "attend"), &result.phases[3].ns);
  EXPECT_EQ(FindDistribution(result, "attend@home 1"), &result.phases[4].ns);
  EXPECT_EQ(FindDistribution(result, "itl"), &result.requests[0].itl_ns);
  EXPECT_EQ(FindDistribution(result, "attend@home 2"), nullptr);
  EXPECT_EQ(FindDistribution(LatencyResult(), "ttft"), nullptr);
}

TEST(PerftestTest, HasItsColumns) {
  std::vector<uint64_t> samples;
  for (uint64_t i = 1; i <= 10'000; ++i) samples.push_back(i * 10);
  const std::vector<std::string> lines = Lines(PerftestText({{"", 4096, Distribution(samples)}}));
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(Words(lines[0]),
            Words("#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] "
                  "99% percentile[usec] 99.9% percentile[usec]"));
  // Of 10, 20, ... 100000 ns; the standard deviation of 1 to n is sqrt(n (n + 1) / 12).
  EXPECT_THAT(Words(lines[1]),
              ElementsAre("4096", "10000", "0.010", "100.000", "50.000", "50.005", "28.869", "99.000", "99.900"));
}

TEST(PerftestTest, TheMaximumIsTheLargestSample) {
  std::vector<uint64_t> samples(1'000, 2'000);
  samples[123] = 9'999'000;
  EXPECT_EQ(Words(Lines(PerftestText({{"", 8, Distribution(samples)}}))[1])[3], "9999.000");
}

TEST(PerftestTest, WithholdsPercentilesOfTooFew) {
  const std::vector<std::string> words = Words(Lines(PerftestText({{"", 8, Distribution({1'000, 2'000})}}))[1]);
  EXPECT_THAT(words, ElementsAre("8", "2", "1.000", "2.000", "-", "1.500", "0.707", "-", "-"));
}

TEST(PerftestTest, SaysANameOnceForItsRows) {
  const Distribution ns({1'000});
  const std::vector<std::string> lines = Lines(PerftestText({{"hop", 8, ns}, {"hop", 16, ns}, {"bulk", 8, ns}}));
  ASSERT_THAT(lines, SizeIs(6));
  EXPECT_EQ(lines[1], "# hop");
  EXPECT_EQ(Words(lines[3])[0], "16");
  EXPECT_EQ(lines[4], "# bulk");
}

TEST(PerftestTest, NamesPhasesAndLeavesOutEmptyOnes) {
  const std::vector<std::string> lines = Lines(PerftestText(MadeUpResult()));
  ASSERT_THAT(lines, SizeIs(11));
  EXPECT_EQ(lines[7], "# attend, home 0");
  EXPECT_THAT(Words(lines[8]), SizeIs(9));
  EXPECT_THAT(Lines(PerftestText({{"a\nb", 8, Distribution({1})}})), SizeIs(3));
}

}  // namespace
}  // namespace fastdecode
