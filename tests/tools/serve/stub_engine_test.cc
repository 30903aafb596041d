// What the stub engine promises, through the C interface: the same as the engine.
#include <fastdecode/fastdecode.h>
#include <poll.h>

#include <chrono>
#include <cmath>
#include <fastdecode/fastdecode.hpp>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kSecondNs = 1'000'000'000;

// What came of one request.
struct Answer {
  std::string text;
  std::vector<std::string> pieces;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<TokenEvent> prompts;
  std::optional<TokenEvent> end;
  int ends = 0;
};

bool Readable(int fd, int timeout_ms = 0) {
  pollfd waits = {fd, POLLIN, 0};
  return poll(&waits, 1, timeout_ms) == 1;
}

class StubEngineTest : public ::testing::Test {
 protected:
  StubEngineTest() { options_.Set("model", "/"); }

  InferenceEngine& engine() {
    if (!engine_) engine_.emplace(options_);
    return *engine_;
  }
  uint64_t Submit(const std::string& prompt, uint32_t max_tokens = 100) {
    GenerateRequest request(prompt);
    request.fields.max_tokens = max_tokens;
    return engine().SubmitForPoll(request);
  }
  // Takes events until every request of `ids` has ended.
  std::map<uint64_t, Answer> Collect(const std::vector<uint64_t>& ids) {
    std::map<uint64_t, Answer> answers;
    size_t ended = 0;
    while (ended < ids.size()) {
      const size_t count = engine().Poll(20 * kSecondNs, [&](const fd_event& event) {
        Answer& answer = answers[event.id];
        const TokenEvent copy(event);
        answer.text += copy.text;
        if (event.kind == FD_EVENT_TOKEN) {
          answer.pieces.push_back(copy.text);
          answer.tokens.insert(answer.tokens.end(), copy.tokens.begin(), copy.tokens.end());
          answer.logprobs.insert(answer.logprobs.end(), copy.logprobs.begin(), copy.logprobs.end());
        }
        if (event.kind == FD_EVENT_PROMPT) answer.prompts.push_back(copy);
        if (event.kind != FD_EVENT_FINISHED) return;
        answer.end = copy;
        ++answer.ends;
        ++ended;
      });
      if (count == 0) {
        ADD_FAILURE() << "nothing has come for 20 seconds";
        break;
      }
    }
    return answers;
  }
  Answer Run(const GenerateRequest& request) {
    const uint64_t id = engine().SubmitForPoll(request);
    return Collect({id})[id];
  }
  Answer Run(const std::string& prompt, uint32_t max_tokens = 100) {
    const uint64_t id = Submit(prompt, max_tokens);
    return Collect({id})[id];
  }
  // Waits until so many requests run.
  void WaitForRunning(uint64_t count) {
    while (engine().Statistics().requests_running != count) std::this_thread::yield();
  }

  EngineOptions options_;
  std::optional<InferenceEngine> engine_;
};

TEST_F(StubEngineTest, PlaysTheWordsOfThePrompt) {
  const Answer answer = Run("hello big  world");
  EXPECT_EQ(answer.text, "hello big  world");
  EXPECT_THAT(answer.pieces, ElementsAre("hello", " big", " ", " world"));
  EXPECT_EQ(answer.end->finish, FD_FINISH_STOP);
  EXPECT_EQ(answer.end->stop_token, 257);
  EXPECT_EQ(answer.end->generated_tokens, 4u);
  EXPECT_EQ(answer.end->prompt_tokens, 5u);
}

TEST_F(StubEngineTest, Repeats) {
  EXPECT_EQ(Run("a {repeat:3: b} c").text, "a b b b c");
  EXPECT_EQ(Run("{repeat:1000000: b}", 5).end->finish, FD_FINISH_LENGTH);
}

TEST_F(StubEngineTest, LeavesOtherBracesAlone) { EXPECT_EQ(Run("{nothing:3} {x").text, "{nothing:3} {x"); }

TEST_F(StubEngineTest, HoldsHalfACharacterBack) {
  const Answer answer = Run("{bytes:e282}{bytes:ac} {bytes:f09f}");
  EXPECT_THAT(answer.pieces, ElementsAre("", "\u20ac", ""));
  EXPECT_EQ(answer.end->text, "\uFFFD\uFFFD");
}

TEST_F(StubEngineTest, EndsAtStopStrings) {
  GenerateRequest request("one two three four");
  request.stop = {"nothing", "o th"};
  const Answer answer = Run(request);
  EXPECT_EQ(answer.text, "one tw");
  EXPECT_EQ(answer.end->finish, FD_FINISH_STOP);
  EXPECT_EQ(answer.end->stop_index, 1);
  EXPECT_EQ(answer.end->stop_token, -1);
  request.fields.include_stop = 1;
  EXPECT_EQ(Run(request).text, "one two th");
  request.stop = {"four and more"};
  EXPECT_EQ(Run(request).text, "one two three four");
}

TEST_F(StubEngineTest, HonoursLengths) {
  EXPECT_EQ(Run("a b c d", 2).text, "a b");
  GenerateRequest request("a b");
  request.fields.min_tokens = 4;
  EXPECT_EQ(Run(request).end->generated_tokens, 4u);
  request.fields.ignore_eos = 1;
  request.fields.max_tokens = 7;
  EXPECT_EQ(Run(request).end->finish, FD_FINISH_LENGTH);
  EXPECT_EQ(Run("a {length} b").end->finish, FD_FINISH_LENGTH);
  EXPECT_EQ(Run("a {stop} b").text, "a");
}

TEST_F(StubEngineTest, SaysSeedsFieldsAndErrors) {
  GenerateRequest request("{seed}{field:top_k}");
  request.fields.seed = 17;
  request.fields.top_k = 5;
  EXPECT_EQ(Run(request).text, " 17 top_k=5");
  const Answer answer = Run("a {error:home b is lost}");
  EXPECT_EQ(answer.end->finish, FD_FINISH_ERROR);
  EXPECT_EQ(answer.end->error, "home b is lost");
}

TEST_F(StubEngineTest, GivesLogprobs) {
  GenerateRequest request("a b c");
  request.fields.logprobs = 2;
  request.fields.prompt_logprobs = 1;
  const Answer answer = Run(request);
  EXPECT_EQ(answer.logprobs.size(), 3u);
  ASSERT_EQ(answer.prompts.size(), 1u);
  EXPECT_EQ(answer.prompts[0].tokens.size(), 4u);
  EXPECT_TRUE(std::isnan(answer.prompts[0].logprobs[0]));
  EXPECT_EQ(answer.prompts[0].top_logprobs[0][0].token, -1);
  EXPECT_EQ(answer.prompts[0].top_logprobs[1].size(), 1u);
  request.fields.max_tokens = 0;
  EXPECT_EQ(Run(request).end->generated_tokens, 0u);
}

TEST_F(StubEngineTest, ChoicesHaveSeedsOfTheirOwnAndOnePrompt) {
  GenerateRequest request("{cached:2}{seed} a");
  request.fields.n = 3;
  request.fields.seed = 7;
  request.fields.prompt_logprobs = 0;
  const uint64_t id = engine().SubmitForPoll(request);
  std::map<uint32_t, Answer> choices;
  int ended = 0, prompts = 0, tokens = 0;
  while (ended < 3) {
    ASSERT_GT(engine().Poll(20 * kSecondNs,
                            [&](const fd_event& event) {
                              EXPECT_EQ(event.id, id);
                              Answer& answer = choices[event.choice];
                              EXPECT_EQ(answer.ends, 0) << "an event behind the last one of choice " << event.choice;
                              answer.text.append(event.text, event.text_bytes);
                              if (event.kind == FD_EVENT_PROMPT) {
                                ++prompts;
                                EXPECT_EQ(event.choice + static_cast<uint32_t>(tokens), 0u)
                                    << "it comes once, and first";
                              }
                              tokens += event.kind == FD_EVENT_TOKEN;
                              if (event.kind != FD_EVENT_FINISHED) return;
                              ++answer.ends;
                              ++ended;
                              EXPECT_EQ(event.cached_tokens, 2u);
                            }),
              0u);
  }
  EXPECT_EQ(prompts, 1);
  for (uint32_t k = 0; k < 3; ++k) EXPECT_EQ(choices[k].text, " " + std::to_string(7 + k) + " a");
  const fd_stats stats = engine().Statistics();
  EXPECT_EQ(stats.requests_submitted, 1u);
  EXPECT_EQ(stats.finished_stop, 1u);
  EXPECT_EQ(stats.generated_tokens, 6u);
  EXPECT_EQ(stats.cached_tokens, 2u);
  EXPECT_LT(stats.prompt_tokens, 2 * stats.prefix_tokens) << "it is counted once";
}

TEST_F(StubEngineTest, ACancelEndsAllChoices) {
  GenerateRequest request("a {wait}");
  request.fields.n = 4;
  const uint64_t id = engine().SubmitForPoll(request);
  while (engine().Statistics().choices_running != 4) std::this_thread::yield();
  EXPECT_EQ(engine().Statistics().requests_running, 1u);
  engine().Cancel(id);
  int ended = 0;
  while (ended < 4) {
    ASSERT_GT(engine().Poll(20 * kSecondNs,
                            [&](const fd_event& event) {
                              if (event.kind != FD_EVENT_FINISHED) return;
                              EXPECT_EQ(event.finish, FD_FINISH_CANCELLED);
                              ++ended;
                            }),
              0u);
  }
  EXPECT_EQ(engine().Statistics().finished_cancelled, 1u);
  fd_forget(engine().get(), engine().SubmitForPoll(request));
  EXPECT_EQ(engine().Drain(), 0u);
  EXPECT_EQ(engine().Statistics().requests_undelivered, 0u);
}

TEST_F(StubEngineTest, TextComesBackFromItsTokens) {
  const std::string text = "Once  upon\n a t\u00efme " + std::string(100, 'x') + " ";
  const std::vector<int32_t> ids = engine().Tokenize(text);
  EXPECT_EQ(ids[0], 256);
  EXPECT_EQ(engine().Detokenize(ids), text);
  EXPECT_EQ(engine().Tokenize({{"a</s>", /*special=*/true, {}}}, false).back(), 257);
  EXPECT_EQ(engine().Tokenize({{"a</s>", /*special=*/false, {}}}, false).size(), 1u);
}

TEST_F(StubEngineTest, CancelsInEachState) {
  options_.Set("max-sequences", "3");
  const uint64_t held = Submit("{queue:50000} a");
  const uint64_t prefill = Submit("{prefill:50000} a");
  const uint64_t decoding = Submit("a {wait}");
  const uint64_t hanging = Submit("a {ms:50000} b");
  WaitForRunning(3);
  const uint64_t waiting = Submit("a");
  EXPECT_EQ(engine().Statistics().requests_waiting, 2u);
  const std::vector<uint64_t> ids = {held, prefill, decoding, hanging, waiting};
  engine().Cancel(waiting);  // the queue is in order: first what would start when another one ends
  for (const uint64_t id : ids) engine().Cancel(id);
  const auto answers = Collect(ids);
  for (const uint64_t id : ids) {
    EXPECT_EQ(answers.at(id).ends, 1);
    EXPECT_EQ(answers.at(id).end->finish, FD_FINISH_CANCELLED);
    engine().Cancel(id);  // it has ended
  }
  const fd_stats stats = engine().Statistics();
  EXPECT_EQ(stats.finished_cancelled, 5u);
  EXPECT_EQ(stats.requests_running + stats.requests_waiting + stats.requests_undelivered, 0u);
  EXPECT_EQ(stats.kv_pages_used, 0u);
}

TEST_F(StubEngineTest, AHangStopsEverybodyUntilItIsCancelled) {
  const uint64_t hanging = Submit("{hang}");
  WaitForRunning(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const uint64_t before = engine().Statistics().last_step_ns;
  const uint64_t other = Submit("a");
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  EXPECT_EQ(engine().Statistics().last_step_ns, before);
  engine().Cancel(hanging);
  EXPECT_EQ(Collect({hanging, other})[other].text, "a");
}

TEST_F(StubEngineTest, StepsGoOnWhileASequenceWaits) {
  const uint64_t id = Submit("a {wait}");
  WaitForRunning(1);
  const uint64_t before = engine().Statistics().steps;
  while (engine().Statistics().steps < before + 3) std::this_thread::yield();
  engine().Cancel(id);
  Collect({id});
}

TEST_F(StubEngineTest, TheEventFdIsReadableWhileEventsWait) {
  const int fd = engine().event_fd();
  EXPECT_FALSE(Readable(fd));
  const uint64_t id = Submit("a {wait}");
  ASSERT_TRUE(Readable(fd, 20'000));
  EXPECT_TRUE(Readable(fd));  // until it is taken
  EXPECT_EQ(engine().Poll(0, [](const fd_event&) {}), 1u);
  EXPECT_FALSE(Readable(fd));
  engine().Cancel(id);
  ASSERT_TRUE(Readable(fd, 20'000));
  fd_forget(engine().get(), id);
  EXPECT_FALSE(Readable(fd));
  EXPECT_EQ(engine().Statistics().requests_undelivered, 0u);
}

TEST_F(StubEngineTest, EachRequestEndsOnceWhateverCancelsIt) {
  std::vector<uint64_t> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(Submit("{every:0}{repeat:20: x}"));
  std::thread canceller([&] {
    for (size_t i = 0; i < ids.size(); i += 3) engine().Cancel(ids[i]);
  });
  const auto answers = Collect(ids);
  canceller.join();
  ASSERT_EQ(answers.size(), ids.size());
  for (const auto& [id, answer] : answers) {
    EXPECT_EQ(answer.ends, 1);
    EXPECT_EQ(answer.end->generated_tokens, answer.tokens.size());
  }
  const fd_stats stats = engine().Statistics();
  EXPECT_EQ(stats.finished_stop + stats.finished_cancelled, 200u);
}

TEST_F(StubEngineTest, WhoFallsBehindGetsSeveralTokensAnEvent) {
  const uint64_t id = Submit("{every:0}{repeat:3000: x}", 5000);
  while (engine().Statistics().requests_running + engine().Statistics().requests_waiting > 0) {
    std::this_thread::yield();
  }
  const Answer answer = Collect({id})[id];
  EXPECT_EQ(answer.tokens.size(), 3000u);
  EXPECT_EQ(answer.text.size(), 6000u);
  EXPECT_EQ(answer.pieces.size(), size_t{FD_UNDELIVERED_MAX});
}

TEST_F(StubEngineTest, RefusesWhatIsTooMuch) {
  options_.Set("max-queue", "1");
  options_.Set("max-context", "4");
  EXPECT_THROW(Submit("a b c d e"), Error);
  EXPECT_EQ(Run("a b", 10).end->finish, FD_FINISH_LENGTH);  // the context is full
  const uint64_t id = Submit("{wait}");
  try {
    Submit("a");
    ADD_FAILURE() << "a full queue took one more";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), FD_RESOURCE_EXHAUSTED);
  }
  engine().Cancel(id);
  Collect({id});
  EXPECT_EQ(engine().Statistics().requests_refused, 1u);
}

TEST_F(StubEngineTest, EndsAtTheDeadline) {
  GenerateRequest request("a {wait}");
  request.fields.deadline_ns = engine().Statistics().now_ns + 30'000'000;
  EXPECT_EQ(Run(request).end->finish, FD_FINISH_DEADLINE);
}

TEST_F(StubEngineTest, Drains) {
  const uint64_t id = Submit("a {wait}");
  EXPECT_EQ(engine().Drain(1'000'000), 1u);
  EXPECT_THROW(Submit("b"), Error);
  EXPECT_EQ(engine().Statistics().draining, 1u);
  engine().Cancel(id);
  EXPECT_EQ(engine().Drain(), 0u);
  EXPECT_EQ(Collect({id})[id].ends, 1);
}

TEST_F(StubEngineTest, PlacesAddUpToTheTotals) {
  const Answer answer = Run("{prefill:20} a {ms:10} b c");
  const fd_request_times& times = *answer.end->times;
  for (const fd_step_times& phase : {times.prefill, times.decode}) {
    EXPECT_GT(phase.total_ns, 0u);
    EXPECT_EQ(phase.s_ns + phase.wait_ns + phase.home_ns + phase.wire_ns + phase.boundary_ns + phase.sampling_ns,
              phase.total_ns);
  }
}

}  // namespace
}  // namespace fastdecode
