#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/serve/openai_requests.h"

namespace fastdecode::serve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::string List(const std::string& element, size_t count) {
  std::string list = "[";
  for (size_t i = 0; i < count; ++i) list += (i > 0 ? "," : "") + element;
  return list + "]";
}

TEST(CompletionRequestTest, WhatIsAbsentIsTheModelsDefault) {
  fd_request defaults = EngineDefaults();
  defaults.temperature = 0.6f;
  defaults.top_k = 50;
  defaults.top_p = 0.9f;
  defaults.min_p = 0.05f;
  defaults.repetition_penalty = 1.1f;
  const CompletionRequest request = ReadCompletion(R"({"prompt":"x"})", defaults);
  EXPECT_EQ(request.model, "");
  ASSERT_THAT(request.prompts, SizeIs(1));
  EXPECT_EQ(request.prompts[0].text, "x");
  EXPECT_FALSE(request.prompts[0].is_ids);
  EXPECT_EQ(request.n, 1u);
  EXPECT_FALSE(request.echo || request.stream || request.include_usage || request.continuous_usage ||
               request.return_token_ids);
  EXPECT_EQ(request.user, "");
  EXPECT_EQ(request.request_id, "");
  const fd_request& fields = request.generate.fields;
  EXPECT_EQ(fields.struct_size, sizeof(fd_request));
  EXPECT_EQ(fields.max_tokens, 16u);
  EXPECT_EQ(fields.min_tokens, 0u);
  EXPECT_EQ(fields.ignore_eos, 0);
  EXPECT_EQ(fields.include_stop, 0);
  EXPECT_EQ(fields.show_special, 0);
  EXPECT_EQ(fields.add_special_tokens, 1);
  EXPECT_EQ(fields.seed, kRandomSeed);
  EXPECT_EQ(fields.temperature, 0.6f);
  EXPECT_EQ(fields.top_k, 50);
  EXPECT_EQ(fields.top_p, 0.9f);
  EXPECT_EQ(fields.min_p, 0.05f);
  EXPECT_EQ(fields.repetition_penalty, 1.1f);
  EXPECT_EQ(fields.presence_penalty, 0);
  EXPECT_EQ(fields.frequency_penalty, 0);
  EXPECT_EQ(fields.logprobs, -1);
  EXPECT_EQ(fields.prompt_logprobs, -1);
  EXPECT_THAT(request.generate.stop, IsEmpty());
  EXPECT_THAT(request.generate.stop_token_ids, IsEmpty());
  EXPECT_THAT(request.generate.logit_bias, IsEmpty());
}

TEST(CompletionRequestTest, ReadsEveryField) {
  const CompletionRequest request = ReadCompletion(R"({
    "model": "tiny", "prompt": ["a", ""], "n": 2, "best_of": 2, "echo": true, "stream": true,
    "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "return_token_ids": true,
    "user": "me", "request_id": "r-1", "max_tokens": 7, "min_tokens": 3, "ignore_eos": true,
    "include_stop_str_in_output": true, "skip_special_tokens": false, "add_special_tokens": false,
    "stop": ["\n", "END"], "stop_token_ids": [5, 6], "seed": 42, "temperature": 0.25, "top_p": 0.5, "top_k": 9,
    "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -1.5, "frequency_penalty": 2,
    "logprobs": 5, "logit_bias": {"17": -100, "3": 2.5}, "prefix_cache": false, "cache_salt": "s\u0000"})");
  EXPECT_EQ(request.model, "tiny");
  ASSERT_THAT(request.prompts, SizeIs(2));
  EXPECT_EQ(request.prompts[0].text, "a");
  EXPECT_EQ(request.prompts[1].text, "");
  EXPECT_EQ(request.n, 2u);
  EXPECT_TRUE(request.echo && request.stream && request.include_usage && request.continuous_usage &&
              request.return_token_ids);
  EXPECT_EQ(request.user, "me");
  EXPECT_EQ(request.request_id, "r-1");
  const fd_request& fields = request.generate.fields;
  EXPECT_EQ(fields.max_tokens, 7u);
  EXPECT_EQ(fields.min_tokens, 3u);
  EXPECT_EQ(fields.ignore_eos, 1);
  EXPECT_EQ(fields.include_stop, 1);
  EXPECT_EQ(fields.show_special, 1);
  EXPECT_EQ(fields.add_special_tokens, 0);
  EXPECT_EQ(fields.seed, 42u);
  EXPECT_EQ(fields.temperature, 0.25f);
  EXPECT_EQ(fields.top_p, 0.5f);
  EXPECT_EQ(fields.top_k, 9);
  EXPECT_EQ(fields.min_p, 0.125f);
  EXPECT_EQ(fields.repetition_penalty, 1.5f);
  EXPECT_EQ(fields.presence_penalty, -1.5f);
  EXPECT_EQ(fields.frequency_penalty, 2);
  EXPECT_EQ(fields.logprobs, 5);
  EXPECT_EQ(fields.prompt_logprobs, 5);
  EXPECT_THAT(request.generate.stop, ElementsAre("\n", "END"));
  EXPECT_EQ(fields.no_prefix_cache, 1);
  EXPECT_EQ(request.generate.cache_salt, std::string("s\0", 2));
  EXPECT_THAT(request.generate.stop_token_ids, ElementsAre(5, 6));
  ASSERT_THAT(request.generate.logit_bias, SizeIs(2));
  for (const fd_logit_bias& bias : request.generate.logit_bias) {
    EXPECT_EQ(bias.bias, bias.token == 17 ? -100 : 2.5f) << bias.token;
  }
}

TEST(CompletionRequestTest, NullIsAbsentEverywhere) {
  fd_request defaults = EngineDefaults();
  defaults.top_k = 50;
  for (const char* field : {"model",
                            "n",
                            "best_of",
                            "echo",
                            "stream",
                            "stream_options",
                            "return_token_ids",
                            "user",
                            "request_id",
                            "max_tokens",
                            "min_tokens",
                            "ignore_eos",
                            "include_stop_str_in_output",
                            "skip_special_tokens",
                            "add_special_tokens",
                            "stop",
                            "stop_token_ids",
                            "seed",
                            "temperature",
                            "top_p",
                            "top_k",
                            "min_p",
                            "repetition_penalty",
                            "presence_penalty",
                            "frequency_penalty",
                            "logprobs",
                            "logit_bias",
                            "prefix_cache",
                            "cache_salt"}) {
    const CompletionRequest request = ReadWith("\"" + std::string(field) + "\":null", defaults);
    EXPECT_EQ(request.n, 1u) << field;
    EXPECT_EQ(request.generate.fields.max_tokens, 16u) << field;
    EXPECT_EQ(request.generate.fields.top_k, 50) << field;
    EXPECT_EQ(request.generate.fields.logprobs, -1) << field;
    EXPECT_EQ(request.generate.fields.seed, kRandomSeed) << field;
    EXPECT_EQ(request.generate.fields.add_special_tokens, 1) << field;
    EXPECT_EQ(request.generate.fields.show_special, 0) << field;
    EXPECT_EQ(request.generate.fields.no_prefix_cache, 0) << field;
    EXPECT_EQ(request.generate.cache_salt, "") << field;
  }
  EXPECT_FALSE(ReadWith(R"("stream":true,"stream_options":{"include_usage":null})").include_usage);
  EXPECT_THAT(RefusalOfBody(R"({"prompt":null})"), StartsWith("prompt|prompt: it is missing"));
}

TEST(CompletionRequestTest, WhatIsUnknownOrChangesNothingIsIgnored) {
  const CompletionRequest request = ReadWith(
      R"("store":true,"metadata":{"a":"b"},"service_tier":"auto","safety_identifier":"s","prompt_cache_key":"k",)"
      R"("prompt_cache_options":{},"prompt_cache_retention":"24h","prediction":{"type":"content","content":"x"},)"
      R"("verbosity":"low","include_obfuscation":false,"what is this":[1,{"a":2}])");
  EXPECT_EQ(request.prompts[0].text, "x");
}

TEST(CompletionRequestTest, WhatIsKeptOfPrompts) {
  EXPECT_EQ(ReadWith(R"("prefix_cache":true)").generate.fields.no_prefix_cache, 0);
  EXPECT_EQ(ReadWith(R"("prefix_cache":false)").generate.fields.no_prefix_cache, 1);
  EXPECT_THAT(RefusalWith(R"("prefix_cache":"no")"), StartsWith("prefix_cache|prefix_cache: \"no\" is not true or"));
  EXPECT_THAT(RefusalWith(R"("prefix_cache":0)"), StartsWith("prefix_cache|prefix_cache: 0 is not true or false"));
  const std::string longest(4096, 's');
  EXPECT_EQ(ReadWith(R"("cache_salt":")" + longest + "\"").generate.cache_salt, longest);
  EXPECT_THAT(RefusalWith(R"("cache_salt":"s)" + longest + "\""),
              StartsWith("cache_salt|cache_salt: it has 4097 bytes, more than 4096"));
  EXPECT_THAT(RefusalWith(R"("cache_salt":"")"), StartsWith("cache_salt|cache_salt: it is empty"));
  EXPECT_THAT(RefusalWith(R"("cache_salt":5)"), StartsWith("cache_salt|cache_salt: 5 is not a string"));
}

TEST(CompletionRequestTest, PromptsHaveFourForms) {
  EXPECT_THAT(ReadCompletion(R"({"prompt":["a","b","c"]})").prompts, SizeIs(3));
  const auto one = ReadCompletion(R"({"prompt":[1,2,3.0]})").prompts;
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_TRUE(one[0].is_ids);
  EXPECT_THAT(one[0].ids, ElementsAre(1, 2, 3));
  const auto two = ReadCompletion(R"({"prompt":[[1,2],[2147483647]]})").prompts;
  ASSERT_THAT(two, SizeIs(2));
  EXPECT_THAT(two[0].ids, ElementsAre(1, 2));
  EXPECT_THAT(two[1].ids, ElementsAre(2147483647));
  EXPECT_TRUE(two[1].is_ids);
  EXPECT_EQ(ReadCompletion(R"({"prompt":""})").prompts[0].text, "");
  EXPECT_EQ(ReadCompletion(R"({"prompt":"a\u0000b"})").prompts[0].text, std::string("a\0b", 3));
}

TEST(CompletionRequestTest, PromptsOfNoFormAreRefused) {
  EXPECT_THAT(RefusalOfBody("{}"), StartsWith("prompt|prompt: it is missing; give a string"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[]})"), StartsWith("prompt|prompt: the list is empty"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[[]]})"), StartsWith("prompt|prompt[0]: the list of token ids is empty"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[[1],[]]})"), StartsWith("prompt|prompt[1]: the list of token ids is empty"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":5})"), StartsWith("prompt|prompt: 5 is no prompt"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":{"a":1}})"), StartsWith("prompt|prompt: an object is no prompt"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[true]})"), StartsWith("prompt|prompt[0]: true is no prompt"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":["a",1]})"), StartsWith("prompt|prompt[1]: 1 is not a string"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":["a",["b"]]})"), StartsWith("prompt|prompt[1]: a list of 1 is not a string"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[[1],2]})"), StartsWith("prompt|prompt[1]: 2 is not a list of token ids"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[1,"a"]})"), StartsWith("prompt|prompt[1]: \"a\" is not a token id"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[1,true]})"), StartsWith("prompt|prompt[1]: true is not a token id"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[1,1.5]})"), StartsWith("prompt|prompt[1]: 1.5 is not a token id"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[[3],[-1]]})"), StartsWith("prompt|prompt[1][0]: -1 is not a token id"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[2147483648]})"), StartsWith("prompt|prompt[0]: 2147483648 is not a"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[1e300]})"), StartsWith("prompt|prompt[0]: 1e+300 is not a"));
  EXPECT_THAT(RefusalOfBody(R"({"prompt":[[[1]]]})"), StartsWith("prompt|prompt[0][0]: a list of 1 is not a token id"));
}

TEST(CompletionRequestTest, NumbersOfAnswersHaveLimits) {
  EXPECT_EQ(ReadWith(R"("n":128)").n, 128u);
  EXPECT_EQ(ReadWith(R"("n":2.0)").n, 2u);
  EXPECT_THAT(RefusalWith(R"("n":129)"), StartsWith("n|n: 129 is not in [1, 128]"));
  EXPECT_THAT(RefusalWith(R"("n":0)"), StartsWith("n|n: 0 is not in"));
  EXPECT_THAT(RefusalWith(R"("n":-1)"), StartsWith("n|n: -1 is not in"));
  EXPECT_THAT(RefusalWith(R"("n":1e9)"), StartsWith("n|n: 1000000000.0 is not in"));
  EXPECT_THAT(RefusalWith(R"("n":1e300)"), StartsWith("n|n: 1e+300 is not in"));
  EXPECT_THAT(RefusalWith(R"("n":18446744073709551615)"), StartsWith("n|n: 18446744073709551615 is not in"));
  EXPECT_THAT(RefusalWith(R"("n":1.5)"), StartsWith("n|n: 1.5 is not an integer"));
  EXPECT_THAT(RefusalWith(R"("n":true)"), StartsWith("n|n: true is not an integer"));
  EXPECT_THAT(RefusalWith(R"("n":"2")"), StartsWith("n|n: \"2\" is not an integer"));
  const std::string prompts = "{\"prompt\":" + List("\"a\"", 512);
  EXPECT_THAT(ReadCompletion(prompts + ",\"n\":2}").prompts, SizeIs(512));
  EXPECT_THAT(RefusalOfBody(prompts + ",\"n\":3}"),
              AllOf(StartsWith("n|n: 3 for each of 512 prompts"), HasSubstr("1024")));
  EXPECT_THAT(ReadCompletion("{\"prompt\":" + List("[7]", 1024) + "}").prompts, SizeIs(1024));
  EXPECT_THAT(RefusalOfBody("{\"prompt\":" + List("[7]", 1025) + "}"),
              AllOf(StartsWith("prompt|prompt: there are 1025 prompts"), HasSubstr("1024")));
}

TEST(CompletionRequestTest, BestOfIsN) {
  EXPECT_EQ(ReadWith(R"("best_of":1)").n, 1u);
  EXPECT_EQ(ReadWith(R"("n":3,"best_of":3)").n, 3u);
  EXPECT_THAT(RefusalWith(R"("best_of":2)"), StartsWith("best_of|best_of: 2 is not n, 1"));
  EXPECT_THAT(RefusalWith(R"("n":3,"best_of":1)"), StartsWith("best_of|best_of: 1 is not n, 3"));
  EXPECT_THAT(RefusalWith(R"("best_of":0)"), StartsWith("best_of|best_of: 0 is not in"));
}

TEST(CompletionRequestTest, StreamOptionsGoWithStream) {
  EXPECT_TRUE(ReadWith(R"("stream":true)").stream);
  const CompletionRequest usage = ReadWith(R"("stream":true,"stream_options":{"include_usage":true,"other":1})");
  EXPECT_TRUE(usage.include_usage);
  EXPECT_FALSE(usage.continuous_usage);
  // Without a usage there is nothing to continue.
  EXPECT_FALSE(ReadWith(R"("stream":true,"stream_options":{"continuous_usage_stats":true})").continuous_usage);
  EXPECT_THAT(RefusalWith(R"("stream_options":{"include_usage":true})"), StartsWith("stream_options|stream_options: "));
  EXPECT_THAT(RefusalWith(R"("stream":false,"stream_options":{})"), StartsWith("stream_options|stream_options: "));
  EXPECT_THAT(RefusalWith(R"("stream":true,"stream_options":true)"),
              StartsWith("stream_options|stream_options: true is not an object"));
  EXPECT_THAT(RefusalWith(R"("stream":true,"stream_options":{"include_usage":1})"),
              StartsWith("stream_options|stream_options.include_usage: 1 is not true or false"));
  EXPECT_THAT(RefusalWith(R"("stream":1)"), StartsWith("stream|stream: 1 is not true or false"));
}

TEST(CompletionRequestTest, EchoAsksForThePromptsLogprobs) {
  EXPECT_EQ(ReadWith(R"("echo":true)").generate.fields.prompt_logprobs, -1);
  const fd_request both = ReadWith(R"("echo":true,"logprobs":1,"max_tokens":1)").generate.fields;
  EXPECT_EQ(both.logprobs, 1);
  EXPECT_EQ(both.prompt_logprobs, 1);
  EXPECT_EQ(ReadWith(R"("echo":false,"logprobs":1)").generate.fields.prompt_logprobs, -1);
  // The engine generates nothing only for who wants something of the prompt.
  const fd_request nothing = ReadWith(R"("echo":true,"max_tokens":0)").generate.fields;
  EXPECT_EQ(nothing.max_tokens, 0u);
  EXPECT_EQ(nothing.logprobs, -1);
  EXPECT_EQ(nothing.prompt_logprobs, 0);
  const fd_request scores = ReadWith(R"("echo":true,"max_tokens":0,"logprobs":3)").generate.fields;
  EXPECT_EQ(scores.logprobs, 3);
  EXPECT_EQ(scores.prompt_logprobs, 3);
  EXPECT_THAT(RefusalWith(R"("max_tokens":0)"), AllOf(StartsWith("max_tokens|max_tokens: 0"), HasSubstr("echo")));
}

TEST(CompletionRequestTest, SeedsHave64Bits) {
  EXPECT_EQ(ReadWith(R"("seed":0)").generate.fields.seed, 0u);
  EXPECT_EQ(ReadWith(R"("seed":7.0)").generate.fields.seed, 7u);
  EXPECT_EQ(ReadWith(R"("seed":-1)").generate.fields.seed, kRandomSeed);  // none, for vLLM and llama-server
  EXPECT_EQ(ReadWith(R"("seed":-2)").generate.fields.seed, std::numeric_limits<uint64_t>::max() - 1);
  EXPECT_EQ(ReadWith(R"("seed":-9223372036854775808)").generate.fields.seed, uint64_t{1} << 63);
  EXPECT_EQ(ReadWith(R"("seed":9223372036854775807)").generate.fields.seed, (uint64_t{1} << 63) - 1);
  EXPECT_EQ(ReadWith(R"("seed":18446744073709551615)").generate.fields.seed, std::numeric_limits<uint64_t>::max());
  for (const char* seed : {"1e20", "18446744073709551616", "1.5", "\"1\"", "true", "[1]"}) {
    EXPECT_THAT(RefusalWith(std::string("\"seed\":") + seed),
                AllOf(StartsWith("seed|seed: "), HasSubstr("is not an integer of 64 bits")));
  }
}

TEST(CompletionRequestTest, StopsHaveLimits) {
  EXPECT_THAT(ReadWith(R"("stop":"END")").generate.stop, ElementsAre("END"));
  EXPECT_THAT(ReadWith(R"("stop":[])").generate.stop, IsEmpty());
  EXPECT_THAT(ReadWith("\"stop\":" + List("\"" + std::string(256, 'x') + "\"", 16)).generate.stop, SizeIs(16));
  EXPECT_THAT(RefusalWith("\"stop\":" + List("\"x\"", 17)),
              AllOf(StartsWith("stop|stop: there are 17 strings"), HasSubstr("16")));
  EXPECT_THAT(RefusalWith(R"("stop":["a",")" + std::string(257, 'x') + "\"]"),
              AllOf(StartsWith("stop|stop[1]: it has 257 bytes"), HasSubstr("256")));
  EXPECT_THAT(RefusalWith(R"("stop":"")"), StartsWith("stop|stop: it is empty"));
  EXPECT_THAT(RefusalWith(R"("stop":["a",""])"), StartsWith("stop|stop[1]: it is empty"));
  EXPECT_THAT(RefusalWith(R"("stop":"a\u0000b")"), StartsWith("stop|stop: there is a 0 byte"));
  EXPECT_THAT(RefusalWith(R"("stop":[7])"), StartsWith("stop|stop[0]: 7 is not a string"));
  EXPECT_THAT(RefusalWith(R"("stop":true)"), StartsWith("stop|stop: true is not a string"));
  EXPECT_THAT(ReadWith("\"stop_token_ids\":" + List("1", 256)).generate.stop_token_ids, SizeIs(256));
  EXPECT_THAT(RefusalWith("\"stop_token_ids\":" + List("1", 257)),
              AllOf(StartsWith("stop_token_ids|stop_token_ids: there are 257 ids"), HasSubstr("256")));
  EXPECT_THAT(RefusalWith(R"("stop_token_ids":[2,-1])"),
              StartsWith("stop_token_ids|stop_token_ids[1]: -1 is not a token id"));
  EXPECT_THAT(RefusalWith(R"("stop_token_ids":2)"),
              StartsWith("stop_token_ids|stop_token_ids: 2 is not a list of token ids"));
}

TEST(CompletionRequestTest, LogitBiasNamesTokensByTheirIds) {
  EXPECT_THAT(ReadWith(R"("logit_bias":{})").generate.logit_bias, IsEmpty());
  for (const char* key : {"a", "", "-1", "+1", " 1", "1 ", "01", "1.0", "2147483648", "1e3"}) {
    EXPECT_THAT(RefusalWith(std::string(R"("logit_bias":{")") + key + "\":1}"),
                AllOf(StartsWith("logit_bias|logit_bias: the key \"" + std::string(key)), HasSubstr("token id")));
  }
  for (const char* value : {"101", "-100.5", "1e300", "true", "\"1\"", "null", "[1]"}) {
    EXPECT_THAT(RefusalWith(std::string(R"("logit_bias":{"42":)") + value + "}"),
                AllOf(StartsWith("logit_bias|logit_bias: "), HasSubstr("of token 42 is not a number in [-100, 100]")));
  }
  EXPECT_THAT(RefusalWith(R"("logit_bias":[])"), StartsWith("logit_bias|logit_bias: a list of 0 is not an object"));
  std::string many = "\"logit_bias\":{\"0\":1";
  for (int token = 1; token < 1024; ++token) many += ",\"" + std::to_string(token) + "\":1";
  EXPECT_THAT(ReadWith(many + "}").generate.logit_bias, SizeIs(1024));
  EXPECT_THAT(RefusalWith(many + ",\"1024\":1}"),
              AllOf(StartsWith("logit_bias|logit_bias: there are 1025 biases"), HasSubstr("more than 1024")));
}

TEST(CompletionRequestTest, NamesForTheLogAreShortAndPrintable) {
  EXPECT_EQ(ReadWith("\"request_id\":\"" + std::string(128, 'a') + "\"").request_id.size(), 128u);
  EXPECT_THAT(RefusalWith("\"request_id\":\"" + std::string(129, 'a') + "\""), StartsWith("request_id|request_id: "));
  for (const char* id : {"a\\r\\nSet-Cookie: b", "a b", "\u00e9", "\\u0000", "\\u007f"}) {
    EXPECT_THAT(RefusalWith(std::string(R"("request_id":")") + id + "\""), StartsWith("request_id|request_id: "));
  }
  EXPECT_EQ(ReadWith("\"user\":\"" + std::string(512, 'a') + "\"").user.size(), 512u);
  EXPECT_THAT(RefusalWith("\"user\":\"" + std::string(513, 'a') + "\""), StartsWith("user|user: it has 513 bytes"));
  EXPECT_THAT(RefusalWith(R"("user":5)"), StartsWith("user|user: 5 is not a string"));
  EXPECT_THAT(RefusalWith(R"("model":["tiny"])"), StartsWith("model|model: a list of 1 is not a string"));
}

TEST(CompletionRequestTest, LimitsAreGiven) {
  RequestLimits limits;
  limits.choices = 1;
  limits.sequences = 1;
  limits.stop_strings = 1;
  limits.stop_bytes = 1;
  limits.stop_token_ids = 1;
  limits.logit_bias = 1;
  const auto param_of = [&](const std::string& body) {
    const auto error =
        ErrorOf([&] { ReadCompletionRequest(ReadJsonObject(body), limits, EngineDefaults(), kRandomSeed); });
    return error ? error->param : "accepted";
  };
  EXPECT_EQ(param_of(R"({"prompt":["a"],"n":1,"stop":["a"],"stop_token_ids":[1],"logit_bias":{"1":1}})"), "accepted");
  EXPECT_EQ(param_of(R"({"prompt":["a","b"]})"), "prompt");
  EXPECT_EQ(param_of(R"({"prompt":"a","n":2})"), "n");
  EXPECT_EQ(param_of(R"({"prompt":"a","stop":["a","b"]})"), "stop");
  EXPECT_EQ(param_of(R"({"prompt":"a","stop":"ab"})"), "stop");
  EXPECT_EQ(param_of(R"({"prompt":"a","stop_token_ids":[1,2]})"), "stop_token_ids");
  EXPECT_EQ(param_of(R"({"prompt":"a","logit_bias":{"1":1,"2":1}})"), "logit_bias");
}

}  // namespace
}  // namespace fastdecode::serve
