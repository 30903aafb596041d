// Random schedules: whatever the order in which homes, wires, callers and stages move, every request ends once, with
// the tokens that only its own history says.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "tests/engine/pipeline/sim_engine.h"

namespace fastdecode {
namespace {

constexpr int kTurnsMax = 60'000;

// What may go wrong in a run.
struct FuzzFaults {
  bool lose_homes = false;
  bool spoil = false;  // rows and logits
  bool near = false;   // the first home attends within stages, and all say how fast they read
  bool cache = false;  // prompts begin alike
};

class FuzzRun {
 public:
  FuzzRun(uint64_t seed, const FuzzFaults& faults)
      : faults_(faults), random_(seed), options_(Draw()), engine_(options_) {}

  void Run() {
    home_count_ = Between(1, 3);
    for (int i = 0; i < home_count_; ++i) AddHome(i, DrawPages());
    const int wanted = faults_.cache ? Between(10, 40) : Between(1, 24);
    for (int turn = 0; turn < kTurnsMax; ++turn) {
      if (static_cast<int>(engine_.requests().size()) < wanted && OneIn(submit_in_)) SubmitOne();
      if (OneIn(cancel_in_)) CancelOne();
      if (faults_.lose_homes) LoseOrReturn();
      if (faults_.spoil && OneIn(150)) SpoilOne();
      engine_.HoldEvents(!OneIn(events_in_));
      const std::set<const SimRequest*> before = AtDrainingHomes();
      engine_.Turn();
      CheckNobodyCame(before);
      engine_.CheckPages();
      if (testing::Test::HasFailure()) return;
      if (static_cast<int>(engine_.requests().size()) >= wanted && engine_.unfinished() == 0) break;
    }
    engine_.HoldEvents(false);
    // A home that is gone for good must not hold requests back for ever either.
    ASSERT_TRUE(engine_.RunAll(kTurnsMax)) << engine_.unfinished() << " requests hang";
    for (const auto& request : engine_.requests()) Check(*request);
    engine_.CheckNothingLeft();
  }

  uint64_t preemptions() { return engine_.pipeline().batcher().preemptions(); }
  uint64_t moves() { return engine_.pipeline().batcher().moves(); }
  uint64_t cached_tokens() {
    uint64_t tokens = 0;
    for (const Counter& of_home : engine_.pipeline().statistics().home_cached_tokens) tokens += of_home.value();
    return tokens;
  }
  uint64_t recoveries() { return engine_.pipeline().statistics().recoveries.value(); }
  std::set<FinishReason> reasons() const { return reasons_; }

 private:
  int Between(int low, int high) { return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool OneIn(int n) { return random_() % static_cast<uint64_t>(n) == 0; }

  SimOptions Draw() {
    SimOptions options;
    options.limits.micro_batches = Between(1, 4);
    options.limits.sequences_max = static_cast<uint32_t>(Between(1, 6));
    options.limits.rows_max = options.limits.sequences_max + static_cast<uint32_t>(Between(0, 40));
    options.limits.chunk_tokens_max = static_cast<uint32_t>(OneIn(3) ? Between(1, 3) : Between(1, 64));
    options.limits.ready_max = 40;
    options.limits.open_pages = !faults_.near && OneIn(2);
    if (faults_.near) {
      options.limits.page_bytes = 1000;
      options.limits.weight_bytes = static_cast<uint64_t>(Between(1, 100'000));
      if (OneIn(2))
        options.limits.active_max = static_cast<uint32_t>(Between(1, static_cast<int>(options.limits.active())));
    }
    options.layers = static_cast<uint32_t>(Between(1, 3));
    options.context_max = static_cast<uint32_t>(Between(64, 400));
    options.stage_polls_max = OneIn(2) ? 0 : Between(1, 4);
    options.event_capacity = 256;
    options.link.refuse_share = OneIn(2) ? 0 : 0.3;
    options.link.control_messages_max = static_cast<size_t>(Between(1, 8));
    options.link.control_share = OneIn(2) ? 1.0 : 0.05;
    options.link.pages_share = OneIn(2) ? 0 : 0.05;
    options.link.work_share = OneIn(2) ? 1.0 : 0.5;
    options.link.late_reply_share = OneIn(2) ? 0 : 0.5;
    options.seed = random_();
    submit_in_ = Between(1, 40);
    cancel_in_ = OneIn(2) ? Between(20, 200) : 1'000'000;
    events_in_ = OneIn(3) ? Between(2, 50) : 1;
    tiny_pools_ = OneIn(2);
    options.limits.near_first = OneIn(2);
    options.limits.adapts = !faults_.near && OneIn(2);
    if (faults_.cache) {
      options.limits.cached_max = static_cast<uint32_t>(OneIn(3) ? Between(1, 4) : Between(5, 40));
      options.limits.cached_blocks_max = static_cast<uint32_t>(OneIn(3) ? Between(1, 30) : 1000);
      options.limits.prompts_have_kernel = OneIn(2);
    }
    return options;
  }

  // Every request must fit somewhere: a home that comes back is as large as it was.
  uint32_t DrawPages() {
    const int needed = static_cast<int>(PageCounts(options_.limits.open_pages).Most(options_.context_max));
    return static_cast<uint32_t>(tiny_pools_ ? needed + Between(0, 2) : needed * Between(2, 8));
  }

  void AddHome(int index, uint32_t pages) {
    if (!faults_.near) {
      engine_.AddHome(index, pages);
      return;
    }
    const uint32_t rate = static_cast<uint32_t>(OneIn(2) ? Between(900, 1100) : Between(10, 100));
    engine_.AddHome(index, pages, index == 0 ? 1000 : rate, /*near=*/index == 0);
  }

  void SubmitOne() {
    const uint32_t length = static_cast<uint32_t>(Between(1, static_cast<int>(options_.context_max) - 1));
    const bool long_prompt = faults_.cache ? !OneIn(3) : OneIn(tiny_pools_ ? 5 : 2);
    const uint32_t prompt_tokens = long_prompt ? length : std::min(length, static_cast<uint32_t>(Between(1, 40)));
    SimAsk ask;
    ask.max_tokens = static_cast<uint32_t>(OneIn(2) ? Between(1, 5) : Between(30, 150));
    if (OneIn(3)) {
      for (int token = Between(0, 20); token < options_.vocab; token += Between(5, 20))
        ask.stop_tokens.push_back(token);
      ask.min_tokens = static_cast<uint32_t>(OneIn(2) ? 0 : Between(0, static_cast<int>(ask.max_tokens)));
    }
    if (OneIn(faults_.cache ? 20 : 6) && prompt_tokens > 1)
      ask.fill_tokens = static_cast<uint32_t>(Between(1, static_cast<int>(prompt_tokens) - 1));
    ask.prompt_logits = OneIn(faults_.cache ? 20 : 4);  // who wants something of the prompt finds nothing
    if (ask.fill_tokens == 0 && OneIn(faults_.cache ? 20 : 3)) {
      ask.prompt_logprobs = Between(0, 20);
      if (OneIn(3)) ask.max_tokens = ask.min_tokens = 0;
    }
    if (faults_.cache) {
      ask.prefix_cache = !OneIn(8);
      if (OneIn(8)) ask.cache_salt = "salt";
    }
    std::vector<SimAsk> asks = {ask};
    const uint32_t answers = OneIn(3) ? static_cast<uint32_t>(Between(1, 6)) : 1;
    const size_t room = options_.limits.ready_max - engine_.unfinished();
    while (asks.size() < std::min<size_t>({answers, options_.limits.rows_max, room}))
      asks.push_back(AnotherAnswer(ask));
    const std::vector<SimRequest*> group = engine_.SubmitGroup(DrawPrompt(prompt_tokens), asks);
    for (SimRequest* request : group) groups_[request] = group;
    if (OneIn(50)) CancelThis(group[0]);
  }

  // With a cache it may begin as another one does, or as another one and its answer.
  std::vector<int32_t> DrawPrompt(uint32_t tokens) {
    std::vector<int32_t> prompt = SimEngine::Prompt(tokens, random_(), options_.vocab);
    if (!faults_.cache || engine_.requests().empty() || OneIn(5)) return prompt;
    const Sequence& other = engine_.requests()[random_() % engine_.requests().size()]->sequence;
    const uint32_t known = std::min({tokens, other.length_max, other.prompt_tokens + (OneIn(3) ? 0u : 100u)});
    const uint32_t same = OneIn(3) ? static_cast<uint32_t>(Between(0, static_cast<int>(known))) : known;
    std::copy_n(other.log.tokens.begin(), same, prompt.begin());
    return prompt;
  }

  SimAsk AnotherAnswer(const SimAsk& first) {
    SimAsk ask = first;
    ask.prompt_logits = false;
    ask.prompt_logprobs = -1;
    ask.seed = random_();
    if (first.max_tokens > 0 && OneIn(2)) ask.max_tokens = std::max(ask.min_tokens, 1u);
    return ask;
  }

  // Answers that have not begun are only cancelled all at once, as a request is.
  void CancelThis(SimRequest* request) {
    const bool begun = request->announced > 0 || request->finished;
    for (SimRequest* each : begun ? std::vector<SimRequest*>{request} : groups_[request]) {
      if (each->finished) continue;
      cancelled_.insert(each);
      engine_.Cancel(each);
    }
  }

  void CancelOne() {
    if (!engine_.requests().empty()) CancelThis(engine_.requests()[random_() % engine_.requests().size()].get());
  }

  void LoseOrReturn() {
    for (int i = 0; i < home_count_; ++i) {
      SimLink* const link = engine_.link(i);
      if (engine_.let_go(i)) {
        if (!OneIn(100)) continue;
        draining_.erase(i);
        AddHome(i, link->home().pages_total());
        continue;
      }
      if (link->lost() || !OneIn(1500)) continue;
      switch (Between(0, 5)) {
        case 0:
          link->Hang();
          break;
        case 4:
        case 5:
          if (!link->AttendsInStage() && draining_.insert(i).second) link->Drain();
          break;
        case 1:
          link->ChangeNextReply([this](ReplyHeader* reply) { SpoilReply(reply); });
          break;
        case 2: {
          PipelineCommand command;
          command.kind = PipelineCommand::Kind::kRemoveHome;
          command.home = i;
          EXPECT_TRUE(engine_.pipeline().TryCommand(command));
          break;
        }
        default:
          link->MarkLost("cut");
      }
    }
  }

  // Requests with one answer that are at homes which drain. Further answers may come to where their first one is.
  std::set<const SimRequest*> AtDrainingHomes() {
    std::set<const SimRequest*> there;
    if (draining_.empty()) return there;
    for (const auto& request : engine_.requests()) {
      const Sequence& sequence = request->sequence;
      const bool drains = draining_.contains(sequence.seat.home) || draining_.contains(sequence.push.seat.home);
      if (!request->finished && groups_[request.get()].size() == 1 && drains) there.insert(request.get());
    }
    return there;
  }

  // A home that has said that it drains gets no new sequence.
  void CheckNobodyCame(const std::set<const SimRequest*>& before) {
    for (const SimRequest* request : AtDrainingHomes()) {
      EXPECT_TRUE(before.contains(request)) << "sequence " << request->sequence.id << " came to a home that drains";
    }
  }

  void SpoilReply(ReplyHeader* reply) {
    switch (Between(0, 5)) {
      case 0:
        reply->step += OneIn(2) ? 1 : ~uint64_t{0};
        break;
      case 1:
        reply->layer = static_cast<uint16_t>(reply->layer + 1);
        break;
      case 2:
        reply->micro_batch = static_cast<uint8_t>(options_.limits.micro_batches + Between(0, 200));
        break;
      case 3:
        reply->status = HopStatus::kBadHop;
        break;
      case 4:
        reply->payload_bytes -= 64;
        break;
      default:
        reply->status = HopStatus::kBadRow;
        reply->failing_row = 1'000'000;
    }
  }

  void SpoilOne() {
    if (OneIn(3)) {
      engine_.spart().SpoilLogits(1);
      return;
    }
    SimLink* const link = engine_.link(Between(0, home_count_ - 1));
    if (link == nullptr || link->lost() || link->AttendsInStage() || !link->home().spoiled()) return;
    const std::vector<uint64_t> there =
        link->home().SequencesOf(static_cast<uint32_t>(random_() % options_.limits.micro_batches));
    if (!there.empty()) link->home().SpoilRow(there[random_() % there.size()]);
  }

  void Check(const SimRequest& request) {
    reasons_.insert(request.reason);
    engine_.CheckTokens(request);
    const uint64_t id = request.sequence.id;
    switch (request.reason) {
      case FinishReason::kStopToken:
      case FinishReason::kLength:
        break;
      case FinishReason::kCancelled:
        EXPECT_EQ(cancelled_.count(&request), 1u) << id;
        break;
      case FinishReason::kLosesHomes:
      case FinishReason::kNoHome:
        EXPECT_TRUE(faults_.lose_homes) << id;
        break;
      case FinishReason::kBadRow:
      case FinishReason::kBadLogits:
        EXPECT_TRUE(faults_.spoil) << id;
        break;
      case FinishReason::kSPartFailed:
        ADD_FAILURE() << "no stage fails here: " << id;
        break;
      case FinishReason::kNoCandidate:
        ADD_FAILURE() << "some token can always be sampled: " << id;
        break;
    }
  }

  const FuzzFaults faults_;
  std::mt19937_64 random_;
  int submit_in_ = 1;
  int cancel_in_ = 1;
  int events_in_ = 1;
  bool tiny_pools_ = false;
  const SimOptions options_;
  SimEngine engine_;
  int home_count_ = 0;
  std::set<const SimRequest*> cancelled_;
  std::set<int> draining_;                                        // homes that have said so
  std::map<const SimRequest*, std::vector<SimRequest*>> groups_;  // of answers to one request
  std::set<FinishReason> reasons_;
};

// What runs of one kind have met.
struct FuzzTotals {
  std::set<FinishReason> reasons;
  uint64_t preemptions = 0, moves = 0, recoveries = 0, cached_tokens = 0;
};

// Ends with the first seed that fails.
void RunSeeds(int kind, uint64_t first, int count, const FuzzFaults& faults, FuzzTotals* totals) {
  for (int i = 0; i < count; ++i) {
    const uint64_t seed = first + static_cast<uint64_t>(i);
    FuzzRun run(seed * 8 + static_cast<uint64_t>(kind), faults);
    run.Run();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    totals->preemptions += run.preemptions();
    totals->moves += run.moves();
    totals->recoveries += run.recoveries();
    totals->cached_tokens += run.cached_tokens();
    for (const FinishReason reason : run.reasons()) totals->reasons.insert(reason);
  }
}

constexpr int kRunsPerKind = 1200;
const std::set<FinishReason> kWithoutFaults = {FinishReason::kStopToken, FinishReason::kLength,
                                               FinishReason::kCancelled};

TEST(PipelineFuzzTest, SchedulesWithoutFaults) {
  FuzzTotals totals;
  RunSeeds(0, 1, kRunsPerKind, {}, &totals);
  EXPECT_EQ(totals.reasons, kWithoutFaults);
  EXPECT_GT(totals.preemptions, 100u) << "no pool was small enough";
}

TEST(PipelineFuzzTest, SchedulesWithLostAndReturningHomes) {
  FuzzTotals totals;
  RunSeeds(1, 1, kRunsPerKind, {.lose_homes = true, .spoil = false}, &totals);
  EXPECT_GT(totals.recoveries, 1000u);
  EXPECT_GT(totals.preemptions, 100u);
}

TEST(PipelineFuzzTest, SchedulesWithRowsThatFail) {
  FuzzTotals totals;
  RunSeeds(2, 1, kRunsPerKind, {.lose_homes = true, .spoil = true}, &totals);
  EXPECT_EQ(totals.reasons.count(FinishReason::kBadRow), 1u);
  EXPECT_EQ(totals.reasons.count(FinishReason::kBadLogits), 1u);
}

// Micro-batches as a plan says, which changes as sequences come and go: members move between them.
TEST(PipelineFuzzTest, SchedulesWithANearHome) {
  FuzzTotals totals;
  RunSeeds(3, 1, kRunsPerKind, {.near = true}, &totals);
  EXPECT_EQ(totals.reasons, kWithoutFaults);
  EXPECT_GT(totals.preemptions, 100u);
  EXPECT_GT(totals.moves, 1000u);
}

TEST(PipelineFuzzTest, SchedulesWithANearHomeAndHomesThatAreLost) {
  FuzzTotals totals;
  RunSeeds(4, 1, kRunsPerKind, {.lose_homes = true, .spoil = true, .near = true}, &totals);
  EXPECT_GT(totals.recoveries, 300u);
  EXPECT_EQ(totals.reasons.count(FinishReason::kBadRow), 1u);
  EXPECT_GT(totals.moves, 1000u);
}

// Prompts that begin alike, pages that make room for others, and what is kept when homes go.
TEST(PipelineFuzzTest, SchedulesWithACache) {
  FuzzTotals totals;
  RunSeeds(5, 1, kRunsPerKind / 2, {.cache = true}, &totals);
  EXPECT_EQ(totals.reasons, kWithoutFaults);
  EXPECT_GT(totals.preemptions, 100u);
  EXPECT_GT(totals.cached_tokens, 15'000u);
}

TEST(PipelineFuzzTest, SchedulesWithACacheAndFaults) {
  FuzzTotals totals;
  RunSeeds(6, 1, kRunsPerKind / 2, {.lose_homes = true, .spoil = true, .cache = true}, &totals);
  EXPECT_GT(totals.recoveries, 150u);
  EXPECT_GT(totals.cached_tokens, 15'000u);
}

TEST(PipelineFuzzTest, SchedulesWithACacheAndANearHome) {
  FuzzTotals totals;
  RunSeeds(7, 1, kRunsPerKind / 2, {.lose_homes = true, .near = true, .cache = true}, &totals);
  EXPECT_GT(totals.preemptions, 100u);
  EXPECT_GT(totals.cached_tokens, 15'000u);
  EXPECT_GT(totals.moves, 500u);
}

}  // namespace
}  // namespace fastdecode
