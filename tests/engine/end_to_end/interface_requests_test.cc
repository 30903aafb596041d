// What is wrong with a request: each field, by its name.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/end_to_end/interface_fixture.h"
#include "tests/logprob_check.h"

namespace fastdecode {
namespace {

TEST_F(InterfaceTest, RequestsAreCheckedFieldByField) {
  const auto engine = MakeEngine(Options());
  const auto with = [](auto change) {
    GenerateRequest request = GreedyRequest({1, 2, 3}, 4);
    change(request);
    return request;
  };
  const auto refuses = [&](const std::string& part, auto change) {
    SCOPED_TRACE(part);
    ExpectError(SubmitError(*engine, with(change)), FD_INVALID_ARGUMENT, part);
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  refuses("tokenizer", [](auto& r) { r.prompt_ids.clear(), r.prompt = "text"; });
  refuses("tokenizer", [](auto& r) { r.stop = {"x"}; });
  refuses("stop: there is a 0 byte", [](auto& r) { r.stop = {std::string("a\0b", 3)}; });
  refuses("prompt_ids[1]: 256", [](auto& r) { r.prompt_ids[1] = kVocab; });
  refuses("prompt_ids[2]: -1", [](auto& r) { r.prompt_ids[2] = -1; });
  refuses("256", [](auto& r) { r.prompt_ids.assign(kContext, 1); });
  refuses("max_tokens", [](auto& r) { r.fields.max_tokens = 0; });
  refuses("min_tokens", [](auto& r) { r.fields.min_tokens = 5; });
  refuses("temperature", [nan](auto& r) { r.fields.temperature = nan; });
  refuses("temperature", [](auto& r) { r.fields.temperature = -1; });
  refuses("top_k", [](auto& r) { r.fields.top_k = -1; });
  refuses("top_p", [](auto& r) { r.fields.top_p = 0; });
  refuses("top_p", [nan](auto& r) { r.fields.top_p = nan; });
  refuses("min_p", [](auto& r) { r.fields.min_p = 1.5; });
  refuses("repetition_penalty", [](auto& r) { r.fields.repetition_penalty = 0; });
  refuses("presence_penalty", [nan](auto& r) { r.fields.presence_penalty = nan; });
  refuses("frequency_penalty", [](auto& r) { r.fields.frequency_penalty = std::numeric_limits<float>::infinity(); });
  refuses("logprobs", [](auto& r) { r.fields.logprobs = 21; });
  refuses("logprobs", [](auto& r) { r.fields.logprobs = -2; });
  refuses("logit_bias", [](auto& r) { r.logit_bias = {{kVocab, 1}}; });
  refuses("logit_bias", [nan](auto& r) { r.logit_bias = {{1, nan}}; });
  refuses("stop_token_ids", [](auto& r) { r.stop_token_ids = {-3}; });
  refuses("n: 0 is not at least 1", [](auto& r) { r.fields.n = 0; });
  refuses("n: 129 is more than 128", [](auto& r) { r.fields.n = 129; });
  refuses("cache_salt: it has 4097 bytes", [](auto& r) { r.cache_salt.assign(4097, 's'); });
  const auto refuses_bench = [&](const std::string& part, auto change) {
    SCOPED_TRACE(part);
    BenchRequest bench;
    change(bench);
    try {
      Submit(*engine, GreedyRequest({1, 2, 3}, 4), bench);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      ExpectError(error, FD_INVALID_ARGUMENT, part);
    }
  };
  refuses_bench("fill_tokens", [](auto& b) { b.fill_tokens = 3; });
  std::vector<float> small(3 * kVocab - 1);
  refuses_bench("prompt_logits_floats", [&small](auto& b) {
    b.prompt_logits = small.data();
    b.prompt_logits_floats = small.size();
  });
  refuses_bench("fd_bench_request.struct_size", [](auto& b) { b.struct_size = 1; });
  refuses("struct_size", [](auto& r) { r.fields.struct_size = 1; });
  // None of that did any harm.
  EXPECT_EQ(RunAll(*engine, {GreedyRequest({1, 2, 3}, 4)}, false)[0].tokens.size(), 4u);
}

TEST_F(InterfaceTest, TheModelsMakersRecommendHowToSample) {
  std::ofstream(model_ + "/generation_config.json") << R"({"temperature": 0.25, "top_k": 7, "eos_token_id": 2})";
  const auto engine = MakeEngine(Options());
  std::filesystem::remove(model_ + "/generation_config.json");
  GenerateRequest request;
  request.fields.top_p = 0.5f;
  request.fields.max_tokens = 3;
  engine->SetDefaultSampling(&request);
  EXPECT_EQ(request.fields.temperature, 0.25f);
  EXPECT_EQ(request.fields.top_k, 7);
  EXPECT_EQ(request.fields.top_p, 0.5f) << "the file says nothing of it";
  EXPECT_EQ(request.fields.max_tokens, 3u);
}

// Against the whole rows of logits of the same request, in double.
TEST_F(InterfaceTest, LogprobsOfAPromptComeBeforeItsFirstToken) {
  const auto engine = MakeEngine(Options() + OptionList{{"prefill-chunk", "16"}});
  std::mt19937_64 random(1);
  for (const uint32_t max_tokens : {3u, 0u}) {
    GenerateRequest request = GreedyRequest(RandomPrompt(random, kVocab, 40), max_tokens);
    request.fields.prompt_logprobs = 3;
    std::vector<float> logits(request.prompt_ids.size() * kVocab);
    BenchRequest bench;
    bench.prompt_logits = logits.data();
    bench.prompt_logits_floats = logits.size();
    TokenStream stream = Submit(*engine, request, bench);
    const std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs);
    ASSERT_TRUE(event.has_value());
    ASSERT_EQ(event->kind, FD_EVENT_PROMPT);
    EXPECT_EQ(event->tokens, request.prompt_ids);
    ASSERT_EQ(event->logprobs.size(), request.prompt_ids.size());
    EXPECT_TRUE(std::isnan(event->logprobs[0]));
    EXPECT_EQ(event->top_logprobs[0][0].token, -1);
    for (size_t p = 1; p < request.prompt_ids.size(); ++p) {
      const auto row = logits.begin() + static_cast<ptrdiff_t>((p - 1) * kVocab);
      std::vector<TokenLogprob> top;
      for (const fd_token_logprob& one : event->top_logprobs[p]) top.push_back({one.token, one.logprob});
      ASSERT_NO_FATAL_FAILURE(CheckLogprobs({row, row + kVocab}, request.prompt_ids[p], event->logprobs[p], top)) << p;
    }
    uint32_t tokens = 0;
    for (std::optional<TokenEvent> next; (next = stream.Next(kAnswerTimeoutNs)).has_value();) {
      EXPECT_NE(next->kind, FD_EVENT_PROMPT);
      tokens += static_cast<uint32_t>(next->tokens.size());
      if (!next->finished) continue;
      EXPECT_EQ(next->finish, FD_FINISH_LENGTH);
    }
    EXPECT_EQ(tokens, max_tokens);
  }
}

// What the events of a request say, by choice.
struct Choices {
  std::map<uint32_t, std::vector<int32_t>> tokens;
  std::map<uint32_t, TokenEvent> ends;
  std::vector<TokenEvent> prompts;

  void Take(const TokenEvent& event) {
    EXPECT_EQ(ends.count(event.choice), 0u) << "an event behind the last one of choice " << event.choice;
    if (event.kind == FD_EVENT_PROMPT) {
      EXPECT_TRUE(tokens.empty()) << "it comes first";
      prompts.push_back(event);
      return;
    }
    std::vector<int32_t>& all = tokens[event.choice];
    all.insert(all.end(), event.tokens.begin(), event.tokens.end());
    if (event.finished) ends.emplace(event.choice, event);
  }
};

TEST_F(InterfaceTest, ChoicesAreWhatRequestsOfTheirOwnWouldGet) {
  constexpr uint32_t kChoices = 4;
  const auto engine = MakeEngine(Options() + OptionList{{"batch-invariant", "true"}});
  EXPECT_EQ(engine->max_choices(), 128u);
  std::mt19937_64 random(5);
  GenerateRequest request = GreedyRequest(RandomPrompt(random, kVocab, 45), 12);
  request.fields.temperature = 0.9f;
  request.fields.seed = 70;
  std::vector<std::vector<int32_t>> alone;
  for (uint32_t k = 0; k < kChoices; ++k, ++request.fields.seed) {
    alone.push_back(RunAll(*engine, {request}, false)[0].tokens);
  }
  EXPECT_NE(alone[0], alone[1]);
  request.fields.seed = 70;
  request.fields.n = kChoices;
  request.fields.prompt_logprobs = 0;
  const auto check = [&](const Choices& choices) {
    ASSERT_EQ(choices.ends.size(), kChoices);
    ASSERT_EQ(choices.prompts.size(), 1u);
    EXPECT_EQ(choices.prompts[0].choice, 0u);
    EXPECT_EQ(choices.prompts[0].tokens, request.prompt_ids);
    for (uint32_t k = 0; k < kChoices; ++k) {
      EXPECT_EQ(choices.tokens.at(k), alone[k]) << k;
      EXPECT_EQ(choices.ends.at(k).finish, FD_FINISH_LENGTH);
      EXPECT_EQ(choices.ends.at(k).prompt_tokens, 45u);
      EXPECT_EQ(choices.ends.at(k).generated_tokens, 12u);
      ASSERT_TRUE(choices.ends.at(k).times.has_value());
      EXPECT_GT(choices.ends.at(k).times->prefill.steps, 0u) << "it has been where its prompt was computed";
    }
  };
  const fd_stats before = engine->Statistics();
  Choices read;
  TokenStream stream = engine->Submit(request);
  while (std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs)) read.Take(*event);
  check(read);
  fd_event event = {};
  event.struct_size = sizeof(event);
  EXPECT_EQ(fd_next(engine->get(), stream.id(), &event, 0), FD_UNKNOWN_REQUEST);
  const fd_stats after = engine->Statistics();
  EXPECT_EQ(after.requests_submitted - before.requests_submitted, 1u);
  EXPECT_EQ(after.finished_length - before.finished_length, 1u);
  EXPECT_EQ(after.prompt_tokens - before.prompt_tokens, 45u) << "it is one prompt";
  EXPECT_EQ(after.generated_tokens - before.generated_tokens, kChoices * 12u);

  Choices polled;
  const uint64_t id = engine->SubmitForPoll(request);
  while (polled.ends.size() < kChoices) {
    const size_t count = engine->Poll(kAnswerTimeoutNs, [&](const fd_event& one) {
      EXPECT_EQ(one.id, id);
      polled.Take(TokenEvent(one));
    });
    ASSERT_GT(count, 0u) << "the request was forgotten before its last event";
  }
  check(polled);
  EXPECT_EQ(fd_next(engine->get(), id, &event, 0), FD_UNKNOWN_REQUEST);
}

TEST_F(InterfaceTest, ACancelEndsAllChoices) {
  const auto engine = MakeEngine(Options() + OptionList{{"prefill-chunk", "16"}});
  EXPECT_EQ(engine->max_choices(), 16u);
  GenerateRequest request = GreedyRequest({1, 2, 3}, 200);
  request.fields.n = 3;
  Choices choices;
  TokenStream stream = engine->Submit(request);
  while (choices.tokens.size() < 3) {
    const std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs);
    ASSERT_TRUE(event.has_value());
    choices.Take(*event);
  }
  stream.Cancel();
  while (std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs)) choices.Take(*event);
  ASSERT_EQ(choices.ends.size(), 3u);
  for (const auto& [choice, end] : choices.ends) {
    EXPECT_TRUE(end.finish == FD_FINISH_CANCELLED || end.generated_tokens == 200u) << choice;
  }
  const auto queue = MakeEngine(Options() + OptionList{{"max-queue", "3"}});
  EXPECT_EQ(queue->max_choices(), 3u);
}

TEST_F(InterfaceTest, EndsSayWhatOthersHadComputed) {
  const auto engine = MakeEngine(Options());
  std::mt19937_64 random(6);
  GenerateRequest request = GreedyRequest(RandomPrompt(random, kVocab, 100), 3);
  const auto cached = [&] {
    TokenStream stream = engine->Submit(request);
    std::optional<TokenEvent> event = stream.Next(kAnswerTimeoutNs);
    while (event.has_value() && !event->finished) event = stream.Next(kAnswerTimeoutNs);
    EXPECT_TRUE(event.has_value());
    return event.has_value() ? event->cached_tokens : 0;
  };
  EXPECT_EQ(cached(), 0u);
  EXPECT_EQ(cached(), 96u);
  request.fields.n = 3;
  EXPECT_EQ(cached(), 96u);
  request.cache_salt = "salt";
  EXPECT_EQ(cached(), 0u);
  EXPECT_EQ(cached(), 96u);
  request.fields.no_prefix_cache = 1;
  EXPECT_EQ(cached(), 0u);
  const fd_stats stats = engine->Statistics();
  EXPECT_EQ(stats.cached_tokens, 3 * 96u);
  EXPECT_EQ(stats.prefix_tokens, 5 * 100u);
  EXPECT_GT(stats.kv_pages_cached, 0u);
  const std::vector<fd_home_stats> homes = engine->Homes();
  EXPECT_EQ(homes.at(0).cached_tokens, stats.cached_tokens);
  EXPECT_GT(homes.at(0).kv_pages_cached, 0u);
}

TEST_F(InterfaceTest, StatisticsCountWhatHappened) {
  const auto engine = MakeEngine(Options());
  const fd_stats before = engine->Statistics();
  EXPECT_EQ(before.homes, 1u);
  EXPECT_EQ(before.homes_up, 1u);
  EXPECT_GT(before.kv_pages, 0u);
  EXPECT_EQ(before.requests_submitted + before.requests_running + before.requests_waiting, 0u);
  EXPECT_EQ(before.last_step_ns, 0u);
  RunAll(*engine, {GreedyRequest({1, 2, 3}, 4), GreedyRequest({4, 5}, 7)}, false);
  TokenStream cancelled = engine->Submit(GreedyRequest({1}, 200));
  cancelled.Cancel();
  Answer answer;
  ReadToEnd(cancelled, &answer);
  engine->ResetStatistics();
  const fd_stats after = engine->Statistics();
  EXPECT_EQ(after.requests_submitted, 3u);
  EXPECT_EQ(after.finished_length + after.finished_cancelled, 3u);
  EXPECT_EQ(after.prompt_tokens, 6u);
  EXPECT_EQ(after.generated_tokens, 11 + answer.tokens.size());
  EXPECT_GE(after.rows, after.generated_tokens);
  EXPECT_GT(after.steps, 0u);
  EXPECT_GT(after.s_busy_ns, 0u);
  EXPECT_GT(after.last_step_ns, after.created_ns);
  EXPECT_GT(after.now_ns, after.last_step_ns);
  EXPECT_EQ(after.requests_running + after.requests_waiting + after.requests_undelivered, 0u);
  EXPECT_EQ(after.choices_running + after.choices_waiting, 0u);
}

// Null is a caller's mistake where a count says that there is something, and the same as nothing where it is 0.
TEST_F(InterfaceTest, NullPointersAreRefusedByName) {
  const auto engine = MakeEngine(Options());
  const auto error_of = [](fd_status* status) {
    try {
      ThrowIfError(status);
    } catch (const Error& error) {
      return error;
    }
    return Error(FD_OK, "");
  };
  const int32_t prompt[] = {1, 2, 3};
  const char* const stop[] = {"x", nullptr};
  fd_request good;
  fd_request_init(&good, sizeof(good));
  good.prompt_ids = prompt;
  good.prompt_id_count = 3;
  const auto refuses = [&](const std::string& part, auto change) {
    SCOPED_TRACE(part);
    fd_request request = good;
    change(request);
    uint64_t id = 0;
    ExpectError(error_of(fd_request_check(&request)), FD_INVALID_ARGUMENT, part);
    ExpectError(error_of(fd_submit(engine->get(), &request, &id)), FD_INVALID_ARGUMENT, part);
  };
  refuses("prompt: it is NULL, but prompt_bytes is 7", [](auto& r) { r.prompt_bytes = 7; });
  refuses("prompt_ids: it is NULL, but prompt_id_count is 3", [](auto& r) { r.prompt_ids = nullptr; });
  refuses("prompt_ids", [](auto& r) { r.prompt_ids = nullptr, r.prompt = "text", r.prompt_bytes = 4; });
  refuses("stop_token_ids: it is NULL, but stop_token_id_count is 2", [](auto& r) { r.stop_token_id_count = 2; });
  refuses("stop: it is NULL, but stop_count is 1", [](auto& r) { r.stop_count = 1; });
  refuses("stop: string 1 is NULL", [&stop](auto& r) { r.stop = stop, r.stop_count = 2; });
  refuses("logit_bias: it is NULL, but logit_bias_count is 1", [](auto& r) { r.logit_bias_count = 1; });
  refuses("cache_salt: it is NULL, but cache_salt_bytes is 2", [](auto& r) { r.cache_salt_bytes = 2; });

  size_t count = 0;
  int32_t ids[1];
  fd_prompt_part part = {};
  part.struct_size = sizeof(part);
  ExpectError(error_of(fd_tokenize(engine->get(), nullptr, 4, 0, ids, 1, &count)), FD_INVALID_ARGUMENT,
              "fd_tokenize: parts is NULL, part_count 4");
  ExpectError(error_of(fd_tokenize(engine->get(), &part, 1, 0, nullptr, 1, &count)), FD_INVALID_ARGUMENT,
              "fd_tokenize: ids is NULL, capacity 1");
  part.text_bytes = 4;
  ExpectError(error_of(fd_tokenize(engine->get(), &part, 1, 0, ids, 1, &count)), FD_INVALID_ARGUMENT,
              "parts[0].text: it is NULL, but text_bytes is 4");
  char* text = nullptr;
  ExpectError(error_of(fd_detokenize(engine->get(), nullptr, 2, &text, &count)), FD_INVALID_ARGUMENT,
              "fd_detokenize: ids is NULL, count 2");
  ExpectError(error_of(fd_detokenize_special(engine->get(), nullptr, 2, &text, &count)), FD_INVALID_ARGUMENT,
              "fd_detokenize_special: ids is NULL, count 2");
  // Nothing is to be read; but there is no tokenizer.
  part.text_bytes = 0;
  ExpectError(error_of(fd_tokenize(engine->get(), &part, 1, 0, nullptr, 0, &count)), FD_INVALID_ARGUMENT, "tokenizer");
  ExpectError(error_of(fd_detokenize(engine->get(), nullptr, 0, &text, &count)), FD_INVALID_ARGUMENT, "tokenizer");
  uint64_t id = 0;
  EXPECT_EQ(error_of(fd_submit(engine->get(), &good, &id)).code(), FD_OK);
}

}  // namespace
}  // namespace fastdecode
