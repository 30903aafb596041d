// The exports that are tables: CSV and perftest's columns.
#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/latency/made_up_result.h"
#include "tools/latency/export/export_csv.h"
#include "tools/latency/export/export_perftest.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

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

TEST(PerftestTest, HasItsColumns) {
  std::vector<uint64_t> samples;
  for (uint64_t i = 1; i <= 10'000; ++i) samples.push_back(i * 10);
  const std::vector<std::string> lines = Lines(PerftestText({{"hop", 4096, Distribution(samples)}}));
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(Words(lines[0]),
            Words("#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] "
                  "99% percentile[usec] 99.9% percentile[usec]"));
  // Of 10, 20, ... 100000 ns; the standard deviation of 1 to n is sqrt(n (n + 1) / 12).
  EXPECT_THAT(Words(lines[2]),
              ElementsAre("4096", "10000", "0.010", "100.000", "50.000", "50.005", "28.869", "99.000", "99.900"));
}

TEST(PerftestTest, TheMaximumIsTheLargestSample) {
  std::vector<uint64_t> samples(1'000, 2'000);
  samples[123] = 9'999'000;
  EXPECT_EQ(Words(Lines(PerftestText({{"hop", 8, Distribution(samples)}}))[2])[3], "9999.000");
}

TEST(PerftestTest, WithholdsPercentilesOfTooFew) {
  const std::vector<std::string> words = Words(Lines(PerftestText({{"hop", 8, Distribution({1'000, 2'000})}}))[2]);
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

}  // namespace
}  // namespace fastdecode
