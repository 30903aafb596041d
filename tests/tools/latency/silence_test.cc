// Times at which an engine that had requests did nothing.
#include "tools/latency/analysis/silence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/latency/event_maker.h"
#include "tools/latency/analysis/analysis.h"
#include "tools/latency/analysis/timeline.h"
#include "tools/latency/findings/findings.h"
#include "tools/latency/text/text.h"

namespace fastdecode {

namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kStart = 1'000'000'000'000;

// Tokens of a request, one every 5 ms, from one moment to another.
class Tokens {
 public:
  void Every5Ms(uint64_t from_ms, uint64_t to_ms) {
    for (uint64_t ms = from_ms; ms <= to_ms; ms += 5, ++step_) maker_.Token(0, step_, kStart + ms * kMs, 7, step_);
  }
  void Span(fd_record_kind kind, uint64_t from_ms, uint64_t to_ms) {
    maker_.Add(kind, 0, 0, kStart + from_ms * kMs, kStart + to_ms * kMs);
  }
  void Leave(uint64_t at_ms) {
    fd_record_event& event = maker_.Add(FD_RECORD_LEAVE, 0, step_, kStart + at_ms * kMs, kStart + at_ms * kMs);
    event.id = 7;
    event.part = FD_LEAVE_FINISHED;
  }
  Recording Until(uint64_t end_ms) const {
    Recording recording;
    recording.events = maker_.events;
    recording.start_ns = kStart;
    recording.end_ns = kStart + end_ms * kMs;
    std::stable_sort(recording.events.begin(), recording.events.end(),
                     [](const fd_record_event& a, const fd_record_event& b) { return a.end_ns < b.end_ns; });
    return recording;
  }

 private:
  EventMaker maker_;
  uint32_t step_ = 0;
};

std::vector<Silence> SilencesOf(const Recording& recording) {
  return FindSilences(recording, BuildTimeline(recording));
}

TEST(SilenceTest, NoneWhereTokensCome) {
  Tokens tokens;
  tokens.Every5Ms(5, 5000);
  EXPECT_THAT(SilencesOf(tokens.Until(5010)), IsEmpty());
  EXPECT_THAT(SilencesOf(Recording()), IsEmpty());
}

TEST(SilenceTest, AtTheEnd) {
  Tokens tokens;
  tokens.Every5Ms(5, 1500);
  const Recording recording = tokens.Until(5000);
  const std::vector<Silence> silences = SilencesOf(recording);
  ASSERT_THAT(silences, SizeIs(1));
  EXPECT_TRUE(silences[0].at_end);
  EXPECT_EQ(silences[0].ns(), 3500e6);
  EXPECT_EQ(SilentAtEndNs(silences), 3500e6);

  const Timeline timeline = BuildTimeline(recording);
  LatencyResult result = Analyze(recording, timeline, 3);
  EXPECT_EQ(result.end_ns - result.start_ns, 5000 * kMs);
  EXPECT_THAT(result.warnings, Contains(HasSubstr("nothing happened in the last 3.50 s of the recording")));
  result.command = "attach";
  result.findings = FindFaults(recording, timeline);
  const std::string text = FormatResult(result, 200);
  EXPECT_THAT(text, HasSubstr("5.00 s recorded"));
  EXPECT_THAT(text, HasSubstr("the whole engine stood still: it did nothing in the last 3.50 s of the recording"));
}

TEST(SilenceTest, AmidTheRecording) {
  Tokens tokens;
  tokens.Every5Ms(5, 1500);
  tokens.Every5Ms(3000, 5000);
  const Recording recording = tokens.Until(5000);
  const std::vector<Silence> silences = SilencesOf(recording);
  ASSERT_THAT(silences, SizeIs(1));
  EXPECT_FALSE(silences[0].at_end);
  EXPECT_EQ(silences[0].ns(), 1500e6);
  EXPECT_EQ(SilentAtEndNs(silences), 0);
  const std::vector<Finding> findings = FindFaults(recording, BuildTimeline(recording));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].line, HasSubstr("did nothing for 1.50 s, 1.500 s into the recording"));
  EXPECT_DOUBLE_EQ(findings[0].share, 0.3);
}

TEST(SilenceTest, WhoHasNothingToDoIsNotSilent) {
  Tokens tokens;
  tokens.Every5Ms(5, 1000);
  tokens.Leave(1000);
  EXPECT_THAT(SilencesOf(tokens.Until(5000)), IsEmpty());
  tokens.Span(FD_RECORD_IDLE, 1000, 2999);
  tokens.Every5Ms(3000, 4000);
  EXPECT_THAT(SilencesOf(tokens.Until(4000)), IsEmpty());
  // Held by the scheduler, which is a finding of its own.
  tokens.Span(FD_RECORD_HELD, 4000, 4999);
  tokens.Every5Ms(5000, 6000);
  EXPECT_THAT(SilencesOf(tokens.Until(6000)), IsEmpty());
}

TEST(SilenceTest, WhatIsUsualIsNoSilence) {
  Tokens slow;
  for (uint64_t ms = 300; ms < 20'000; ms += 300) slow.Every5Ms(ms, ms);  // a large model
  EXPECT_THAT(SilencesOf(slow.Until(20'000)), IsEmpty());
  Tokens few;
  for (uint64_t ms = 300; ms < 1500; ms += 300) few.Every5Ms(ms, ms);
  EXPECT_THAT(SilencesOf(few.Until(1500)), IsEmpty());
}

}  // namespace

}  // namespace fastdecode
