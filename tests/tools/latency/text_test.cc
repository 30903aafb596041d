// The report for terminals.
#include "tools/latency/text/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/latency/made_up_result.h"
#include "tools/latency/text/text_table.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::vector<std::string> Lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The lines below the heading that begins so, up to the next empty one.
std::vector<std::string> Section(const std::string& text, const std::string& heading) {
  const std::vector<std::string> lines = Lines(text);
  const auto first =
      std::find_if(lines.begin(), lines.end(), [&](const std::string& line) { return line.rfind(heading, 0) == 0; });
  if (first == lines.end()) return {};
  return {first + 1, std::find(first, lines.end(), "")};
}

std::string LineWith(const std::vector<std::string>& lines, const std::string& begin) {
  for (const std::string& line : lines) {
    if (line.rfind("  " + begin, 0) == 0) return line;
  }
  ADD_FAILURE() << "no line begins with " << begin;
  return "";
}

std::vector<std::string> Words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

TEST(TextTest, NoLineIsLongerThanTheTerminalAndNoneIsACommandToIt) {
  const LatencyResult result = MadeUpResult();
  for (const size_t width : {60, 61, 72, 80, 97, 110, 200}) {
    const std::string text = FormatResult(result, width);
    for (const std::string& line : Lines(text)) {
      EXPECT_LE(Columns(line), width) << line;
      EXPECT_THAT(line, Not(::testing::EndsWith(" ")));
    }
    EXPECT_TRUE(std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 && c != '\n'; }));
  }
  EXPECT_EQ(FormatResult(result, 1), FormatResult(result, 60));
}

TEST(TextTest, HasEverySectionInOrder) {
  const std::string text = FormatResult(MadeUpResult(), 100);
  size_t last = 0;
  for (const std::string heading :
       {"fastdecode latency step: 12,345 tokens in 10,000 steps, 10.0 s recorded", "\nVERDICT\n", "\nWARNINGS",
        "\nSLO\n", "\nPHASES, us\n", "\nTHE MEAN TOKEN of 12,345: 1.00 ms\n", "\nOVERLAP\n", "\nHOMES", "\nACHIEVED",
        "\nWORST TOKENS\n", "\nREQUESTS: 300 whole ones; 1 FAILED\n", "\nRECORDING\n"}) {
    const size_t at = text.find(heading);
    ASSERT_NE(at, std::string::npos) << heading;
    EXPECT_GE(at, last) << heading;
    last = at;
  }
}

TEST(TextTest, NothingIsSaidOfWhatThereIsNot) {
  LatencyResult result;
  result.command = "attach";
  const std::string text = FormatResult(result, 80);
  for (const std::string heading : {"WARNINGS", "SLO", "PHASES", "THE MEAN", "HOME", "ACHIEVED", "WORST", "REQUESTS"}) {
    EXPECT_THAT(text, Not(HasSubstr(heading)));
  }
  // Nothing was measured, so nothing was found to be well.
  EXPECT_THAT(Section(text, "VERDICT"), ElementsAre("  none: no token was made while it recorded"));
}

TEST(TextTest, TheVerdict) {
  LatencyResult result = MadeUpResult();
  result.interrupted = false;
  EXPECT_THAT(Section(FormatResult(result, 110), "VERDICT"),
              ElementsAre("  * home 1: attend takes 50.2 us longer a hop than at the other homes, whatever it reads",
                          StartsWith("  * <b>&\"home\", 1\\2?'")));
  result.findings.clear();
  EXPECT_THAT(Section(FormatResult(result, 120), "VERDICT"), ElementsAre("  no fault found"));
  result.interrupted = true;
  EXPECT_THAT(Section(FormatResult(result, 120), "VERDICT"),
              ElementsAre("  ! the machine interrupted this run: see the warnings", "  no fault found"));
}

TEST(TextTest, Slos) {
  LatencyResult result = MadeUpResult();
  EXPECT_THAT(Words(LineWith(Section(FormatResult(result, 60), "SLO"), "met")),
              ElementsAre("met", "ttft:400ms,p90", "55.0", "ms"));
  EXPECT_THAT(LineWith(Section(FormatResult(result, 60), "SLO"), "MISSED"), HasSubstr("tpot:1ms,p99.9"));
  EXPECT_THAT(LineWith(Section(FormatResult(result, 60), "SLO"), "MISSED"), HasSubstr("failed"));
  for (RequestFigures& figures : result.requests) figures.failed = 0;
  EXPECT_THAT(LineWith(Section(FormatResult(result, 60), "SLO"), "MISSED"), HasSubstr("too few samples"));
}

TEST(TextTest, PhasesHavePercentilesOfTheirSamplesAndWithholdThoseOfTooFew) {
  const LatencyResult result = MadeUpResult();
  const std::vector<std::string> wide = Section(FormatResult(result, 120), "PHASES");
  EXPECT_THAT(Words(wide[0]),
              ElementsAre("phase", "where", "count", "min", "p50", "p90", "p99", "p99.9", "max", "share"));
  // 12 samples: p50 has six on each side, p90 has one beyond.
  const std::vector<std::string> few = Words(LineWith(wide, "attend        home 1"));
  ASSERT_THAT(few, SizeIs(12));
  const Distribution& ns = result.phases[4].ns;
  EXPECT_EQ(few[3], "12");
  EXPECT_NEAR(std::stod(few[4]), static_cast<double>(ns.sorted_ns().front()) * 1e-3, 0.051);
  EXPECT_NEAR(std::stod(few[5]), static_cast<double>(ns.sorted_ns()[5]) * 1e-3, 0.051);
  EXPECT_THAT(std::vector<std::string>(few.begin() + 6, few.begin() + 9), ElementsAre("-", "-", "-"));
  EXPECT_NEAR(std::stod(few[9]), static_cast<double>(ns.sorted_ns().back()) * 1e-3, 0.051);
  EXPECT_EQ(few[10], "1.6");
  EXPECT_THAT(wide, ::testing::Contains("  -   withheld: fewer than 5 samples lie beyond it"));
  EXPECT_THAT(wide, ::testing::Contains(StartsWith("  [1] upper bound: ")));
  EXPECT_THAT(LineWith(wide, "attend [1]"), HasSubstr("home 0"));
  // The phase without a sample is left out.
  EXPECT_THAT(FormatResult(result, 120), Not(HasSubstr("preempted")));
}

TEST(TextTest, NoFootnoteIfNothingIsWithheld) {
  LatencyResult result = MadeUpResult();
  result.phases.resize(2);
  EXPECT_THAT(FormatResult(result, 120), Not(HasSubstr("withheld")));
}

TEST(TextTest, NarrowTablesLoseColumnsAndNoRow) {
  const LatencyResult result = MadeUpResult();
  for (const std::string heading : {"PHASES", "HOMES", "ACHIEVED", "REQUESTS"}) {
    const std::vector<std::string> wide = Section(FormatResult(result, 150), heading);
    const std::vector<std::string> narrow = Section(FormatResult(result, 60), heading);
    EXPECT_LT(Words(narrow[0]).size(), Words(wide[0]).size()) << heading;
    EXPECT_GE(narrow.size(), wide.size()) << heading;  // footnotes take more lines
  }
  const std::vector<std::string> header = Words(Section(FormatResult(result, 60), "PHASES")[0]);
  for (const std::string name : {"phase", "where", "count", "p50", "p99", "max"}) {
    EXPECT_THAT(header, ::testing::Contains(name));
  }
}

TEST(TextTest, TheMeanTokenAddsUp) {
  const LatencyResult result = MadeUpResult();
  const std::vector<std::string> lines = Section(FormatResult(result, 80), "THE MEAN TOKEN");
  std::map<std::string, double> us, percent;
  double sum_us = 0, sum_percent = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> words = Words(lines[i]);
    const auto sign = std::find(words.begin(), words.end(), "%");
    if (sign == words.end()) break;
    us[words[0] + (words[0] == "home" ? " " + words[1] : "")] = std::stod(*(sign - 2));
    percent[words[0]] = std::stod(*(sign - 1));
    if (words[0] == "parts" || words[0] == "residual" || words[0] == "token") continue;
    sum_us += std::stod(*(sign - 2));
    sum_percent += std::stod(*(sign - 1));
  }
  EXPECT_EQ(us.size(), 17u);
  EXPECT_EQ(us["home attend"], 50);
  EXPECT_NEAR(us["parts"], sum_us, 0.5);
  EXPECT_NEAR(percent["parts"], sum_percent, 0.5);
  EXPECT_NEAR(us["parts"] + us["residual"], us["token"], 0.5);
  EXPECT_EQ(us["token"], 1000);
  EXPECT_EQ(percent["token"], 100);
  // Points stand above each other.
  EXPECT_EQ(LineWith(lines, "boundary").find('.'), LineWith(lines, "finish").find('.'));
}

TEST(TextTest, ATimelineShowsWhereTheLongestSpansLie) {
  LatencyResult result;
  TokenStory story;
  story.id = 5;
  story.index = 2;
  story.step = 9;
  story.start_ns = 1'000'000;
  story.end_ns = 2'000'000;
  story.place_ns[static_cast<size_t>(Place::kAttend)] = 750'000;
  story.place_ns[static_cast<size_t>(Place::kStage)] = 249'000;
  story.place_ns[static_cast<size_t>(Place::kPost)] = 1'000;  // too little to be named
  story.longest = {{Place::kAttend, 3, 1, 1'500'000, 500'000}, {Place::kStage, -1, -1, 1'000'000, 100'000}};
  result.worst = {story};
  // 60 columns hold a strip of 53: the second half is "1", the first tenth "2".
  EXPECT_THAT(Section(FormatResult(result, 60), "WORST"),
              ElementsAre("  #1 1.00 ms: token 2 of request 5, step 9 of micro-batch 0",
                          "     |" + std::string(6, '2') + std::string(20, '-') + std::string(27, '1') + "|",
                          "     1 home attend, layer 3, home 1: 500 us from +500 us",
                          "     2 S-Part: 100 us from +0 ns", "     all of it: home attend 75.0 %, S-Part 24.9 %"));
}

TEST(TextTest, RequestsByBothStarts) {
  const std::vector<std::string> lines = Section(FormatResult(MadeUpResult(), 100), "REQUESTS");
  EXPECT_THAT(Words(lines[1])[1], "intended");
  EXPECT_THAT(Words(lines[2])[1], "submitted");
  EXPECT_THAT(Words(lines[3])[1], "300");  // TPOT has no start
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("a stall is charged to every request")));
  LatencyResult result = MadeUpResult();
  result.requests.erase(result.requests.begin());
  EXPECT_THAT(FormatResult(result, 100), Not(HasSubstr("a stall is charged")));
}

TEST(TextTest, MoreThanMemoryComesFromTheCache) {
  LatencyResult result;
  result.achieved = {{"KV read, a home", 45, 30, "GB/s", kReadTest},
                     {"weights read, S-Part", 20, 30, "GB/s", kReadTest}};
  for (Achieved& achieved : result.achieved) NoteCache(&achieved);
  const std::string text = FormatResult(result, 100);
  EXPECT_THAT(text, HasSubstr("KV read, a home: more than DRAM: it comes from the cache"));
  EXPECT_THAT(text, Not(HasSubstr("S-Part: more")));
}

TEST(TextTest, RequestsThatHaveNotFinished) {
  LatencyResult result;
  RequestFigures figures;
  figures.start = "submitted";
  figures.requests = 40;
  figures.failed = 2;
  figures.unfinished = 18;
  figures.ttft_ns = Distribution(std::vector<uint64_t>(50, 20'000'000), std::vector<uint64_t>(10, 3'000'000'000));
  figures.e2e_ns = Distribution(std::vector<uint64_t>(40, 80'000'000), std::vector<uint64_t>(18, 3'000'000'000));
  result.requests = {figures};
  result.slo = {{"ttft:1s,p90", 1e9, 0.9, 3e9, false, true}};
  const std::string text = FormatResult(result, 100);
  const std::vector<std::string> lines = Section(text, "REQUESTS");
  // TTFT, start, count, mean, p50, p90: that of ten in sixty is not known.
  EXPECT_THAT(Words(lines[1]), ElementsAre("TTFT", "submitted", "50", ">=", "517", "ms", "20.0", "ms", ">=", "3.00",
                                           "s", "-", "-", "20.0", "ms"));
  EXPECT_THAT(text,
              HasSubstr("18 of 60 requests had not finished, 10 of them without a first token (their waits so far "
                        "count"));
  EXPECT_THAT(Section(text, "SLO")[1], HasSubstr(">= 3.00 s"));
}

TEST(TextTest, GapsOfMicrosecondsBesideSecondsOfWaiting) {
  LatencyResult result;
  RequestFigures figures;
  figures.start = "submitted";
  figures.requests = 20;
  figures.ttft_ns = Distribution(std::vector<uint64_t>(20, 2'345'000'000));
  figures.itl_ns = Distribution(std::vector<uint64_t>(20, 2'345));
  result.requests = {figures};
  const std::vector<std::string> lines = Section(FormatResult(result, 100), "REQUESTS");
  EXPECT_THAT(lines, ::testing::Contains(AllOf(HasSubstr("TTFT"), HasSubstr("2.35 s"))));
  EXPECT_THAT(lines, ::testing::Contains(AllOf(HasSubstr("ITL"), HasSubstr("2.35 us"))));
}

TEST(TextTest, TheCostOfRecording) {
  LatencyResult result = MadeUpResult();
  result.recording_cost = {{"ns_per_event", 23.4}, {"step_share", 0.0012}, {"event_ns", 1500}, {"by", "paired runs"}};
  const std::string text = FormatResult(result, 200);
  EXPECT_THAT(text, AllOf(HasSubstr("per event 23 ns"), HasSubstr("step share 0.1 %"), HasSubstr("event 1.50 us"),
                          HasSubstr("by paired runs"), HasSubstr("3 lost")));
}

// ---- Tables

TEST(TextTableTest, OneLine) {
  EXPECT_EQ(OneLine("a\nb\tc\033[31m\x7f"), "a?b?c?[31m?");
  EXPECT_EQ(OneLine("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"), "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(OneLine("\xff \xc3 \xc0\x80 \xc2\x9b"), "? ? ?? ??");               // broken, overlong, a control character
  EXPECT_EQ(OneLine("\xe0\x80\x80 \xf4\x90\x80\x80 \xe2\x82"), "??? ???? ??");  // overlong, beyond Unicode, cut off
}

TEST(TextTableTest, DropsTheLeastImportantThenCutsNames) {
  TextTable table({{"name", true, TextTable::kAlways, 6},
                   {"value", false, TextTable::kAlways},
                   {"less", false, 2},
                   {"least", false, 1},
                   {"empty", false, 3}});
  table.AddRow({"a long name", "1", "2", "3", ""});
  table.AddRow({"b", "100", "2", "3", ""});
  EXPECT_EQ(table.Format(80, 2),
            "  name         value  less  least\n"
            "  a long name      1     2      3\n"
            "  b              100     2      3\n");
  EXPECT_EQ(table.Format(32, 2),
            "  name         value  less\n"
            "  a long name      1     2\n"
            "  b              100     2\n");
  EXPECT_EQ(table.Format(17, 2),
            "  name      value\n"
            "  a long ~      1\n"
            "  b           100\n");
  // It cannot be narrower.
  EXPECT_EQ(table.Format(5, 2),
            "  name    value\n"
            "  a lon~      1\n"
            "  b         100\n");
}

TEST(TextTableTest, PointsAboveEachOther) {
  TextTable table({{"", true, TextTable::kAlways}, TextTable::Numbers("us", TextTable::kAlways)});
  table.AddRow({"a", "1.25"});
  table.AddRow({"b", "31.2"});
  table.AddRow({"c", "-"});
  table.AddRow({"d", "1000"});
  EXPECT_EQ(table.Format(80, 0),
            "        us\n"
            "a     1.25\n"
            "b    31.2\n"
            "c     -\n"
            "d  1000\n");
}

}  // namespace

}  // namespace fastdecode
