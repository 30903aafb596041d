#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/serve/openai_requests.h"
#include "tools/serve/openai/chat_request.h"

namespace fastdecode::serve {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kHello[] = R"([{"role":"user","content":"Hello"}])";

ChatRequest ReadChat(const std::string& body, const fd_request& defaults = EngineDefaults()) {
  return ReadChatRequest(ReadJsonBody(body), RequestLimits{}, defaults, kRandomSeed);
}

// A chat of one message with more fields, such as R"("n":2)".
std::string ChatBody(const std::string& fields) {
  return R"({"messages":)" + std::string(kHello) + (fields.empty() ? "" : "," + fields) + "}";
}
ChatRequest ReadChatWith(const std::string& fields, const fd_request& defaults = EngineDefaults()) {
  return ReadChat(ChatBody(fields), defaults);
}

// Why a body is refused: "param|message". The message must begin with the field's name.
std::string ChatRefusalOfBody(const std::string& body) {
  const std::optional<ApiError> error = ErrorOf([&] { ReadChat(body); });
  if (!error) return "it was accepted: " + body;
  EXPECT_EQ(error->status, 400) << body;
  EXPECT_EQ(error->type, "invalid_request_error") << body;
  EXPECT_TRUE(error->message.starts_with(error->param)) << error->message;
  EXPECT_LT(error->message.size(), 300u) << error->message;
  return error->param + "|" + error->message;
}
std::string ChatRefusal(const std::string& fields) { return ChatRefusalOfBody(ChatBody(fields)); }
std::string RefusalOfMessages(const std::string& messages) {
  return ChatRefusalOfBody(R"({"messages":)" + messages + "}");
}

TEST(ChatRequestTest, WhatIsAbsentHasOpenAisDefaults) {
  fd_request defaults = EngineDefaults();
  defaults.temperature = 0.6f;
  defaults.top_k = 50;
  const ChatRequest request = ReadChatWith("", defaults);
  EXPECT_EQ(request.input.messages, kHello);
  EXPECT_EQ(request.input.tools + request.input.documents + request.input.variables, "");
  EXPECT_TRUE(request.input.add_generation_prompt);
  EXPECT_FALSE(request.input.continue_final_message);
  EXPECT_TRUE(request.include_reasoning);
  EXPECT_EQ(request.n, 1u);
  EXPECT_FALSE(request.stream || request.include_usage || request.return_token_ids);
  EXPECT_EQ(request.length_field, nullptr) << "an answer may go on to the context's end";
  const fd_request& fields = request.generate.fields;
  EXPECT_EQ(fields.min_tokens, 0u);
  EXPECT_EQ(fields.logprobs, -1);
  EXPECT_EQ(fields.prompt_logprobs, -1);
  EXPECT_EQ(fields.add_special_tokens, 0) << "the template has them";
  EXPECT_EQ(fields.seed, kRandomSeed);
  EXPECT_EQ(fields.temperature, 0.6f);
  EXPECT_EQ(fields.top_k, 50);
}

TEST(ChatRequestTest, ReadsEveryField) {
  const ChatRequest request = ReadChatWith(R"(
    "model": "tiny", "n": 2, "stream": true, "return_token_ids": true,
    "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "user": "me", "request_id": "r-1",
    "max_completion_tokens": 7, "max_tokens": 9, "min_tokens": 3, "ignore_eos": true,
    "include_stop_str_in_output": true, "skip_special_tokens": false, "add_special_tokens": true,
    "stop": ["\n", "END"], "stop_token_ids": [5, 6], "seed": 42, "temperature": 0.25, "top_p": 0.5, "top_k": 9,
    "min_p": 0.125, "repetition_penalty": 1.5, "presence_penalty": -1.5, "frequency_penalty": 2, "logprobs": true,
    "top_logprobs": 5, "logit_bias": {"17": -100}, "include_reasoning": false, "add_generation_prompt": false,
    "continue_final_message": true, "tools": [{"type": "function"}], "tool_choice": "none",
    "documents": [{"title": "a"}], "chat_template_kwargs": {"b": 1, "a": [2]}, "reasoning_effort": "low",
    "prefix_cache": false, "cache_salt": "salt")");
  EXPECT_EQ(request.model, "tiny");
  EXPECT_EQ(request.n, 2u);
  EXPECT_TRUE(request.stream && request.include_usage && request.continuous_usage && request.return_token_ids);
  EXPECT_EQ(request.user, "me");
  EXPECT_EQ(request.request_id, "r-1");
  EXPECT_FALSE(request.include_reasoning);
  const fd_request& fields = request.generate.fields;
  EXPECT_STREQ(request.length_field, "max_completion_tokens");
  EXPECT_EQ(fields.max_tokens, 7u);
  EXPECT_EQ(fields.min_tokens, 3u);
  EXPECT_EQ(fields.ignore_eos, 1);
  EXPECT_EQ(fields.include_stop, 1);
  EXPECT_EQ(fields.show_special, 1);
  EXPECT_EQ(fields.add_special_tokens, 1);
  EXPECT_EQ(fields.seed, 42u);
  EXPECT_EQ(fields.temperature, 0.25f);
  EXPECT_EQ(fields.top_p, 0.5f);
  EXPECT_EQ(fields.top_k, 9);
  EXPECT_EQ(fields.min_p, 0.125f);
  EXPECT_EQ(fields.repetition_penalty, 1.5f);
  EXPECT_EQ(fields.presence_penalty, -1.5f);
  EXPECT_EQ(fields.frequency_penalty, 2);
  EXPECT_EQ(fields.logprobs, 5);
  EXPECT_EQ(fields.prompt_logprobs, -1);
  EXPECT_THAT(request.generate.stop, ElementsAre("\n", "END"));
  EXPECT_THAT(request.generate.stop_token_ids, ElementsAre(5, 6));
  EXPECT_EQ(fields.no_prefix_cache, 1);
  EXPECT_EQ(request.generate.cache_salt, "salt");
  ASSERT_EQ(request.generate.logit_bias.size(), 1u);
  EXPECT_EQ(request.generate.logit_bias[0].token, 17);
  EXPECT_FALSE(request.input.add_generation_prompt);
  EXPECT_TRUE(request.input.continue_final_message);
  EXPECT_EQ(request.input.tools, R"([{"type": "function"}])");
  EXPECT_EQ(request.input.documents, R"([{"title": "a"}])");
  EXPECT_EQ(request.input.variables, R"({"b": 1, "a": [2],"reasoning_effort":"low"})");
}

// Templates write tools and tool calls as JSON, so the order of their keys and the form of their numbers are the
// prompt's.
TEST(ChatRequestTest, WhatTheTemplateReadsStaysAsItWasWritten) {
  const std::string messages =
      R"([ {"role":"user","content":"\u00e9 ]}\"","zebra":1.50,"apple":[1e2,{"y":[],"x":{}}]}, {"role":"tool"} ])";
  const std::string tools = R"([{"type":"function","function":{"name":"f","description":"d"}},{"b":1,"a":2}])";
  const ChatRequest request = ReadChat(R"( {"n":1.0,"messages" : )" + messages + R"( , "tool_choice":"none","tools":)" +
                                       tools + R"(,"chat_template_kwargs":{"z":"}","a":[[1]]}})");
  EXPECT_EQ(request.input.messages, messages);
  EXPECT_EQ(request.input.tools, tools);
  EXPECT_EQ(request.input.variables, R"({"z":"}","a":[[1]]})");
  // Of a key that comes twice, the last value counts.
  EXPECT_EQ(ReadChat(R"({"messages":[1],"messages":)" + std::string(kHello) + "}").input.messages, kHello);
  EXPECT_THAT(ChatRefusalOfBody(R"({"messages":)" + std::string(kHello) + R"(,"messages":5})"),
              StartsWith("messages|messages: 5 is not a list"));
}

TEST(ChatRequestTest, NullIsAbsentEverywhere) {
  for (const char* field : {"model",
                            "n",
                            "stream",
                            "stream_options",
                            "return_token_ids",
                            "user",
                            "request_id",
                            "max_completion_tokens",
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
                            "top_logprobs",
                            "logit_bias",
                            "include_reasoning",
                            "add_generation_prompt",
                            "continue_final_message",
                            "tools",
                            "tool_choice",
                            "documents",
                            "chat_template",
                            "chat_template_kwargs",
                            "reasoning_effort",
                            "functions",
                            "function_call",
                            "response_format",
                            "modalities",
                            "audio",
                            "parallel_tool_calls"}) {
    const ChatRequest request = ReadChatWith("\"" + std::string(field) + "\":null");
    EXPECT_EQ(request.n, 1u) << field;
    EXPECT_EQ(request.length_field, nullptr) << field;
    EXPECT_EQ(request.generate.fields.logprobs, -1) << field;
    EXPECT_EQ(request.generate.fields.add_special_tokens, 0) << field;
    EXPECT_TRUE(request.include_reasoning && request.input.add_generation_prompt) << field;
    EXPECT_EQ(request.input.tools + request.input.documents + request.input.variables, "") << field;
  }
}

TEST(ChatRequestTest, WhatIsUnknownOrChangesNothingIsIgnored) {
  EXPECT_EQ(ReadChatWith(R"("store":true,"metadata":{"a":"b"},"service_tier":"auto","safety_identifier":"s",)"
                         R"("prompt_cache_key":"k","prompt_cache_retention":"24h","parallel_tool_calls":true,)"
                         R"("prediction":{"type":"content","content":"x"},"verbosity":"low","cache_salt":"salt",)"
                         R"("tools":[],"tool_choice":"auto","documents":[],"chat_template_kwargs":{},)"
                         R"("response_format":{"type":"text"},"modalities":["text"],"what is this":[1,{"a":2}])")
                .input.messages,
            kHello);
}

TEST(ChatRequestTest, LengthsHaveTwoNames) {
  const ChatRequest old = ReadChatWith(R"("max_tokens":9)");
  EXPECT_STREQ(old.length_field, "max_tokens");
  EXPECT_EQ(old.generate.fields.max_tokens, 9u);
  EXPECT_EQ(ReadChatWith(R"("max_tokens":9,"max_completion_tokens":5)").generate.fields.max_tokens, 5u);
  EXPECT_EQ(ReadChatWith(R"("max_tokens":9,"max_completion_tokens":null)").generate.fields.max_tokens, 9u);
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    for (const char* value : {"0", "-1", "4294967296", "1.5", "\"5\""}) {
      EXPECT_THAT(ChatRefusal("\"" + std::string(name) + "\":" + value),
                  StartsWith(std::string(name) + "|" + name + ": " + value + " is not"));
    }
  }
  EXPECT_EQ(ReadChatWith(R"("min_tokens":100)").generate.fields.min_tokens, 100u) << "with room to the context's end";
  EXPECT_THAT(ChatRefusal(R"("max_completion_tokens":5,"min_tokens":6)"),
              StartsWith("min_tokens|min_tokens: 6 is more than max_completion_tokens, 5"));
}

TEST(ChatRequestTest, LogprobsAreASwitchAndANumber) {
  EXPECT_EQ(ReadChatWith(R"("logprobs":true)").generate.fields.logprobs, 0);
  EXPECT_EQ(ReadChatWith(R"("logprobs":true,"top_logprobs":20)").generate.fields.logprobs, 20);
  EXPECT_EQ(ReadChatWith(R"("logprobs":false,"top_logprobs":0)").generate.fields.logprobs, -1);
  EXPECT_THAT(ChatRefusal(R"("top_logprobs":3)"), AllOf(StartsWith("top_logprobs|top_logprobs: 3"), HasSubstr("true")));
  EXPECT_THAT(ChatRefusal(R"("logprobs":false,"top_logprobs":3)"), StartsWith("top_logprobs|top_logprobs: 3"));
  EXPECT_THAT(ChatRefusal(R"("logprobs":true,"top_logprobs":21)"), StartsWith("top_logprobs|top_logprobs: 21 is not"));
  EXPECT_THAT(ChatRefusal(R"("logprobs":true,"top_logprobs":-1)"), StartsWith("top_logprobs|top_logprobs: -1 is not"));
  EXPECT_THAT(ChatRefusal(R"("logprobs":3)"), StartsWith("logprobs|logprobs: 3 is not true or false"));
}

TEST(ChatRequestTest, MessagesHaveRolesAndText) {
  for (const char* messages :
       {R"([{"role":"system","content":""},{"role":"developer","content":null}])",
        R"([{"role":"anything","content":[{"type":"text","text":"a"},{"type":"text","text":""}]}])",
        R"([{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}])",
        R"([{"role":"assistant","tool_calls":[{"id":"c"}]},{"role":"tool","tool_call_id":"c"}])",
        R"([{"role":"user","name":"me","content":[],"reasoning_content":"x","thinking":5}])"}) {
    EXPECT_EQ(ReadChat(R"({"messages":)" + std::string(messages) + "}").input.messages, messages);
  }
  EXPECT_EQ(RefusalOfMessages(R"([{"role":")" + std::string(64, 'r') + R"("}])").substr(0, 15), "it was accepted");
  EXPECT_THAT(ChatRefusalOfBody("{}"), StartsWith("messages|messages: they are missing; give a list"));
  EXPECT_THAT(RefusalOfMessages("null"), StartsWith("messages|messages: they are missing"));
  EXPECT_THAT(RefusalOfMessages("\"Hello\""), StartsWith("messages|messages: \"Hello\" is not a list"));
  EXPECT_THAT(RefusalOfMessages("{}"), StartsWith("messages|messages: an object is not a list"));
  EXPECT_THAT(RefusalOfMessages("[]"), StartsWith("messages|messages: the list is empty"));
  EXPECT_THAT(RefusalOfMessages(R"([{"role":"user"},"Hello"])"), StartsWith("messages|messages[1]: \"Hello\" is not"));
  EXPECT_THAT(RefusalOfMessages(R"([{"content":"a"}])"), StartsWith("messages|messages[0].role: it is missing"));
  EXPECT_THAT(RefusalOfMessages(R"([{"role":null}])"), StartsWith("messages|messages[0].role: it is missing"));
  EXPECT_THAT(RefusalOfMessages(R"([{"role":""}])"), StartsWith("messages|messages[0].role: it is empty"));
  EXPECT_THAT(RefusalOfMessages(R"([{"role":7}])"), StartsWith("messages|messages[0].role: 7 is not a string"));
  EXPECT_THAT(RefusalOfMessages(R"([{"role":")" + std::string(65, 'r') + R"("}])"),
              AllOf(StartsWith("messages|messages[0].role: it has 65 bytes"), HasSubstr("64")));
  EXPECT_THAT(RefusalOfMessages(R"([{"role":"user","content":7}])"), StartsWith("messages|messages[0].content: 7 is"));
  EXPECT_THAT(RefusalOfMessages(R"([{"role":"user","content":{}}])"),
              StartsWith("messages|messages[0].content: an object is neither a string"));
}

TEST(ChatRequestTest, PartsThatAreNoTextAreNamed) {
  const auto refusal = [](const std::string& part) {
    return RefusalOfMessages(R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},)" +
                             part + "]}]");
  };
  const std::string at = "messages|messages[1].content[1]";
  EXPECT_THAT(refusal(R"({"type":"image_url","image_url":{"url":"https://a.example/x.png"}})"),
              StartsWith(at + ".type: \"image_url\" is not supported"));
  EXPECT_THAT(refusal(R"({"type":"input_audio","input_audio":{}})"), StartsWith(at + ".type: \"input_audio\" is not"));
  EXPECT_THAT(refusal(R"({"type":"file"})"), StartsWith(at + ".type: \"file\" is not"));
  EXPECT_THAT(refusal(R"({"type":["text"],"text":"a"})"), StartsWith(at + ".type: a list of 1 is not"));
  EXPECT_THAT(refusal(R"({"text":"a"})"), StartsWith(at + ".type: it is missing"));
  EXPECT_THAT(refusal(R"({"type":"text"})"), StartsWith(at + ".text: it is missing"));
  EXPECT_THAT(refusal(R"({"type":"text","text":null})"), StartsWith(at + ".text: null is not a string"));
  EXPECT_THAT(refusal(R"({"type":"refusal","text":"a"})"), StartsWith(at + ".refusal: it is missing"));
  EXPECT_THAT(refusal("\"text\""), StartsWith(at + ": \"text\" is not an object"));
}

TEST(ChatRequestTest, ToolsAreForTheTemplateAlone) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_NE(ReadChatWith(tools + R"(,"tool_choice":"none")").input.tools, "");
  for (const std::string& choice : {std::string(), std::string(R"(,"tool_choice":"auto")")}) {
    EXPECT_THAT(ChatRefusal(tools + choice), AllOf(StartsWith("tools|tools: calls of tools are not built yet"),
                                                   HasSubstr(R"("tool_choice": "none")")));
  }
  for (const char* choice : {"\"required\"", R"({"type":"function","function":{"name":"f"}})", "\"any\"", "5"}) {
    for (const std::string& given : {tools + ",", std::string()}) {
      EXPECT_THAT(ChatRefusal(given + "\"tool_choice\":" + choice),
                  AllOf(StartsWith("tool_choice|tool_choice: "), HasSubstr("none")));
    }
  }
  EXPECT_THAT(ChatRefusal(R"("tools":{},"tool_choice":"none")"), StartsWith("tools|tools: an object is not a list"));
  EXPECT_THAT(ChatRefusal(R"("tools":["f"],"tool_choice":"none")"),
              StartsWith("tools|tools[0]: \"f\" is not an object"));
  EXPECT_THAT(ChatRefusal(R"("documents":["f"])"), StartsWith("documents|documents[0]: \"f\" is not an object"));
}

TEST(ChatRequestTest, APromptEndsInOneWay) {
  EXPECT_FALSE(ReadChatWith(R"("add_generation_prompt":false)").input.add_generation_prompt);
  for (const char* fields :
       {R"("continue_final_message":true)", R"("continue_final_message":true,"add_generation_prompt":true)"}) {
    EXPECT_THAT(ChatRefusal(fields), AllOf(StartsWith("continue_final_message|continue_final_message: "),
                                           HasSubstr("add_generation_prompt")));
  }
}

TEST(ChatRequestTest, TemplatesHaveVariables) {
  EXPECT_EQ(ReadChatWith(R"("reasoning_effort":"hi\"gh")").input.variables, R"({"reasoning_effort":"hi\"gh"})");
  EXPECT_EQ(ReadChatWith(R"("reasoning_effort":"low","chat_template_kwargs":{ })").input.variables,
            R"({"reasoning_effort":"low"})");
  EXPECT_EQ(ReadChatWith(R"("chat_template_kwargs":{"enable_thinking":false})").input.variables,
            R"({"enable_thinking":false})");
  EXPECT_THAT(ChatRefusal(R"("reasoning_effort":"low","chat_template_kwargs":{"reasoning_effort":"high"})"),
              StartsWith("reasoning_effort|reasoning_effort: it is in chat_template_kwargs, too"));
  EXPECT_THAT(ChatRefusal(R"("reasoning_effort":"")"), StartsWith("reasoning_effort|reasoning_effort: \"\" is not"));
  EXPECT_THAT(ChatRefusal(R"("reasoning_effort":5)"), StartsWith("reasoning_effort|reasoning_effort: 5 is not"));
  EXPECT_THAT(ChatRefusal(R"("chat_template_kwargs":[])"),
              StartsWith("chat_template_kwargs|chat_template_kwargs: a list of 0 is not an object"));
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
                           "chat_template", "tokenize"}) {
    EXPECT_THAT(ChatRefusal(R"("chat_template_kwargs":{")" + std::string(name) + "\":null}"),
                StartsWith("chat_template_kwargs|chat_template_kwargs." + std::string(name) + ": "));
  }
}

// A template is a program, and no client brings one.
TEST(ChatRequestTest, TemplatesNeverComeFromRequests) {
  for (const char* value : {"\"{{ messages }}\"", "\"\"", "[]"}) {
    EXPECT_THAT(ChatRefusal("\"chat_template\":" + std::string(value)),
                AllOf(StartsWith("chat_template|chat_template: "), HasSubstr("--chat-template")));
  }
}

struct UnservedInChat {
  const char* field;
  std::vector<const char*> idle;  // values that ask for nothing
  const char* asks;
};

TEST(ChatRequestTest, WhatWouldChangeTheAnswerIsRefused) {
  const UnservedInChat fields[] = {{"prompt", {}, "\"a\""},
                                   {"prompt_embeds", {}, "\"AAAA\""},
                                   {"suffix", {"\"\""}, "\"end\""},
                                   {"echo", {"false"}, "true"},
                                   {"best_of", {"1"}, "2"},
                                   {"n_probs", {"0"}, "2"},
                                   {"prompt_logprobs", {}, "0"},
                                   {"logprob_token_ids", {}, "[1]"},
                                   {"functions", {"[]"}, "[{}]"},
                                   {"function_call", {"\"none\""}, "\"auto\""},
                                   {"audio", {}, "{\"voice\":\"a\"}"},
                                   {"modalities", {"[\"text\"]"}, "[\"text\",\"audio\"]"},
                                   {"web_search_options", {}, "{}"},
                                   {"moderation", {}, "{}"},
                                   {"response_format", {"{\"type\":\"text\"}"}, "{\"type\":\"json_object\"}"},
                                   {"structured_outputs", {}, "{}"},
                                   {"guided_json", {}, "{}"},
                                   {"max_new_tokens", {}, "5"},
                                   {"use_beam_search", {"false"}, "true"},
                                   {"priority", {"0"}, "1"},
                                   {"truncate_prompt_tokens", {}, "5"},
                                   {"thinking_token_budget", {"-1"}, "5"},
                                   {"reasoning", {}, "{\"effort\":\"low\"}"},
                                   {"thinking", {}, "{\"type\":\"enabled\"}"},
                                   {"enable_thinking", {}, "false"},
                                   {"reasoning_format", {"\"auto\""}, "\"none\""},
                                   {"separate_reasoning", {"true"}, "false"},
                                   {"stream_reasoning", {"true"}, "false"}};
  for (const UnservedInChat& unserved : fields) {
    const std::string member = "\"" + std::string(unserved.field) + "\":";
    for (const char* idle : unserved.idle) EXPECT_EQ(ReadChatWith(member + idle).n, 1u) << member << idle;
    EXPECT_THAT(ChatRefusal(member + unserved.asks),
                AllOf(StartsWith(std::string(unserved.field) + "|" + unserved.field + ": "),
                      HasSubstr(" is not supported; "), HasSubstr("leave this field out")));
  }
}

// The sampling fields are those of completions, whose own tests have their ranges.
TEST(ChatRequestTest, SharedFieldsHaveTheirRanges) {
  for (const char* fields : {R"("n":129)", R"("temperature":-1)", R"("top_p":0)", R"("seed":1.5)", R"("stop":[""])",
                             R"("logit_bias":{"x":1})", R"("stream_options":{})", R"("user":5)"}) {
    EXPECT_THAT(ChatRefusal(fields), HasSubstr("|")) << fields;
  }
}

}  // namespace
}  // namespace fastdecode::serve
