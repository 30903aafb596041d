// A home that is lost: what is said of it, and that nothing else is said.
#include <map>
#include <vector>

#include "tests/tools/latency/event_maker.h"
#include "tests/tools/latency/planted_fault.h"
#include "tools/latency/analysis/analysis.h"
#include "tools/latency/analysis/home_losses.h"

namespace fastdecode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two to four homes, one of which dies and does not come back.
class FindLossesTest : public testing::TestWithParam<int> {
 protected:
  SimulatedRun Run() const {
    SimulatedRun run = RunOfHomes(GetParam());
    run.faults.lost_home = GetParam() % run.homes;
    run.faults.lost_at_s = 3 + 0.1 * GetParam();
    return run;
  }
};
INSTANTIATE_TEST_SUITE_P(Seeds, FindLossesTest, testing::Range(1, 6));

// As nothing is computed again here, the pause is the time until the loss is known, and a step.
TEST_P(FindLossesTest, ThePauseIsTheTimeUntilItIsKnown) {
  SimulatedRun run = Run();
  run.faults.known_after_ns = 600e6;
  EXPECT_THAT(FindIn(run), ElementsAre(Names(Planted{"loss", "recovery", run.faults.lost_home, -1, 600e6})));
}

TEST_P(FindLossesTest, ComputingAgainIsToldApart) {
  SimulatedRun run = Run();
  run.requests.prefill_chunk = 128;
  const std::vector<HomeLoss> losses = FindHomeLosses(Simulate(run));
  ASSERT_EQ(losses.size(), 1u);
  size_t answering = 0, computed = 0;
  for (const LostSequence& sequence : losses[0].sequences) {
    EXPECT_GT(sequence.joined_ns, losses[0].lost_ns);
    EXPECT_NEAR(static_cast<double>(sequence.waited_ns), 200e6, 0.1 * 200e6);
    answering += sequence.answers;
    computed += sequence.answers && sequence.again_ns > sequence.joined_ns + 1'000'000;
  }
  EXPECT_GT(answering, 2u);
  EXPECT_EQ(computed, answering);
  const std::vector<Finding> findings = FindIn(run);
  EXPECT_THAT(findings, ElementsAre(AllOf(Field(&Finding::kind, "loss"), Field(&Finding::home, run.faults.lost_home),
                                          Field(&Finding::line, HasSubstr("until the loss was known")))));
}

TEST_P(FindLossesTest, AHomeThatComesBackIsNoFault) {
  SimulatedRun run = Run();
  run.faults.away_ns = 1.5e9;
  EXPECT_THAT(FindIn(run), ElementsAre(Field(&Finding::kind, "loss")));
}

// Nobody has a home meanwhile: the engine has nothing to do, and that is not for want of requests.
TEST_P(FindLossesTest, TheOnlyHome) {
  SimulatedRun run = Run();
  run.homes = 1;
  run.requests.sequences = 6;  // that are soon in steps again
  run.faults.lost_home = 0;
  run.faults.known_after_ns = 300e6;
  run.faults.away_ns = 900e6;
  const Recording recording = Simulate(run);
  const Timeline timeline = BuildTimeline(recording);
  EXPECT_THAT(FindFaults(recording, timeline), ElementsAre(Names(Planted{"loss", "recovery", 0, -1, 1200e6})));
  double lost_ns = 0, no_requests_ns = 0;
  for (const Bubble& bubble : Analyze(recording, timeline, 0).bubbles) {
    if (bubble.where == "S-Part" && bubble.cause == "home lost") lost_ns += bubble.ns;
    if (bubble.where == "S-Part" && bubble.cause == "no requests") no_requests_ns += bubble.ns;
  }
  EXPECT_NEAR(lost_ns, 1200e6, 60e6);
  EXPECT_LT(no_requests_ns, 60e6);
}

TEST_P(FindLossesTest, ItCostsWhatTheMeanTokenTakesLonger) {
  const SimulatedRun run = Run();
  const Recording recording = Simulate(run);
  double gaps_ns = 0, tokens = 0;
  std::map<uint64_t, uint64_t> last_ns;
  for (const fd_record_event& event : recording.events) {
    if (event.kind != FD_RECORD_TOKEN) continue;
    ++tokens;
    const auto [at, first] = last_ns.emplace(event.id, event.end_ns);
    if (!first && event.end_ns - at->second > 150'000'000) gaps_ns += static_cast<double>(event.end_ns - at->second);
    at->second = event.end_ns;
  }
  const std::vector<Finding> findings = FindFaults(recording, BuildTimeline(recording));
  ASSERT_THAT(findings, ElementsAre(Field(&Finding::kind, "loss")));
  EXPECT_NEAR(findings[0].cost_ns, gaps_ns / tokens, kCostTolerance * gaps_ns / tokens);
}

TEST(HomeLossesTest, NoneWithoutALoss) { EXPECT_THAT(FindHomeLosses(Simulate(SimulatedRun())), IsEmpty()); }

// ---- by hand: all answers of a request have its id

class HandMadeLosses {
 public:
  void Leave(uint64_t id, int home, fd_record_leave how, uint64_t lost_ns, uint64_t left_ns) {
    fd_record_event& event = events_.Add(FD_RECORD_LEAVE, 0, 1, lost_ns, left_ns);
    event.id = id;
    event.home = static_cast<int16_t>(home);
    event.part = static_cast<uint16_t>(how);
    event.count = 5;
  }
  void Join(uint64_t id, int home, uint64_t at_ns) {
    fd_record_event& event = events_.Add(FD_RECORD_JOIN, 0, 2, at_ns, at_ns);
    event.id = id;
    event.home = static_cast<int16_t>(home);
  }
  void Token(uint64_t id, uint64_t at_ns) { events_.Add(FD_RECORD_TOKEN, 0, 2, at_ns, at_ns).id = id; }
  std::vector<HomeLoss> Find() {
    Recording recording;
    recording.events = events_.events;
    return FindHomeLosses(recording);
  }

 private:
  EventMaker events_;
};

TEST(HomeLossesTest, ATokenOfAnotherAnswerDoesNotEndALoss) {
  HandMadeLosses run;
  run.Leave(7, 1, FD_LEAVE_HOME_LOST, 1000, 1100);
  run.Token(7, 1200);  // of the answer that lives at another home
  run.Join(7, 0, 1500);
  run.Token(7, 1900);
  const std::vector<HomeLoss> losses = run.Find();
  ASSERT_EQ(losses.size(), 1u);
  ASSERT_EQ(losses[0].sequences.size(), 1u);
  EXPECT_EQ(losses[0].sequences[0].joined_ns, 1500u);
  EXPECT_EQ(losses[0].sequences[0].again_ns, 1900u);
}

TEST(HomeLossesTest, EachAnswerThatLosesItsHomeHasAPauseOfItsOwn) {
  HandMadeLosses run;
  for (int i = 0; i < 2; ++i) run.Leave(7, 1, FD_LEAVE_HOME_LOST, 1000, 1100);
  run.Join(7, 0, 1300);
  run.Join(7, 0, 1400);
  run.Token(7, 1600);
  run.Token(7, 1700);
  const std::vector<HomeLoss> losses = run.Find();
  ASSERT_EQ(losses.size(), 1u);
  ASSERT_EQ(losses[0].sequences.size(), 2u);
  for (const LostSequence& sequence : losses[0].sequences) {
    EXPECT_GE(sequence.joined_ns, 1300u);
    EXPECT_GE(sequence.again_ns, 1600u);
  }
}

TEST(HomeLossesTest, WhoEndsWhileItWaitsHasNoHomeUntilThen) {
  HandMadeLosses run;
  run.Leave(7, 1, FD_LEAVE_HOME_LOST, 1000, 1100);
  run.Leave(7, -1, FD_LEAVE_CANCELLED, 3000, 3000);
  const std::vector<Span> spans = SpansWithoutHome(run.Find(), 9000);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].start_ns, 1100u);
  EXPECT_EQ(spans[0].end_ns, 3000u);
}

}  // namespace
}  // namespace fastdecode
