#include "engine/model/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

json Parse(const std::string& text) {
  const auto root = ParseJsonObject(text, "f.json");
  EXPECT_TRUE(root.ok()) << root.status();
  return root.ok() ? *root : json();
}

std::string ErrorOf(const std::string& text) {
  const auto root = ParseJsonObject(text, "f.json");
  EXPECT_FALSE(root.ok()) << *root;
  return std::string(root.status().message());
}

// What `read` says of a field; empty if it takes it.
template <typename Read>
std::string Refusal(const std::string& text, const Read& read) {
  const json root = Parse(text);
  absl::Status error;
  JsonFields fields(root, "f.json", "", &error);
  read(&fields);
  return std::string(error.message());
}

TEST(ParseJsonObject, TakesTheNumbersThatPythonWrites) {
  const json root = Parse(R"({"a": NaN, "b":Infinity,"c" : -Infinity , "d": [NaN,-Infinity, {"e":Infinity}], "f": -1,
                              "g": "NaN, Infinity", "h": "\"NaN", "i": ["0", "1", "000000"], "N": "-Infinity"})");
  EXPECT_TRUE(std::isnan(root["a"].get<double>()));
  EXPECT_EQ(root["b"].get<double>(), INFINITY);
  EXPECT_EQ(root["c"].get<double>(), -INFINITY);
  EXPECT_TRUE(std::isnan(root["d"][0].get<double>()));
  EXPECT_EQ(root["d"][1].get<double>(), -INFINITY);
  EXPECT_EQ(root["d"][2]["e"].get<double>(), INFINITY);
  EXPECT_EQ(root["f"], -1);
  EXPECT_EQ(root["g"], "NaN, Infinity");
  EXPECT_EQ(root["h"], "\"NaN");
  EXPECT_EQ(root["i"], json({"0", "1", "000000"})) << "strings that look like what stands for such numbers";
  EXPECT_EQ(root["N"], "-Infinity");
}

TEST(ParseJsonObject, PlacesInErrorsStayTrueBesideSuchNumbers) {
  EXPECT_THAT(ErrorOf("{\"a\": NaN, \"b\": x}"), HasSubstr("f.json: not valid JSON: [json.exception.parse_error.101] "
                                                           "parse error at line 1, column 17"));
  EXPECT_THAT(ErrorOf("{\"a\": -Infinity,\n \"b\": Infinity, c}"), HasSubstr("line 2, column 17"));
  // What Python refuses, too.
  for (const char* text : {"{NaN: 1}", "{\"a\": NaNs}", "{\"a\": nan}", "{\"a\": -NaN}", "{\"a\": +Infinity}",
                           "{\"a\": Infinity1}", "{\"a\": 1 NaN}", "{\"a\": NaN NaN}"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("f.json: not valid JSON: ")) << text;
  }
}

TEST(JsonFields, RefusesWhatIsNotFiniteWhereItIsRead) {
  const std::string text = R"({"a": NaN, "b": Infinity, "c": -Infinity, "d": 3})";
  EXPECT_EQ(Refusal(text, [](JsonFields* fields) { fields->Integer("d", 1, 5); }), "");
  EXPECT_EQ(Refusal(text, [](JsonFields* fields) { fields->Number("a", 0, 5); }),
            "f.json: a is NaN, expected a number from 0 to 5");
  EXPECT_EQ(Refusal(text, [](JsonFields* fields) { fields->NumberOr("b", 0, 1e300, 1); }),
            "f.json: b is Infinity, expected a number from 0 to 1e+300");
  EXPECT_EQ(Refusal(text, [](JsonFields* fields) { fields->IntegerOr("c", 0, 9, 1); }),
            "f.json: c is -Infinity, expected an integer from 0 to 9");
  EXPECT_EQ(Refusal(text, [](JsonFields* fields) { fields->BoolOr("a", true); }),
            "f.json: a is NaN, expected true or false");
}

TEST(JsonFields, TakesAnIntegerThatIsWrittenAsAFloat) {
  const auto integer = [](const std::string& value) {
    return Refusal("{\"a\": " + value + "}",
                   [](JsonFields* fields) { EXPECT_EQ(fields->Integer("a", 0, 4096), 2048); });
  };
  EXPECT_EQ(integer("2048"), "");
  EXPECT_EQ(integer("2048.0"), "");
  EXPECT_EQ(integer("2.048e3"), "");
  for (const char* wrong : {"2048.5", "1e300", "-1e300", "-2048.0", "4097.0", "9007199254740994.0"}) {
    const std::string refusal =
        Refusal("{\"a\": " + std::string(wrong) + "}", [](JsonFields* fields) { fields->Integer("a", 0, 4096); });
    EXPECT_THAT(refusal, AllOf(HasSubstr("f.json: a is "), HasSubstr(", expected an integer from 0 to 4096"))) << wrong;
  }
}

TEST(JsonFields, SaysNullWhereAFieldIsNull) {
  EXPECT_EQ(Refusal("{\"a\": null}", [](JsonFields* fields) { fields->Integer("a", 0, 9); }),
            "f.json: a is null, expected an integer from 0 to 9");
  EXPECT_EQ(Refusal("{}", [](JsonFields* fields) { fields->Integer("a", 0, 9); }),
            "f.json: a is missing, expected an integer from 0 to 9");
}

TEST(IsTruthy, IsPythons) {
  for (const char* text : {"null", "false", "0", "0.0", "-0.0", "\"\"", "[]", "{}"}) {
    EXPECT_FALSE(IsTruthy(json::parse(text))) << text;
  }
  for (const char* text : {"true", "1", "-1", "0.5", "\"0\"", "[0]", "[[]]", "{\"a\":null}"}) {
    EXPECT_TRUE(IsTruthy(json::parse(text))) << text;
  }
}

}  // namespace
}  // namespace fastdecode
