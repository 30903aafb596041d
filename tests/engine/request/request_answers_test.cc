// Requests of several answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/engine/request/serving.h"

namespace fastdecode {
namespace {

// All events of a request, by answer, until each has ended.
std::map<uint32_t, ServingOutcome> CollectAnswers(Serving* serving, uint64_t id, uint32_t answers) {
  std::map<uint32_t, ServingOutcome> outcomes;
  std::map<uint32_t, int> ended;
  ServingEvent event;
  while (ended.size() < answers) {
    if (serving->Next(id, &event, -1) != RequestDesk::NextResult::kEvent) {
      ADD_FAILURE() << "request " << id << " is unknown before its last event";
      return outcomes;
    }
    EXPECT_EQ(ended.count(event.answer), 0u) << "an event behind the last one of answer " << event.answer;
    outcomes[event.answer].Add(event);
    if (event.finished) ++ended[event.answer];
  }
  EXPECT_EQ(serving->Next(id, &event, -1), RequestDesk::NextResult::kUnknown);
  return outcomes;
}

uint64_t FinishedCount(Serving& serving) {
  uint64_t all = 0;
  for (const uint64_t count : serving.desk().statistics().finished) all += count;
  return all;
}

// Each is what a request of its own with its seed would have got.
TEST(RequestAnswersTest, EachIsSampledWithASeedOfItsOwn) {
  Serving serving({});
  ServingAsk ask = {.max_tokens = 30, .seed = 1000, .answers = 5};
  const std::vector<int32_t> prompt = Serving::Prompt(40, 1);
  std::map<uint32_t, ServingOutcome> outcomes = CollectAnswers(&serving, serving.MustSubmit(prompt, ask), ask.answers);
  for (uint32_t i = 0; i < 5; ++i) {
    SCOPED_TRACE(i);
    serving.CheckWhole(outcomes[i], prompt, {.max_tokens = 30, .seed = 1000 + i});
    if (i > 0) EXPECT_NE(outcomes[i].tokens, outcomes[0].tokens);
  }
  EXPECT_EQ(FinishedCount(serving), 1u) << "it is one request";
  EXPECT_EQ(serving.desk().statistics().running, 0u);
  EXPECT_EQ(serving.desk().statistics().prompt_tokens, 40u);
  EXPECT_EQ(serving.desk().statistics().generated_tokens, 5 * 30u);
}

TEST(RequestAnswersTest, AStopStringEndsOnlyItsAnswer) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(20, 2);
  const std::string whole = Serving::TextOf(serving.Expect(prompt, {.max_tokens = 60, .seed = 7}).generated);
  const std::string stop = whole.substr(10, 4);
  const ServingAsk ask = {.max_tokens = 60, .stops = {stop}, .seed = 7, .answers = 3};
  std::map<uint32_t, ServingOutcome> outcomes = CollectAnswers(&serving, serving.MustSubmit(prompt, ask), 3);
  for (uint32_t i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    const std::string text = Serving::TextOf(serving.Expect(prompt, {.max_tokens = 60, .seed = 7 + i}).generated);
    const size_t found = text.find(stop);
    EXPECT_EQ(outcomes[i].text, text.substr(0, found));
    EXPECT_EQ(outcomes[i].finish, found == std::string::npos ? RequestFinish::kLength : RequestFinish::kStop);
  }
  EXPECT_EQ(outcomes[0].finish, RequestFinish::kStop);
}

// Takes events until each answer has one with a token.
void AwaitTokens(Serving* serving, uint64_t id, uint32_t answers, std::map<uint32_t, ServingOutcome>* outcomes) {
  ServingEvent event;
  while (outcomes->size() < answers) {
    ASSERT_EQ(serving->Next(id, &event, -1), RequestDesk::NextResult::kEvent);
    ASSERT_FALSE(event.finished);
    (*outcomes)[event.answer].Add(event);
  }
}

TEST(RequestAnswersTest, CancelsAndDeadlinesEndThemAll) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(20, 3);
  for (const bool have_tokens : {false, true}) {
    SCOPED_TRACE(have_tokens);
    const uint64_t id = serving.MustSubmit(prompt, {.max_tokens = 400, .answers = 3});
    std::map<uint32_t, ServingOutcome> begun;
    if (have_tokens) AwaitTokens(&serving, id, 3, &begun);
    serving.desk().Cancel(id);
    ServingEvent event;
    int ended = 0;
    while (serving.Next(id, &event, -1) == RequestDesk::NextResult::kEvent) {
      if (!event.finished) continue;
      ++ended;
      EXPECT_EQ(event.end.finish, RequestFinish::kCancelled) << event.answer;
    }
    EXPECT_EQ(ended, 3);
  }
  const ServingAsk late = {.max_tokens = 400, .deadline_ns = 1, .answers = 3};
  for (const auto& [answer, outcome] : CollectAnswers(&serving, serving.MustSubmit(prompt, late), 3)) {
    EXPECT_EQ(outcome.finish, RequestFinish::kDeadline) << answer;
  }
  EXPECT_EQ(FinishedCount(serving), 3u);
  // A forgotten one leaves nothing behind, whether it runs or waits, and with events that nobody has taken.
  std::map<uint32_t, ServingOutcome> begun;
  const uint64_t runs = serving.MustSubmit(prompt, {.max_tokens = 400, .answers = 3});
  AwaitTokens(&serving, runs, 3, &begun);
  serving.desk().Forget(runs);
  serving.desk().Forget(serving.MustSubmit(prompt, {.max_tokens = 400, .answers = 3}));
  EXPECT_EQ(serving.desk().Drain(-1), 0u);
}

TEST(RequestAnswersTest, APolledRequestIsForgottenWithTheLastOfItsEnds) {
  constexpr int64_t kPatienceNs = 60'000'000'000;
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(20, 6);
  const std::string whole = Serving::TextOf(serving.Expect(prompt, {.max_tokens = 200, .seed = 7}).generated);
  const ServingAsk ask = {.max_tokens = 200, .stops = {whole.substr(0, 6)}, .seed = 7, .answers = 4};
  const uint64_t id = serving.MustSubmit(prompt, ask);
  std::vector<TakenEvent> taken;
  std::vector<uint32_t> ends;
  while (ends.size() < 4) {
    serving.desk().Poll(1, kPatienceNs, &taken);
    ASSERT_EQ(taken.size(), 1u) << "nothing has come, and " << ends.size() << " answers have ended";
    EXPECT_EQ(taken[0].request->id, id);
    if (taken[0].event->kind == RequestEvent::Kind::kFinished) ends.push_back(taken[0].event->answer);
    const DeskStatistics counts = serving.desk().statistics();
    EXPECT_EQ(counts.running_answers > 0, counts.running > 0);
  }
  EXPECT_EQ(ends[0], 0u) << "its stop string comes first";
  std::sort(ends.begin(), ends.end());
  EXPECT_THAT(ends, testing::ElementsAre(0u, 1u, 2u, 3u));
  TakenEvent none;
  EXPECT_EQ(serving.desk().Next(id, &none, 0), RequestDesk::NextResult::kUnknown);
  serving.desk().Poll(1, 0, &taken);
  EXPECT_TRUE(taken.empty());
  EXPECT_EQ(FinishedCount(serving), 1u);
}

// What nobody takes is added to the last events.
TEST(RequestAnswersTest, UndeliveredEventsAreBounded) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(10, 5);
  const uint64_t id = serving.MustSubmit(prompt, {.max_tokens = 480, .seed = 5, .answers = 4});
  EXPECT_EQ(serving.desk().Drain(-1), 0u);
  size_t events = 0;
  std::map<uint32_t, ServingOutcome> outcomes;
  ServingEvent event;
  while (serving.Next(id, &event, -1) == RequestDesk::NextResult::kEvent) {
    ++events;
    outcomes[event.answer].Add(event);
  }
  EXPECT_LE(events, Request::kUndeliveredMax + 2 * 4);
  for (uint32_t i = 0; i < 4; ++i) serving.CheckWhole(outcomes[i], prompt, {.max_tokens = 480, .seed = 5 + i});
}

// Each answer takes a place of the queue.
TEST(RequestAnswersTest, TheQueueCountsAnswers) {
  Serving serving({.queue_max = 6});
  const std::vector<int32_t> prompt = Serving::Prompt(20, 4);
  const uint64_t first = serving.MustSubmit(prompt, {.max_tokens = 400, .answers = 4});
  EXPECT_EQ(serving.Submit(prompt, {.answers = 3}).status().code(), absl::StatusCode::kResourceExhausted);
  const uint64_t second = serving.MustSubmit(prompt, {.answers = 2});
  CollectAnswers(&serving, second, 2);
  serving.desk().Cancel(first);
  CollectAnswers(&serving, first, 4);
  CollectAnswers(&serving, serving.MustSubmit(prompt, {.answers = 6}), 6);
}

TEST(RequestAnswersTest, ANumberOutOfRangeIsRefused) {
  Serving serving({});
  EXPECT_THAT(std::string(serving.Submit(Serving::Prompt(3, 1), {.answers = 0}).status().message()),
              testing::HasSubstr("n: 0 is not at least 1"));
  EXPECT_THAT(std::string(serving.Submit(Serving::Prompt(3, 1), {.answers = 129}).status().message()),
              testing::HasSubstr("n: 129 is more than 128"));
}

}  // namespace
}  // namespace fastdecode
