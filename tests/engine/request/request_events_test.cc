// How events come to callers: of all requests through one thread, by a descriptor for event loops, bounded, and in
// time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "numa/clock.h"
#include "tests/engine/request/serving.h"

namespace fastdecode {
namespace {

using NextResult = RequestDesk::NextResult;

bool IsReadable(int fd, int timeout_ms = 0) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, timeout_ms) == 1 && (entry.revents & POLLIN) != 0;
}

TEST(RequestEventsTest, OneThreadTakesTheEventsOfAll) {
  Serving serving({});
  std::map<uint64_t, std::vector<int32_t>> prompts;
  std::map<uint64_t, ServingOutcome> outcomes;
  const ServingAsk ask = {.max_tokens = 12};
  for (uint64_t i = 0; i < 60; ++i) {
    const std::vector<int32_t> prompt = Serving::Prompt(5, i);
    prompts[serving.MustSubmit(prompt, ask)] = prompt;
  }
  std::mt19937_64 random(1);
  for (size_t events = 0; events < prompts.size() * 13;) {
    const size_t capacity = 1 + random() % 100;
    const size_t taken = serving.Poll(capacity, -1, &outcomes);
    ASSERT_GE(taken, 1u);
    ASSERT_LE(taken, capacity);
    events += taken;
  }
  for (const auto& [id, prompt] : prompts) serving.CheckWhole(outcomes[id], prompt, ask);
  EXPECT_EQ(serving.Poll(10, 1'000'000, &outcomes), 0u);
  // And forgotten with the next Poll.
  ServingEvent event;
  for (const auto& [id, prompt] : prompts) EXPECT_EQ(serving.Next(id, &event, 0), NextResult::kUnknown);
}

TEST(RequestEventsTest, RequestsTakeTurns) {
  Serving serving({});
  const uint64_t first = serving.MustSubmit(Serving::Prompt(5, 1), {.max_tokens = 200});
  const uint64_t second = serving.MustSubmit(Serving::Prompt(5, 2), {.max_tokens = 200});
  serving.desk().Drain(-1);  // both have all their events waiting
  std::map<uint64_t, ServingOutcome> outcomes;
  ASSERT_EQ(serving.Poll(100, -1, &outcomes), 100u);
  EXPECT_EQ(outcomes[first].events, 50u);
  EXPECT_EQ(outcomes[second].events, 50u);
}

// A stop string ends a request before the pipeline has given its sequence back, to which events point; and somebody
// else may forget it.
TEST(RequestEventsTest, WhatWasPolledLivesUntilTheNextPoll) {
  Serving serving({});
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::vector<int32_t> prompt = Serving::Prompt(8, seed);
    const std::vector<int32_t> generated = serving.Expect(prompt, {.max_tokens = 200}).generated;
    const uint64_t id =
        serving.MustSubmit(prompt, {.max_tokens = 200, .stops = {Serving::TextOf(generated).substr(30, 3)}});
    std::vector<TakenEvent> taken;
    std::vector<int32_t> tokens;
    for (bool finished = false; !finished;) {
      serving.desk().Poll(64, -1, &taken);
      if (taken.back().event->kind == RequestEvent::Kind::kFinished) {
        // By now it may have been given back.
        std::this_thread::sleep_for(std::chrono::milliseconds(seed % 4));
        finished = true;
        if (seed % 2 == 1) serving.desk().Forget(id);  // as another thread may
      }
      for (const TakenEvent& one : taken) {
        const Sequence& sequence = one.request->first();
        const int32_t* const first = sequence.log.tokens.data() + sequence.prompt_tokens + one.event->token_index;
        tokens.insert(tokens.end(), first, first + one.event->token_count);
      }
    }
    ASSERT_LE(tokens.size(), generated.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), generated.begin()));
  }
}

TEST(RequestEventsTest, TheDescriptorIsReadableWhileAnEventWaits) {
  Serving serving({});
  const int fd = serving.desk().EventFd();
  ASSERT_GE(fd, 0);
  EXPECT_EQ(serving.desk().EventFd(), fd);
  EXPECT_FALSE(IsReadable(fd));
  const std::vector<int32_t> prompt = Serving::Prompt(5, 1);
  std::map<uint64_t, ServingOutcome> outcomes;
  const uint64_t polled = serving.MustSubmit(prompt, {.max_tokens = 9});
  EXPECT_TRUE(IsReadable(fd, -1));
  serving.desk().Drain(0);
  while (serving.desk().statistics().running > 0) std::this_thread::yield();
  for (int left = 10; left > 0; --left) {
    EXPECT_TRUE(IsReadable(fd)) << left << " events wait";
    ASSERT_EQ(serving.Poll(1, 0, &outcomes), 1u);
  }
  EXPECT_FALSE(IsReadable(fd));
  serving.CheckWhole(outcomes[polled], prompt, {.max_tokens = 9});
}

TEST(RequestEventsTest, TheDescriptorFollowsNextAndForgetToo) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(5, 1);
  const uint64_t early = serving.MustSubmit(prompt, {.max_tokens = 3});
  while (serving.desk().statistics().running > 0) std::this_thread::yield();
  const int fd = serving.desk().EventFd();  // made while events wait
  EXPECT_TRUE(IsReadable(fd));
  serving.CheckWhole(serving.Collect(early), prompt, {.max_tokens = 3});
  EXPECT_FALSE(IsReadable(fd));
  const uint64_t forgotten = serving.MustSubmit(prompt, {.max_tokens = 900});
  EXPECT_TRUE(IsReadable(fd, -1));
  serving.desk().Forget(forgotten);
  EXPECT_FALSE(IsReadable(fd));
  serving.desk().Drain(-1);
  EXPECT_FALSE(IsReadable(fd)) << "nobody hears of a forgotten request";
}

TEST(RequestEventsTest, EventsThatNobodyTakesAreMerged) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(8, 3);
  const ServingAsk ask = {.max_tokens = 1200};
  const uint64_t neglected = serving.MustSubmit(prompt, ask);
  serving.desk().Drain(-1);
  const ServingOutcome outcome = serving.Collect(neglected);
  serving.CheckWhole(outcome, prompt, ask);
  EXPECT_EQ(outcome.events, Request::kUndeliveredMax + 1) << "and the last event";
}

TEST(RequestEventsTest, MergedEventsSayWhatSpecialTokensWrote) {
  Serving serving({.has_special = true});
  const uint64_t id = serving.MustSubmit(Serving::Prompt(8, 3), {.max_tokens = 1200, .show_special = true});
  serving.desk().Drain(-1);
  const ServingOutcome outcome = serving.Collect(id);
  std::vector<TextRange> special;
  for (size_t i = 0; i < outcome.tokens.size(); ++i) {
    if (IsServingSpecial(outcome.tokens[i])) AddRange({i, i + 1}, &special);
  }
  EXPECT_EQ(outcome.tokens.size(), 1200u);
  EXPECT_EQ(outcome.special, special);
}

// The text of a token that waits with others is not lost when they are taken one by one meanwhile.
TEST(RequestEventsTest, ASlowReaderMissesNothing) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(8, 4);
  const ServingAsk ask = {.max_tokens = 1200};
  const uint64_t id = serving.MustSubmit(prompt, ask);
  ServingOutcome outcome;
  ServingEvent event;
  for (int i = 0; !event.finished; ++i) {
    ASSERT_EQ(serving.Next(id, &event, -1), NextResult::kEvent);
    outcome.Add(event);
    if (i % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  serving.CheckWhole(outcome, prompt, ask);
}

// ---- deadlines

TEST(RequestEventsTest, ADeadlineEndsARequestThatWaits) {
  Serving serving({.homes = 0});
  const uint64_t start_ns = NowNs();
  const uint64_t late = serving.MustSubmit(Serving::Prompt(8, 1), {.deadline_ns = start_ns + 20'000'000});
  const uint64_t past = serving.MustSubmit(Serving::Prompt(8, 2), {.deadline_ns = start_ns});
  const uint64_t patient = serving.MustSubmit(Serving::Prompt(8, 3), {});
  for (const uint64_t id : {past, late}) {
    const ServingOutcome outcome = serving.Collect(id);
    EXPECT_EQ(outcome.finish, RequestFinish::kDeadline);
    EXPECT_EQ(outcome.tokens.size(), 0u);
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.end.times.prefill.steps, 0u);
    EXPECT_GT(outcome.end.times.queue_ns, id == late ? 15'000'000u : 0u) << "all of its time";
  }
  EXPECT_GE(NowNs(), start_ns + 20'000'000);
  EXPECT_EQ(serving.desk().statistics().running, 1u);
  serving.AddHome(0);
  serving.CheckWhole(serving.Collect(patient), Serving::Prompt(8, 3), {});
}

TEST(RequestEventsTest, ADeadlineEndsARequestThatRunsWithWhatItHas) {
  Serving serving({});
  bool cut = false;
  for (uint64_t i = 0; i < 50 && !cut; ++i) {
    const std::vector<int32_t> prompt = Serving::Prompt(8, i);
    const ServingAsk ask = {.max_tokens = 2500, .deadline_ns = NowNs() + 2'000'000};
    const ServingOutcome outcome = serving.Collect(serving.MustSubmit(prompt, ask));
    if (outcome.finish == RequestFinish::kLength) continue;  // it was fast
    EXPECT_EQ(outcome.finish, RequestFinish::kDeadline);
    serving.CheckPrefix(outcome, prompt, ask);
    EXPECT_EQ(outcome.generated_tokens, outcome.tokens.size());
    cut = !outcome.tokens.empty();
  }
  EXPECT_TRUE(cut);
}

TEST(RequestEventsTest, ADeadlineThatIsNotReachedChangesNothing) {
  Serving serving({});
  for (uint64_t i = 0; i < 10; ++i) {
    const std::vector<int32_t> prompt = Serving::Prompt(8, i);
    const ServingAsk ask = {.max_tokens = 20, .deadline_ns = NowNs() + uint64_t{3600} * 1'000'000'000};
    serving.CheckWhole(serving.Collect(serving.MustSubmit(prompt, ask)), prompt, ask);
  }
}

// ---- how it ended, and what is counted

TEST(RequestEventsTest, TheEndSaysWhichStopItWas) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(8, 5);
  const std::vector<int32_t> tokens = serving.Expect(prompt, {.max_tokens = 60}).generated;
  const RequestEnd by_string =
      serving
          .Collect(
              serving.MustSubmit(prompt, {.max_tokens = 60, .stops = {"~~~~", Serving::TextOf(tokens).substr(20, 4)}}))
          .end;
  EXPECT_EQ(by_string.stop_index, 1);
  EXPECT_EQ(by_string.stop_token, -1);
  const RequestEnd by_token =
      serving.Collect(serving.MustSubmit(prompt, {.max_tokens = 60, .stop_token_ids = {tokens[9]}})).end;
  EXPECT_EQ(by_token.finish, RequestFinish::kStop);
  EXPECT_EQ(by_token.stop_index, -1);
  EXPECT_EQ(by_token.stop_token, tokens[9]);
  const RequestEnd by_length = serving.Collect(serving.MustSubmit(prompt, {.max_tokens = 3})).end;
  EXPECT_EQ(by_length.stop_index, -1);
  EXPECT_EQ(by_length.stop_token, -1);
}

TEST(RequestEventsTest, TheEndSaysWhereTheTimeWent) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(8, 5);
  const std::string text = Serving::TextOf(serving.Expect(prompt, {.max_tokens = 60}).generated);
  const ServingAsk asks[] = {{.max_tokens = 40}, {.max_tokens = 60, .stops = {text.substr(20, 4)}}};
  for (const ServingAsk& ask : asks) {
    const uint64_t before_ns = NowNs();
    const RequestTimes times = serving.Collect(serving.MustSubmit(prompt, ask)).end.times;
    const uint64_t whole_ns = NowNs() - before_ns;
    EXPECT_EQ(times.prefill.steps, 1u);
    EXPECT_GE(times.decode.steps, 20u);
    for (const StepTimes& steps : {times.prefill, times.decode}) {
      EXPECT_GT(steps.s_ns, 0u);
      EXPECT_EQ(steps.total_ns,
                steps.s_ns + steps.wait_ns + steps.home_ns + steps.wire_ns + steps.boundary_ns + steps.sampling_ns);
    }
    EXPECT_GT(times.queue_ns, 0u);
    EXPECT_LE(times.queue_ns + times.prefill.total_ns + times.decode.total_ns, whole_ns);
  }
}

TEST(RequestEventsTest, DrainReturnsWithHowManyAreLeft) {
  Serving serving({.homes = 0});
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 3; ++i) ids.push_back(serving.MustSubmit(Serving::Prompt(8, i), {}));
  const uint64_t start_ns = NowNs();
  EXPECT_EQ(serving.desk().Drain(3'000'000), 3u);
  EXPECT_GE(NowNs(), start_ns + 3'000'000);
  EXPECT_EQ(serving.Submit(Serving::Prompt(8, 9), {}).status().code(), absl::StatusCode::kUnavailable);
  serving.AddHome(0);
  EXPECT_EQ(serving.desk().Drain(-1), 0u);
  for (uint64_t i = 0; i < 3; ++i) serving.CheckWhole(serving.Collect(ids[i]), Serving::Prompt(8, i), {});
}

TEST(RequestEventsTest, EachRequestIsCountedOnce) {
  Serving serving({.homes = 0, .queue_max = 4});
  const std::vector<int32_t> prompt = Serving::Prompt(8, 5);
  const uint64_t cancelled = serving.MustSubmit(prompt, {});
  const uint64_t overdue = serving.MustSubmit(prompt, {.deadline_ns = 1});
  const uint64_t stopped =
      serving.MustSubmit(prompt, {.max_tokens = 40, .stop_token_ids = {serving.Expect(prompt, {}).generated[3]}});
  const uint64_t whole = serving.MustSubmit(prompt, {.max_tokens = 7});
  while (serving.desk().statistics().running > 3) std::this_thread::yield();  // `overdue` has ended
  serving.MustSubmit(prompt, {.max_tokens = 5});
  EXPECT_FALSE(serving.Submit(prompt, {}).ok());
  serving.desk().Cancel(cancelled);
  serving.AddHome(0);
  serving.desk().Drain(-1);
  const DeskStatistics counts = serving.desk().statistics();
  EXPECT_EQ(counts.submitted, 5u);
  EXPECT_EQ(counts.refused, 1u);
  EXPECT_EQ(counts.prompt_tokens, 40u);
  EXPECT_EQ(counts.undelivered, 5u);
  EXPECT_TRUE(counts.draining);
  EXPECT_THAT(counts.finished, testing::ElementsAre(1, 2, 1, 0, 1));  // stop, length, cancelled, error, deadline
  EXPECT_EQ(counts.generated_tokens, serving.Collect(stopped).tokens.size() + serving.Collect(whole).tokens.size() + 5 +
                                         serving.Collect(cancelled).tokens.size());
  serving.desk().Forget(overdue);
  EXPECT_EQ(serving.desk().statistics().undelivered, 1u);
}

// ---- everything at once

TEST(RequestEventsTest, APollerServesManyCallersWhoCancel) {
  Serving serving({.homes = 2, .pages = 150, .park_after_ns = 1});
  constexpr uint64_t kRequests = 400;
  std::vector<std::thread> callers;
  for (uint64_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937_64 random(caller);
      for (uint64_t i = 0; i < kRequests / 4; ++i) {
        const ServingAsk ask = {.max_tokens = 1 + static_cast<uint32_t>(random() % 60),
                                .deadline_ns = random() % 4 == 0 ? NowNs() + random() % 5'000'000 : 0};
        const uint64_t id = serving.MustSubmit(Serving::Prompt(1 + random() % 60, random()), ask);
        if (random() % 4 == 0) serving.desk().Cancel(id);
      }
    });
  }
  const int fd = serving.desk().EventFd();
  std::map<uint64_t, ServingOutcome> outcomes;
  uint64_t ended = 0;
  while (ended < kRequests) {
    ASSERT_TRUE(IsReadable(fd, 120'000));
    ASSERT_GT(serving.Poll(50, 0, &outcomes), 0u) << "the descriptor was readable";
    ended = 0;
    for (const auto& [id, outcome] : outcomes)
      ended += outcome.end.generated_tokens == outcome.tokens.size() && outcome.finish != RequestFinish::kError;
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_FALSE(IsReadable(fd));
  EXPECT_EQ(serving.desk().statistics().undelivered, 0u);
}

}  // namespace
}  // namespace fastdecode
