#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/serve/openai_errors.h"
#include "tools/serve/openai/json_reader.h"
#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The message of a refusal, which must be a 400.
std::string RefusalOf(const std::string& body) {
  const std::optional<ApiError> error = ErrorOf([&] { ReadJsonObject(body); });
  if (!error) return "it was accepted";
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->type, "invalid_request_error");
  EXPECT_LT(error->message.size(), 400u);
  return error->message;
}

std::string Repeated(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

TEST(ReadJsonObjectTest, ReadsWhatTheParserItselfReads) {
  for (const char* body : {"{}", " \t\r\n{ } \n", R"({"a":[1,-2,3.5,1e3,true,false,null,"x"],"b":{"c":{},"d":[]}})",
                           R"({"a":18446744073709551615,"b":-9223372036854775808,"c":"\u00e9\ud83d\ude00\u0000"})",
                           R"([{"a":[[{"b":[]}]]}])", R"({"":{"":""}})"}) {
    const nlohmann::json expected = nlohmann::json::parse(body);
    if (expected.is_object()) {
      EXPECT_EQ(ReadJsonObject(body), expected) << body;
    } else {
      EXPECT_THAT(RefusalOf(body), AllOf(HasSubstr("array"), HasSubstr("send an object")));
    }
  }
}

TEST(ReadJsonObjectTest, TheLastValueOfAKeyCounts) {
  EXPECT_EQ(ReadJsonObject(R"({"a":1,"b":{"c":2},"a":[3],"b":{"d":4}})"),
            nlohmann::json::parse(R"({"a":[3],"b":{"d":4}})"));
}

TEST(ReadJsonObjectTest, AByteOrderMarkIsSkipped) {
  EXPECT_EQ(ReadJsonObject("\xef\xbb\xbf{\"a\":1}"), nlohmann::json::parse(R"({"a":1})"));
  EXPECT_THAT(RefusalOf("\xef\xbb\xbf{\"a\":}"), HasSubstr("line 1, column 6"));
}

TEST(ReadJsonObjectTest, SaysWhereItIsWrong) {
  EXPECT_THAT(RefusalOf("{\"a\": 1,\n \"b\" 2}"), AllOf(HasSubstr("line 2, column 6"), HasSubstr("expected ':'")));
  EXPECT_THAT(RefusalOf("{\"a\": \"\u00e9\u00e9\" x}"), HasSubstr("line 1, column 12"));
  EXPECT_THAT(RefusalOf("{\"a\":1} {}"), AllOf(HasSubstr("line 1, column 9"), HasSubstr("end of input")));
  EXPECT_THAT(RefusalOf("{\"a\":1"), AllOf(HasSubstr("line 1, column 7"), HasSubstr("unexpected end of input")));
  EXPECT_THAT(RefusalOf("{'a':1}"), HasSubstr("line 1, column 2"));
  EXPECT_THAT(RefusalOf("{\"a\":1,}"), HasSubstr("line 1, column 8"));
  EXPECT_THAT(RefusalOf("{\"a\":1} // b"), HasSubstr("line 1, column 9"));
  EXPECT_THAT(RefusalOf("{\"a\":01}"), HasSubstr("line 1, column 7"));
  EXPECT_THAT(RefusalOf("prompt=hello"), HasSubstr("line 1, column 1"));
}

TEST(ReadJsonObjectTest, RefusesWhatIsNoObject) {
  EXPECT_THAT(RefusalOf(""), HasSubstr("empty"));
  EXPECT_THAT(RefusalOf(" \r\n"), HasSubstr("empty"));
  EXPECT_THAT(RefusalOf("\xef\xbb\xbf"), HasSubstr("empty"));
  EXPECT_THAT(RefusalOf("null"), HasSubstr("JSON null; send an object"));
  EXPECT_THAT(RefusalOf("17"), HasSubstr("JSON number; send an object"));
  EXPECT_THAT(RefusalOf("\"text\""), HasSubstr("JSON string; send an object"));
}

TEST(ReadJsonObjectTest, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(RefusalOf("{\"a\":\"x\xff\"}"), AllOf(HasSubstr("line 1, column 8"), HasSubstr("UTF-8")));
  EXPECT_THAT(RefusalOf("{\"a\":\"\xc0\x80\"}"), HasSubstr("UTF-8"));      // overlong
  EXPECT_THAT(RefusalOf("{\"a\":\"\xed\xa0\x80\"}"), HasSubstr("UTF-8"));  // a surrogate
  EXPECT_THAT(RefusalOf("{\"a\":\"\xe2\x80\"}"), HasSubstr("UTF-8"));      // half a character
  EXPECT_THAT(RefusalOf("\xff\xfe{\0}\0"), HasSubstr("line 1, column 1"));
}

TEST(ReadJsonObjectTest, RefusesLoneSurrogates) {
  for (const char* text : {R"({"a":"\ud800"})", R"({"a":"\udc00"})", R"({"a":"\ud800\u0041"})", R"({"a":"\ud800x"})"}) {
    EXPECT_THAT(RefusalOf(text), AllOf(HasSubstr("line 1, column"), HasSubstr("surrogate"))) << text;
  }
}

TEST(ReadJsonObjectTest, RefusesNumbersThatJsonHasNot) {
  for (const char* number : {"NaN", "Infinity", "-Infinity"}) {
    EXPECT_THAT(RefusalOf(std::string("{\"a\":") + number + "}"),
                AllOf(HasSubstr("line 1, column"), HasSubstr("JSON has no NaN and no Infinity")));
  }
  EXPECT_THAT(RefusalOf("{\"a\":nan}"), HasSubstr("line 1, column 7"));
  EXPECT_THAT(RefusalOf("{\"a\":1e999}"), AllOf(HasSubstr("line 1, column"), HasSubstr("1e999")));
  EXPECT_THAT(RefusalOf("{\"a\":+1}"), HasSubstr("line 1, column 6"));
}

TEST(ReadJsonObjectTest, AZeroByteEndsNothing) {
  using std::string_literals::operator""s;
  EXPECT_THAT(RefusalOf("{}\0"s), AllOf(HasSubstr("line 1, column 3"), HasSubstr("0 byte")));
  EXPECT_THAT(RefusalOf("{\"a\":1}\0{\"b\":"s), HasSubstr("line 1, column 8"));
  EXPECT_THAT(RefusalOf("{\"a\":\"\0\"}"s), HasSubstr("line 1, column 7"));
}

// A list nested `depth` deep as the only member of the object, which is the first level.
std::string Nested(size_t depth) { return R"({"a":)" + Repeated("[", depth) + Repeated("]", depth) + "}"; }

TEST(ReadJsonObjectTest, NestingHasALimit) {
  EXPECT_TRUE(ReadJsonObject(Nested(kJsonDepthMax - 1)).contains("a"));
  EXPECT_THAT(RefusalOf(Nested(kJsonDepthMax)), AllOf(HasSubstr("line 1, column 69"), HasSubstr("more than 64 deep")));
  // What is beside each other is not nested.
  EXPECT_THAT(ReadJsonObject(R"({"a":[)" + Repeated("[],", 1000) + "[]]}")["a"], SizeIs(1001));
  // Brackets in a text are none.
  EXPECT_TRUE(ReadJsonObject(R"({"a":")" + Repeated("[", 1000) + "\"}").contains("a"));
}

TEST(ReadJsonObjectTest, DeepNestingDoesNotTakeTheStack) {
  EXPECT_THAT(RefusalOf(Repeated("[", 100'000)), HasSubstr("line 1, column 65"));
  EXPECT_THAT(RefusalOf(Repeated("{\"a\":", 100'000)), HasSubstr("more than 64 deep"));
  EXPECT_THAT(RefusalOf(Nested(100'000)), HasSubstr("more than 64 deep"));
}

TEST(ReadJsonBodyTest, ListsAndObjectsKeepTheirText) {
  const std::string list = R"([ 1.50, {"b":1,"a":"]}\"\u00e9"} ,[],[[ ]]])";
  const std::string object = "{ \"z\" : [ ],\n \"a\":{\"\u00e9\":1e2} }";
  const std::string body =
      "\ufeff {\"n\":12 ,\"list\":" + list + ",\"text\":\"[1]\",\"object\" : " + object + " ,\"none\":{}}";
  const JsonBody read = ReadJsonBody(body);
  EXPECT_EQ(read.object, ReadJsonObject(body));
  ASSERT_THAT(read.texts, SizeIs(3));
  EXPECT_EQ(read.texts.at("list"), list);
  EXPECT_EQ(read.texts.at("object"), object);
  EXPECT_EQ(read.texts.at("none"), "{}");
}

TEST(ReadJsonBodyTest, TheLastOfEqualKeysCounts) {
  const JsonBody read = ReadJsonBody(R"({"a":[1],"b":{"a":[7]},"a":[2]})");
  EXPECT_EQ(read.texts.at("a"), "[2]");
  EXPECT_EQ(read.object["a"], nlohmann::json({2}));
}

TEST(ReadJsonObjectTest, MessagesStayShortAndUtf8) {
  EXPECT_THAT(RefusalOf("{\"a\":\"" + std::string(1 << 20, 'x')), HasSubstr("missing closing quote"));
  EXPECT_THAT(RefusalOf("{\"a\":1e" + std::string(1 << 20, '9') + "}"), StartsWith("the body is not valid JSON at"));
  const std::string wide = RefusalOf("{\"a\":\"" + Repeated("\u20ac", 1000) + "\n\"}");
  EXPECT_TRUE(IsUtf8(wide)) << wide;
  EXPECT_THAT(wide, AllOf(HasSubstr("column 1007"), HasSubstr("..."), Not(HasSubstr(Repeated("\u20ac", 20)))));
}

}  // namespace
}  // namespace fastdecode::serve
