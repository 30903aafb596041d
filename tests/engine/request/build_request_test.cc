#include "engine/request/build_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "tests/engine/request/llama2_tokenizer.h"

namespace fastdecode {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class BuildRequestTest : public testing::Test {
 protected:
  BuildRequestTest() : tokenizer_(LoadTokenizer("base")) {
    spec_.vocab = 1000;
    spec_.eos_token_ids = {900, 7};
    context_ = {&spec_, tokenizer_.get(), &missing_, 64};
    given_.prompt_ids = ids_.data();
    given_.prompt_id_count = ids_.size();
    given_.max_tokens = 16;
    given_.temperature = 1;
    given_.top_p = 1;
    given_.repetition_penalty = 1;
    given_.logprobs = -1;
  }

  static std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& name) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        Tokenizer::Load(std::string(FASTDECODE_TESTS_DIR) + "/golden/tokenizer/" + name);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *std::move(tokenizer);
  }
  std::unique_ptr<Request> Build() {
    absl::StatusOr<std::unique_ptr<Request>> request = BuildRequest(context_, given_);
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? *std::move(request) : nullptr;
  }
  void UseLlama2Tokenizer() {
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        Tokenizer::Parse({.dir = "llama2", .tokenizer_json = kLlama2TokenizerJson});
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    context_.tokenizer = tokenizer_.get();
  }
  // What an answer of these tokens to a prompt of those reads.
  std::string AnswerText(std::span<const int32_t> prompt, std::span<const int32_t> answer) {
    given_.prompt_ids = prompt.data();
    given_.prompt_id_count = prompt.size();
    const std::unique_ptr<Request> request = Build();
    std::string text;
    for (const int32_t id : answer) request->answers[0]->detokenizer->Push(id, &text);
    return text + request->answers[0]->detokenizer->Finish();
  }
  void ExpectRefused(const std::vector<std::string>& parts) {
    const absl::StatusOr<std::unique_ptr<Request>> request = BuildRequest(context_, given_);
    ASSERT_FALSE(request.ok()) << parts[0];
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
    for (const std::string& part : parts) EXPECT_THAT(std::string(request.status().message()), HasSubstr(part));
  }
  void GiveText(const std::string& text) {
    text_ = text;
    given_.prompt_ids = nullptr;
    given_.prompt_id_count = 0;
    given_.prompt = text_.data();
    given_.prompt_bytes = text_.size();
  }

  std::vector<int32_t> ids_ = {5, 6, 7, 8, 9};
  std::string text_;
  std::string missing_ = "there is no tokenizer.json";
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelSpec spec_;
  RequestContext context_;
  RequestFields given_{};
};

TEST_F(BuildRequestTest, TakesTheIdsAndAllTheMemory) {
  const int32_t stops[] = {30, 7, 20};
  given_.stop_token_ids = stops;
  given_.stop_token_id_count = 3;
  given_.min_tokens = 3;
  given_.logprobs = 2;
  given_.presence_penalty = 0.5;
  const LogitBias bias[] = {{9, 1.0f}, {3, -2.0f}};
  given_.logit_bias = bias;
  given_.logit_bias_count = 2;
  const std::unique_ptr<Request> request = Build();
  ASSERT_NE(request, nullptr);
  const Sequence& sequence = request->first();
  EXPECT_EQ(sequence.prompt_tokens, 5u);
  EXPECT_EQ(sequence.length, 5u);
  EXPECT_EQ(sequence.length_max, 21u);
  EXPECT_EQ(std::vector<int32_t>(sequence.log.tokens.begin(), sequence.log.tokens.begin() + 5), ids_);
  EXPECT_EQ(sequence.log.tokens.size(), 21u);
  EXPECT_EQ(sequence.log.logprobs.size(), 16u);
  EXPECT_EQ(sequence.log.top_logprobs.size(), 32u);
  EXPECT_THAT(sequence.sampling.stop_tokens,
              ElementsAre(7, 20, 30, 900));  // with the model's own, once each, ascending
  EXPECT_EQ(sequence.sampling.min_tokens, 3u);
  ASSERT_EQ(sequence.sampling.bias.size(), 2u);
  EXPECT_EQ(sequence.sampling.bias[0].token, 3);
  EXPECT_EQ(sequence.sampling.bias[1].token, 9);
  ASSERT_NE(sequence.sampling.history.prompt_seen, nullptr);
  EXPECT_EQ(sequence.sampling.history.prompt_seen[0], uint64_t{0b1111100000});
  EXPECT_TRUE(request->answers[0]->detokenizer.has_value());
  EXPECT_FALSE(request->answers[0]->stops.has_value());
}

TEST_F(BuildRequestTest, IgnoreEosLeavesTheCallersStops) {
  const int32_t stops[] = {30};
  given_.stop_token_ids = stops;
  given_.stop_token_id_count = 1;
  given_.ignore_eos = 1;
  EXPECT_THAT(Build()->first().sampling.stop_tokens, ElementsAre(30));
}

TEST_F(BuildRequestTest, ATokenizersEndThatTheModelDoesNotKnowIsNoStop) {
  tokenizer_ = LoadTokenizer("qwen2");
  context_.tokenizer = tokenizer_.get();
  const int eos = tokenizer_->eos_id().value();
  spec_.eos_token_ids.clear();
  spec_.vocab = eos + 1;
  EXPECT_THAT(Build()->first().sampling.stop_tokens, ElementsAre(eos));
  spec_.vocab = eos;
  EXPECT_THAT(Build()->first().sampling.stop_tokens, testing::IsEmpty());
}

TEST_F(BuildRequestTest, TheContextCutsTheLength) {
  given_.max_tokens = 1000;
  EXPECT_EQ(Build()->first().length_max, 64u);
  ids_.assign(63, 1);
  given_.prompt_ids = ids_.data();
  given_.prompt_id_count = 63;
  EXPECT_EQ(Build()->first().length_max, 64u);
}

TEST_F(BuildRequestTest, WhatNeedsNoModelIsCheckedWithoutOne) {
  GiveText("x");
  EXPECT_TRUE(CheckRequest(given_).ok());
  const char* stops[] = {"x", ""};
  given_.stop = stops;
  given_.stop_count = 2;
  EXPECT_EQ(CheckRequest(given_).message(), "stop: string 1 is empty");
  given_.top_k = -1;
  EXPECT_EQ(CheckRequest(given_).message(), "top_k: -1 is not in [0, 2147483647]");
  given_.min_tokens = 17;
  EXPECT_EQ(CheckRequest(given_).message(), "min_tokens: 17 is more than max_tokens, 16");
}

TEST_F(BuildRequestTest, TakesText) {
  GiveText("Hello, world");
  const std::unique_ptr<Request> request = Build();
  const Sequence& sequence = request->first();
  EXPECT_EQ(std::vector<int32_t>(sequence.log.tokens.begin(), sequence.log.tokens.begin() + sequence.prompt_tokens),
            tokenizer_->Encode("Hello, world", false));
}

TEST_F(BuildRequestTest, RefusesPromptsThatCannotRun) {
  given_.prompt_id_count = 0;
  ExpectRefused({"prompt", "no tokens"});
  ids_ = {5, 1000};
  given_.prompt_ids = ids_.data();
  given_.prompt_id_count = 2;
  ExpectRefused({"prompt_ids[1]", "1000"});
  ids_[1] = -1;
  ExpectRefused({"prompt_ids[1]", "-1"});
  ids_.assign(64, 1);
  given_.prompt_ids = ids_.data();
  given_.prompt_id_count = 64;
  ExpectRefused({"prompt_ids", "64", "max-context"});
  given_.prompt_id_count = (size_t{1} << 32) + 1;  // refused before they are read
  ExpectRefused({"prompt_ids", "4294967297", "max-context"});
  GiveText("Hello, world");
  given_.prompt_bytes = size_t{512} << 20;  // likewise
  ExpectRefused({"prompt", "536870912", "44739242"});
  context_.max_context = 2;
  GiveText("Hello, world");
  ExpectRefused({"prompt", "max-context"});
  context_.max_context = 64;
  GiveText("");
  ExpectRefused({"prompt", "no tokens"});
  spec_.vocab = 90;  // "~" is 93
  spec_.eos_token_ids.clear();
  GiveText("~");
  ExpectRefused({tokenizer_->file() + ": token id 93 is outside the model's vocabulary of 90"});
}

TEST_F(BuildRequestTest, TextNeedsATokenizer) {
  context_.tokenizer = nullptr;
  EXPECT_FALSE(Build()->answers[0]->detokenizer.has_value());
  const char* stops[] = {"x"};
  given_.stop = stops;
  given_.stop_count = 1;
  ExpectRefused({"stop", missing_});
  given_.stop_count = 0;
  GiveText("x");
  ExpectRefused({"prompt", missing_});
}

TEST_F(BuildRequestTest, RefusesFieldsOutOfRange) {
  const RequestFields good = given_;
  const int32_t bad_stop[] = {3, 1000};
  const char* empty_stop[] = {""};
  const LogitBias twice[] = {{3, 1}, {3, 2}};
  const LogitBias infinite[] = {{3, std::numeric_limits<float>::infinity()}};
  const LogitBias outside[] = {{1000, 1}};
  const auto refused = [&](const std::function<void(RequestFields*)>& change, const std::vector<std::string>& parts) {
    given_ = good;
    change(&given_);
    ExpectRefused(parts);
  };
  refused([](RequestFields* r) { r->max_tokens = 0; }, {"max_tokens", "0"});
  refused([](RequestFields* r) { r->answers = 0; }, {"n: 0 is not at least 1"});
  refused([](RequestFields* r) { r->answers = 129; }, {"n: 129 is more than 128"});
  refused([](RequestFields* r) { r->cache_salt_bytes = 3; }, {"cache_salt: it is NULL, but cache_salt_bytes is 3"});
  const std::string salt(kCacheSaltBytesMax + 1, 's');
  refused([&](RequestFields* r) { r->cache_salt = salt.data(), r->cache_salt_bytes = salt.size(); },
          {"cache_salt: it has 4097 bytes, more than 4096"});
  refused([](RequestFields* r) { r->min_tokens = 17; }, {"min_tokens", "17", "16"});
  refused([](RequestFields* r) { r->fill_tokens = 5; }, {"fill_tokens", "5"});
  refused([](RequestFields* r) { r->temperature = -1; }, {"temperature", "-1"});
  refused([](RequestFields* r) { r->temperature = NAN; }, {"temperature"});
  refused([](RequestFields* r) { r->top_k = -2; }, {"top_k", "-2"});
  refused([](RequestFields* r) { r->top_p = 0; }, {"top_p"});
  refused([](RequestFields* r) { r->top_p = 1.5; }, {"top_p", "1.5"});
  refused([](RequestFields* r) { r->min_p = 2; }, {"min_p", "2"});
  refused([](RequestFields* r) { r->repetition_penalty = 0; }, {"repetition_penalty"});
  refused([](RequestFields* r) { r->presence_penalty = 3; }, {"presence_penalty", "3"});
  refused([](RequestFields* r) { r->frequency_penalty = -3; }, {"frequency_penalty", "-3"});
  refused([](RequestFields* r) { r->logprobs = 21; }, {"logprobs", "21"});
  refused([](RequestFields* r) { r->logprobs = -2; }, {"logprobs", "-2"});
  refused([](RequestFields* r) { r->prompt_logprobs = 21; }, {"prompt_logprobs: 21", "[-1, 20]"});
  refused([](RequestFields* r) { r->prompt_logprobs = -2; }, {"prompt_logprobs: -2", "[-1, 20]"});
  refused([](RequestFields* r) { r->prompt_logprobs = 0, r->fill_tokens = 2; },
          {"prompt_logprobs: ", "2 tokens", "fill_tokens"});
  refused([](RequestFields* r) { r->prompt_logprobs = 0, r->max_tokens = 0, r->min_tokens = 1; }, {"min_tokens", "1"});
  refused([&](RequestFields* r) { r->stop_token_ids = bad_stop, r->stop_token_id_count = 2; },
          {"stop_token_ids[1]", "1000"});
  refused([&](RequestFields* r) { r->stop = empty_stop, r->stop_count = 1; }, {"stop"});
  refused([&](RequestFields* r) { r->logit_bias = twice, r->logit_bias_count = 2; }, {"logit_bias", "3"});
  refused([&](RequestFields* r) { r->logit_bias = infinite, r->logit_bias_count = 1; }, {"logit_bias", "inf"});
  refused([&](RequestFields* r) { r->logit_bias = outside, r->logit_bias_count = 1; }, {"logit_bias", "1000"});
  std::vector<float> logits(5 * 1000 - 1);
  refused([&](RequestFields* r) { r->prompt_logits = logits.data(), r->prompt_logits_floats = logits.size(); },
          {"prompt_logits_floats", "4999", "5000"});
  logits.resize(5000);
  refused(
      [&](RequestFields* r) {
        r->prompt_logits = logits.data(), r->prompt_logits_floats = logits.size(), r->fill_tokens = 2;
      },
      {"prompt_logits", "fill_tokens", "2"});
  given_ = good;
  given_.prompt_logits = logits.data();
  given_.prompt_logits_floats = logits.size();
  EXPECT_EQ(Build()->first().prompt_logits, logits.data());
}

TEST_F(BuildRequestTest, AnEngineMayTakeFewerAnswers) {
  context_.answers_max = 4;
  given_.answers = 4;
  given_.seed = UINT64_MAX - 1;
  const std::unique_ptr<Request> request = Build();
  ASSERT_EQ(request->answers.size(), 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(request->answers[i]->sequence.sampling.params.seed, UINT64_MAX - 1 + i);
    EXPECT_EQ(request->answers[i]->sequence.log.tokens.size(), 21u);
  }
  given_.answers = 5;
  ExpectRefused({"n: 5 is more than 4", "submit several requests"});
}

// Those of each answer: the others follow the first one only until they have a token.
TEST_F(BuildRequestTest, PromptsAreLookedUpUnlessThatIsNotWanted) {
  ids_.assign(40, 1);
  given_.prompt_ids = ids_.data();
  given_.prompt_id_count = ids_.size();
  given_.answers = 3;
  const auto looked_up = [&] {
    const std::unique_ptr<Request> request = Build();
    size_t count = 0;
    for (const auto& answer : request->answers) count += answer->sequence.prefix.enabled();
    EXPECT_TRUE(count == 0 || count == 3) << count;
    return count == 3;
  };
  EXPECT_TRUE(looked_up());
  const std::array<uint64_t, 2> without = Build()->first().prefix.salt();
  given_.cache_salt = "salt and pepper";
  given_.cache_salt_bytes = 4;
  const std::array<uint64_t, 2> with = Build()->first().prefix.salt();
  EXPECT_NE(with, without);
  given_.cache_salt_bytes = 5;
  EXPECT_NE(Build()->first().prefix.salt(), with);
  given_.prefix_cache = false;
  EXPECT_FALSE(looked_up());
  given_.prefix_cache = true;
  given_.fill_tokens = 2;
  EXPECT_FALSE(looked_up()) << "what a home has made up is no prompt's";
  given_.fill_tokens = 0;
  context_.prefix_cache = false;
  EXPECT_FALSE(looked_up());
}

TEST_F(BuildRequestTest, TakesTheMemoryOfPromptLogprobs) {
  EXPECT_TRUE(Build()->first().sampling.prompt_ids.empty());
  given_.prompt_logprobs = 0;
  std::unique_ptr<Request> request = Build();
  EXPECT_THAT(request->first().sampling.prompt_ids, testing::ElementsAreArray(ids_));
  EXPECT_EQ(request->first().log.prompt_logprobs.size(), 5u);
  EXPECT_TRUE(request->first().log.prompt_top_logprobs.empty());
  given_.prompt_logprobs = 20;
  request = Build();
  const Sequence& sequence = request->first();
  EXPECT_EQ(sequence.sampling.prompt_params.logprobs, 20);
  EXPECT_LT(sequence.sampling.prompt_params.temperature, kGreedyTemperature);
  EXPECT_EQ(sequence.sampling.params.logprobs, -1) << "of the tokens to come nothing was asked";
  EXPECT_EQ(sequence.log.prompt_top_logprobs.size(), 5u * 20);
  for (const float logprob : sequence.log.prompt_logprobs) EXPECT_TRUE(std::isnan(logprob)) << "it is not known yet";
  std::vector<float> logits(5 * 1000);  // both may be wanted
  given_.prompt_logits = logits.data();
  given_.prompt_logits_floats = logits.size();
  EXPECT_EQ(Build()->first().prompt_logits, logits.data());
}

// What sampling reads of it lies where the S-Part says.
TEST_F(BuildRequestTest, PromptIdsLieInSamplingMemory) {
  std::pmr::monotonic_buffer_resource memory;
  context_.sampling_memory = &memory;
  given_.prompt_logprobs = 1;
  EXPECT_EQ(Build()->first().sampling.prompt_ids.get_allocator().resource(), &memory);
}

TEST_F(BuildRequestTest, APromptAloneIsEnoughIfItsLogprobsAreWanted) {
  given_.max_tokens = 0;
  given_.logprobs = 5;
  ExpectRefused({"max_tokens", "0", "prompt_logprobs"});
  given_.prompt_logprobs = 0;
  const std::unique_ptr<Request> request = Build();
  EXPECT_EQ(request->first().length_max, 5u);
  EXPECT_EQ(request->first().sampling.params.logprobs, -1) << "there is no room to report any";
  EXPECT_TRUE(request->first().log.top_logprobs.empty());
}

// Wherever a text is cut: its tokenizer takes the space off that a text begins with, and an answer begins none.
TEST_F(BuildRequestTest, AnswersGoOnFromTheirPrompts) {
  UseLlama2Tokenizer();
  const std::vector<int32_t> ids = tokenizer_->Encode("ab  cab<|user|> caf\u00E9 a", true);
  ASSERT_THAT(ids, testing::Contains(kLlama2User));
  for (const bool show_special : {false, true}) {
    given_.show_special = show_special;
    const std::string whole = tokenizer_->Decode(ids, !show_special);
    for (size_t cut = 1; cut < ids.size(); ++cut) {
      SCOPED_TRACE(cut);
      const std::span<const int32_t> prompt = std::span(ids).first(cut), answer = std::span(ids).subspan(cut);
      const std::string before = tokenizer_->Decode(prompt, !show_special);
      if (before.ends_with("\uFFFD")) continue;  // half a character
      EXPECT_EQ(before + AnswerText(prompt, answer), whole);
    }
  }
}

TEST_F(BuildRequestTest, PartsThatJoinAreOneText) {
  UseLlama2Tokenizer();
  const auto ids = [&](std::vector<RequestFields::Part> parts) {
    const auto encoded = EncodeParts(context_, parts, false);
    EXPECT_TRUE(encoded.ok()) << encoded.status();
    return encoded.value_or(std::vector<int32_t>());
  };
  const auto part = [](const char* text, bool special, bool joins) {
    return RequestFields::Part{special, text, std::strlen(text), nullptr, 0, joins};
  };
  EXPECT_EQ(ids({part("a", true, false), part("b", false, true)}), tokenizer_->Encode("ab", false));
  EXPECT_NE(ids({part("a", true, false), part("b", false, false)}), tokenizer_->Encode("ab", false));
  EXPECT_THAT(ids({part("<|us", true, true), part("er|>", true, true)}), ElementsAre(kLlama2User));
  EXPECT_THAT(ids({part("<|us", true, true), part("er|>", false, true)}), Not(Contains(kLlama2User)));
  const RequestFields::Part given = {true, nullptr, 0, ids_.data(), 2, /*joins=*/true};
  EXPECT_THAT(ids({part("<|us", true, true), given, part("er|>", true, true)}), Not(Contains(kLlama2User)));
}

TEST_F(BuildRequestTest, TextsThatJoinHaveRoomTogether) {
  const std::string text(1 << 20, ' ');
  std::vector<RequestFields::Part> parts(70, {true, text.data(), text.size(), nullptr, 0, /*joins=*/true});
  const auto refusal = [&] { return std::string(EncodeParts(context_, parts, false).status().message()); };
  EXPECT_EQ(refusal(), "parts[0].text to parts[42].text, which join: 45088768 bytes of text are more than 44739242");
  parts[10].joins = false;
  EXPECT_EQ(refusal(), "parts[10].text to parts[52].text, which join: 45088768 bytes of text are more than 44739242");
  parts[20].ids = ids_.data();
  parts[20].id_count = 1;
  EXPECT_THAT(refusal(), testing::StartsWith("parts[21].text to parts[63].text, which join"));
}

TEST_F(BuildRequestTest, AnAnswerToSpecialTokensAloneBeginsAText) {
  UseLlama2Tokenizer();
  const std::vector<int32_t> answer = tokenizer_->Encode("ab cab", false);
  const std::vector<int32_t> special = {kLlama2Bos, kLlama2User};
  EXPECT_EQ(AnswerText(special, answer), "ab cab");
  EXPECT_EQ(AnswerText(std::vector<int32_t>{999}, answer), "ab cab") << "no token of the tokenizer";
  EXPECT_EQ(AnswerText(std::vector<int32_t>{kLlama2Bos, answer[0]}, answer), " ab cab");
  given_.show_special = true;
  EXPECT_EQ(AnswerText(special, answer), " ab cab") << "they are the beginning then";
}

TEST_F(BuildRequestTest, SpecialTokensAreTextIfThatIsAskedFor) {
  UseLlama2Tokenizer();
  std::vector<int32_t> answer = tokenizer_->Encode("ab", false);
  answer.insert(answer.end(), {kLlama2User, kLlama2Eos});
  EXPECT_EQ(AnswerText(answer, answer), " ab");
  given_.show_special = true;
  EXPECT_EQ(AnswerText(answer, answer), " ab<|user|></s>");
}

TEST_F(BuildRequestTest, WarnsOnceOfPromptsThatBeginWithBosTwice) {
  UseLlama2Tokenizer();
  std::vector<std::string> warnings;
  Logger log(
      [](void* user, LogLevel level, const char* message) {
        EXPECT_EQ(level, LogLevel::kWarning);
        static_cast<std::vector<std::string>*>(user)->push_back(message);
      },
      &warnings);
  std::atomic<bool> warned = false;
  context_.log = &log;
  context_.warned_of_bos = &warned;
  ids_ = {kLlama2Bos, kLlama2Bos, 10};
  Build();  // ids are used as they are
  GiveText("ab");
  Build();
  given_.add_special_tokens = false;
  GiveText("<s><s>ab");
  Build();
  given_.add_special_tokens = true;
  const std::string spelled = "<s>ab";
  RequestFields::Part part = {/*special=*/false, spelled.data(), spelled.size()};
  ASSERT_TRUE(EncodeParts(context_, {&part, 1}, true).ok());
  EXPECT_THAT(warnings, testing::IsEmpty());
  part.special = true;
  ASSERT_TRUE(EncodeParts(context_, {&part, 1}, true).ok());
  GiveText(spelled);
  Build();
  EXPECT_THAT(warnings, ElementsAre(testing::AllOf(HasSubstr("begins with bos (token id 1) twice"),
                                                   HasSubstr("--no-special-tokens (add_special_tokens = 0)"))));
}

}  // namespace
}  // namespace fastdecode
