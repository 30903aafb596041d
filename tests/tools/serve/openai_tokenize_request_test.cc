#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/serve/openai_requests.h"
#include "tools/serve/openai/tokenize_request.h"

namespace fastdecode::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string TokenizeRefusal(const std::string& body) {
  const auto error = ErrorOf([&] { ReadTokenizeRequest(ReadJsonBody(body)); });
  return error ? error->param + "|" + error->message : "accepted";
}

std::string DetokenizeRefusal(const std::string& body) {
  const auto error = ErrorOf([&] { ReadDetokenizeRequest(ReadJsonObject(body)); });
  return error ? error->param + "|" + error->message : "accepted";
}

TEST(TokenizeRequestTest, ReadsItsFields) {
  const TokenizeRequest least = ReadTokenizeRequest(ReadJsonBody(R"({"prompt":""})"));
  EXPECT_EQ(least.prompt, "");
  EXPECT_EQ(least.model, "");
  EXPECT_TRUE(least.add_special_tokens);
  EXPECT_FALSE(least.return_token_strs);
  const TokenizeRequest most = ReadTokenizeRequest(ReadJsonBody(
      R"({"model":"tiny","prompt":"\u00e9","add_special_tokens":false,"return_token_strs":true,"other":1})"));
  EXPECT_EQ(most.model, "tiny");
  EXPECT_EQ(most.prompt, "\u00e9");
  EXPECT_FALSE(most.add_special_tokens);
  EXPECT_TRUE(most.return_token_strs);
}

TEST(TokenizeRequestTest, ReadsChats) {
  const TokenizeRequest least = ReadTokenizeRequest(ReadJsonBody(R"({"messages":[{"role":"user"}],"prompt":null})"));
  ASSERT_TRUE(least.chat.has_value());
  EXPECT_EQ(least.chat->messages, R"([{"role":"user"}])");
  EXPECT_TRUE(least.chat->add_generation_prompt);
  EXPECT_FALSE(least.add_special_tokens);
  const TokenizeRequest most = ReadTokenizeRequest(ReadJsonBody(
      R"({"messages":[{"role":"user"}],"add_generation_prompt":false,"continue_final_message":true,)"
      R"("chat_template_kwargs":{"a":1},"tools":[{"b":1,"a":2}],"add_special_tokens":true,"return_token_strs":true})"));
  ASSERT_TRUE(most.chat.has_value());
  EXPECT_FALSE(most.chat->add_generation_prompt);
  EXPECT_TRUE(most.chat->continue_final_message);
  EXPECT_EQ(most.chat->variables, R"({"a":1})");
  EXPECT_EQ(most.chat->tools, R"([{"b":1,"a":2}])");
  EXPECT_TRUE(most.add_special_tokens);
  EXPECT_TRUE(most.return_token_strs);
  EXPECT_FALSE(ReadTokenizeRequest(ReadJsonBody(R"({"prompt":"a"})")).chat.has_value());
}

TEST(TokenizeRequestTest, RefusesWhatItCannotRead) {
  EXPECT_THAT(TokenizeRefusal("{}"), StartsWith("prompt|prompt: it is missing"));
  EXPECT_EQ(TokenizeRefusal(R"({"content":"a"})"), "content|content: it is called prompt here");
  EXPECT_THAT(TokenizeRefusal(R"({"prompt":null})"), StartsWith("prompt|prompt: it is missing"));
  EXPECT_THAT(TokenizeRefusal(R"({"prompt":["a"]})"), StartsWith("prompt|prompt: a list of 1 is not a string"));
  EXPECT_THAT(TokenizeRefusal(R"({"prompt":"a","messages":[{"role":"user","content":"a"}]})"),
              StartsWith("messages|messages: there is a prompt, too"));
  EXPECT_THAT(TokenizeRefusal(R"({"messages":[]})"), StartsWith("messages|messages: the list is empty"));
  EXPECT_THAT(TokenizeRefusal(R"({"messages":[{"role":"user"}],"chat_template":"a"})"), StartsWith("chat_template|"));
  EXPECT_THAT(TokenizeRefusal(R"({"prompt":"a","add_special_tokens":1})"), StartsWith("add_special_tokens|"));
  EXPECT_THAT(TokenizeRefusal(R"({"prompt":"a","return_token_strs":"no"})"), StartsWith("return_token_strs|"));
  EXPECT_THAT(TokenizeRefusal(R"({"prompt":"a","model":1})"), StartsWith("model|"));
}

TEST(DetokenizeRequestTest, ReadsItsFields) {
  const DetokenizeRequest request = ReadDetokenizeRequest(ReadJsonObject(R"({"model":"tiny","tokens":[0,5.0,7]})"));
  EXPECT_EQ(request.model, "tiny");
  EXPECT_THAT(request.tokens, ElementsAre(0, 5, 7));
  EXPECT_THAT(ReadDetokenizeRequest(ReadJsonObject(R"({"tokens":[]})")).tokens, IsEmpty());
}

TEST(DetokenizeRequestTest, RefusesWhatItCannotRead) {
  EXPECT_THAT(DetokenizeRefusal("{}"), StartsWith("tokens|tokens: they are missing"));
  EXPECT_THAT(DetokenizeRefusal(R"({"tokens":"abc"})"), StartsWith("tokens|tokens: \"abc\" is not a list of token"));
  EXPECT_THAT(DetokenizeRefusal(R"({"tokens":[1,"2"]})"), StartsWith("tokens|tokens[1]: \"2\" is not a token id"));
  EXPECT_THAT(DetokenizeRefusal(R"({"tokens":[-1]})"), StartsWith("tokens|tokens[0]: -1 is not a token id"));
}

}  // namespace
}  // namespace fastdecode::serve
