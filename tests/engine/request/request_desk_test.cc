#include "engine/request/request_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "tests/engine/request/serving.h"

namespace fastdecode {
namespace {

using NextResult = RequestDesk::NextResult;

void JoinAll(std::vector<std::thread>* threads) {
  for (std::thread& thread : *threads) thread.join();
}

TEST(RequestDeskTest, ManyCallersGetTheirOwnTokens) {
  Serving serving({.homes = 2});
  std::vector<std::thread> callers;
  for (uint64_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&serving, caller] {
      for (uint64_t i = 0; i < 25; ++i) {
        const std::vector<int32_t> prompt = Serving::Prompt(1 + (caller * 31 + i * 7) % 90, caller * 1000 + i);
        const ServingAsk ask = {.max_tokens = 1 + static_cast<uint32_t>((caller + i) % 40)};
        const uint64_t id = serving.MustSubmit(prompt, ask);
        serving.CheckWhole(serving.Collect(id), prompt, ask);
      }
    });
  }
  JoinAll(&callers);
  EXPECT_EQ(serving.desk().statistics().running, 0u);
}

// ---- the end of a text

TEST(RequestDeskTest, StopTokensEndARequestAndAreNotPartOfIt) {
  Serving serving({});
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const std::vector<int32_t> prompt = Serving::Prompt(8, seed);
    const ServingAsk open = {.max_tokens = 100};
    const std::vector<int32_t> tokens = serving.Expect(prompt, open).generated;
    const ServingAsk ask = {.max_tokens = 100, .stop_token_ids = {tokens[20], tokens[40]}};
    const ServingOutcome outcome = serving.Collect(serving.MustSubmit(prompt, ask));
    EXPECT_LE(outcome.tokens.size(), 20u);
    EXPECT_EQ(outcome.finish, RequestFinish::kStop);
    serving.CheckWhole(outcome, prompt, ask);
  }
}

TEST(RequestDeskTest, StopStringsEndTheTextBeforeThemselves) {
  Serving serving({});
  for (const bool include : {false, true}) {
    std::vector<uint64_t> ids;
    std::vector<ServingAsk> asks;
    std::vector<std::string> texts;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<int32_t> prompt = Serving::Prompt(8, seed);
      texts.push_back(Serving::TextOf(serving.Expect(prompt, {.max_tokens = 100}).generated));
      const std::string stop = texts.back().substr(30, 3);
      asks.push_back({.max_tokens = 100, .stops = {"never there, I hope", stop}, .include_stop = include});
      ids.push_back(serving.MustSubmit(prompt, asks.back()));
    }
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::string& stop = asks[seed].stops[1];
      const size_t begin = texts[seed].find(stop);
      const ServingOutcome outcome = serving.Collect(ids[seed]);
      EXPECT_EQ(outcome.finish, RequestFinish::kStop);
      EXPECT_EQ(outcome.text, texts[seed].substr(0, begin + (include ? stop.size() : 0)));
      // The tokens go as far as the match, whatever the pipeline had computed by then.
      EXPECT_EQ(outcome.tokens.size(), begin + stop.size());
      serving.CheckPrefix(outcome, Serving::Prompt(8, seed), asks[seed]);
    }
  }
}

TEST(RequestDeskTest, WhatAStopStringHeldBackComesWithTheLastEvent) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(8, 3);
  const std::string text = Serving::TextOf(serving.Expect(prompt, {.max_tokens = 10}).generated);
  const ServingAsk ask = {.max_tokens = 10, .stops = {text.substr(6) + " and more"}};
  const ServingOutcome outcome = serving.Collect(serving.MustSubmit(prompt, ask));
  EXPECT_EQ(outcome.finish, RequestFinish::kLength);
  EXPECT_EQ(outcome.text, text);
}

TEST(RequestDeskTest, WhatAStopStringHeldBackComesBeforeHalfACharacter) {
  Serving serving({.vocab = 256});
  // Two characters, and the first byte of one that has two (0xc2 to 0xdf are tokens 126 to 155).
  const ServingAsk open = {.max_tokens = 3};
  std::vector<int32_t> prompt, tokens;
  for (uint64_t seed = 0; tokens.empty(); ++seed) {
    prompt = Serving::Prompt(8, seed);
    const std::vector<int32_t> generated = serving.Expect(prompt, open).generated;
    const bool half = generated[2] >= 126 && generated[2] <= 155;
    if (generated[0] < kServingVocab && generated[1] < kServingVocab && half) tokens = generated;
  }
  const std::string text = Serving::TextOf({tokens[0], tokens[1]});
  const ServingOutcome outcome = serving.Collect(serving.MustSubmit(prompt, {.max_tokens = 3, .stops = {text + "#"}}));
  EXPECT_EQ(outcome.tokens, tokens);
  EXPECT_EQ(outcome.text, text + "\uFFFD");
}

// However stop strings hold the text back.
TEST(RequestDeskTest, EventsSayWhatSpecialTokensWrote) {
  Serving serving({.has_special = true});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<int32_t> prompt = Serving::Prompt(8, seed);
    ServingAsk ask = {.max_tokens = 100, .show_special = true};
    const std::vector<int32_t> generated = serving.Expect(prompt, ask).generated;
    const std::string text = Serving::TextOf(generated);
    for (const std::string& stop : {std::string(), text.substr(6, 5) + " and more", text.substr(90) + "never",
                                    text.substr(30, 3), text.substr(29, 7)}) {
      ask.stops.clear();
      if (!stop.empty()) ask.stops.push_back(stop);
      const uint64_t id = serving.MustSubmit(prompt, ask);
      const ServingOutcome outcome = serving.Collect(id);
      EXPECT_EQ(outcome.text, text.substr(0, stop.empty() ? text.size() : text.find(stop)));
      std::vector<TextRange> special;
      for (size_t i = 0; i < outcome.text.size(); ++i) {
        if (IsServingSpecial(generated[i])) AddRange({i, i + 1}, &special);
      }
      EXPECT_EQ(outcome.special, special) << testing::PrintToString(stop);
    }
  }
}

TEST(RequestDeskTest, StopStringsAreLookedForInTheTextAfterMinTokens) {
  Serving serving({});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<int32_t> prompt = Serving::Prompt(8, seed);
    const std::string text = Serving::TextOf(serving.Expect(prompt, {.max_tokens = 100}).generated);
    for (const size_t length : {1, 3}) {
      const std::string stop = text.substr(30, length);
      const size_t min_tokens = text.find(stop) + 1;  // in vain there, and where it begins there, too
      const ServingAsk ask = {.max_tokens = 100, .stops = {stop}, .min_tokens = static_cast<uint32_t>(min_tokens)};
      const ServingOutcome outcome = serving.Collect(serving.MustSubmit(prompt, ask));
      EXPECT_EQ(outcome.text, text.substr(0, text.find(stop, min_tokens)));
      serving.CheckPrefix(outcome, prompt, ask);
    }
  }
}

// ---- cancel, forget, full queue

TEST(RequestDeskTest, CancelEndsARequestWithTheTokensSoFar) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(8, 3);
  // On a busy machine a request may end before it is cancelled; not always.
  bool cancelled = false;
  for (int attempt = 0; attempt < 100 && !cancelled; ++attempt) {
    const uint64_t id = serving.MustSubmit(prompt, {.max_tokens = 900});
    const uint64_t other = serving.MustSubmit(prompt, {.max_tokens = 50});
    ServingEvent event;
    ASSERT_EQ(serving.Next(id, &event, -1), NextResult::kEvent);
    serving.desk().Cancel(id);
    serving.desk().Cancel(id);
    serving.desk().Cancel(12345);
    uint32_t tokens = 1;
    while (!event.finished) {
      ASSERT_EQ(serving.Next(id, &event, -1), NextResult::kEvent);
      tokens += !event.finished;
    }
    cancelled = event.end.finish == RequestFinish::kCancelled;
    EXPECT_EQ(event.end.generated_tokens, tokens);
    EXPECT_EQ(tokens < 900, cancelled);
    serving.CheckWhole(serving.Collect(other), prompt, {.max_tokens = 50});
  }
  EXPECT_TRUE(cancelled);
}

TEST(RequestDeskTest, AForgottenRequestIsUnknown) {
  Serving serving({});
  const uint64_t id = serving.MustSubmit(Serving::Prompt(8, 3), {.max_tokens = 900});
  ServingEvent event;
  ASSERT_EQ(serving.Next(id, &event, -1), NextResult::kEvent);
  serving.desk().Forget(id);
  EXPECT_EQ(serving.Next(id, &event, -1), NextResult::kUnknown);
  std::map<uint64_t, ServingOutcome> none;
  EXPECT_EQ(serving.Poll(1, 1'000'000, &none), 0u);
  serving.desk().Drain(-1);
  EXPECT_EQ(serving.desk().statistics().running, 0u);
}

// Its caller frees the memory where they go.
TEST(RequestDeskTest, AForgottenRequestsPromptLogitsAreLeftAlone) {
  constexpr uint32_t kPromptTokens = 500;
  Serving serving({.homes = 1});
  std::vector<std::vector<float>> logits(60);
  std::mt19937_64 random(1);
  const auto submit = [&](std::vector<float>* out) {
    out->resize(kPromptTokens * kServingVocab);
    return serving.MustSubmit(Serving::Prompt(kPromptTokens, 1), {.max_tokens = 4, .prompt_logits = out});
  };
  const auto forget = [&](uint64_t id, std::vector<float>* out) {
    serving.desk().Forget(id);
    std::fill(out->begin(), out->end(), -1.0f);
  };
  for (size_t i = 0; i + 1 < logits.size(); ++i) {
    const uint64_t id = submit(&logits[i]);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    forget(id, &logits[i]);
  }
  // Nobody waits for ever while all ends, nor afterwards.
  const uint64_t last = submit(&logits.back());
  std::thread stopper([&] { serving.desk().Stop(); });
  forget(last, &logits.back());
  stopper.join();
  serving.desk().Forget(last);
  for (const std::vector<float>& one : logits) {
    EXPECT_EQ(std::count(one.begin(), one.end(), -1.0f), kPromptTokens * kServingVocab);
  }
}

// Whoever waits for a request's next event learns that another thread has forgotten it.
TEST(RequestDeskTest, ForgettingWakesWhoeverWaits) {
  Serving serving({.homes = 0});
  for (int round = 0; round < 20; ++round) {
    const uint64_t id = serving.MustSubmit(Serving::Prompt(8, 3), {});
    std::atomic<bool> waits{false};
    NextResult result = NextResult::kEvent;
    std::thread waiter([&] {
      ServingEvent event;
      waits = true;
      result = serving.Next(id, &event, round % 2 == 0 ? -1 : INT64_MAX);
    });
    while (!waits) std::this_thread::yield();
    if (round % 4 < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    serving.desk().Forget(id);
    waiter.join();
    EXPECT_EQ(result, NextResult::kUnknown);
  }
}

TEST(RequestDeskTest, AFullQueueRefusesUntilSomebodyEnds) {
  Serving serving({.homes = 0, .queue_max = 3});
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 3; ++i) ids.push_back(serving.MustSubmit(Serving::Prompt(8, i), {}));
  const absl::StatusOr<uint64_t> refused = serving.Submit(Serving::Prompt(8, 9), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("max-queue"));
  serving.desk().Cancel(ids[1]);
  EXPECT_EQ(serving.Collect(ids[1]).finish, RequestFinish::kCancelled);
  const uint64_t taken = serving.MustSubmit(Serving::Prompt(8, 9), {});
  EXPECT_FALSE(serving.Submit(Serving::Prompt(8, 9), {}).ok());
  serving.AddHome(0);
  serving.CheckWhole(serving.Collect(taken), Serving::Prompt(8, 9), {});
  serving.CheckWhole(serving.Collect(ids[0]), Serving::Prompt(8, 0), {});
  serving.CheckWhole(serving.Collect(ids[2]), Serving::Prompt(8, 2), {});
}

TEST(RequestDeskTest, ACallerWhoTakesNothingStopsNobody) {
  Serving serving({});
  const std::vector<int32_t> prompt = Serving::Prompt(8, 3);
  const uint64_t neglected = serving.MustSubmit(prompt, {.max_tokens = 900});
  for (uint64_t i = 0; i < 40; ++i) {
    const uint64_t id = serving.MustSubmit(prompt, {.max_tokens = 20});
    serving.CheckWhole(serving.Collect(id), prompt, {.max_tokens = 20});
  }
  serving.CheckWhole(serving.Collect(neglected), prompt, {.max_tokens = 900});
}

// ---- drain and stop

TEST(RequestDeskTest, DrainLetsAllEndAndTakesNoMore) {
  Serving serving({});
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < 30; ++i) ids.push_back(serving.MustSubmit(Serving::Prompt(8, i), {.max_tokens = 60}));
  serving.desk().Drain(-1);
  EXPECT_EQ(serving.desk().statistics().running, 0u);
  EXPECT_EQ(serving.Submit(Serving::Prompt(8, 1), {}).status().code(), absl::StatusCode::kUnavailable);
  for (uint64_t i = 0; i < 30; ++i)
    serving.CheckWhole(serving.Collect(ids[i]), Serving::Prompt(8, i), {.max_tokens = 60});
}

TEST(RequestDeskTest, StopCancelsAllAndTellsThem) {
  for (const int homes : {0, 1}) {
    Serving serving({.homes = homes, .pages = 40});
    std::vector<uint64_t> ids;
    for (uint64_t i = 0; i < 30; ++i) ids.push_back(serving.MustSubmit(Serving::Prompt(8, i), {.max_tokens = 1000}));
    std::vector<std::thread> callers;
    std::vector<ServingOutcome> outcomes(ids.size());
    for (size_t i = 0; i < 3; ++i) {
      callers.emplace_back([&, i] { outcomes[i] = serving.Collect(ids[i]); });
    }
    serving.desk().Stop();
    JoinAll(&callers);
    for (size_t i = 3; i < ids.size(); ++i) outcomes[i] = serving.Collect(ids[i]);
    size_t cancelled = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      serving.CheckPrefix(outcomes[i], Serving::Prompt(8, i), {.max_tokens = 1000});
      EXPECT_NE(outcomes[i].finish, RequestFinish::kError);
      cancelled += outcomes[i].finish == RequestFinish::kCancelled;
    }
    EXPECT_GT(cancelled, 0u);
    serving.desk().Stop();
    EXPECT_EQ(serving.Submit(Serving::Prompt(8, 1), {}).status().code(), absl::StatusCode::kUnavailable);
  }
}

// ---- homes

TEST(RequestDeskTest, RequestsOfALostHomeGoOnAndItComesBack) {
  Serving serving({.homes = 2, .pages = 400});
  const ServingAsk ask = {.max_tokens = 700};
  for (int round = 1; round <= 3; ++round) {
    std::vector<uint64_t> ids;
    for (uint64_t i = 0; i < 8; ++i) ids.push_back(serving.MustSubmit(Serving::Prompt(8, i), ask));
    ServingEvent first;
    ASSERT_EQ(serving.Next(ids.back(), &first, -1), NextResult::kEvent);
    serving.LoseHome(1);
    for (uint64_t i = 0; i + 1 < ids.size(); ++i) {
      serving.CheckWhole(serving.Collect(ids[i]), Serving::Prompt(8, i), ask);
    }
    serving.desk().Forget(ids.back());
    while (serving.let_go(1) < round) std::this_thread::sleep_for(std::chrono::microseconds(200));
    serving.AddHome(1);
  }
  const PipelineStatistics& statistics = serving.pipeline().statistics();
  EXPECT_GT(statistics.recoveries.value(), 0u);
  EXPECT_EQ(serving.let_go(0), 0);
}

// Each loss once, between the tokens that it lies between; and nobody else hears of it.
TEST(RequestDeskTest, WhoAsksIsToldOfAPause) {
  Serving serving({.homes = 2, .pages = 400});
  const auto ask_of = [](uint64_t i) { return ServingAsk{.max_tokens = 1000, .pause_events = i % 4 < 2}; };
  size_t pauses = 0;
  for (int round = 1; round <= 20 && pauses == 0; ++round) {  // all may have ended before the loss
    std::vector<uint64_t> ids;
    const uint64_t tokens = serving.desk().statistics().generated_tokens;
    for (uint64_t i = 0; i < 8; ++i) ids.push_back(serving.MustSubmit(Serving::Prompt(8, i), ask_of(i)));
    while (serving.desk().statistics().generated_tokens < tokens + 8) std::this_thread::yield();
    serving.LoseHome(1);
    for (uint64_t i = 0; i < ids.size(); ++i) {
      ServingOutcome outcome;
      uint64_t last_ns = 0;
      for (ServingEvent event; !event.finished;) {
        ASSERT_EQ(serving.Next(ids[i], &event, -1), NextResult::kEvent);
        EXPECT_GE(event.time_ns, last_ns);
        last_ns = event.time_ns;
        outcome.Add(event);
      }
      serving.CheckWhole(outcome, Serving::Prompt(8, i), ask_of(i));
      const RequestTimes& times = outcome.end.times;
      EXPECT_EQ(times.recovery_ns > 0, times.recoveries > 0);
      EXPECT_EQ(outcome.pauses, std::vector<int>(ask_of(i).pause_events ? times.recoveries : 0, 1));
      pauses += outcome.pauses.size();
    }
    while (serving.let_go(1) < round) std::this_thread::sleep_for(std::chrono::microseconds(200));
    serving.AddHome(1);
  }
  EXPECT_GT(pauses, 0u);
}

TEST(RequestDeskTest, WhoIsFarBehindIsNotToldOfAPause) {
  Serving serving({.homes = 2, .pages = 400});
  const ServingAsk ask = {.max_tokens = 2500, .pause_events = true};
  const uint64_t id = serving.MustSubmit(Serving::Prompt(8, 1), ask);
  while (serving.desk().statistics().generated_tokens < Request::kUndeliveredMax) std::this_thread::yield();
  for (const int home : {0, 1}) serving.LoseHome(home);
  for (const int home : {0, 1}) {
    while (serving.let_go(home) == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    serving.AddHome(home);
  }
  serving.desk().Drain(-1);
  const ServingOutcome outcome = serving.Collect(id);
  serving.CheckWhole(outcome, Serving::Prompt(8, 1), ask);
  EXPECT_GE(outcome.end.times.recoveries, 1u);
  EXPECT_THAT(outcome.pauses, testing::IsEmpty());
  EXPECT_EQ(outcome.events, Request::kUndeliveredMax + 1) << "and the last event";
}

TEST(RequestDeskTest, AFailureSaysWhatFailed) {
  Serving serving({.pages = 3});
  const ServingOutcome too_long = serving.Collect(serving.MustSubmit(Serving::Prompt(8, 1), {.max_tokens = 900}));
  EXPECT_EQ(too_long.finish, RequestFinish::kError);
  EXPECT_EQ(too_long.error, "no room for 908");
  for (const auto& [outcome, part] :
       {std::pair(SampleOutcome::kBadLogits, "checkpoint"), {SampleOutcome::kNoCandidate, "min_tokens"}}) {
    serving.spart().SpoilLogits(1, outcome);
    const ServingOutcome failed = serving.Collect(serving.MustSubmit(Serving::Prompt(8, 1), {}));
    EXPECT_EQ(failed.finish, RequestFinish::kError);
    EXPECT_THAT(failed.error, testing::HasSubstr(part));
  }
}

// ---- sleep and wake-up. The homes sleep until they are rung: a ring that is missing, or that comes before its
// message, hangs these tests.

TEST(RequestDeskTest, EveryBusyPeriodWakesWhoSleeps) {
  Serving serving({.homes = 2, .park_after_ns = 1});
  for (uint64_t round = 0; round < 60; ++round) {
    const uint64_t sleeps[] = {serving.home(0).sleeps(), serving.home(1).sleeps()};
    const std::vector<int32_t> prompt = Serving::Prompt(5, round);
    const uint64_t id = serving.MustSubmit(prompt, {.max_tokens = 4});
    const uint64_t other = serving.MustSubmit(prompt, {.max_tokens = 2});
    serving.CheckWhole(serving.Collect(id), prompt, {.max_tokens = 4});
    serving.CheckWhole(serving.Collect(other), prompt, {.max_tokens = 2});
    if (round % 3 == 0) continue;
    // At least one of the two had something to do, and both sleep again.
    while (serving.home(0).sleeps() == sleeps[0] && serving.home(1).sleeps() == sleeps[1]) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  EXPECT_GT(serving.pipeline().statistics().parks.value(), 10u);
}

// Fills, rosters and releases are many times the ring's size.
TEST(RequestDeskTest, AFullControlRingHoldsBackAndLosesNothing) {
  ServingOptions options;
  options.limits = {
      .micro_batches = 1, .rows_max = 160, .sequences_max = 120, .chunk_tokens_max = 160, .ready_max = 1000};
  options.control_ring_bytes = 4096;
  options.pages = 1000;
  Serving serving(options);
  for (int round = 0; round < 3; ++round) {
    serving.AwaitSleep(0, static_cast<uint64_t>(round));
    std::vector<uint64_t> ids;
    const ServingAsk ask = {.max_tokens = 3, .fill_tokens = 4};
    for (uint64_t i = 0; i < 120; ++i) ids.push_back(serving.MustSubmit(Serving::Prompt(5, i), ask));
    for (uint64_t i = 0; i < 120; ++i) serving.CheckWhole(serving.Collect(ids[i]), Serving::Prompt(5, i), ask);
  }
}

// ---- everything at once

TEST(RequestDeskTest, CallersOfAllKindsAtOnce) {
  Serving serving({.homes = 2, .pages = 40, .park_after_ns = 1});
  std::vector<std::thread> callers;
  for (uint64_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&serving, caller] {
      std::mt19937_64 random(caller);
      for (int i = 0; i < 40; ++i) {
        const std::vector<int32_t> prompt = Serving::Prompt(1 + random() % 100, random());
        const ServingAsk ask = {.max_tokens = 1 + static_cast<uint32_t>(random() % 120)};
        const uint64_t id = serving.MustSubmit(prompt, ask);
        const uint64_t kind = random() % 4;
        ServingEvent event;
        if (kind == 0) {
          serving.desk().Forget(id);
          continue;
        }
        if (kind == 1) {
          while (serving.Next(id, &event, 1000) == NextResult::kTimeout) {
          }
          serving.desk().Forget(id);
          continue;
        }
        if (kind == 2) serving.desk().Cancel(id);
        const ServingOutcome outcome = serving.Collect(id);
        if (outcome.finish == RequestFinish::kCancelled) {
          EXPECT_EQ(kind, 2u);
          serving.CheckPrefix(outcome, prompt, ask);
        } else {
          serving.CheckWhole(outcome, prompt, ask);
        }
      }
    });
  }
  JoinAll(&callers);
  serving.desk().Drain(-1);
  EXPECT_EQ(serving.desk().statistics().running, 0u);
}

}  // namespace
}  // namespace fastdecode
