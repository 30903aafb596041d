#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sampler.h"
#include "tests/tools/serve/openai_requests.h"

namespace fastdecode::serve {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the engine itself says of the sampling of a request.
std::string EngineSays(const fd_request& fields) {
  SamplingParams params;
  params.temperature = fields.temperature;
  params.top_k = fields.top_k;
  params.top_p = fields.top_p;
  params.min_p = fields.min_p;
  params.repetition_penalty = fields.repetition_penalty;
  params.presence_penalty = fields.presence_penalty;
  params.frequency_penalty = fields.frequency_penalty;
  params.logprobs = fields.logprobs;
  return ValidateSampling(params);
}

struct Range {
  const char* field;
  const char *low, *high;     // let in
  const char *below, *above;  // refused
};

class RangeTest : public testing::TestWithParam<Range> {};

TEST_P(RangeTest, IsTheEngines) {
  const Range& range = GetParam();
  const auto member = [&](const char* value) { return "\"" + std::string(range.field) + "\":" + value; };
  for (const char* value : {range.low, range.high}) {
    EXPECT_EQ(EngineSays(ReadWith(member(value)).generate.fields), "") << member(value);
  }
  for (const char* value : {range.below, range.above, "1e300", "-1e300"}) {
    EXPECT_THAT(RefusalWith(member(value)),
                AllOf(StartsWith(std::string(range.field) + "|" + range.field + ": "), HasSubstr(" is not in [")));
  }
  for (const char* value : {"true", "\"1\"", "[1]", "{}"}) {
    EXPECT_THAT(RefusalWith(member(value)),
                AllOf(StartsWith(std::string(range.field) + "|" + range.field + ": "), HasSubstr(" is not a")));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RangeTest,
                         testing::Values(Range{"temperature", "0", "100", "-0.001", "100.001"},
                                         Range{"top_p", "1e-6", "1", "0", "1.001"},
                                         Range{"min_p", "0", "1.0", "-1e-9", "1.001"},
                                         Range{"repetition_penalty", "0.01", "100", "0.0099", "100.001"},
                                         Range{"presence_penalty", "-2", "2", "-2.001", "2.001"},
                                         Range{"frequency_penalty", "-2", "2", "-2.001", "2.001"},
                                         Range{"top_k", "-1", "2147483647", "-2", "2147483648"},
                                         Range{"logprobs", "0", "20", "-1", "21"},
                                         Range{"max_tokens", "1", "4294967295", "-1", "4294967296"},
                                         Range{"min_tokens", "0", "16", "-1", "4294967296"}),
                         [](const auto& info) { return std::string(info.param.field); });

TEST(RangesTest, TopKHasTwoWaysToBeOff) {
  fd_request defaults = EngineDefaults();
  defaults.top_k = 50;
  EXPECT_EQ(ReadWith(R"("top_k":-1)", defaults).generate.fields.top_k, 0);
  EXPECT_EQ(ReadWith(R"("top_k":0)", defaults).generate.fields.top_k, 0);
  EXPECT_EQ(ReadWith(R"("top_k":3.0)", defaults).generate.fields.top_k, 3);
  EXPECT_THAT(RefusalWith(R"("top_k":2.5)"), StartsWith("top_k|top_k: 2.5 is not an integer"));
}

TEST(RangesTest, ValuesThatMeanOffElsewhereAreExplained) {
  EXPECT_THAT(RefusalWith(R"("top_k":-2)"), EndsWith("; 0 is off, and so is -1"));
  EXPECT_THAT(RefusalWith(R"("top_p":0)"),
              EndsWith("; 1 is off, and temperature 0 always takes the most likely token"));
  EXPECT_THAT(RefusalWith(R"("temperature":-1)"), EndsWith("; 0 always takes the most likely token"));
  EXPECT_THAT(RefusalWith(R"("repetition_penalty":0)"), EndsWith("; 1 is off"));
  EXPECT_THAT(RefusalWith(R"("max_tokens":-1)"), HasSubstr("no value means no limit"));
}

TEST(RangesTest, MinTokensIsAtMostMaxTokens) {
  EXPECT_EQ(ReadWith(R"("max_tokens":5,"min_tokens":5)").generate.fields.min_tokens, 5u);
  EXPECT_THAT(RefusalWith(R"("max_tokens":5,"min_tokens":6)"),
              StartsWith("min_tokens|min_tokens: 6 is more than max_tokens, 5"));
  EXPECT_THAT(RefusalWith(R"("min_tokens":17)"), StartsWith("min_tokens|min_tokens: 17 is more than max_tokens, 16"));
}

TEST(RangesTest, LogprobsOfChatCompletionsAreExplained) {
  EXPECT_THAT(RefusalWith(R"("logprobs":true)"), AllOf(StartsWith("logprobs|logprobs: true"), HasSubstr("0 to 20")));
  EXPECT_THAT(RefusalWith(R"("logprobs":false)"), AllOf(StartsWith("logprobs|logprobs: false"), HasSubstr("null")));
}

// A field that is not served: the values that ask for nothing, as JSON, and one that asks for something.
struct Unserved {
  const char* field;
  std::vector<const char*> idle;
  const char* asks;
};

class UnservedTest : public testing::TestWithParam<Unserved> {};

TEST_P(UnservedTest, IsRefusedIfItAsksForSomething) {
  const Unserved& unserved = GetParam();
  const auto member = [&](const char* value) { return "\"" + std::string(unserved.field) + "\":" + value; };
  EXPECT_EQ(ReadWith(member("null")).prompts.size(), 1u);
  for (const char* value : unserved.idle) EXPECT_EQ(ReadWith(member(value)).prompts.size(), 1u) << value;
  EXPECT_THAT(RefusalWith(member(unserved.asks)),
              AllOf(StartsWith(std::string(unserved.field) + "|" + unserved.field + ": "),
                    HasSubstr(" is not supported; "), HasSubstr("leave this field out")));
}

INSTANTIATE_TEST_SUITE_P(
    All, UnservedTest,
    testing::Values(Unserved{"max_completion_tokens", {}, "16"}, Unserved{"max_new_tokens", {}, "16"},
                    Unserved{"n_predict", {}, "16"}, Unserved{"min_new_tokens", {}, "1"},
                    Unserved{"top_logprobs", {}, "3"}, Unserved{"n_probs", {"0"}, "3"},
                    Unserved{"prompt_logprobs", {}, "0"}, Unserved{"repeat_penalty", {"1", "1.0"}, "1.1"},
                    Unserved{"stop_sequences", {"[]"}, "[\"a\"]"}, Unserved{"no_stop_trim", {"false"}, "true"},
                    Unserved{"messages", {}, "[]"}, Unserved{"prompt_embeds", {}, "\"AAAA\""},
                    Unserved{"suffix", {"\"\""}, "\"end\""}, Unserved{"truncate_prompt_tokens", {}, "-1"},
                    Unserved{"tools", {"[]"}, "[{}]"}, Unserved{"functions", {"[]"}, "[{}]"},
                    Unserved{"audio", {}, "{\"voice\":\"a\"}"},
                    Unserved{"modalities", {"[\"text\"]"}, "[\"text\",\"audio\"]"},
                    Unserved{"web_search_options", {}, "{}"}, Unserved{"moderation", {}, "{}"},
                    Unserved{"lora_request", {}, "\"a\""}, Unserved{"lora_path", {}, "\"a\""},
                    Unserved{"kv_transfer_params", {}, "{}"}, Unserved{"ec_transfer_params", {}, "{}"},
                    Unserved{"vllm_xargs", {"{}"}, "{\"a\":1}"}),
    [](const auto& info) { return std::string(info.param.field); });

INSTANTIATE_TEST_SUITE_P(OtherServers, UnservedTest,
                         testing::Values(Unserved{"num_predict", {}, "16"}, Unserved{"max_length", {}, "16"},
                                         Unserved{"num_return_sequences", {"1"}, "2"},
                                         Unserved{"return_full_text", {"false"}, "true"},
                                         Unserved{"options", {"{}"}, "{\"num_ctx\":512}"},
                                         Unserved{"do_sample", {"true"}, "false"}, Unserved{"num_beams", {"1"}, "4"},
                                         Unserved{"repeat_last_n", {"-1"}, "64"},
                                         Unserved{"samplers", {"[]"}, "[\"top_k\"]"}),
                         [](const auto& info) { return std::string(info.param.field); });

INSTANTIATE_TEST_SUITE_P(
    Formats, UnservedTest,
    testing::Values(Unserved{"response_format", {"{\"type\":\"text\"}"}, "{\"type\":\"json_object\"}"},
                    Unserved{"structured_outputs", {}, "{\"regex\":\"a\"}"}, Unserved{"guided_json", {}, "{}"},
                    Unserved{"guided_regex", {}, "\"a\""}, Unserved{"guided_choice", {}, "[\"a\"]"},
                    Unserved{"guided_grammar", {}, "\"a\""}, Unserved{"guided_decoding_backend", {}, "\"a\""},
                    Unserved{"guided_whitespace_pattern", {}, "\"a\""}, Unserved{"structural_tag", {}, "\"a\""},
                    Unserved{"grammar", {"\"\""}, "\"root ::= a\""},
                    Unserved{"json_schema", {"{}"}, "{\"type\":\"object\"}"}, Unserved{"regex", {"\"\""}, "\"a\""},
                    Unserved{"ebnf", {"\"\""}, "\"a\""}, Unserved{"allowed_token_ids", {}, "[1]"},
                    Unserved{"bad_words", {"[]"}, "[\"a\"]"}, Unserved{"logits_processors", {"[]"}, "[\"a\"]"},
                    Unserved{"custom_logit_processor", {}, "\"a\""}, Unserved{"stop_regex", {"\"\"", "[]"}, "\"a\""},
                    Unserved{"repetition_detection", {}, "{}"}, Unserved{"thinking_token_budget", {"-1"}, "10"}),
    [](const auto& info) { return std::string(info.param.field); });

INSTANTIATE_TEST_SUITE_P(
    Sampling, UnservedTest,
    testing::Values(Unserved{"use_beam_search", {"false"}, "true"}, Unserved{"length_penalty", {"1", "1.0"}, "0.5"},
                    Unserved{"early_stopping", {"false"}, "true"}, Unserved{"typical_p", {"1"}, "0.5"},
                    Unserved{"tfs_z", {"1.0"}, "0.5"}, Unserved{"top_a", {"0"}, "0.5"},
                    Unserved{"top_n_sigma", {"-1"}, "1"}, Unserved{"xtc_probability", {"0.0"}, "0.5"},
                    Unserved{"dynatemp_range", {"0"}, "0.5"}, Unserved{"mirostat", {"0"}, "2"},
                    Unserved{"dry_multiplier", {"0"}, "0.8"}, Unserved{"no_repeat_ngram_size", {"0"}, "3"},
                    Unserved{"watermark", {"false"}, "true"}, Unserved{"watermarking", {"false"}, "true"},
                    Unserved{"priority", {"0", "0.0"}, "1"},
                    Unserved{"spaces_between_special_tokens", {"true"}, "false"},
                    Unserved{"return_tokens_as_token_ids", {"false"}, "true"},
                    Unserved{"logprob_token_ids", {}, "[1]"}),
    [](const auto& info) { return std::string(info.param.field); });

// A value of another type is no way around it.
TEST(UnservedFieldsTest, IdleValuesHaveTheirType) {
  EXPECT_THAT(RefusalWith(R"("priority":false)"), StartsWith("priority|"));
  EXPECT_THAT(RefusalWith(R"("use_beam_search":0)"), StartsWith("use_beam_search|"));
  EXPECT_THAT(RefusalWith(R"("suffix":0)"), StartsWith("suffix|"));
  EXPECT_THAT(RefusalWith(R"("response_format":"text")"), StartsWith("response_format|"));
  EXPECT_THAT(RefusalWith(R"("response_format":{"type":7})"), StartsWith("response_format|"));
  EXPECT_THAT(RefusalWith(R"("modalities":"text")"), StartsWith("modalities|"));
  EXPECT_THAT(RefusalWith(R"("suffix":")" + std::string(1000, 'x') + "\""), HasSubstr("xxx\"..."));
}

}  // namespace
}  // namespace fastdecode::serve
