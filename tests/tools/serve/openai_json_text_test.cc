#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/serve/api_error.h"
#include "tools/serve/openai/json_text.h"
#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using std::string_literals::operator""s;

std::string JsonString(std::string_view text) {
  std::string json;
  AppendJsonString(text, &json);
  return json;
}

std::string JsonFloat(float value) {
  std::string json;
  AppendJsonFloat(value, &json);
  return json;
}

std::string Encoded(uint32_t c) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 | c >> 6), byte(0x80 | (c & 63))};
  if (c < 0x10000) return {byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
  return {byte(0xf0 | c >> 18), byte(0x80 | (c >> 12 & 63)), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
}

TEST(AppendJsonStringTest, EscapesWhatJsonAndClientsNeed) {
  EXPECT_EQ(JsonString(""), R"("")");
  EXPECT_EQ(JsonString("plain \u00e9 \u20ac \U0001F600 </script>"), "\"plain \u00e9 \u20ac \U0001F600 </script>\"");
  EXPECT_EQ(JsonString("\"\\/"), R"("\"\\/")");
  EXPECT_EQ(JsonString("\b\f\n\r\t"), R"("\b\f\n\r\t")");
  EXPECT_EQ(JsonString("a\0b\x01\x0b\x1f\x7f"s), "\"a\\u0000b\\u0001\\u000b\\u001f\x7f\"");
  EXPECT_EQ(JsonString("\u0085\u2028\u2029"), R"("\u0085\u2028\u2029")");
  EXPECT_EQ(JsonString("\u0084\u0086\u2027\u202a"), "\"\u0084\u0086\u2027\u202a\"");
}

// One U+FFFD stands for the longest part that could have begun a character, which is what Unicode recommends.
TEST(AppendJsonStringTest, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(JsonString("a\xff"s + "b"), "\"a\ufffdb\"");
  EXPECT_EQ(JsonString("\xe2\x80"), "\"\ufffd\"");
  EXPECT_EQ(JsonString("\xe2\x80\"\xf0\x9f\x98\\"), "\"\ufffd\\\"\ufffd\\\\\"");
  EXPECT_EQ(JsonString("\xc0\x80"), "\"\ufffd\ufffd\"");                      // overlong
  EXPECT_EQ(JsonString("\xe0\x9f\xbf"), "\"\ufffd\ufffd\ufffd\"");            // overlong
  EXPECT_EQ(JsonString("\xed\xa0\x80"), "\"\ufffd\ufffd\ufffd\"");            // a surrogate
  EXPECT_EQ(JsonString("\xf4\x90\x80\x80"), "\"\ufffd\ufffd\ufffd\ufffd\"");  // beyond U+10FFFF
  EXPECT_EQ(JsonString("\x80\xc3\xa9"), "\"\ufffd\u00e9\"");
}

TEST(AppendJsonStringTest, AppendsToWhatIsThere) {
  std::string json = "[";
  AppendJsonString("x", &json);
  EXPECT_EQ(json, "[\"x\"");
}

TEST(AppendJsonStringTest, EveryCharacterReadsBackAsItself) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    const std::string text = "x" + Encoded(c) + Encoded(c);
    ASSERT_TRUE(IsUtf8(text)) << c;
    ASSERT_EQ(CountCharacters(text), 3u) << c;
    ASSERT_EQ(nlohmann::json::parse(JsonString(text)).get<std::string>(), text) << c;
  }
}

TEST(AppendJsonStringTest, RandomBytesReadBackAsTheParserWouldReplaceThem) {
  std::mt19937_64 random(7);
  // Bytes around the limits of UTF-8, so that many sequences are nearly right.
  const std::string bytes =
      "a\"\\\n\x7f\x80\x85\x8f\x90\x9f\xa0\xa8\xbf\xc0\xc1\xc2\xdf\xe0\xe2\xed\xef\xf0\xf4\xf5\xff"s;
  for (int i = 0; i < 50'000; ++i) {
    std::string text;
    for (size_t left = random() % 12; left > 0; --left) text.push_back(bytes[random() % bytes.size()]);
    const std::string json = JsonString(text);
    const std::string read = nlohmann::json::parse(json).get<std::string>();  // throws if it is no JSON
    ASSERT_EQ(read == text, IsUtf8(text)) << i;
    const std::string expected =
        nlohmann::json::parse(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    ASSERT_EQ(read, expected) << json;
    ASSERT_THAT(json, Not(HasSubstr("\n")));
  }
}

TEST(AppendJsonFloatTest, IsShortAndNeverAnInteger) {
  EXPECT_EQ(JsonFloat(0), "0.0");
  EXPECT_EQ(JsonFloat(-0.0f), "-0.0");
  EXPECT_EQ(JsonFloat(-0.5f), "-0.5");
  EXPECT_EQ(JsonFloat(0.1f), "0.1");
  EXPECT_EQ(JsonFloat(-17), "-17.0");
  EXPECT_EQ(JsonFloat(-1e-5f), "-1e-05");
  EXPECT_EQ(JsonFloat(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(JsonFloat(std::numeric_limits<float>::infinity()), "9999.0");
  EXPECT_EQ(JsonFloat(std::numeric_limits<float>::quiet_NaN()), "null");
}

TEST(AppendJsonFloatTest, ReadsBackAsTheSameFloat) {
  std::mt19937_64 random(8);
  const auto check = [](uint32_t bits) {
    const auto value = std::bit_cast<float>(bits);
    if (!std::isfinite(value)) return;
    const nlohmann::json read = nlohmann::json::parse(JsonFloat(value));
    ASSERT_TRUE(read.is_number_float()) << JsonFloat(value);
    ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(read.get<double>())), bits) << JsonFloat(value);
  };
  for (int i = 0; i < 200'000; ++i) check(static_cast<uint32_t>(random()));
  for (const uint32_t bits : {1u, 0x007fffffu, 0x00800000u, 0x7f7fffffu, 0x80000001u, 0xff7fffffu}) check(bits);
}

TEST(AppendJsonIntegerTest, HasItsLimits) {
  std::string json;
  AppendJsonInteger(std::numeric_limits<int64_t>::min(), &json);
  json += ' ';
  AppendJsonInteger(std::numeric_limits<int64_t>::max(), &json);
  EXPECT_EQ(json, "-9223372036854775808 9223372036854775807");
}

TEST(CutUtf8Test, CutsNoCharacter) {
  const std::string text = "a\u00e9\u20ac\U0001F600";  // 1 + 2 + 3 + 4 bytes
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    const std::string_view cut = CutUtf8(text, bytes);
    EXPECT_TRUE(IsUtf8(cut));
    EXPECT_TRUE(text.starts_with(cut));
    EXPECT_LE(cut.size(), bytes);
    EXPECT_LT(bytes - cut.size(), 4u);
  }
  EXPECT_EQ(CutUtf8(text, 6), "a\u00e9\u20ac");
  EXPECT_EQ(CutUtf8(text, 99), text);
}

TEST(ErrorJsonTest, HasTheFourMembers) {
  EXPECT_EQ(
      ErrorJson(BadField("top_p", "top_p: \"x\" is not a number")),
      R"({"error":{"message":"top_p: \"x\" is not a number","type":"invalid_request_error","param":"top_p","code":null}})");
  ApiError error;
  error.status = 503;
  error.message = "later";
  error.type = "overloaded_error";
  error.code = "queue_full";
  EXPECT_EQ(ErrorJson(error),
            R"({"error":{"message":"later","type":"overloaded_error","param":null,"code":"queue_full"}})");
}

}  // namespace
}  // namespace fastdecode::serve
