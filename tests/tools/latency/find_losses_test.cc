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

// Nothing is computed again here, so that the pause is the time until the loss is known, and a step.
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

constexpr uint64_t kId = 7;

// Of request kId. A JOIN starts when the answer left, as the engine has it.
class HandMadeLosses {
 public:
  // All leave micro-batch 0, from home 1, which is known to be lost 100 ns before.
  void Lose(uint32_t generated, uint64_t left_ns) {
    Leave(0, 1, FD_LEAVE_HOME_LOST, generated, left_ns - 100, left_ns);
  }
  void Leave(int micro_batch, int home, fd_record_leave how, uint32_t generated, uint64_t at_ns) {
    Leave(micro_batch, home, how, generated, at_ns, at_ns);
  }
  void Join(int micro_batch, uint64_t left_ns, uint64_t at_ns) {
    fd_record_event& event = make_.Add(FD_RECORD_JOIN, micro_batch, 2, left_ns, at_ns);
    event.id = kId;
    event.home = 0;
    event.part = 1;
  }
  void Token(int micro_batch, uint32_t number, uint64_t at_ns) { make_.Token(micro_batch, 2, at_ns, kId, number); }

  // It joins, and has its next token.
  void Recover(int micro_batch, uint32_t generated, uint64_t left_ns, uint64_t joined_ns, uint64_t again_ns) {
    Join(micro_batch, left_ns, joined_ns);
    Token(micro_batch, generated, again_ns);
  }

  std::vector<HomeLoss> Losses() { return FindHomeLosses(MakeRecording(make_.events, 1)); }
  std::vector<LostSequence> Find() {
    std::vector<LostSequence> found;
    for (const HomeLoss& loss : Losses()) {
      found.insert(found.end(), loss.sequences.begin(), loss.sequences.end());
    }
    return found;
  }
  std::vector<Finding> FindAll() {
    const Recording recording = MakeRecording(make_.events, 1);
    return FindFaults(recording, BuildTimeline(recording));
  }

 private:
  void Leave(int micro_batch, int home, fd_record_leave how, uint32_t generated, uint64_t start_ns, uint64_t end_ns) {
    fd_record_event& event = make_.Add(FD_RECORD_LEAVE, micro_batch, 1, start_ns, end_ns);
    event.id = kId;
    event.home = static_cast<int16_t>(home);
    event.part = static_cast<uint16_t>(how);
    event.count = generated;
  }

  EventMaker make_;
};

testing::Matcher<LostSequence> Had(uint64_t joined_ns, uint64_t again_ns, uint64_t ended_ns = 0) {
  return AllOf(Field("joined_ns", &LostSequence::joined_ns, joined_ns),
               Field("again_ns", &LostSequence::again_ns, again_ns),
               Field("ended_ns", &LostSequence::ended_ns, ended_ns));
}

TEST(HomeLossesTest, ATokenOfAnotherAnswerDoesNotEndALoss) {
  HandMadeLosses run;
  run.Lose(5, 1100);
  run.Token(0, 8, 1200);  // of the answer that lives at another home
  run.Join(0, 1100, 1500);
  run.Token(0, 9, 1600);  // the same, in the micro-batch that both are in now
  run.Token(1, 5, 1700);  // of a third one, elsewhere
  run.Token(0, 5, 1900);
  EXPECT_THAT(run.Find(), ElementsAre(Had(1500, 1900)));
}

// It enters a micro-batch for the first time, or another one, or comes back from a preemption.
TEST(HomeLossesTest, AJoinOfAnotherAnswerIsNoHomeForALostOne) {
  HandMadeLosses run;
  run.Lose(5, 1100);
  run.Join(1, 400, 1200);
  run.Recover(0, 5, 1250, 1250, 1300);
  run.Recover(1, 5, 1100, 1500, 1900);
  EXPECT_THAT(run.Find(), ElementsAre(Had(1500, 1900)));
}

TEST(HomeLossesTest, TheEndOfAnotherAnswerIsNotALostOnes) {
  HandMadeLosses run;
  run.Lose(5, 1100);
  run.Leave(0, 0, FD_LEAVE_FINISHED, 5, 1200);
  run.Join(1, 1100, 1500);
  run.Leave(0, 0, FD_LEAVE_FINISHED, 8, 1600);
  run.Token(1, 5, 1900);
  EXPECT_THAT(run.Find(), ElementsAre(Had(1500, 1900)));
}

TEST(HomeLossesTest, EachAnswerThatLosesItsHomeHasAPauseOfItsOwn) {
  HandMadeLosses run;
  run.Lose(5, 1100);
  run.Lose(6, 1110);
  run.Join(1, 1110, 1300);  // the second one first
  run.Recover(0, 5, 1100, 1400, 1600);
  run.Token(1, 6, 1700);
  EXPECT_THAT(run.Find(), ElementsAre(Had(1400, 1600), Had(1300, 1700)));
}

TEST(HomeLossesTest, WhoMovesBeforeItsTokenIsFollowed) {
  HandMadeLosses run;
  run.Lose(5, 1100);
  run.Join(0, 1100, 1300);
  run.Leave(0, 0, FD_LEAVE_MOVED, 5, 1400);
  run.Recover(1, 5, 1400, 1400, 1900);
  EXPECT_THAT(run.Find(), ElementsAre(Had(1300, 1900)));
}

TEST(HomeLossesTest, WhoLosesItsHomeAgainHasItsTokenBehindTheNewLoss) {
  HandMadeLosses run;
  run.Lose(5, 1100);
  run.Join(0, 1100, 1300);
  run.Lose(5, 1500);
  run.Recover(0, 5, 1500, 1600, 1900);
  EXPECT_THAT(run.Find(), ElementsAre(Had(1300, 0), Had(1600, 1900)));
}

// The ring may have been overwritten: there is no pause whose parts are known.
TEST(HomeLossesTest, AJoinThatIsMissingGivesNoPause) {
  HandMadeLosses run;
  run.Lose(5, 1100);
  run.Token(0, 5, 1900);
  EXPECT_THAT(run.Find(), ElementsAre(Had(0, 0)));
  EXPECT_THAT(run.FindAll(), ElementsAre(AllOf(Field(&Finding::kind, "loss"), Field(&Finding::amount, 0),
                                               Field(&Finding::cost_ns, 0))));
}

// What an end without a home is to the idle time is in analysis_test.cc.
TEST(HomeLossesTest, WhoEndsWhileItWaitsHasNoHomeUntilThen) {
  HandMadeLosses run;
  run.Lose(5, 1100);
  run.Leave(0, -1, FD_LEAVE_CANCELLED, 5, 3000);
  EXPECT_THAT(run.Find(), ElementsAre(Had(0, 0, 3000)));
  const std::vector<Span> spans = SpansWithoutHome(run.Losses(), 9000);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].start_ns, 1100u);
  EXPECT_EQ(spans[0].end_ns, 3000u);
}

}  // namespace
}  // namespace fastdecode
