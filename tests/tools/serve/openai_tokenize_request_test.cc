#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/serve/openai_requests.h"

namespace fastdecode::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string TokenizeRefusal(const std::string& body) {
  const auto error = ErrorOf([&] { ReadTokenizeRequest(ReadJsonObject(body)); });
  return error ? error->param + "|" + error->message : "accepted";
}

std::string DetokenizeRefusal(const std::string& body) {
  const auto error = ErrorOf([&] { ReadDetokenizeRequest(ReadJsonObject(body)); });
  return error ? error->param + "|" + error->message : "accepted";
}

TEST(TokenizeRequestTest, ReadsItsFields) {
  const TokenizeRequest least = ReadTokenizeRequest(ReadJsonObject(R"({"prompt":""})"));
  EXPECT_EQ(least.prompt, "");
  EXPECT_EQ(least.model, "");
  EXPECT_TRUE(least.add_special_tokens);
  EXPECT_FALSE(least.return_token_strs);
  const TokenizeRequest most = ReadTokenizeRequest(ReadJsonObject(
      R"({"model":"tiny","prompt":"\u00e9","add_special_tokens":false,"return_token_strs":true,"other":1})"));
  EXPECT_EQ(most.model, "tiny");
  EXPECT_EQ(most.prompt, "\u00e9");
  EXPECT_FALSE(most.add_special_tokens);
  EXPECT_TRUE(most.return_token_strs);
}

TEST(TokenizeRequestTest, RefusesWhatItCannotRead) {
  EXPECT_THAT(TokenizeRefusal("{}"), StartsWith("prompt|prompt: it is missing"));
  EXPECT_THAT(TokenizeRefusal(R"({"prompt":null})"), StartsWith("prompt|prompt: it is missing"));
  EXPECT_THAT(TokenizeRefusal(R"({"prompt":["a"]})"), StartsWith("prompt|prompt: a list of 1 is not a string"));
  EXPECT_THAT(TokenizeRefusal(R"({"messages":[{"role":"user","content":"a"}]})"),
              StartsWith("messages|messages: they are not supported; give prompt"));
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
