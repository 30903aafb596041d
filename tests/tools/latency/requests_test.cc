// What is made of the requests of a recording, on streams made by hand.
#include "tools/latency/analysis/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fastdecode {

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kMs = 1'000'000;

fd_record_event Event(uint8_t kind, uint64_t id, uint64_t start_ns, uint64_t end_ns, uint32_t count = 0,
                      uint16_t part = 0) {
  fd_record_event event = {};
  event.kind = kind;
  event.id = id;
  event.start_ns = start_ns;
  event.end_ns = end_ns;
  event.count = count;
  event.part = part;
  return event;
}

// Writes down what happens to requests.
class Stream {
 public:
  void Submit(uint64_t id, uint64_t submit_ns, uint64_t now_ns) {
    events_.push_back(Event(FD_RECORD_SUBMIT, id, submit_ns, now_ns));
  }
  void Join(uint64_t id, uint64_t submit_ns, uint64_t now_ns, uint16_t part = 0) {
    events_.push_back(Event(FD_RECORD_JOIN, id, submit_ns, now_ns, 0, part));
  }
  void Token(uint64_t id, uint32_t number, uint64_t now_ns) {
    events_.push_back(Event(FD_RECORD_TOKEN, id, now_ns, now_ns, number));
  }
  void Deliver(uint64_t id, uint32_t number, uint64_t step_ns, uint64_t now_ns) {
    events_.push_back(Event(FD_RECORD_DELIVER, id, step_ns, now_ns, number));
  }
  void Leave(uint64_t id, uint64_t now_ns, uint32_t generated, uint16_t why = FD_LEAVE_FINISHED) {
    events_.push_back(Event(FD_RECORD_LEAVE, id, now_ns, now_ns, generated, why));
  }
  // A request whose first token comes at `first_ns`, the others every `gap_ns`.
  void Request(uint64_t id, uint64_t submit_ns, uint64_t first_ns, uint32_t tokens, uint64_t gap_ns) {
    Join(id, submit_ns, (submit_ns + first_ns) / 2);
    for (uint32_t i = 0; i < tokens; ++i) Token(id, i, first_ns + i * gap_ns);
    Leave(id, first_ns + (tokens - 1) * gap_ns, tokens);
  }
  Recording Done() const {
    Recording recording;
    recording.events = events_;
    std::stable_sort(recording.events.begin(), recording.events.end(),
                     [](const fd_record_event& a, const fd_record_event& b) { return a.end_ns < b.end_ns; });
    return recording;
  }

 private:
  std::vector<fd_record_event> events_;
};

std::vector<uint64_t> Sorted(const Distribution& distribution) { return distribution.sorted_ns(); }

TEST(RequestsTest, TimesOfOneRequest) {
  Stream stream;
  // Submitted at 10 ms, taken in at 30, first token at 50: queueing counts.
  stream.Join(7, 10 * kMs, 30 * kMs);
  stream.Token(7, 0, 50 * kMs);
  stream.Token(7, 1, 52 * kMs);
  stream.Token(7, 2, 58 * kMs);
  stream.Leave(7, 58 * kMs, 3);
  const std::vector<RequestFigures> figures = MeasureRequests(stream.Done());
  ASSERT_THAT(figures, SizeIs(1));
  EXPECT_EQ(figures[0].start, "submitted");
  EXPECT_EQ(figures[0].requests, 1u);
  EXPECT_EQ(figures[0].failed, 0u);
  EXPECT_THAT(Sorted(figures[0].ttft_ns), ElementsAre(40 * kMs));
  EXPECT_THAT(Sorted(figures[0].tpot_ns), ElementsAre(4 * kMs));
  EXPECT_THAT(Sorted(figures[0].itl_ns), ElementsAre(2 * kMs, 6 * kMs));
  EXPECT_THAT(Sorted(figures[0].e2e_ns), ElementsAre(48 * kMs));
}

TEST(RequestsTest, ARequestOfOneTokenHasNoGap) {
  Stream stream;
  stream.Request(1, 0, 5 * kMs, 1, 0);
  const std::vector<RequestFigures> figures = MeasureRequests(stream.Done());
  EXPECT_THAT(Sorted(figures[0].e2e_ns), ElementsAre(5 * kMs));
  EXPECT_TRUE(figures[0].tpot_ns.empty());
  EXPECT_TRUE(figures[0].itl_ns.empty());
}

TEST(RequestsTest, DeliveriesCountWhereTheyWereRecorded) {
  Stream stream;
  stream.Request(1, 0, 10 * kMs, 2, 10 * kMs);
  stream.Deliver(1, 0, 10 * kMs, 11 * kMs);
  stream.Deliver(1, 1, 20 * kMs, 27 * kMs);  // after it has left
  stream.Request(2, 0, 10 * kMs, 2, 10 * kMs);
  stream.Deliver(2, 0, 10 * kMs, 15 * kMs);  // of the second token it was lost
  const std::vector<RequestFigures> figures = MeasureRequests(stream.Done());
  EXPECT_THAT(Sorted(figures[0].ttft_ns), ElementsAre(11 * kMs, 15 * kMs));
  EXPECT_THAT(Sorted(figures[0].itl_ns), ElementsAre(10 * kMs, 16 * kMs));
  EXPECT_THAT(Sorted(figures[0].e2e_ns), ElementsAre(20 * kMs, 27 * kMs));
}

// Requests are meant to start every 10 ms and take 8 ms. For 200 ms the engine stands still, and the one client, who
// waits for each answer, submits the next ones late.
TEST(RequestsTest, AStallIsChargedToAllThatItDelayed) {
  Stream stream;
  Recording recording;
  uint64_t free_ns = 0;
  for (uint64_t id = 0; id < 60; ++id) {
    const uint64_t intended_ns = id * 10 * kMs;
    const uint64_t submit_ns = std::max(intended_ns, free_ns);
    const uint64_t stalled_ns = id == 10 ? 200 * kMs : 0;
    const uint64_t first_ns = submit_ns + stalled_ns + 4 * kMs;
    stream.Request(id + 1, submit_ns, first_ns, 2, 4 * kMs);
    free_ns = first_ns + 4 * kMs;
    recording.intended.push_back({id + 1, intended_ns, submit_ns});
  }
  recording.events = stream.Done().events;
  const std::vector<RequestFigures> figures = MeasureRequests(recording);
  ASSERT_THAT(figures, SizeIs(2));
  EXPECT_EQ(figures[0].start, "intended");
  EXPECT_EQ(figures[1].start, "submitted");
  EXPECT_EQ(figures[0].requests, 60u);
  EXPECT_EQ(figures[1].requests, 60u);

  // By submission only the request that was stalled is slow.
  const std::vector<uint64_t> submitted = Sorted(figures[1].ttft_ns);
  EXPECT_EQ(submitted.back(), 204 * kMs);
  EXPECT_EQ(submitted[58], 4 * kMs);
  // By intent: 2 ms of the 198 are won back with each later request, so all the other 49 are late, by a sum that
  // follows from that: request 10 + k has its first token (200 - 2 k) ms + 4 ms after it should have begun.
  std::vector<uint64_t> expected(10, 4 * kMs);
  for (uint64_t k = 0; k < 50; ++k) expected.push_back((204 - 2 * k) * kMs);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(Sorted(figures[0].ttft_ns), expected);
  // Gaps know no start.
  EXPECT_EQ(Sorted(figures[0].itl_ns), Sorted(figures[1].itl_ns));
}

TEST(RequestsTest, RequestsWithoutAnIntendedStartWereMeantAsSubmitted) {
  Stream stream;
  stream.Request(1, 10 * kMs, 20 * kMs, 1, 0);
  stream.Request(2, 30 * kMs, 60 * kMs, 1, 0);
  Recording recording = stream.Done();
  recording.intended = {{1, 5 * kMs, 10 * kMs}};
  const std::vector<RequestFigures> figures = MeasureRequests(recording);
  EXPECT_THAT(Sorted(figures[0].ttft_ns), ElementsAre(15 * kMs, 30 * kMs));
  EXPECT_THAT(Sorted(figures[1].ttft_ns), ElementsAre(10 * kMs, 30 * kMs));
}

TEST(RequestsTest, PartialRequestsAreLeftOut) {
  Stream stream;
  stream.Token(1, 5, 10 * kMs);  // began before the recording
  stream.Leave(1, 10 * kMs, 6);
  stream.Request(2, 0, 20 * kMs, 2, kMs);
  stream.Join(3, 5 * kMs, 15 * kMs);  // goes on after it
  stream.Token(3, 0, 30 * kMs);
  stream.Join(4, 5 * kMs, 15 * kMs);  // its token 1 was overwritten
  stream.Token(4, 0, 30 * kMs);
  stream.Token(4, 2, 32 * kMs);
  stream.Leave(4, 32 * kMs, 3);
  stream.Join(5, 5 * kMs, 15 * kMs);  // its last token was
  stream.Token(5, 0, 30 * kMs);
  stream.Leave(5, 33 * kMs, 2);
  stream.Join(6, 5 * kMs, 15 * kMs);  // cancelled
  stream.Token(6, 0, 30 * kMs);
  stream.Leave(6, 33 * kMs, 1, FD_LEAVE_CANCELLED);
  const std::vector<RequestFigures> figures = MeasureRequests(stream.Done());
  EXPECT_EQ(figures[0].requests, 1u);
  EXPECT_EQ(figures[0].failed, 0u);
  EXPECT_THAT(Sorted(figures[0].e2e_ns), ElementsAre(21 * kMs));
  EXPECT_THAT(Sorted(figures[0].tpot_ns), ElementsAre(kMs));
  // Of 2 to 6 it is known when the first token came.
  EXPECT_THAT(Sorted(figures[0].ttft_ns), ElementsAre(20 * kMs, 25 * kMs, 25 * kMs, 25 * kMs, 25 * kMs));
  EXPECT_THAT(Sorted(figures[0].itl_ns), ElementsAre(kMs));
  // 3 and 6 have taken so long at least: until the recording's last event, and until it was given up.
  EXPECT_EQ(figures[0].unfinished, 2u);
  EXPECT_THAT(figures[0].e2e_ns.unfinished_ns(), ElementsAre(28 * kMs, 28 * kMs));
}

// A stop string is found behind the pipeline, which has gone on meanwhile.
TEST(RequestsTest, AnAnswerThatAStopStringEndedIsWhole) {
  Stream stream;
  stream.Join(1, 0, 5 * kMs);
  for (uint32_t i = 0; i < 6; ++i) stream.Token(1, i, (10 + 2 * i) * kMs);
  for (uint32_t i = 0; i < 4; ++i) stream.Deliver(1, i, (10 + 2 * i) * kMs, (11 + 2 * i) * kMs);
  stream.Leave(1, 20 * kMs, 6, FD_LEAVE_STOPPED);
  stream.Join(2, 0, 5 * kMs);  // its deliveries were not recorded
  for (uint32_t i = 0; i < 3; ++i) stream.Token(2, i, (10 + 4 * i) * kMs);
  stream.Leave(2, 18 * kMs, 3, FD_LEAVE_STOPPED);
  const RequestFigures figures = MeasureRequests(stream.Done())[0];
  EXPECT_EQ(figures.requests, 2u);
  EXPECT_EQ(figures.unfinished, 0u);
  EXPECT_THAT(Sorted(figures.ttft_ns), ElementsAre(10 * kMs, 11 * kMs));
  EXPECT_THAT(Sorted(figures.tpot_ns), ElementsAre(2 * kMs, 4 * kMs));
  EXPECT_THAT(Sorted(figures.e2e_ns), ElementsAre(17 * kMs, 18 * kMs));  // its fourth token, and all three
}

TEST(RequestsTest, WhoStillWaitsHasWaitedSoLongAtLeast) {
  Stream stream;
  stream.Request(1, 10 * kMs, 30 * kMs, 2, 5 * kMs);
  stream.Submit(2, 500 * kMs, 501 * kMs);  // no place yet
  stream.Submit(3, 600 * kMs, 601 * kMs);
  stream.Join(3, 600 * kMs, 700 * kMs);  // its prompt is being computed
  stream.Join(4, 100 * kMs, 110 * kMs);
  stream.Token(4, 0, 150 * kMs);  // a long answer
  stream.Token(4, 1, 900 * kMs);
  stream.Token(5, 7, 800 * kMs);  // began before the recording
  stream.Submit(6, 200 * kMs, 201 * kMs);
  stream.Leave(6, 450 * kMs, 0, FD_LEAVE_CANCELLED);
  stream.Submit(7, 200 * kMs, 201 * kMs);
  stream.Leave(7, 450 * kMs, 0, FD_LEAVE_FAILED);
  Recording recording = stream.Done();
  recording.end_ns = 3500 * kMs;  // the engine has stood still since 900 ms
  const std::vector<RequestFigures> all = MeasureRequests(recording);
  ASSERT_THAT(all, SizeIs(1));
  const RequestFigures& figures = all[0];
  EXPECT_EQ(figures.requests, 1u);
  EXPECT_EQ(figures.failed, 1u);
  EXPECT_EQ(figures.unfinished, 4u);
  EXPECT_THAT(Sorted(figures.ttft_ns), ElementsAre(20 * kMs, 50 * kMs));
  EXPECT_THAT(figures.ttft_ns.unfinished_ns(), ElementsAre(250 * kMs, 2900 * kMs, 3000 * kMs));
  EXPECT_THAT(Sorted(figures.e2e_ns), ElementsAre(25 * kMs));
  EXPECT_THAT(figures.e2e_ns.unfinished_ns(), ElementsAre(250 * kMs, 2900 * kMs, 3000 * kMs, 3400 * kMs));
  EXPECT_THAT(Sorted(figures.itl_ns), ElementsAre(5 * kMs, 750 * kMs));
  EXPECT_THAT(figures.itl_ns.unfinished_ns(), ElementsAre(2600 * kMs, 2700 * kMs));
}

// An open loop at more than the engine serves: who was submitted before the recording and waits behind it has no event
// in it, and who was never taken has none at all.
TEST(RequestsTest, AnOpenLoopKnowsAllWhoWait) {
  Stream stream;
  stream.Request(10, 90 * kMs, 1100 * kMs, 1, 0);
  Recording recording = stream.Done();
  recording.end_ns = 4000 * kMs;
  recording.intended = {
      {.id = 3, .intended_ns = 5 * kMs, .submit_ns = 5 * kMs, .ended_ns = 800 * kMs},  // before the recording
      {.id = 10, .intended_ns = 50 * kMs, .submit_ns = 90 * kMs, .ended_ns = 1101 * kMs},
      {.id = 11, .intended_ns = 60 * kMs, .submit_ns = 100 * kMs},                          // waits all along
      {.id = 12, .intended_ns = 70 * kMs, .submit_ns = 110 * kMs, .ended_ns = 5000 * kMs},  // and this one
      {.id = 13, .intended_ns = 3900 * kMs, .submit_ns = 4100 * kMs},                       // submitted behind its end
      {.intended_ns = 1000 * kMs},                                                          // never taken
      {.intended_ns = 4200 * kMs},
  };
  const std::vector<RequestFigures> figures = MeasureRequests(recording);
  ASSERT_THAT(figures, SizeIs(2));
  EXPECT_THAT(Sorted(figures[0].ttft_ns), ElementsAre(1050 * kMs));
  EXPECT_THAT(figures[0].ttft_ns.unfinished_ns(), ElementsAre(100 * kMs, 3000 * kMs, 3930 * kMs, 3940 * kMs));
  EXPECT_EQ(figures[0].unfinished, 4u);
  EXPECT_THAT(Sorted(figures[1].ttft_ns), ElementsAre(1010 * kMs));
  EXPECT_THAT(figures[1].ttft_ns.unfinished_ns(), ElementsAre(3890 * kMs, 3900 * kMs));
  EXPECT_EQ(figures[1].unfinished, 2u);
}

TEST(RequestsTest, GapsCountOfPartialRequestsToo) {
  Stream stream;
  stream.Token(1, 5, 10 * kMs);  // began before the recording, and goes on after it
  stream.Token(1, 6, 13 * kMs);
  stream.Token(1, 7, 14 * kMs);
  stream.Token(1, 9, 30 * kMs);  // token 8 was overwritten
  const std::vector<RequestFigures> figures = MeasureRequests(stream.Done());
  EXPECT_EQ(figures[0].requests, 0u);
  EXPECT_THAT(Sorted(figures[0].itl_ns), ElementsAre(kMs, 3 * kMs));
}

TEST(RequestsTest, APreemptedRequestKeepsItsStart) {
  Stream stream;
  stream.Join(1, 0, 10 * kMs);
  stream.Token(1, 0, 20 * kMs);
  stream.Leave(1, 25 * kMs, 1, FD_LEAVE_PREEMPTED);
  stream.Join(1, 25 * kMs, 80 * kMs, 1);
  stream.Token(1, 1, 100 * kMs);
  stream.Leave(1, 100 * kMs, 2);
  const std::vector<RequestFigures> figures = MeasureRequests(stream.Done());
  EXPECT_EQ(figures[0].requests, 1u);
  EXPECT_THAT(Sorted(figures[0].ttft_ns), ElementsAre(20 * kMs));
  EXPECT_THAT(Sorted(figures[0].itl_ns), ElementsAre(80 * kMs));
  EXPECT_THAT(Sorted(figures[0].e2e_ns), ElementsAre(100 * kMs));
}

TEST(RequestsTest, OneThatMovesKeepsItsStartAndDoesNotEnd) {
  Stream stream;
  stream.Join(1, 0, 10 * kMs);
  stream.Token(1, 0, 20 * kMs);
  stream.Leave(1, 25 * kMs, 1, FD_LEAVE_MOVED);
  stream.Join(1, 25 * kMs, 25 * kMs, 2);
  stream.Token(1, 1, 30 * kMs);
  stream.Leave(1, 30 * kMs, 2);
  const std::vector<RequestFigures> figures = MeasureRequests(stream.Done());
  EXPECT_EQ(figures[0].requests, 1u);
  EXPECT_THAT(Sorted(figures[0].ttft_ns), ElementsAre(20 * kMs));
  EXPECT_THAT(Sorted(figures[0].e2e_ns), ElementsAre(30 * kMs));
}

TEST(RequestsTest, ARequestThatCameBackOnlyIsPartial) {
  Stream stream;
  stream.Join(1, 25 * kMs, 80 * kMs, 1);
  stream.Token(1, 1, 100 * kMs);
  stream.Leave(1, 100 * kMs, 2);
  EXPECT_EQ(MeasureRequests(stream.Done())[0].requests, 0u);
}

TEST(RequestsTest, NothingOfNothing) {
  const std::vector<RequestFigures> figures = MeasureRequests(Recording());
  ASSERT_THAT(figures, SizeIs(1));
  EXPECT_EQ(figures[0].requests, 0u);
  EXPECT_TRUE(figures[0].ttft_ns.empty());
}

// ---- SLOs

TEST(SloTest, Parses) {
  const absl::StatusOr<Slo> slo = ParseSlo("--slo", "ttft:400ms,p90");
  ASSERT_TRUE(slo.ok()) << slo.status();
  EXPECT_EQ(slo->text, "ttft:400ms,p90");
  EXPECT_EQ(slo->metric, Slo::Metric::kTtft);
  EXPECT_DOUBLE_EQ(slo->limit_ns, 400e6);
  EXPECT_DOUBLE_EQ(slo->share, 0.9);
  EXPECT_DOUBLE_EQ(ParseSlo("--slo", "tpot:1.5s,p50")->limit_ns, 1.5e9);
  EXPECT_DOUBLE_EQ(ParseSlo("--slo", "itl:250us,p99.99")->limit_ns, 250e3);
  EXPECT_DOUBLE_EQ(ParseSlo("--slo", "itl:250us,p99.99")->share, 0.9999);
  EXPECT_DOUBLE_EQ(ParseSlo("--slo", "e2e:900ns,p99.9")->limit_ns, 900);
  EXPECT_EQ(ParseSlo("--slo", "e2e:900ns,p99.9")->metric, Slo::Metric::kE2e);
}

TEST(SloTest, RefusesNamingOptionAndPart) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "three parts"},          {"ttft", "three parts"},          {"ttft:400ms", "three parts"},
      {"ttft,p90:400ms", "three"},  {"tftt:400ms,p90", "'tftt'"},     {":400ms,p90", "''"},
      {"ttft:400,p90", "'400'"},    {"ttft:ms,p90", "'ms'"},          {"ttft:-4ms,p90", "'-4ms'"},
      {"ttft:0ms,p90", "'0ms'"},    {"ttft:infs,p90", "'infs'"},      {"ttft:4 ms,p90", "'4 ms'"},
      {"ttft:4.4.4ms,p90", "'4.4"}, {"ttft:90000s,p90", "'90000s'"},  {"ttft:4ms,90", "'90'"},
      {"ttft:4ms,p49", "'p49'"},    {"ttft:4ms,p100", "'p100'"},      {"ttft:4ms,p99.999", "'p99.999'"},
      {"ttft:4ms,p", "'p'"},        {"ttft:4ms,p90,p99", "'p90,p99'"}};
  for (const auto& [text, needle] : cases) {
    const absl::StatusOr<Slo> slo = ParseSlo("--slo", text);
    EXPECT_EQ(slo.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(slo.status().message()),
                AllOf(HasSubstr("--slo: '" + text + "'"), HasSubstr(needle), HasSubstr("ttft:400ms,p90")));
  }
}

RequestFigures Figures(std::vector<uint64_t> ttft_ns, size_t failed = 0) {
  RequestFigures figures;
  figures.start = "intended";
  figures.requests = ttft_ns.size();
  figures.failed = failed;
  figures.ttft_ns = Distribution(ttft_ns);
  figures.itl_ns = Distribution(std::move(ttft_ns));
  return figures;
}

std::vector<uint64_t> OneToHundredMs() {
  std::vector<uint64_t> ns;
  for (uint64_t i = 100; i >= 1; --i) ns.push_back(i * kMs);
  return ns;
}

TEST(SloTest, JudgesByTheFirst) {
  const std::vector<Slo> slos = {*ParseSlo("--slo", "ttft:90ms,p90"), *ParseSlo("--slo", "ttft:89.9ms,p90"),
                                 *ParseSlo("--slo", "itl:50ms,p50")};
  const std::vector<SloVerdict> verdicts = JudgeSlos(slos, {Figures(OneToHundredMs()), Figures({})});
  ASSERT_THAT(verdicts, SizeIs(3));
  EXPECT_EQ(verdicts[0].text, "ttft:90ms,p90");
  EXPECT_DOUBLE_EQ(verdicts[0].limit_ns, 90e6);
  EXPECT_DOUBLE_EQ(verdicts[0].share, 0.9);
  EXPECT_EQ(verdicts[0].got_ns, 90e6);  // 90 of the 100 take 90 ms or less
  EXPECT_TRUE(verdicts[0].met);
  EXPECT_FALSE(verdicts[1].met);
  EXPECT_EQ(verdicts[2].got_ns, 50e6);
  EXPECT_TRUE(verdicts[2].met);
}

TEST(SloTest, TooFewSamplesMeetNothing) {
  const std::vector<Slo> slos = {*ParseSlo("--slo", "ttft:1s,p99")};
  const SloVerdict verdict = JudgeSlos(slos, {Figures(OneToHundredMs())})[0];  // one lies beyond p99
  EXPECT_FALSE(verdict.got_ns.has_value());
  EXPECT_FALSE(verdict.met);
  EXPECT_FALSE(JudgeSlos(slos, {})[0].met);
  EXPECT_THAT(JudgeSlos({}, {Figures(OneToHundredMs())}), IsEmpty());
}

TEST(SloTest, AFailedRequestWaitsForEver) {
  const std::vector<Slo> slos = {*ParseSlo("--slo", "ttft:90ms,p90"), *ParseSlo("--slo", "itl:90ms,p90")};
  // With 4 failures p90 is the 94th (93.6) of 104.
  const std::vector<SloVerdict> some = JudgeSlos(slos, {Figures(OneToHundredMs(), 4)});
  EXPECT_EQ(some[0].got_ns, 94e6);
  EXPECT_FALSE(some[0].met);
  EXPECT_EQ(some[1].got_ns, 90e6);
  EXPECT_TRUE(some[1].met);
  const std::vector<SloVerdict> most = JudgeSlos(slos, {Figures(OneToHundredMs(), 50)});
  EXPECT_FALSE(most[0].got_ns.has_value());
  EXPECT_FALSE(most[0].met);
}

TEST(SloTest, WhoWaitsLongerThanTheLimitHasMissedIt) {
  const std::vector<Slo> slos = {*ParseSlo("--slo", "ttft:95ms,p90")};
  RequestFigures figures = Figures(OneToHundredMs());
  EXPECT_TRUE(JudgeSlos(slos, {figures})[0].met);
  // With 11 of 111 over it p90 is the 100th of those that have a first token.
  figures.ttft_ns = Distribution(OneToHundredMs(), std::vector<uint64_t>(11, 3000 * kMs));
  const SloVerdict missed = JudgeSlos(slos, {figures})[0];
  EXPECT_EQ(missed.got_ns, 100e6);
  EXPECT_FALSE(missed.at_least);
  EXPECT_FALSE(missed.met);
  // With 20 it is among those that still wait.
  figures.ttft_ns = Distribution(OneToHundredMs(), std::vector<uint64_t>(20, 3000 * kMs));
  const SloVerdict waiting = JudgeSlos(slos, {figures})[0];
  EXPECT_EQ(waiting.got_ns, 3000e6);
  EXPECT_TRUE(waiting.at_least);
  EXPECT_FALSE(waiting.met);
}

TEST(SloTest, AnEngineThatStandsStillInTheEndKeepsNoShorterLimit) {
  const std::vector<Slo> slos = {*ParseSlo("--slo", "itl:90ms,p90"), *ParseSlo("--slo", "ttft:9s,p90")};
  const std::vector<SloVerdict> verdicts = JudgeSlos(slos, {Figures(OneToHundredMs())}, 3500e6);
  EXPECT_FALSE(verdicts[0].met);
  EXPECT_EQ(verdicts[0].got_ns, 90e6);
  EXPECT_EQ(verdicts[0].silent_ns, 3500e6);
  EXPECT_TRUE(verdicts[1].met);
  EXPECT_EQ(verdicts[1].silent_ns, 0);
}

TEST(SloTest, WhoIsStillUnderTheLimitIsNotCounted) {
  const std::vector<Slo> slos = {*ParseSlo("--slo", "ttft:90ms,p90")};
  RequestFigures figures = Figures(OneToHundredMs());
  figures.ttft_ns = Distribution(OneToHundredMs(), std::vector<uint64_t>(50, kMs / 2));
  const SloVerdict verdict = JudgeSlos(slos, {figures})[0];
  EXPECT_EQ(verdict.got_ns, 90e6);
  EXPECT_TRUE(verdict.met);
}

}  // namespace

}  // namespace fastdecode
